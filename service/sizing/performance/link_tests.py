"""How measured link tests move the collectives of a deployment.

A test is held against what NCCL usually takes among as many GPUs of its link: the shortest message against the usual
start, long ones against the usual times at their sizes. What it found moves the engine's own line, so that a test of a
usual machine changes nothing, and humps where NCCL changes its algorithm cancel out. Figures: docs/performance.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import ceil, log2
from statistics import median

from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.performance.collectives import (
    DOMAIN_OF_A_NODE,
    LARGE_BYTES,
    OWN_RANKS,
    Links,
    Scale,
    UsualNccl,
    crosses_nodes,
    usual_all_reduce,
    usual_handoff,
)

SHORT_BYTES = 32 << 10
"""Largest message whose time is a start: two tokens of a model 8,192 wide."""

SHARE_PER_DOUBLING = 0.5
"""Share of a deviation, on a logarithmic scale, that is expected of a group twice or half as large, or of another
operation: on L40S half of what eight cards missed was what four did."""

OWN_START_SHARE = 0.6
"""Share of the deviation of NCCL's start that the engine's own kernels show: the mean between classes of NVLink. A
shorter start than usual (tests in CUDA graphs have it) says nothing of them."""

MOST_FASTER = 4.0
"""Times the usual rate of a link inside a node above which a test was of another link."""


class Kind(StrEnum):
    """The collectives of a deployment."""

    ALL_REDUCE = "all_reduce"
    EXCHANGE = "exchange"
    HANDOFF = "handoff"
    HANDOFF_BETWEEN_NODES = "handoff_between_nodes"


PAIR = 2
"""Inside a node a pair reaches each other directly, so that pairs and larger groups tell nothing of each other: L40S as
pairs were as fast as usual, as four and eight they took three and eight times as long."""

ALL_REDUCE, SEND_RECEIVE = "all_reduce", "sendrecv"
GATHERED = ("all_gather", "reduce_scatter")

TELL: dict[Kind, tuple[str, ...]] = {
    Kind.ALL_REDUCE: (ALL_REDUCE,),
    Kind.EXCHANGE: (*GATHERED, ALL_REDUCE, "alltoall"),
    Kind.HANDOFF: (SEND_RECEIVE,),
    Kind.HANDOFF_BETWEEN_NODES: (SEND_RECEIVE,),
}
"""Operations that say something of a collective. Copies exchange tokens by gathering and scattering them."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkTest:
    """One run of an operation of NCCL or RCCL over a group of GPUs; compared by identity.

    Attributes
    ----------
    id, source : str
        Names it; where it was published or who measured it.
    operation : str
        As the tests name it ("all_reduce").
    link : Link or None
        What joins the GPUs of a node; None: the card's usual link.
    ranks, nodes : int
        GPUs taking part, and the machines they are in.
    bus_factor : float
        Bytes that cross the bus for each byte of a message.
    points : tuple of (int, float)
        Bytes of a message, and seconds it took.
    """

    id: str
    source: str
    operation: str
    link: Link | None
    ranks: int
    nodes: int
    bus_factor: float
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What one test says of a collective.

    Attributes
    ----------
    distance : float
        Doublings of GPUs and nodes between the two groups, and one for another operation; 0: the same.
    start, rate : float or None
        Measured over usual: the time to start, and the bytes a second. None: no message was short or long enough.
    """

    test: LinkTest
    distance: float
    start: float | None
    rate: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """How a collective of a deployment is moved, and by which tests."""

    kind: Kind
    between_nodes: bool
    scale: Scale
    start: Told | None
    rate: Told | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The links of a deployment, and what was found of each collective that a test tells of."""

    links: Links
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A collective that a layout uses."""

    kind: Kind
    ranks: int
    nodes: int
    between_nodes: bool


@lru_cache(maxsize=4096)
def measured_links(
    gpu: Gpu, link: Link, gpus_per_node: int, layout: Layout, tests: tuple[LinkTest, ...]
) -> Measured | None:
    """The links of one copy, or of a group of copies that share experts; None: no test tells of its collectives."""
    found = tuple(
        moved
        for wanted in _wanted(layout, gpu, gpus_per_node)
        if (moved := _found(wanted, [told for test in tests if (told := _told(wanted, test, gpu, link))], link))
    )
    if not found:
        return None
    return Measured(Links(**{each.kind.value: each.scale for each in found}), found)


def _wanted(layout: Layout, gpu: Gpu, gpus_per_node: int) -> Iterable[_Wanted]:
    tensor, stages = layout.tensor_parallel_size, layout.pipeline_parallel_size
    group = tensor * layout.data_parallel_size
    for kind, ranks in ((Kind.ALL_REDUCE, tensor), (Kind.EXCHANGE, group if group > tensor else 1)):
        if ranks > 1:
            yield _Wanted(kind, ranks, ceil(ranks / gpus_per_node), crosses_nodes(ranks, gpu, gpus_per_node))
    between = {starts_node(stage, tensor, gpus_per_node) for stage in range(1, stages)}
    if False in between:
        yield _Wanted(Kind.HANDOFF, 2, 1, between_nodes=False)
    if True in between:
        yield _Wanted(Kind.HANDOFF_BETWEEN_NODES, 2, 2, between_nodes=True)


def starts_node(stage: int, tensor: int, gpus_per_node: int) -> bool:
    """Whether the ranks of a pipeline stage, counted from 0, begin a node."""
    return stage * tensor >= gpus_per_node and stage * tensor % gpus_per_node == 0


def _told(wanted: _Wanted, test: LinkTest, gpu: Gpu, link: Link) -> Told | None:
    """What a test says of a collective; None: it was of another kind or link, or says nothing."""
    if test.operation not in TELL[wanted.kind] or _crossed_nodes(test, gpu) != wanted.between_nodes:
        return None
    if not wanted.between_nodes and (test.link or gpu.link) is not link:
        return None
    if test.operation == SEND_RECEIVE:
        # Pairs talk, however many of them.
        usual, factor, distance = usual_handoff(link, between_nodes=wanted.between_nodes), 1.0, 0.0
    elif not wanted.between_nodes and (test.ranks == PAIR) != (wanted.ranks == PAIR):
        return None
    else:
        usual = usual_all_reduce(test.ranks, gpu, link, between_nodes=wanted.between_nodes)
        # As many bytes as an all-reduce would move over the bus for such a message.
        factor = test.bus_factor / (2 * (test.ranks - 1) / test.ranks)
        distance = abs(log2(test.ranks / wanted.ranks)) + (
            abs(log2(test.nodes / wanted.nodes)) if wanted.between_nodes else 0.0
        )
        own = GATHERED if wanted.kind is Kind.EXCHANGE else (ALL_REDUCE,)
        distance += test.operation not in own
    start, rate = _start(test, usual), _rate(test, usual, factor)
    if rate is not None and rate > MOST_FASTER and not wanted.between_nodes:
        return None
    return None if start is None and rate is None else Told(test, distance, start, rate)


def _crossed_nodes(test: LinkTest, gpu: Gpu) -> bool:
    """Whether a test ran over the network between nodes, and not inside a rack that one link joins."""
    return test.nodes > 1 and (gpu.gpus_per_domain <= DOMAIN_OF_A_NODE or test.ranks > gpu.gpus_per_domain)


def _start(test: LinkTest, usual: UsualNccl) -> float | None:
    """The shortest time of a short message over the usual start."""
    short = [seconds for size, seconds in test.points if 0 < size <= SHORT_BYTES]
    return min(short) / usual.start_s if short else None


def _rate(test: LinkTest, usual: UsualNccl, factor: float) -> float | None:
    """Usual over measured time of long messages, in the median."""
    ratios = [
        usual.seconds(size * factor) / seconds for size, seconds in test.points if size * factor >= LARGE_BYTES[0]
    ]
    return median(ratios) if ratios else None


def _found(wanted: _Wanted, told: Sequence[Told], link: Link) -> Found | None:
    """The nearest test of the start and the nearest of the rate; of several at one distance the middle one."""
    starts = [(each.distance, each.start, each) for each in told if each.start is not None]
    rates = [(each.distance, each.rate, each) for each in told if each.rate is not None]
    start, rate = _nearest(starts), _nearest(rates)
    if start is None and rate is None:
        return None
    scale = Scale(
        1.0 if start is None else _moved_start(wanted, start, link),
        1.0 if rate is None else (rate.rate or 1.0) ** SHARE_PER_DOUBLING**rate.distance,
    )
    return Found(wanted.kind, wanted.between_nodes, scale, start, rate)


def _nearest(found: Sequence[tuple[float, float, Told]]) -> Told | None:
    if not found:
        return None
    closest = min(distance for distance, _, _ in found)
    alike = sorted((each[1], each[2].test.id, number) for number, each in enumerate(found) if each[0] == closest)
    return found[alike[len(alike) // 2][2]][2]


def _moved_start(wanted: _Wanted, told: Told, link: Link) -> float:
    """The factor on the engine's start."""
    start = (told.start or 1.0) ** SHARE_PER_DOUBLING**told.distance
    has_own = wanted.kind in (Kind.ALL_REDUCE, Kind.EXCHANGE) and wanted.ranks in OWN_RANKS
    if has_own and not wanted.between_nodes and link is not Link.PCIE:
        return float(max(1.0, start) ** OWN_START_SHARE)
    return float(start)
