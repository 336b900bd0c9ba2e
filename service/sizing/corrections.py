"""Which measured load tests correct the predicted times of a layout."""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from service.sizing.errors import Indivisible
from service.sizing.hardware import Gpu, Link
from service.sizing.judge import Feasible
from service.sizing.layouts import Layout, cut_by
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
from service.sizing.performance.work import stage_work

BELIEVABLE = (0.25, 4.0)
"""Measured over predicted time per output token outside which a load test was not of this deployment: the largest
errors of the model on measured runs are a third and two and a half."""

Where = tuple[Gpu, Link, int]
"""A card, what joins it to others, and how many there are in a node."""

FOUR_BIT_METHODS = ("awq", "gptq")
ROOM = 1024
"""Sequences that a measured copy is taken to run at once, where the load is not larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Used:
    """The correction of a layout, and the measured loads behind it."""

    correction: Correction
    points: tuple[ServingPoint, ...]


NOTHING_USED = Used(UNCORRECTED, ())


def used_for(found: Feasible) -> Used:
    """The measured loads of the model on the GPU that correct a layout: its own, else those of other layouts.

    The caller's own bandwidth is not corrected.
    """
    question = found.question
    points = question.servings.get(found.machine.gpu.slug, ())
    if not points or question.assumptions.memory_bandwidth_fraction is not None:
        return NOTHING_USED
    batch = found.settled.fitted.cache.defaults.max_num_batched_tokens
    where = found.machine.gpu, found.machine.link, found.machine.gpus_per_node
    return _used(question.model, where, points, batch, cut_by(found.layout, question.model.experts))


@lru_cache(maxsize=4096)
def _used(
    model: ModelShape, where: Where, points: tuple[ServingPoint, ...], max_num_batched_tokens: int, layout: Layout
) -> Used:
    by_layout = defaultdict[Layout, list[tuple[ServingPoint, Compared]]](list)
    for point in points:
        beside = _beside(model, where, point, max_num_batched_tokens)
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


@lru_cache(maxsize=16384)
def _beside(model: ModelShape, where: Where, point: ServingPoint, max_num_batched_tokens: int) -> Compared | None:
    """A measured load beside its prediction; None where it was not of these weights, or cannot have been."""
    reported = weight_bits(point.precision)
    if reported is not None and reported != checkpoint_bits(model):
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
    )
    try:
        beside = compared_with(replica, point.point)
    except Indivisible:
        return None
    measured = point.point.token_ms
    if measured is None or not BELIEVABLE[0] < measured / beside.tpot_ms < BELIEVABLE[1]:
        return None
    return beside


def weight_bits(precision: str) -> int | None:
    """Bits of a weight under a reported precision ("fp8", "bfloat16", "w4a16"); None where it does not tell."""
    name = precision.casefold()
    if any(method in name for method in FOUR_BIT_METHODS):
        return 4
    found = re.search(r"w?(16|8|4)(?!\d)", name)
    return int(found[1]) if found else None


@lru_cache(maxsize=1024)
def checkpoint_bits(model: ModelShape) -> int:
    """Bits of the format that most bytes of the matrices are stored in."""
    stored = defaultdict[int, int](int)
    for stage in stage_work(model, Layout(), "auto", False):
        for each in (*stage.dense, *stage.experts):
            stored[each.format.bits] += each.read_bytes
    return max(stored, key=lambda bits: stored[bits], default=16)
