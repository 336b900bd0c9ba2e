"""Measured startups in place of predictions, as far as they reach.

A startup of the very same deployment replaces the prediction; one of the same model and GPU corrects it by what it
missed there; none reaches over an era, in which the engine divides memory alike. Figures: docs/memory.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log2

from service.sizing.engine.options import EngineOptions
from service.sizing.layouts import Layout
from service.sizing.quantities import GIB
from service.sizing.working_space import Band, Release, era_of


class Tier(StrEnum):
    """What a measured startup shares with the deployment beside model and GPU, the most first."""

    EXACT = "exact"
    SAME_VERSION = "same_version"
    SAME_ERA = "same_era"


HALF_WIDTH = {Tier.EXACT: 0.05 * GIB, Tier.SAME_VERSION: 0.15 * GIB, Tier.SAME_ERA: 0.45 * GIB}
"""Half of the band left after a correction: what nine in ten held-out startups stayed within, and a little."""

BELIEVABLE_WEIGHTS = (0.75, 1.5)
"""Measured over predicted weights outside which a startup was not of this model at this precision.

The engine has several names for one quantisation, so that names do not tell; half or double the bytes do. Up to 1.37
was seen where a kernel keeps a second layout.
"""


@dataclass(frozen=True, slots=True, eq=False)
class StartupPoint:
    """One measured startup, as far as it corrects predictions; compared by identity.

    Attributes
    ----------
    id, source : str
        What names it in the catalogue, and where it was published or who reported it.
    version : str
        vLLM release as printed, and its numbers.
    layout, options : Layout, EngineOptions
        The deployment.
    weights_bytes, overhead_bytes : int
        Loaded on a GPU; taken out of its share beside weights and cache.
    """

    id: str
    source: str
    version: str
    release: Release
    layout: Layout
    options: EngineOptions
    weights_bytes: int
    overhead_bytes: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of one layout: bytes loaded and working space by pipeline stage, and its batch."""

    version: str
    release: Release
    layout: Layout
    max_num_seqs: int
    max_num_batched_tokens: int
    eager: bool
    loaded: tuple[int, ...]
    bands: tuple[Band, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """A measured startup and how far it is from the deployment (0: the same)."""

    point: StartupPoint
    tier: Tier
    distance: float


@dataclass(frozen=True, slots=True)
class Corrected:
    """Bytes loaded and working space by pipeline stage after a correction."""

    loaded: tuple[int, ...]
    bands: tuple[Band, ...]


def nearest(wanted: Predicted, points: Sequence[tuple[StartupPoint, Predicted]]) -> Match | None:
    """The startup of the same model and GPU that says most about a deployment; None: none does.

    `points` come with what is predicted of each. Of several at one distance the one with the middle overhead is taken.
    """
    found = [
        Match(point, tier, distance)
        for point, predicted in points
        if BELIEVABLE_WEIGHTS[0] < point.weights_bytes / max(predicted.loaded) < BELIEVABLE_WEIGHTS[1]
        for tier, distance in [_reach(wanted, point, predicted)]
        if tier is not None
    ]
    if not found:
        return None
    closest = min(_order(match) for match in found)
    alike = sorted((m for m in found if _order(m) == closest), key=lambda match: match.point.overhead_bytes)
    return alike[len(alike) // 2]


def _order(match: Match) -> tuple[int, float]:
    return list(Tier).index(match.tier), match.distance


def _reach(wanted: Predicted, point: StartupPoint, predicted: Predicted) -> tuple[Tier | None, float]:
    """Tier of a startup and its distance: doublings of each size, and minor releases between."""
    if era_of(point.release) is not era_of(wanted.release) or predicted.eager != wanted.eager:
        return None, 0.0
    sizes = (
        (wanted.layout.tensor_parallel_size, point.layout.tensor_parallel_size),
        (wanted.layout.pipeline_parallel_size, point.layout.pipeline_parallel_size),
        (wanted.layout.data_parallel_size, point.layout.data_parallel_size),
        (wanted.max_num_seqs, predicted.max_num_seqs),
        (wanted.max_num_batched_tokens, predicted.max_num_batched_tokens),
    )
    distance = sum(abs(log2(ours / theirs)) for ours, theirs in sizes)
    distance += wanted.layout.expert_parallel != point.layout.expert_parallel
    distance += wanted.layout.decode_context_parallel_size != point.layout.decode_context_parallel_size
    if point.version == wanted.version and distance == 0:
        return Tier.EXACT, 0.0
    if point.release == wanted.release:
        return Tier.SAME_VERSION, distance + (point.version != wanted.version) * 0.5
    return Tier.SAME_ERA, distance + 1 + abs(point.release[1] - wanted.release[1])


def corrected(wanted: Predicted, match: Match, at_match: Predicted) -> Corrected:
    """The prediction moved by what it missed at the matched startup.

    Working space: plus measured - predicted there; weights: times measured / predicted there. For the same deployment
    both are what was measured.
    """
    scale = match.point.weights_bytes / max(at_match.loaded)
    missed = match.point.overhead_bytes - max(band.value for band in at_match.bands)
    half = HALF_WIDTH[match.tier]
    centres = [max(0.0, band.value + missed) for band in wanted.bands]
    return Corrected(
        tuple(round(loaded * scale) for loaded in wanted.loaded),
        tuple(Band(max(0.0, centre - half), centre, centre + half) for centre in centres),
    )
