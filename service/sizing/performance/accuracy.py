"""How far off the predictions are on measured runs, beside what plain rooflines say."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Annotated

from service.sizing.performance.calibration import Compared, MeasuredPoint, corrected_by
from service.sizing.performance.objectives import COLD_SAFETY
from service.sizing.performance.prediction import Load, Prediction, Replica, compared, predict
from service.sizing.performance.work import stage_work
from service.sizing.quantities import Doc

ROOFLINE_BANDWIDTH = 0.85
"""Share of the rated bandwidth that plain rooflines assume."""

PROMISES_MS = (15.0, 25.0, 40.0, 60.0)
"""Times per output token that decisions are tried with."""


@dataclass(frozen=True, slots=True)
class Run:
    """A measured point and the deployment it was measured on.

    `configuration` names what stays the same between its loads.
    """

    configuration: str
    replica: Replica
    point: MeasuredPoint


@dataclass(frozen=True, slots=True)
class ServingErrors:
    """Absolute errors of one predicted quantity over some measured points."""

    points: Annotated[int, Doc("measured points", example=182)]
    median_percent: Annotated[float, Doc("median absolute error", "% of the measured value", 9.0)]
    mean_percent: Annotated[float, Doc("mean absolute error", "% of the measured value", 12.2)]
    p90_percent: Annotated[float, Doc("nine in ten absolute errors are below", "% of the measured value", 25.0)]
    within_band_percent: Annotated[
        float | None, Doc("share of the points that lie in the predicted band; null: no band", "%", 84.0)
    ] = None


@dataclass(frozen=True, slots=True)
class Decisions:
    """Largest measured load said to keep a time per output token, against the largest that did, per cent of cases.

    Loads of a case are those measured, mostly doublings; no load at all counts as one step below the smallest.
    """

    cases: Annotated[int, Doc("decisions: a configuration, lengths and a promise that some measured load keeps")]
    exact_percent: Annotated[float, Doc("the largest load that keeps it was named", "%", 61.0)]
    within_one_step_percent: Annotated[float, Doc("it, or the measured load next to it", "%", 95.0)]
    promised_too_much_percent: Annotated[float, Doc("a load was named that breaks the promise", "%", 4.0)]


@dataclass(frozen=True, slots=True)
class ServingAccuracy:
    """Errors by what was predicted and by which rule."""

    tpot: Annotated[ServingErrors, Doc("time per output token, without any correction")]
    ttft: Annotated[ServingErrors | None, Doc("time to first token, without any correction")]
    throughput: Annotated[ServingErrors | None, Doc("output tokens a second, without any correction")]
    roofline_tpot: Annotated[
        ServingErrors, Doc("time per output token by a plain roofline, at 85 % of the rated bandwidth")
    ]
    calibrated_tpot: Annotated[
        ServingErrors | None,
        Doc("points between a configuration's fastest and slowest, corrected by these two and no others"),
    ]
    decisions: Annotated[Decisions | None, Doc("largest load said to keep a time per output token")]
    safe_decisions: Annotated[Decisions | None, Doc("the same with the margin that plans take")]


@dataclass(frozen=True, slots=True)
class _Judged:
    run: Run
    prediction: Prediction
    compared: Compared
    tpot_ms: float


def evaluate(runs: Iterable[Run]) -> ServingAccuracy:
    """Compare measured runs with predictions of them; those without a time per output token are left out.

    Raises
    ------
    ValueError
        When none has one.
    """
    judged = [
        _Judged(run, _predicted(run), compared(run.replica, run.point), tpot)
        for run in runs
        if (tpot := run.point.token_ms) is not None
    ]
    if not judged:
        raise ValueError("no run has a time per output token to compare with")
    ttft = [(each, value) for each in judged if (value := each.run.point.ttft_ms) is not None]
    rate = [(each, value) for each in judged if (value := each.run.point.output_tokens_per_second) is not None]
    calibrated = _calibrated(judged)
    groups = _by_load(judged)
    return ServingAccuracy(
        tpot=_errors(
            [(each.prediction.tpot_ms.value, each.tpot_ms) for each in judged],
            [each.prediction.tpot_ms.low <= each.tpot_ms <= each.prediction.tpot_ms.high for each in judged],
        ),
        ttft=_errors(
            [(each.prediction.ttft_ms.value, value) for each, value in ttft],
            [each.prediction.ttft_ms.low <= value <= each.prediction.ttft_ms.high for each, value in ttft],
        )
        if ttft
        else None,
        throughput=_errors(
            [(_copy_rate(each), value) for each, value in rate],
            [_copy_rate(each, "low") <= value <= _copy_rate(each, "high") for each, value in rate],
        )
        if rate
        else None,
        roofline_tpot=_errors([(roofline_ms(each.run), each.tpot_ms) for each in judged]),
        calibrated_tpot=_errors(calibrated) if calibrated else None,
        decisions=_decisions(groups, 1.0),
        safe_decisions=_decisions(groups, COLD_SAFETY),
    )


def roofline_ms(run: Run) -> float:
    """The plain roofline: weights of the experts visited and the cache, once, at 85 % of the rated bandwidth."""
    replica, point = run.replica, run.point
    bytes_ = 0.0
    for work in stage_work(replica.model, replica.layout, replica.kv_cache_dtype, True):
        bytes_ += sum(each.read_bytes for each in work.dense) + work.head_bytes
        for each in work.experts:
            copies = replica.layout.data_parallel_size if each.shares_tokens else 1
            bytes_ += each.read_bytes * (1 - (1 - each.active / each.count) ** (point.concurrency * copies))
        context = point.prompt_tokens + point.output_tokens / 2
        cached = sum(each.attended(context) * each.token_bytes for each in work.attention)
        bytes_ += point.concurrency / replica.layout.pipeline_parallel_size * (cached + work.state_bytes)
    return bytes_ / (replica.gpu.memory_bandwidth_bytes_per_s * ROOFLINE_BANDWIDTH) * 1000


def _predicted(run: Run) -> Prediction:
    point = run.point
    return predict(run.replica, Load(point.concurrency, point.prompt_tokens, point.output_tokens))


def _copy_rate(each: _Judged, end: str = "value") -> float:
    rate: float = getattr(each.prediction.output_tokens_per_second, end)
    return rate / each.run.replica.layout.data_parallel_size


def _errors(pairs: Sequence[tuple[float, float]], within: Sequence[bool] = ()) -> ServingErrors:
    """Errors of (predicted, measured) pairs."""
    sizes = sorted(abs(predicted / measured - 1) * 100 for predicted, measured in pairs)
    return ServingErrors(
        points=len(sizes),
        median_percent=median(sizes),
        mean_percent=fmean(sizes),
        p90_percent=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        within_band_percent=100 * fmean(within) if within else None,
    )


def _grouped(judged: Sequence[_Judged], key: Callable[[_Judged], object]) -> list[list[_Judged]]:
    groups = defaultdict[object, list[_Judged]](list)
    for each in judged:
        groups[key(each)].append(each)
    return list(groups.values())


def _calibrated(judged: Sequence[_Judged]) -> list[tuple[float, float]]:
    """The points of each configuration between its fastest and slowest, predicted with these two as measurements."""
    pairs = list[tuple[float, float]]()
    for group in _grouped(judged, lambda each: each.run.configuration):
        ordered = sorted(group, key=lambda each: each.tpot_ms)
        if len(ordered) > 2:
            correction = corrected_by([ordered[0].compared, ordered[-1].compared])
            pairs += [
                (correction.tpot(each.compared.fixed_ms, each.compared.tpot_ms), each.tpot_ms) for each in ordered[1:-1]
            ]
    return pairs


def _by_load(judged: Sequence[_Judged]) -> list[list[_Judged]]:
    """Loads of the same requests on the same configuration, one point a load, at least two."""

    def same(each: _Judged) -> object:
        return each.run.configuration, each.run.point.prompt_tokens, each.run.point.output_tokens

    found = list[list[_Judged]]()
    for group in _grouped(judged, same):
        loads = {each.run.point.concurrency: each for each in group}
        if len(loads) > 1:
            found.append([loads[load] for load in sorted(loads)])
    return found


def _decisions(groups: Sequence[Sequence[_Judged]], safety: float) -> Decisions | None:
    """Decisions at each promise that some but not every measured load keeps."""
    steps = list[int]()
    for group in groups:
        for promise in PROMISES_MS:
            kept = _largest(each.tpot_ms <= promise for each in group)
            if 0 < kept < len(group):
                steps.append(_largest(each.prediction.tpot_ms.value * safety <= promise for each in group) - kept)
    if not steps:
        return None
    return Decisions(
        cases=len(steps),
        exact_percent=100 * fmean(step == 0 for step in steps),
        within_one_step_percent=100 * fmean(abs(step) <= 1 for step in steps),
        promised_too_much_percent=100 * fmean(step > 0 for step in steps),
    )


def _largest(kept: Iterable[bool]) -> int:
    """How many loads, from the smallest, are below the largest that keeps the promise, that one included."""
    return max((number for number, each in enumerate(kept, 1) if each), default=0)
