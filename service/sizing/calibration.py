"""Measured startups in place of predictions, as far as they reach.

A startup of the very same deployment replaces the prediction; one of the same model and GPU corrects it by what it
missed there. Where no startup of the engine's era was fitted, one of another model on the same GPU and release shifts
the prediction a little. None reaches over an era, in which the engine divides memory alike. Figures: docs/memory.md.
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
    """What a measured startup shares with the deployment, the most first; all but the last share model and GPU."""

    EXACT = "exact"
    SAME_VERSION = "same_version"
    SAME_ERA = "same_era"
    OTHER_MODEL = "other_model"


HALF_WIDTH = {Tier.EXACT: 0.05 * GIB, Tier.SAME_VERSION: 0.15 * GIB, Tier.SAME_ERA: 0.45 * GIB}
"""Half of the band left after a correction: what nine in ten held-out startups stayed within, and a little."""

OTHER_MODEL_SHARE = 0.5
OTHER_MODEL_MOST = 0.3 * GIB
"""How much of what a startup of another model missed is expected of this one, and the most that is believed.

What two models share is collectives, graphs and the sampler's state; where those are fitted, this adds nothing.
"""

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
    id, source, model : str
        What names it in the catalogue, where it was published or who reported it, and the model as given to the engine.
    version : str
        vLLM release as printed, and its numbers.
    layout, options : Layout, EngineOptions
        The deployment.
    weights_bytes, overhead_bytes : int
        Loaded on a GPU; taken out of its share beside weights and cache.
    """

    id: str
    source: str
    model: str
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


@dataclass(frozen=True, slots=True, eq=False)
class Neighbour:
    """A measured startup of some model and what is predicted of it; compared by identity."""

    point: StartupPoint
    has_experts: bool
    predicted: Predicted

    @property
    def missed_bytes(self) -> float:
        """Measured working space beyond the predicted one."""
        return _missed(self.point, self.predicted)


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
    return _middle_of_closest(
        [
            (match, point.overhead_bytes)
            for point, predicted in points
            if is_believable(point, predicted) and (match := _reach(wanted, point, predicted)) is not None
        ]
    )


def nearest_neighbour(wanted: Predicted, has_experts: bool, neighbours: Sequence[Neighbour]) -> Match | None:
    """The startup of another model on the same GPU that says most about a deployment; None: none does.

    It must be of the same release, with experts or without as the deployment is, and only counts where no startup of
    the era was fitted. Of several at one distance the one that missed the middle amount is taken.
    """
    if era_of(wanted.release).measured:
        return None
    return _middle_of_closest(
        [
            (Match(each.point, Tier.OTHER_MODEL, _other_distance(wanted, each)), each.missed_bytes)
            for each in neighbours
            if each.point.release == wanted.release
            and each.has_experts == has_experts
            and each.predicted.eager == wanted.eager
            and is_believable(each.point, each.predicted)
        ]
    )


def is_believable(point: StartupPoint, predicted: Predicted) -> bool:
    """Whether a startup loaded what is predicted of its model, roughly."""
    return BELIEVABLE_WEIGHTS[0] < point.weights_bytes / max(predicted.loaded) < BELIEVABLE_WEIGHTS[1]


def _middle_of_closest(found: Sequence[tuple[Match, float]]) -> Match | None:
    """Of the closest matches the one in the middle by the figure beside it."""
    if not found:
        return None
    closest = min(_order(match) for match, _ in found)
    alike = sorted((each for each in found if _order(each[0]) == closest), key=lambda each: each[1])
    return alike[len(alike) // 2][0]


def _order(match: Match) -> tuple[int, float]:
    return list(Tier).index(match.tier), match.distance


def _reach(wanted: Predicted, point: StartupPoint, predicted: Predicted) -> Match | None:
    """How far a startup of the same model is: doublings of each size, and minor releases between."""
    if era_of(point.release) is not era_of(wanted.release) or predicted.eager != wanted.eager:
        return None
    distance = _between(wanted, predicted)
    if point.version == wanted.version and distance == 0:
        return Match(point, Tier.EXACT, 0.0)
    if point.release == wanted.release:
        return Match(point, Tier.SAME_VERSION, distance + (point.version != wanted.version) * 0.5)
    return Match(point, Tier.SAME_ERA, distance + 1 + abs(point.release[1] - wanted.release[1]))


def _other_distance(wanted: Predicted, other: Neighbour) -> float:
    """How far a startup of another model is: doublings of each size, of the bytes loaded too, and one for the model."""
    loaded = abs(log2(max(wanted.loaded) / max(other.predicted.loaded)))
    return 1 + _between(wanted, other.predicted) + loaded


def _between(wanted: Predicted, predicted: Predicted) -> float:
    """Doublings of each size between two deployments, and one for each choice they differ in."""
    sizes = (
        (wanted.layout.tensor_parallel_size, predicted.layout.tensor_parallel_size),
        (wanted.layout.pipeline_parallel_size, predicted.layout.pipeline_parallel_size),
        (wanted.layout.data_parallel_size, predicted.layout.data_parallel_size),
        (wanted.max_num_seqs, predicted.max_num_seqs),
        (wanted.max_num_batched_tokens, predicted.max_num_batched_tokens),
    )
    distance = sum(abs(log2(ours / theirs)) for ours, theirs in sizes)
    distance += wanted.layout.expert_parallel != predicted.layout.expert_parallel
    distance += wanted.layout.decode_context_parallel_size != predicted.layout.decode_context_parallel_size
    return distance


def corrected(wanted: Predicted, match: Match, at_match: Predicted) -> Corrected:
    """The prediction moved by what it missed at the matched startup.

    Working space: plus measured - predicted there; weights: times measured / predicted there. For the same deployment
    both are what was measured.
    """
    scale = match.point.weights_bytes / max(at_match.loaded)
    missed = _missed(match.point, at_match)
    half = HALF_WIDTH[match.tier]
    centres = [max(0.0, band.value + missed) for band in wanted.bands]
    return Corrected(
        tuple(round(loaded * scale) for loaded in wanted.loaded),
        tuple(Band(max(0.0, centre - half), centre, centre + half) for centre in centres),
    )


def shifted(wanted: Predicted, neighbour: Neighbour) -> tuple[Band, ...]:
    """Working space by pipeline stage, moved by half of what was missed at another model's startup, 0.3 GiB at most.

    The band only grows: that startup says nothing of what this model's own terms may be off by.
    """
    shift = OTHER_MODEL_SHARE * neighbour.missed_bytes
    shift = max(-OTHER_MODEL_MOST, min(OTHER_MODEL_MOST, shift))
    return tuple(
        Band(max(0.0, band.low + min(0.0, shift)), max(0.0, band.value + shift), band.high + max(0.0, shift))
        for band in wanted.bands
    )


def _missed(point: StartupPoint, predicted: Predicted) -> float:
    """Measured working space beyond the predicted one, bytes."""
    return point.overhead_bytes - max(band.value for band in predicted.bands)
