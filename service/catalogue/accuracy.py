"""Predicted against measured startups: how far off the memory of a plan is."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated

from service.catalogue.serving_accuracy import LeftOut
from service.catalogue.startups import StartupRecord, point_of
from service.sizing.calibration import StartupPoint
from service.sizing.engine.refusal import Refusal
from service.sizing.evidence import Kind, MeasuredError, kind_of
from service.sizing.fit import Fitted, corrected, fit
from service.sizing.hardware import Link
from service.sizing.kv_cache.planner import plan_cache
from service.sizing.quantities import GIB, Doc

if TYPE_CHECKING:
    from service.catalogue.snapshot import Snapshot

FLAT_BYTES = 2 * GIB
"""A common rule: the same working space everywhere."""

WEIGHTS_FACTOR = 1.2
"""A common rule: a fifth of the weights on top."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured startup beside what is predicted of it. Bytes per GPU, left for the cache.

    Attributes
    ----------
    measured : int
        As the engine found it.
    predicted : int
        By the formulas alone.
    calibrated : int
        Corrected by other startups; this one and its repeats are left out.
    flat, nothing, factor : int
        With a working space of 2 GiB, of none, and of a fifth of the weights.
    within : bool
        Whether the measured value lies in the predicted band.
    measured_tokens, predicted_tokens : int or None
        "GPU KV cache size" as printed, and as predicted by the formulas alone.
    """

    record: StartupRecord
    architecture: str
    release: str
    kind: Kind
    measured: int
    predicted: int
    calibrated: int
    flat: int
    nothing: int
    factor: int
    within: bool
    measured_tokens: int | None
    predicted_tokens: int | None


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one rule over some startups."""

    startups: Annotated[int, Doc("startups compared", example=43)]
    median_percent: Annotated[float, Doc("median absolute error", "% of the measured value", 0.3)]
    p90_percent: Annotated[float, Doc("nine in ten absolute errors are below", "% of the measured value", 1.2)]
    bias_percent: Annotated[float, Doc("mean error; positive: too much is promised", "% of the measured value", 0.1)]
    worst_percent: Annotated[float, Doc("largest error with its sign", "% of the measured value", -2.6)]


RULES: Mapping[str, Callable[[Compared], int]] = {
    "predicted": lambda each: each.predicted,
    "calibrated": lambda each: each.calibrated,
    "flat_2_gib": lambda each: each.flat,
    "no_working_space": lambda each: each.nothing,
    "weights_x_1_2": lambda each: each.factor,
}
"""Rules that are compared, by name."""


def compared(snapshot: "Snapshot") -> tuple[Compared, ...]:
    """Every accepted startup whose model and GPU can be sized, beside its prediction."""
    return tuple(each for record in snapshot.startups for each in _compared(snapshot, record))


def left_out(startups: Iterable[StartupRecord], found: Iterable[Compared]) -> tuple[LeftOut, ...]:
    """Accepted startups with weights and cache of which nothing is predicted, by model and GPU."""
    sized = {each.record.id for each in found}
    left = Counter(
        (record.measurement.model, record.measurement.gpu)
        for record in startups
        if record.id not in sized and point_of(record) is not None
    )
    reason = "model or card are not in the catalogue, not understood, or refused by the engine's rules"
    return tuple(LeftOut(model, gpu, count, reason) for (model, gpu), count in sorted(left.items()))


def errors_by_kind(startups: Iterable[Compared]) -> Mapping[Kind, MeasuredError]:
    """How far the formulas alone were off, by kind of deployment."""
    found = dict[Kind, MeasuredError]()
    for group in grouped(startups, lambda each: str(each.kind)).values():
        off = errors(group, RULES["predicted"])
        found[group[0].kind] = MeasuredError(off.startups, off.median_percent, off.p90_percent)
    return found


def errors(startups: Sequence[Compared], rule: Callable[[Compared], int]) -> Errors:
    """Errors of a rule over at least one startup."""
    return _errors([(rule(each), each.measured) for each in startups])


