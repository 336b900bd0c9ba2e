"""Time of communication between GPUs.

An all-reduce takes a start and its bytes over a bandwidth, both measured. Measured tables have humps where the library
changes its algorithm (around 256 KiB to 4 MiB); serving runs do not show them, so the line below the humps is used.

A link test of NCCL or RCCL says how a link differs from others of its class. Inside a node the engine sums short
messages with kernels of its own, whose start is shorter than NCCL's, so a test is held against what NCCL usually takes
there, and the engine's line is moved by what it found (`Scale`).

Source: all-reduce of vLLM 0.14 to 0.27 and of NCCL 2.27 and 2.29 on each class of link, 256 B to 1 GiB, from the
package aiconfigurator-core 0.12.0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

from service.sizing.hardware import Gpu, Link

Line = tuple[float, float]
"""Microseconds to start, and GB/s of the message."""

LARGE_BYTES = (8 << 20, 32 << 20, 128 << 20, 512 << 20)
"""Sizes from which on bandwidth decides, at which NCCL's usual times are kept."""

NcclTimes = tuple[float, tuple[float, float, float, float]]
"""Microseconds of NCCL's all-reduce: of the shortest message up to 32 KiB, and of each of `LARGE_BYTES`."""

NVLINK3: dict[int, Line] = {2: (4.89, 192.2), 4: (5.22, 144.5), 8: (5.78, 127.3)}
"""A100."""

NVLINK4: dict[int, Line] = {2: (4.45, 319.1), 4: (4.56, 232.4), 8: (4.78, 264.4)}
"""H100 and H200."""

NVLINK5: dict[int, Line] = {2: (6.97, 538.1), 4: (7.07, 418.1), 8: (7.79, 403.8)}
"""B200 and B300."""

NVLINK5_RACK: dict[int, Line] = {2: (7.42, 560.2), 4: (7.87, 417.7), 8: (13.56, 367.4), 16: (48.74, 342.2)}
"""GB300 NVL72."""

PCIE5: dict[int, Line] = {2: (4.17, 38.8), 4: (12.76, 20.1), 8: (25.5, 13.8)}
"""RTX PRO 6000 with peer access."""

NCCL_NVLINK3: dict[int, NcclTimes] = {
    2: (10.0, (87.13, 224.2, 747.5, 2781.1)),
    4: (13.9, (111.0, 288.0, 1000.5, 3716.3)),
    8: (21.3, (128.0, 367.0, 1169.1, 4225.9)),
}
NCCL_NVLINK4: dict[int, NcclTimes] = {
    2: (5.9, (46.46, 141.3, 464.6, 1695.1)),
    4: (9.4, (61.41, 173.6, 612.7, 2305.4)),
    8: (15.8, (78.60, 198.6, 571.6, 2075.4)),
}
NCCL_NVLINK5: dict[int, NcclTimes] = {
    2: (9.9, (40.92, 82.71, 269.2, 996.4)),
    4: (14.7, (84.50, 120.9, 339.9, 1266.0)),
    8: (24.9, (70.82, 167.3, 394.9, 1335.0)),
}
NCCL_NVLINK5_RACK: dict[int, NcclTimes] = NCCL_NVLINK5 | {16: (45.9, (97.18, 168.2, 520.1, 1617.8))}
"""Two and four GPUs of GB200 and GB300 were within 5 % of B200 and B300; sixteen are as vLLM took."""

NCCL_PCIE5: dict[int, NcclTimes] = {
    2: (6.2, (243.8, 930.6, 3620.3, 13901.0)),
    4: (12.9, (508.6, 2022.0, 8037.9, 30489.0)),
    8: (24.2, (661.4, 2493.6, 9757.4, 38073.0)),
}


@dataclass(frozen=True, slots=True)
class LinkClass:
    """What was measured of a class of link, by ranks: the engine's all-reduce, and NCCL's."""

    engine: dict[int, Line]
    nccl: dict[int, NcclTimes]


NVLINK_CLASSES = (
    (300e9, LinkClass(NVLINK3, NCCL_NVLINK3)),
    (450e9, LinkClass(NVLINK4, NCCL_NVLINK4)),
    (900e9, LinkClass(NVLINK5, NCCL_NVLINK5)),
)
"""Tables by what a GPU moves over NVLink, bytes a second and direction."""

RACK_CLASS = LinkClass(NVLINK5_RACK, NCCL_NVLINK5_RACK)
PCIE_CLASS = LinkClass(PCIE5, NCCL_PCIE5)

PCIE5_BYTES_PER_S = 64e9

WORST_PCIE = 6.0
"""How many times slower a host without peer access between its sockets was with four and eight L40S."""

BETWEEN_NODES: Line = (40.0, 28.0)
"""NCCL over InfiniBand: 48.5 GB/s of bus bandwidth, measured on nodes of eight H200; the start is assumed."""

HANDOFF: dict[Link, Line] = {Link.NVLINK: (8.0, 230.0), Link.XGMI: (15.0, 100.0), Link.PCIE: (15.0, 20.0)}
"""Passing a tensor to the next stage inside a node."""

HANDOFF_BETWEEN_NODES: Line = (18.0, 34.0)
"""The same over InfiniBand."""

DOMAIN_OF_A_NODE = 8
"""GPUs that NVLink joins inside one chassis; larger domains are racks."""


OWN_RANKS = (2, 4, 6, 8)
"""Ranks that the engine sums over NVLink or xGMI with kernels of its own (vLLM `custom_all_reduce.py`)."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How a link differs from the usual one: so many times longer to start, so many times the bytes a second."""

    start: float = 1.0
    rate: float = 1.0


