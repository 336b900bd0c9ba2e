"""Time of communication between GPUs.

An all-reduce takes a start and its bytes over a bandwidth, both measured. Measured tables have humps where the library
changes its algorithm (around 256 KiB to 4 MiB); serving runs do not show them, so the line below the humps is used.

Source: all-reduce of vLLM 0.14 to 0.27 on each class of link, 256 B to 1 GiB, from the package aiconfigurator-core
0.12.0.
"""

from dataclasses import dataclass

from service.sizing.hardware import Gpu, Link

Line = tuple[float, float]
"""Microseconds to start, and GB/s of the message."""

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

NVLINK_CLASSES = ((300e9, NVLINK3), (450e9, NVLINK4), (900e9, NVLINK5))
"""Tables by what a GPU moves over NVLink, bytes a second and direction."""

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


@dataclass(frozen=True, slots=True)
class Collective:
    """Seconds of a collective of `bytes_`: `start_s + bytes_ / bytes_per_s`."""

    start_s: float
    bytes_per_s: float

    def seconds(self, bytes_: float) -> float:
        """Time of one call."""
        return self.start_s + bytes_ / self.bytes_per_s


def all_reduce(ranks: int, gpu: Gpu, link: Link, gpus_per_node: int, *, start_factor: float) -> Collective:
    """The all-reduce of `ranks` GPUs.

    Sizes between the measured ones take the next larger. Links of another speed than those measured scale the
    bandwidth of the nearest. Across nodes the network decides.

    Parameters
    ----------
    start_factor : float
        How many times longer a start takes inside the engine.
    """
    if ranks > gpus_per_node and ranks > gpu.gpus_per_domain:
        start, rate = BETWEEN_NODES
        return Collective(start * start_factor * 1e-6, rate * 1e9)
    lines, scale = _lines(gpu, link)
    start, rate = lines[next((size for size in sorted(lines) if size >= ranks), max(lines))]
    return Collective(start * start_factor * 1e-6, rate * scale * 1e9)


def _lines(gpu: Gpu, link: Link) -> tuple[dict[int, Line], float]:
    """The nearest table, and by how much this link is faster."""
    rate = gpu.link_bandwidth_bytes_per_s
    if link is Link.PCIE:
        return PCIE5, min(rate, PCIE5_BYTES_PER_S) / PCIE5_BYTES_PER_S
    if link is not gpu.link:
        # A bridge, whose speed the catalogue does not know, is at least as fast as this.
        return PCIE5, 1.0
    if gpu.gpus_per_domain > DOMAIN_OF_A_NODE and rate >= NVLINK_CLASSES[-1][0]:
        return NVLINK5_RACK, 1.0
    measured, lines = min(NVLINK_CLASSES, key=lambda each: max(each[0] / rate, rate / each[0]))
    return lines, rate / measured


def handoff(link: Link, *, between_nodes: bool) -> Collective:
    """Passing a tensor to the next pipeline stage."""
    start, rate = HANDOFF_BETWEEN_NODES if between_nodes else HANDOFF[link]
    return Collective(start * 1e-6, rate * 1e9)