def token_errors(startups: Iterable[Compared]) -> Errors | None:
    """Errors of the printed cache size; None: no startup has it."""
    pairs = [
        (each.predicted_tokens, each.measured_tokens)
        for each in startups
        if each.predicted_tokens is not None and each.measured_tokens
    ]
    return _errors(pairs) if pairs else None


def _errors(pairs: Sequence[tuple[int, int]]) -> Errors:
    """Errors of (predicted, measured) pairs."""
    off = [(predicted - measured) / measured * 100 for predicted, measured in pairs]
    sizes = sorted(map(abs, off))
    return Errors(
        len(off), median(sizes), sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))], fmean(off), max(off, key=abs)
    )


def grouped(startups: Iterable[Compared], key: Callable[[Compared], str]) -> Mapping[str, Sequence[Compared]]:
    """Startups by a property, in its order."""
    found = defaultdict[str, list[Compared]](list)
    for each in startups:
        found[key(each)].append(each)
    return dict(sorted(found.items()))


def _compared(snapshot: "Snapshot", record: StartupRecord) -> Iterator[Compared]:
    point, measured = point_of(record), record.measurement
    if point is None or measured.available_kv_gib is None or measured.available_kv_gib <= 0:
        return
    model, gpu = snapshot.started_model(measured.model), snapshot.known_gpu(measured.gpu)
    if model is None or gpu is None:
        return
    link = gpu.link if measured.link is None else Link(measured.link)
    fitted = fit(model, point.layout, gpu, link, point.options)
    if not isinstance(fitted, Fitted):
        return
    others = tuple(
        other for other in snapshot.startup_points(measured.model).get(gpu.slug, ()) if not _repeats(other, point)
    )
    moved = corrected(fitted, model, point.layout, gpu, link, point.options, others)
    budget = point.weights_bytes + point.overhead_bytes + round(measured.available_kv_gib * GIB)
    loaded = max(fitted.loaded)
    low, high = (budget - _taken(fitted, end) for end in ("high", "low"))
    room = budget - point.weights_bytes - point.overhead_bytes
    as_stored = replace(point.options, kv_cache_dtype=measured.kv_cache_dtype or "auto")
    cached = fit(model, point.layout, gpu, link, as_stored)
    rooms = tuple(budget - stage - round(band.value) for stage, band in zip(fitted.loaded, fitted.bands, strict=True))
    yield Compared(
        record=record,
        architecture=model.architecture,
        release=f"{point.release[0]}.{point.release[1]}",
        kind=kind_of(model, gpu, point.release),
        measured=room,
        predicted=budget - _taken(fitted),
        calibrated=budget - _taken(moved),
        flat=budget - loaded - FLAT_BYTES,
        nothing=budget - loaded,
        factor=budget - round(WEIGHTS_FACTOR * loaded),
        within=low - GIB // 200 <= room <= high + GIB // 200,
        measured_tokens=measured.kv_tokens,
        predicted_tokens=_tokens(cached, rooms),
    )


def _tokens(fitted: Fitted | Refusal, rooms: tuple[int, ...]) -> int | None:
    """The cache size the engine would print; None where it would refuse to start."""
    if isinstance(fitted, Refusal):
        return None
    planned = plan_cache(fitted.cache, rooms)
    return None if isinstance(planned, Refusal) else planned.tokens


def _taken(fitted: Fitted, end: str = "value") -> int:
    """Bytes the fullest stage takes beside its cache."""
    return max(loaded + round(getattr(band, end)) for loaded, band in zip(fitted.loaded, fitted.bands, strict=True))


def _repeats(other: StartupPoint, point: StartupPoint) -> bool:
    """Whether a startup is the same one or a repeat of it: the same release, layout and batch."""
    return (other.release, other.layout, other.options.max_num_seqs, other.options.max_num_batched_tokens) == (
        point.release,
        point.layout,
        point.options.max_num_seqs,
        point.options.max_num_batched_tokens,
    )
