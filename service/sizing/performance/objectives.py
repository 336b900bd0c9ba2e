"""Promises: the largest load that keeps them, a rate that can be served, and the curve between."""

from dataclasses import dataclass

from service.sizing.performance.calibration import UNCORRECTED, Correction, Tier
from service.sizing.performance.prediction import Load, Replica, copy_of, predict
from service.sizing.performance.serving import MOST_UTILISATION

COLD_SAFETY = 1.15
"""Factor on a predicted time per output token before it is held against a promise, without a measured point.

Of 303 decisions on configurations that the fit had not seen, 4 % then promised too much (16 % without the factor), and
95 % came within one doubling of the load.
"""

TTFT_SAFETY = 1.5
"""The same for the time to first token, whose error is larger: 12 % of 327 decisions promised too much."""

CALIBRATED_SAFETY = 1.08
"""Factor on both with measured points of the configuration."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One load of a copy, central values."""

    concurrency: int
    tpot_ms: float
    ttft_ms: float
    output_tokens_per_second: float


def keeps(
    replica: Replica,
    load: Load,
    *,
    ttft_ms: float | None,
    tpot_ms: float | None,
    correction: Correction = UNCORRECTED,
    safety: float | None = None,
) -> bool:
    """Whether a load keeps its promises with a margin.

    Parameters
    ----------
    ttft_ms, tpot_ms : float or None
        Promised at most; None: not promised.
    safety : float or None
        Factor on both predictions; None: by what is measured of the configuration.
    """
    found = predict(replica, load, correction)
    calibrated = correction.tier in (Tier.ONE_POINT, Tier.POINTS)
    token = safety or (CALIBRATED_SAFETY if calibrated else COLD_SAFETY)
    first = safety or (CALIBRATED_SAFETY if calibrated else TTFT_SAFETY)
    return (
        found.sustainable
        and (tpot_ms is None or found.tpot_ms.value * token <= tpot_ms)
        and (ttft_ms is None or found.ttft_ms.value * first <= ttft_ms)
    )


def largest_concurrency(
    replica: Replica,
    prompt_tokens: int,
    output_tokens: int,
    *,
    ttft_ms: float | None,
    tpot_ms: float | None,
    correction: Correction = UNCORRECTED,
    safety: float | None = None,
) -> int:
    """Most requests at once in one copy that keep the promises; 0 where not even one does.

    Times never fall as requests are added, so halving the range finds it. Requests beyond what a copy runs at once
    would wait for a place: they are not counted.
    """

    def kept(concurrency: int) -> bool:
        load = Load(concurrency, prompt_tokens, output_tokens)
        return keeps(replica, load, ttft_ms=ttft_ms, tpot_ms=tpot_ms, correction=correction, safety=safety)

    low, high = 0, int(copy_of(replica, prompt_tokens, output_tokens).limit)
    while low < high:
        middle = (low + high + 1) // 2
        if kept(middle):
            low = middle
        else:
            high = middle - 1
    return low


def largest_rate(replica: Replica, prompt_tokens: int, output_tokens: int) -> float:
    """Most requests a second over all copies that are not refused: `MOST_UTILISATION` of what they complete."""
    copy = copy_of(replica, prompt_tokens, output_tokens)
    return MOST_UTILISATION * copy.at(copy.limit).requests_per_second * replica.layout.data_parallel_size


def curve(replica: Replica, prompt_tokens: int, output_tokens: int, points: int = 32) -> tuple[CurvePoint, ...]:
    """Central values over the loads a copy can run, evenly spaced by factor; throughput over all copies."""
    copy = copy_of(replica, prompt_tokens, output_tokens)
    loads = dict.fromkeys(round(copy.limit ** (index / max(1, points - 1))) for index in range(points))
    result = list[CurvePoint]()
    for concurrency in loads:
        state = copy.at(concurrency)
        tokens = state.requests_per_second * replica.layout.data_parallel_size * output_tokens
        result.append(CurvePoint(concurrency, state.tpot_s * 1000, state.ttft_s * 1000, tokens))
    return tuple(result)