AS_USUAL = Scale()


@dataclass(frozen=True, slots=True)
class Links:
    """How the links of a deployment differ from the usual ones.

    Attributes
    ----------
    all_reduce, exchange : Scale
        Of the sums over tensor ranks; of the tokens that expert ranks gather and scatter.
    handoff, handoff_between_nodes : Scale
        Of what a pipeline stage passes on, inside a node and to the next.
    """

    all_reduce: Scale = AS_USUAL
    exchange: Scale = AS_USUAL
    handoff: Scale = AS_USUAL
    handoff_between_nodes: Scale = AS_USUAL


USUAL_LINKS = Links()


@dataclass(frozen=True, slots=True)
class Collective:
    """Seconds of a collective of `bytes_`: `start_s + bytes_ / bytes_per_s`."""

    start_s: float
    bytes_per_s: float

    def seconds(self, bytes_: float) -> float:
        """Time of one call."""
        return self.start_s + bytes_ / self.bytes_per_s

    def scaled(self, scale: Scale) -> "Collective":
        """The same over a link that differs from the usual one."""
        return Collective(self.start_s * scale.start, self.bytes_per_s * scale.rate)


def crosses_nodes(ranks: int, gpu: Gpu, gpus_per_node: int) -> bool:
    """Whether a group of ranks talks over the network between nodes."""
    return ranks > gpus_per_node and ranks > gpu.gpus_per_domain


def all_reduce(ranks: int, gpu: Gpu, link: Link, gpus_per_node: int, *, start_factor: float) -> Collective:
    """The all-reduce of `ranks` GPUs.

    Sizes between the measured ones take the next larger. Links of another speed than those measured scale the
    bandwidth of the nearest. Across nodes the network decides.

    Parameters
    ----------
    start_factor : float
        How many times longer a start takes inside the engine.
    """
    if crosses_nodes(ranks, gpu, gpus_per_node):
        start, rate = BETWEEN_NODES
        return Collective(start * start_factor * 1e-6, rate * 1e9)
    lines, scale = _class_of(gpu, link)
    start, rate = lines.engine[_measured_ranks(ranks, lines.engine)]
    return Collective(start * start_factor * 1e-6, rate * scale * 1e9)


def _measured_ranks(ranks: int, measured: Iterable[int]) -> int:
    """The next larger group that was measured, else the largest."""
    sizes = sorted(measured)
    return next((size for size in sizes if size >= ranks), sizes[-1])


def _class_of(gpu: Gpu, link: Link) -> tuple[LinkClass, float]:
    """The nearest class of links, and by how much this link is faster."""
    rate = gpu.link_bandwidth_bytes_per_s
    if link is Link.PCIE:
        return PCIE_CLASS, min(rate, PCIE5_BYTES_PER_S) / PCIE5_BYTES_PER_S
    if link is not gpu.link:
        # A bridge, whose speed the catalogue does not know, is at least as fast as this.
        return PCIE_CLASS, 1.0
    if gpu.gpus_per_domain > DOMAIN_OF_A_NODE and rate >= NVLINK_CLASSES[-1][0]:
        return RACK_CLASS, 1.0
    measured, lines = min(NVLINK_CLASSES, key=lambda each: max(each[0] / rate, rate / each[0]))
    return lines, rate / measured


def handoff(link: Link, *, between_nodes: bool) -> Collective:
    """Passing a tensor to the next pipeline stage."""
    start, rate = HANDOFF_BETWEEN_NODES if between_nodes else HANDOFF[link]
    return Collective(start * 1e-6, rate * 1e9)


@dataclass(frozen=True, slots=True)
class UsualNccl:
    """What NCCL usually takes on a link, seconds: to start, and for each of `LARGE_BYTES`."""

    start_s: float
    large_s: tuple[float, ...]

    @classmethod
    def of_line(cls, line: Line) -> "UsualNccl":
        """That of a link of which only a line is known."""
        start, rate = line
        return cls(start * 1e-6, tuple(start * 1e-6 + size / (rate * 1e9) for size in LARGE_BYTES))

    def seconds(self, bytes_: float) -> float:
        """Of a message from 8 MiB on: between two of `LARGE_BYTES` on a logarithmic scale, beyond them at one rate."""
        if bytes_ >= LARGE_BYTES[-1]:
            return self.large_s[-1] * bytes_ / LARGE_BYTES[-1]
        after = next(number for number, size in enumerate(LARGE_BYTES[1:], 1) if size >= bytes_)
        share = log(bytes_ / LARGE_BYTES[after - 1]) / log(LARGE_BYTES[after] / LARGE_BYTES[after - 1])
        return self.large_s[after - 1] ** (1 - share) * self.large_s[after] ** share


def usual_all_reduce(ranks: int, gpu: Gpu, link: Link, *, between_nodes: bool) -> UsualNccl:
    """NCCL's all-reduce of `ranks` GPUs; links of another speed than those measured scale the long messages' times."""
    if between_nodes:
        return UsualNccl.of_line(BETWEEN_NODES)
    lines, scale = _class_of(gpu, link)
    start, times = lines.nccl[_measured_ranks(ranks, lines.nccl)]
    return UsualNccl(start * 1e-6, tuple(time * 1e-6 / scale for time in times))


def usual_handoff(link: Link, *, between_nodes: bool) -> UsualNccl:
    """NCCL's passing of a tensor to the next rank."""
    return UsualNccl.of_line(HANDOFF_BETWEEN_NODES if between_nodes else HANDOFF[link])
