"""What vLLM and NCCL make of a group of GPUs, and which split of a model suits the links.

Source: vLLM 0.33 `distributed/device_communicators/custom_all_reduce.py`, `platforms/cuda.py`, `platforms/rocm.py`,
`config/parallel.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from service.sizing.hardware import Link, Vendor
from service.sizing.topology.links import LinkClass, PeerCapability, PeerStatus
from service.sizing.topology.machine import Topology

CUSTOM_ALL_REDUCE_WORLD_SIZES = (2, 4, 6, 8, 16)
"""World sizes for which vLLM sets its own all-reduce up."""

CUSTOM_ALL_REDUCE_LARGEST_USED = 8
"""Largest world size for which the all-reduce that was set up is also used."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something holds, and why.

    `enabled` is None where the paste does not show enough. `engine_message` is what vLLM logs, None where it is silent.
    """

    enabled: bool | None
    reason: str
    engine_message: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting: whether it helps here (None: only if the named symptom appears), why, and what it costs."""

    helps: bool | None
    reason: str
    cost: str


@dataclass(frozen=True, slots=True)
class Split:
    """One way to spread a model over GPUs.

    `devices` is in visible order: each run of `tensor_parallel_size` is one pipeline stage. `link` is that of the
    weakest pair inside a stage, None where unknown or where a stage is one GPU.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    devices: tuple[int, ...]
    link: Link | None
    custom_all_reduce: Verdict
    reason: str


def custom_all_reduce(topology: Topology, devices: Sequence[int], amd_gfx: str | None = None) -> Verdict:
    """Whether vLLM's own all-reduce serves a tensor parallel group, or NCCL does all the work.

    It serves 2, 4, 6 or 8 GPUs of one node; above two GPUs every pair must be joined by NVLink (on AMD by XGMI in one
    hop); on NVIDIA every pair needs peer access; on AMD the card must be of the MI300 series or newer. It only takes
    messages under 8 MiB: prefill goes through NCCL anyway.

    Parameters
    ----------
    topology : Topology
    devices : sequence of int
        The group, as `Topology.devices_for` gives it.
    amd_gfx : str, optional
        Architecture of an AMD card ("gfx942"), which no topology paste names.

    Returns
    -------
    Verdict
        `enabled` False also where `--disable-custom-all-reduce` would change nothing.
    """
    world = len(devices)
    if world == 1:
        return Verdict(False, "one GPU has nothing to reduce")
    if topology.mig:
        return Verdict(False, "MIG slices have no peer access to each other")
    if world not in CUSTOM_ALL_REDUCE_WORLD_SIZES:
        sizes = list(CUSTOM_ALL_REDUCE_WORLD_SIZES)
        return Verdict(
            False,
            f"vLLM's all-reduce is made for {', '.join(map(str, sizes))} GPUs, not {world}",
            f"Custom allreduce is disabled due to an unsupported world size: {world}. "
            f"Supported world sizes: {sizes}. To silence this warning, specify disable_custom_all_reduce=True "
            "explicitly.",
        )
    if topology.vendor is Vendor.AMD and not (amd_gfx or "gfx94").startswith(("gfx94", "gfx95")):
        return Verdict(False, f"on AMD only the MI300 series and newer (gfx94, gfx95) have it, not {amd_gfx}")
    fabric = "XGMI" if topology.vendor is Vendor.AMD else "NVLink"
    joined = _all(_fully_connected(topology, a, b) for a, b in combinations(devices, 2))
    if world > 2 and joined is False:
        return Verdict(
            False,
            f"more than two GPUs, and not every pair is joined by {fabric} directly "
            f"(the weakest pair is {topology.weakest(devices)}): NCCL reduces instead",
            "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
            "To silence this warning, specify disable_custom_all_reduce=True explicitly.",
        )
    # vLLM asks for peer access on NVIDIA only.
    amd = topology.vendor is Vendor.AMD
    access = amd or _all(topology.peer_access(a, b) for a, b in combinations(devices, 2))
    if access is False:
        return Verdict(
            False,
            "the peer status denies access between some of the GPUs",
            "Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed. "
            "To silence this warning, specify disable_custom_all_reduce=True explicitly.",
        )
    if world > CUSTOM_ALL_REDUCE_LARGEST_USED:
        return Verdict(False, f"vLLM sets it up for {world} GPUs but reduces through NCCL above 8")
    if world > 2 and joined is None:
        return Verdict(None, f"on only if every pair is joined by {fabric}, which the paste does not show")
    if access is None:
        return Verdict(None, "on if the two GPUs have peer access: paste `nvidia-smi topo -p2p r` to see it")
    if amd and amd_gfx is None:
        return Verdict(None, "on for the MI300 series and newer (gfx94, gfx95), off for other AMD cards")
    return Verdict(True, f"every pair is joined by {fabric}" if joined else "two GPUs with peer access")


def _all(answers: Iterable[bool | None]) -> bool | None:
    """False if any is False, else None if any is None, else True."""
    known = set(answers)
    return False if False in known else None if None in known else True


def _fully_connected(topology: Topology, a: int, b: int) -> bool | None:
    """What vLLM asks the driver of a pair: NVLink peer status OK, or XGMI in one hop; None if not shown."""
    status = topology.peer_status(PeerCapability.NVLINK, a, b)
    if status not in (None, PeerStatus.U):
        return status is PeerStatus.OK
    pair = topology.link(a, b)
    if pair.is_fabric:
        return (pair.hops or 1) == 1
    return False if topology.nvlink_shown and pair.link_class is not LinkClass.UNKNOWN else None


def nccl_p2p_disable(topology: Topology, devices: Sequence[int]) -> Advice:
    """Whether `NCCL_P2P_DISABLE=1` is worth setting for a group, and what it costs.

    It makes NCCL copy through host memory. It repairs machines that report peer access which does not work: behind an
    IOMMU with access control services on, or in a virtual machine.
    """
    pairs = list(combinations(devices, 2))
    if not pairs:
        return Advice(False, "one GPU sends nothing to another", "none")
    if any(topology.link(a, b).is_fabric for a, b in pairs):
        return Advice(
            False,
            "some pairs are joined by NVLink or XGMI, which it would switch off too",
            "every transfer then crosses PCIe twice, through host memory: all-reduces run many times slower",
        )
    if all(topology.peer_access(a, b) is False for a, b in pairs):
        return Advice(False, "no pair has peer access: NCCL already copies through host memory", "none")
    return Advice(
        None,
        "only if vLLM hangs while NCCL starts, or answers are garbage: then peer access is reported but does not work "
        "(IOMMU, access control services, a virtual machine)",
        "every transfer crosses PCIe twice, through host memory: the all-reduces of tensor parallelism slow down most, "
        "pipeline handoffs hardly; it does not govern vLLM's own all-reduce, which --disable-custom-all-reduce "
        "switches off",
    )


def splits(topology: Topology, gpu_count: int, amd_gfx: str | None = None) -> tuple[Split, ...]:
    """Ways to spread a model over `gpu_count` GPUs of this machine, the one that suits the links best first.

    Tensor parallelism inside NVLink or XGMI groups, pipeline stages across them. Without such links: pipeline stages
    of one GPU, then of two, then tensor parallelism over all; two GPUs with peer access take tensor parallelism first.
    Whether the model divides so is not looked at.

    Raises
    ------
    ValueError
        `gpu_count` is below 1 or above what the topology offers, or above 1 on MIG slices.
    """
    everyone = topology.devices_for(gpu_count)

    def split(stages: Sequence[tuple[int, ...]], reason: str) -> Split:
        verdicts = [custom_all_reduce(topology, stage, amd_gfx) for stage in stages]
        weakest = min(stages, key=lambda stage: topology.weakest(stage).closeness)
        return Split(
            tensor_parallel_size=len(stages[0]),
            pipeline_parallel_size=len(stages),
            devices=tuple(gpu for stage in stages for gpu in stage),
            link=topology.link_of(weakest),
            custom_all_reduce=min(verdicts, key=lambda verdict: verdict.enabled is True),
            reason=reason,
        )

    if gpu_count == 1:
        return (split([everyone], "one GPU"),)
    stages = _fabric_stages(topology, gpu_count)
    if len(stages) == 1:
        return (split(stages, f"all {gpu_count} GPUs are joined pair by pair by {_name(topology, stages)}"),)
    weakest = topology.weakest(everyone)
    across = split(
        [everyone], f"tensor parallelism over all GPUs: every all-reduce waits for the weakest pair ({weakest})"
    )
    if stages:
        reason = f"tensor parallelism stays inside {_name(topology, stages)} groups, pipeline stages go across them"
        return split(stages, reason), across
    single = split(
        [(gpu,) for gpu in everyone],
        "the paste shows no NVLink or XGMI group of this size: pipeline stages send the least",
    )
    if gpu_count == 2:
        return (across, single) if topology.peer_access(*everyone) else (single, across)
    pairs = _pairs(topology, everyone)
    if not pairs:
        return single, across
    return single, split(pairs, "two close GPUs to a stage: fewer stages, all-reduces over PCIe"), across


def _fabric_stages(topology: Topology, gpu_count: int) -> list[tuple[int, ...]]:
    """The fewest equal stages that each lie in a fabric group; none if only stages of one GPU would."""
    groups = topology.fabric_groups
    for size in range(gpu_count, 1, -1):
        if gpu_count % size:
            continue
        stages: list[tuple[int, ...]] = []
        for group in groups:
            left = list(group.gpus)
            while len(left) >= size and len(stages) < gpu_count // size:
                stages.append(topology.devices_for(size, left))
                left = [gpu for gpu in left if gpu not in stages[-1]]
        if len(stages) == gpu_count // size:
            return stages
    return []


def _name(topology: Topology, stages: Sequence[tuple[int, ...]]) -> str:
    return "XGMI" if topology.link_of(stages[0]) is Link.XGMI else "NVLink"


def _pairs(topology: Topology, gpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The GPUs in close pairs; none if their number is odd or a pair is denied peer access."""
    pairs: list[tuple[int, ...]] = []
    left = list(gpus)
    while len(left) > 1:
        pairs.append(topology.devices_for(2, left))
        left = [gpu for gpu in left if gpu not in pairs[-1]]
    denied = any(topology.peer_access(*pair) is False for pair in pairs)
    return [] if left or denied else pairs
