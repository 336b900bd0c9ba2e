"""POST /topology: a pasted `nvidia-smi topo -m` or one of its relatives, read."""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request, Response
from pydantic import Field

from service.api import responding
from service.api.contract import Contract
from service.api.operation import Operation
from service.api.problems import FieldError, Problem, invalid, malformed
from service.api.reading import read_body, read_bytes
from service.catalogue.snapshot import Snapshot
from service.sizing.quantities import Doc
from service.sizing.topology import Topology, TopologyNotUnderstood, read_topology, splits

MAX_PASTE_BYTES = 128 << 10


class TopologyRequest(Contract):
    """A paste."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_PASTE_BYTES)] = Field(
        description="output of `nvidia-smi topo -m` or `-p2p r`, `rocm-smi --showtopo` or `amd-smi topology`",
        examples=["\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X "],
    )


@dataclass(frozen=True, slots=True)
class GroupView:
    """GPUs of which every pair is joined by NVLink, or every pair by XGMI."""

    gpus: Annotated[tuple[int, ...], Doc("GPU numbers", example=(0, 1, 2, 3))]
    link: Annotated[str, Doc("what joins them", example="nvlink")]


@dataclass(frozen=True, slots=True)
class AllReduceView:
    """Whether vLLM's own all-reduce runs on a group."""

    enabled: Annotated[bool | None, Doc("null: the paste does not tell")]
    reason: Annotated[str, Doc("why")]
    engine_message: Annotated[str | None, Doc("what the engine logs")]


@dataclass(frozen=True, slots=True)
class SplitView:
    """A way to spread a model over GPUs of this machine."""

    tensor_parallel_size: Annotated[int, Doc("GPUs that split every layer", example=4)]
    pipeline_parallel_size: Annotated[int, Doc("stages that split the layers", example=2)]
    devices: Annotated[tuple[int, ...], Doc("GPUs in the order to make visible", example=(0, 1, 2, 3))]
    environment: Annotated[dict[str, str], Doc("what makes them visible in that order")]
    link: Annotated[str | None, Doc("what the tensor parallel groups talk over; null: unknown")]
    custom_all_reduce: Annotated[AllReduceView, Doc("vLLM's own all-reduce on these groups")]
    reason: Annotated[str, Doc("why this split suits the links")]


@dataclass(frozen=True, slots=True)
class UnreadView:
    """A line that was not understood."""

    line: Annotated[int, Doc("line number, from 1", example=7)]
    text: Annotated[str, Doc("the line")]
    reason: Annotated[str, Doc("what was not understood")]


@dataclass(frozen=True, slots=True)
class TopologyView:
    """One machine as its paste shows it."""

    vendor: Annotated[str, Doc("whose tool printed it", example="nvidia")]
    gpu_count: Annotated[int, Doc("GPUs shown", example=8)]
    gpus: Annotated[tuple[int, ...], Doc("their numbers, in the order of the matrix")]
    matrix: Annotated[tuple[tuple[str, ...], ...], Doc("link class of each pair; X on the diagonal")]
    groups: Annotated[tuple[GroupView, ...], Doc("disjoint groups complete in NVLink or XGMI, the largest first")]
    numa_groups: Annotated[tuple[tuple[int, ...], ...], Doc("GPUs that share a NUMA node, where it is shown")]
    tensor_parallel_sizes: Annotated[tuple[int, ...], Doc("sizes that some group holds; the model's heads must divide")]
    splits: Annotated[tuple[SplitView, ...], Doc("ways to use all GPUs, the one that suits the links best first")]
    warnings: Annotated[tuple[str, ...], Doc("what was doubtful and read as the weaker")]
    unread: Annotated[tuple[UnreadView, ...], Doc("lines that were not understood")]


def read_paste(text: str, field: str = "text") -> Topology:
    """A paste, read.

    Raises
    ------
    Problem
        400: it is no topology; the problem names the first lines that were not understood.
    """
    try:
        return read_topology(text)
    except TopologyNotUnderstood as error:
        raise invalid((FieldError(field, str(error)),)) from None


async def post_topology(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Read a paste, sent as JSON or as plain text."""
    snapshot: Snapshot = request.app.state.snapshot
    body = await read_bytes(request, limit=2 * MAX_PASTE_BYTES)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        text = read_body(body, TopologyRequest).text
    elif kind == "text/plain":
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise malformed("the paste is not UTF-8") from None
    else:
        raise Problem(415, "unsupported_media_type", "Unsupported media type", "send application/json or text/plain")
    view = topology_view(read_paste(text))
    return responding.answer(responding.ENCODER.encode(view), snapshot.revision)


def topology_view(topology: Topology) -> TopologyView:
    """A topology as it is answered."""
    sizes = topology.tensor_parallel_sizes
    return TopologyView(
        vendor=topology.vendor.value,
        gpu_count=topology.gpu_count,
        gpus=topology.gpus,
        matrix=tuple(tuple("X" if a == b else str(topology.link(a, b)) for b in topology.gpus) for a in topology.gpus),
        groups=tuple(GroupView(group.gpus, group.link.value) for group in topology.fabric_groups),
        numa_groups=topology.numa_groups,
        tensor_parallel_sizes=tuple(sorted({*sizes.powers_of_two, *sizes.others})),
        splits=() if topology.mig else tuple(_splits(topology)),
        warnings=topology.warnings,
        unread=tuple(UnreadView(each.number, each.text, each.reason) for each in topology.unread),
    )


def _splits(topology: Topology) -> list[SplitView]:
    found = list[SplitView]()
    for split in splits(topology, topology.gpu_count):
        verdict = split.custom_all_reduce
        found.append(
            SplitView(
                split.tensor_parallel_size,
                split.pipeline_parallel_size,
                split.devices,
                topology.visible_devices(split.devices),
                None if split.link is None else split.link.value,
                AllReduceView(verdict.enabled, verdict.reason, verdict.engine_message),
                split.reason,
            )
        )
    return found


OPERATIONS = (
    Operation(
        method="POST",
        path="/topology",
        name="topology",
        summary="Read a topology paste",
        description="Link classes of every pair, groups complete in NVLink or XGMI, the tensor parallel sizes they "
        "allow, which GPUs to put together, and what was not understood. Send the text as JSON, or raw as text/plain.",
        tag="topology",
        handler=post_topology,
        answer=TopologyView,
        body=TopologyRequest,
        plain_text_body=True,
        problems=(400, 413, 415),
        examples={
            "Four GPUs, two bridged pairs": {
                "text": "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \tNV4\tPXB\tPXB\nGPU1\tNV4\t X \tPXB\tPXB\n"
                "GPU2\tPXB\tPXB\t X \tNV4\nGPU3\tPXB\tPXB\tNV4\t X "
            }
        },
    ),
)
