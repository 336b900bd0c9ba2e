"""Which measured load tests and link tests correct the predicted times of a layout."""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from service.sizing.errors import Indivisible
from service.sizing.hardware import Gpu, Link
from service.sizing.judge import Feasible
from service.sizing.layouts import Layout, cut_by
from service.sizing.model.schemes import Compute
from service.sizing.model.shape import ModelShape
from service.sizing.performance import (
    UNCORRECTED,
    Compared,
    Correction,
    Replica,
    ServingPoint,
    Tier,
    corrected_by,
    vllm,
)
from service.sizing.performance import compared as compared_with
from service.sizing.performance.collectives import USUAL_LINKS, Links
from service.sizing.performance.link_tests import LinkTest, Measured, measured_links
from service.sizing.performance.work import Format, stage_work

BELIEVABLE = (0.25, 4.0)
"""Measured over predicted time per output token outside which a load test was not of this deployment: the largest
errors of the model on measured runs are a third and two and a half."""

Where = tuple[Gpu, Link, int]
"""A card, what joins it to others, and how many there are in a node."""

INTEGER_METHODS = ("awq", "gptq", "int", "w4a16")
FLOATING = ("fp", "bf", "float", "nv", "mx")
"""How reports spell the types of weights."""

FOUR, SIXTEEN = 4, 16
ROOM = 1024
"""Sequences that a measured copy is taken to run at once, where the load is not larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Used:
    """The correction of a layout, and the measured loads behind it."""

    correction: Correction
    points: tuple[ServingPoint, ...]


NOTHING_USED = Used(UNCORRECTED, ())


def links_for(found: Feasible) -> Measured | None:
    """The links of a layout, where link tests of the GPU tell of its collectives."""
    tests = _link_tests(found)
    if not tests:
        return None
    machine = found.machine
    layout = cut_by(found.layout, found.question.model.experts)
    return measured_links(machine.gpu, machine.link, machine.gpus_per_node, layout, tests)


def _link_tests(found: Feasible) -> tuple[LinkTest, ...]:
    return found.question.link_tests.get(found.machine.gpu.slug, ())


def used_for(found: Feasible) -> Used:
    """The measured loads of the model on the GPU that correct a layout: its own, else those of other layouts.

    The caller's own bandwidth is not corrected.
    """
    return _used_with(found, _link_tests(found))


def used_without_links(found: Feasible) -> Used:
    """The same, as if no link had been tested."""
    return _used_with(found, ())


def _used_with(found: Feasible, tests: tuple[LinkTest, ...]) -> Used:
    question = found.question
    points = question.servings.get(found.machine.gpu.slug, ())
    if not points or question.assumptions.memory_bandwidth_fraction is not None:
        return NOTHING_USED
    batch = found.settled.fitted.cache.defaults.max_num_batched_tokens
    where = found.machine.gpu, found.machine.link, found.machine.gpus_per_node
    return _used(question.model, where, points, tests, batch, cut_by(found.layout, question.model.experts))


@lru_cache(maxsize=4096)
def _used(
    model: ModelShape,
    where: Where,
    points: tuple[ServingPoint, ...],
    tests: tuple[LinkTest, ...],
    max_num_batched_tokens: int,
    layout: Layout,
) -> Used:
    by_layout = defaultdict[Layout, list[tuple[ServingPoint, Compared]]](list)
    for point in points:
        links = _links_under(point, where, tests, model.experts)
        beside = _beside(model, where, point, max_num_batched_tokens, links)
        if beside is not None:
            by_layout[cut_by(point.layout, model.experts)].append((point, beside))
    own = by_layout.pop(layout, [])
    correction = corrected_by(
        [beside for _, beside in own], [[beside for _, beside in group] for group in by_layout.values()]
    )
    if correction.tier is Tier.NONE:
        return NOTHING_USED
    used = own or [each for group in by_layout.values() for each in group]
    return Used(correction, tuple(point for point, _ in used))


def _links_under(point: ServingPoint, where: Where, tests: tuple[LinkTest, ...], experts: int) -> Links:
    """The links that a load was measured over.

    A load test given to this catalogue ran over the links that were tested, so that it corrects what they leave: what
    both found is not counted twice. One that came with the package ran elsewhere, over the usual ones.
    """
    if point.is_shipped or not tests:
        return USUAL_LINKS
    measured = measured_links(*where, cut_by(point.layout, experts), tests)
    return USUAL_LINKS if measured is None else measured.links


@lru_cache(maxsize=4096)
def _beside(
    model: ModelShape, where: Where, point: ServingPoint, max_num_batched_tokens: int, links: Links
) -> Compared | None:
    """A measured load beside its prediction; None where it was not of these weights, or cannot have been."""
    reported = reported_weights(point.precision)
    if reported is not None and not reported.may_be(checkpoint_weights(model)):
        return None
    gpu, link, gpus_per_node = where
    room = max(ROOM, ceil(point.point.concurrency))
    replica = Replica(
        model=model,
        layout=point.layout,
        gpu=gpu,
        link=link,
        gpus_per_node=gpus_per_node,
        max_num_seqs=room,
        cache_holds=room,
        max_num_batched_tokens=max_num_batched_tokens,
        engine=vllm(point.version or None),
        links=links,
    )
    try:
        beside = compared_with(replica, point.point)
    except Indivisible:
        return None
    measured = point.point.token_ms
    if measured is None or not BELIEVABLE[0] < measured / beside.tpot_ms < BELIEVABLE[1]:
        return None
    return beside


@dataclass(frozen=True, slots=True)
class Weights:
    """Bits of a weight, and whether they are an integer; None: not known."""

    bits: int
    integer: bool | None

    def may_be(self, other: "Weights") -> bool:
        """Whether both can be the same checkpoint."""
        return self.bits == other.bits and (None in (self.integer, other.integer) or self.integer == other.integer)


def reported_weights(precision: str) -> Weights | None:
    """Weights under a reported precision ("fp8", "bfloat16", "int4", "w4a16"); None where it does not tell."""
    name = precision.casefold()
    if any(method in name for method in INTEGER_METHODS):
        return Weights(8 if "8" in name else 4, integer=True)
    found = re.search(r"(16|8|4)(?!\d)", name)
    if found is None:
        return None
    return Weights(int(found[1]), False if any(kind in name for kind in FLOATING) else None)


@lru_cache(maxsize=1024)
def checkpoint_weights(model: ModelShape) -> Weights:
    """The weights that most bytes of the matrices are stored in."""
    stored = defaultdict[Format, int](int)
    for stage in stage_work(model, Layout(), "auto", False):
        for each in (*stage.dense, *stage.experts):
            stored[each.format] += each.read_bytes
    most = max(stored, key=lambda each: stored[each], default=None)
    if most is None or most.bits == SIXTEEN:
        return Weights(SIXTEEN, integer=False)
    if most.microscaled or most.compute in (Compute.FP8, Compute.FP4):
        return Weights(most.bits, integer=False)
    # Eight bits that are widened before they are multiplied may be either.
    return Weights(most.bits, integer=True if most.bits == FOUR or most.compute is Compute.INT8 else None)
