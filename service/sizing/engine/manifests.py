"""Commands and manifests that start the engine in a container."""

import re
import shlex
from dataclasses import dataclass

RELEASE = re.compile(r"v?(?P<minor>\d+\.\d+)(?P<patch>\.\d+)?(?P<rest>.*)")
NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Container:
    """The engine in a container on one machine.

    Attributes
    ----------
    model, version, vendor : str
        What is served, by which release, on whose cards.
    gpus : int
        GPUs of the machine that are used; `whole_node` where that is all of them.
    devices : tuple of int or None
        Which GPUs, where that is known.
    arguments : tuple of str
        Words after the model.
    spans_nodes : bool
        Whether other machines take part.
    """

    model: str
    version: str
    vendor: str
    gpus: int
    whole_node: bool
    devices: tuple[int, ...] | None
    arguments: tuple[str, ...]
    spans_nodes: bool = False

    @property
    def image(self) -> str:
        """The published container image of the release: `v0.33.0`; of what is no release (`nightly`) its own tag."""
        name = "vllm-openai-rocm" if self.vendor == "amd" else "vllm-openai"
        return f"vllm/{name}:{image_tag(self.version)}"


def image_tag(version: str) -> str:
    """The tag of a version: three numbers behind a `v`, as releases are tagged; without what no tag may hold."""
    found = RELEASE.fullmatch(version)
    if found is None:
        return NOT_IN_A_TAG.sub("-", version).lstrip("-.") or "latest"
    return f"v{found['minor']}{found['patch'] or '.0'}{NOT_IN_A_TAG.sub('-', found['rest'])}"


def docker(container: Container) -> str:
    """The machine's command: loopback port, host IPC, the plan's GPUs, caches mounted, the hub's token passed on."""
    if container.vendor == "amd":
        gpus = "--device /dev/kfd --device /dev/dri --group-add video"
    elif container.whole_node and container.devices is None:
        gpus = "--gpus all"
    else:
        devices = container.devices or tuple(range(container.gpus))
        # The inner quotes are docker's own: without them it reads the comma as the end of the value.
        gpus = f"--gpus '\"device={','.join(map(str, devices))}\"'"
    return " ".join(
        (
            "docker run --rm",
            gpus,
            "--ipc=host",
            "--network host" if container.spans_nodes else "-p 127.0.0.1:8000:8000",
            "-v ~/.cache/huggingface:/root/.cache/huggingface",
            "-v ~/.cache/vllm:/root/.cache/vllm",
            "-e HF_TOKEN",
            container.image,
            shlex.join((container.model, *container.arguments)),
        )
    )


def compose(container: Container) -> str:
    """A compose file."""
    words = "\n".join(f"      - {_yaml(word)}" for word in (container.model, *container.arguments))
    if container.vendor == "amd":
        gpus = "    devices:\n      - /dev/kfd\n      - /dev/dri\n    group_add:\n      - video\n"
    else:
        which = (
            f"              count: {container.gpus}\n"
            if container.devices is None
            else f"              device_ids: [{', '.join(_yaml(str(device)) for device in container.devices)}]\n"
        )
        gpus = (
            "    deploy:\n"
            "      resources:\n"
            "        reservations:\n"
            "          devices:\n"
            "            - driver: nvidia\n"
            f"{which}"
            "              capabilities: [gpu]\n"
        )
    return (
        "services:\n"
        "  vllm:\n"
        f"    image: {container.image}\n"
        "    ipc: host\n"
        "    ports:\n"
        '      - "127.0.0.1:8000:8000"\n'
        "    environment:\n"
        "      - HF_TOKEN\n"
        "    volumes:\n"
        "      - ~/.cache/huggingface:/root/.cache/huggingface\n"
        "      - ~/.cache/vllm:/root/.cache/vllm\n"
        "    command:\n"
        f"{words}\n"
        f"{gpus}"
    )


def kubernetes(container: Container) -> str:
    """A deployment and a service."""
    resource = "amd.com/gpu" if container.vendor == "amd" else "nvidia.com/gpu"
    words = "\n".join(f"            - {_yaml(word)}" for word in (container.model, *container.arguments))
    return (
        "apiVersion: apps/v1\n"
        "kind: Deployment\n"
        "metadata:\n"
        "  name: vllm\n"
        "spec:\n"
        "  replicas: 1\n"
        "  selector:\n"
        "    matchLabels: {app: vllm}\n"
        "  template:\n"
        "    metadata:\n"
        "      labels: {app: vllm}\n"
        "    spec:\n"
        "      containers:\n"
        "        - name: vllm\n"
        f"          image: {container.image}\n"
        "          args:\n"
        f"{words}\n"
        "          env:\n"
        "            - name: HF_TOKEN\n"
        "              valueFrom:\n"
        "                secretKeyRef: {name: hf-token, key: token, optional: true}\n"
        "          ports:\n"
        "            - containerPort: 8000\n"
        "          readinessProbe:\n"
        "            httpGet: {path: /health, port: 8000}\n"
        "            failureThreshold: 120\n"
        "            periodSeconds: 10\n"
        "          resources:\n"
        "            limits:\n"
        f"              {resource}: {container.gpus}\n"
        "          volumeMounts:\n"
        "            - {name: shm, mountPath: /dev/shm}\n"
        "            - {name: cache, mountPath: /root/.cache}\n"
        "      volumes:\n"
        "        - name: shm\n"
        "          emptyDir: {medium: Memory}\n"
        "        - name: cache\n"
        "          emptyDir: {}\n"
        "---\n"
        "apiVersion: v1\n"
        "kind: Service\n"
        "metadata:\n"
        "  name: vllm\n"
        "spec:\n"
        "  selector: {app: vllm}\n"
        "  ports:\n"
        "    - port: 8000\n"
    )


def _yaml(word: str) -> str:
    """A word as a YAML scalar that stays a string."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
