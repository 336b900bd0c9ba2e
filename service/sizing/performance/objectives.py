"""Promises: the largest load that keeps them, a rate that can be served, and the curve between.

A prediction is multiplied by a margin before it is held against a promise, so that a promise is rarely broken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, log10, sqrt

from service.sizing.performance.calibration import UNCORRECTED, Correction, Tier
from service.sizing.performance.prediction import Load, Replica, copy_of, settled
from service.sizing.performance.serving import MOST_UTILISATION, Copy, State

COLD_SAFETY = 1.15
TTFT_SAFETY = 1.5
CALIBRATED_SAFETY = 1.08


@dataclass(frozen=True, slots=True)
class Margin:
    """A factor on a predicted time before it is held against a promise.

    Attributes
    ----------
    factor : float
        At least 1.
    over_promised_percent : float
        Share of decisions on measured runs that then promised more than was kept.
    measured_on : str
        Those decisions.
    """

    factor: float
    over_promised_percent: float
    measured_on: str


TPOT_MARGINS = {
    Tier.NONE: Margin(COLD_SAFETY, 4, "303 decisions on configurations that the fit had not seen"),
    Tier.SIBLINGS: Margin(COLD_SAFETY, 4, "303 decisions on configurations that the fit had not seen"),
    Tier.ONE_POINT: Margin(COLD_SAFETY, 3, "104 decisions on vLLM runs, corrected by the lightest load of each"),
    Tier.POINTS: Margin(CALIBRATED_SAFETY, 5, "104 decisions on vLLM runs, corrected by two loads of each"),
}
"""Of the time per output token. Without a margin 16 % of the 303 promised too much; within one doubling of the load
came 96 % with it and 98 % without."""

TTFT_MARGINS = {
    Tier.NONE: Margin(TTFT_SAFETY, 12, "327 decisions on configurations that the fit had not seen"),
    Tier.SIBLINGS: Margin(TTFT_SAFETY, 12, "327 decisions on configurations that the fit had not seen"),
    Tier.ONE_POINT: Margin(TTFT_SAFETY, 11, "72 decisions on vLLM runs, corrected by the lightest load of each"),
    Tier.POINTS: Margin(TTFT_SAFETY, 6, "72 decisions on vLLM runs, corrected by two loads of each"),
}
"""Of the time to first token, which measured points improve little: with 1.08 a quarter promised too much."""

LEAST_CONCURRENCY = 1e-3
"""Requests in a copy on average below which a rate counts as none."""

ALLOWANCE = 5e-4
"""Relative, off a largest rate: more than the concurrency it settles at is uncertain by."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One load of a copy, central values; throughput over all copies."""

    concurrency: int
    tpot_ms: float
    ttft_ms: float
    output_tokens_per_second: float


def state_keeps(
    state: State | None, tier: Tier, *, ttft_ms: float | None, tpot_ms: float | None, safety: float | None = None
) -> bool:
    """Whether a copy's state keeps promises with a margin; None, a rate too high, keeps none.

    Parameters
    ----------
    ttft_ms, tpot_ms : float or None
        Promised at most; None: not promised.
    safety : float or None
        Factor on both predictions; None: by what is measured of the configuration.
    """
    return (
        state is not None
        and (tpot_ms is None or state.tpot_s * 1000 * (safety or TPOT_MARGINS[tier].factor) <= tpot_ms)
        and (ttft_ms is None or state.ttft_s * 1000 * (safety or TTFT_MARGINS[tier].factor) <= ttft_ms)
    )


def keeps(
    replica: Replica,
    load: Load,
    *,
    ttft_ms: float | None,
    tpot_ms: float | None,
    correction: Correction = UNCORRECTED,
    safety: float | None = None,
) -> bool:
    """Whether a load keeps its promises with a margin; parameters as `state_keeps`."""
    copy = copy_of(replica, load.prompt_tokens, load.output_tokens, correction)
    state = settled(copy, load, replica.layout.data_parallel_size)
    return state_keeps(state, correction.tier, ttft_ms=ttft_ms, tpot_ms=tpot_ms, safety=safety)


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

    Requests beyond what a copy runs at once would wait for a place: they are not counted.
    """
    copy = copy_of(replica, prompt_tokens, output_tokens, correction)

    def kept(state: State) -> bool:
        return state_keeps(state, correction.tier, ttft_ms=ttft_ms, tpot_ms=tpot_ms, safety=safety)

    return most_at_once(copy, kept)


def most_at_once(copy: Copy, kept: Callable[[State], bool]) -> int:
    """Most requests at once whose state is kept; times never fall as requests are added, so halving finds it."""
    low, high = 0, int(copy.limit)
    while low < high:
        middle = (low + high + 1) // 2
        if kept(copy.at(middle)):
            low = middle
        else:
            high = middle - 1
    return low


def largest_rate(
    replica: Replica,
    prompt_tokens: int,
    output_tokens: int,
    *,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    correction: Correction = UNCORRECTED,
    safety: float | None = None,
) -> float:
    """Most requests a second over all copies that keep the promises; 0 where none does.

    At most `MOST_UTILISATION` of what the copies complete at their limit.
    """
    copy = copy_of(replica, prompt_tokens, output_tokens, correction)

    def kept(state: State) -> bool:
        return state_keeps(state, correction.tier, ttft_ms=ttft_ms, tpot_ms=tpot_ms, safety=safety)

    return highest_rate(copy, kept) * replica.layout.data_parallel_size


def highest_rate(copy: Copy, kept: Callable[[State], bool]) -> float:
    """Most arrivals a second at one copy whose settled state is kept.

    Rate and times rise with the concurrency that settles, so that is halved, by factor.
    """
    most = MOST_UTILISATION * copy.at(copy.limit).requests_per_second

    def holds(concurrency: float) -> bool:
        state = copy.open_at(concurrency)
        return state.requests_per_second <= most and kept(state)

    low, high = LEAST_CONCURRENCY, copy.limit
    if not holds(low):
        return 0.0
    while high - low > ALLOWANCE / 5 * high:
        middle = sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return copy.at(low).requests_per_second * (1 - ALLOWANCE)


def rounded_down(value: float, digits: int = 3) -> float:
    """A figure shown with some digits, never more than it is."""
    if value <= 0:
        return 0.0
    places = digits - 1 - floor(log10(value))
    return floor(value * 10**places) / 10**places if places >= 0 else float(floor(value) // 10**-places * 10**-places)


def curve(
    replica: Replica, prompt_tokens: int, output_tokens: int, points: int = 32, correction: Correction = UNCORRECTED
) -> tuple[CurvePoint, ...]:
    """Central values over the loads a copy can run, evenly spaced by factor; throughput over all copies."""
    copy = copy_of(replica, prompt_tokens, output_tokens, correction)
    per_second = replica.layout.data_parallel_size * output_tokens
    return tuple(
        CurvePoint(
            round(state.concurrency), state.tpot_s * 1000, state.ttft_s * 1000, state.requests_per_second * per_second
        )
        for state in curve_of(copy, points)
    )


def curve_of(copy: Copy, points: int) -> tuple[State, ...]:
    """States of a copy from one request to as many as it runs at once, at most `points`, evenly spaced by factor."""
    loads = dict.fromkeys(round(copy.limit ** (index / max(1, points - 1))) for index in range(points))
    return tuple(copy.at(concurrency) for concurrency in loads)
