"""Corrections from measured points of a configuration, or of its siblings.

A configuration is one model, precision, GPU, layout and engine; a sibling differs in its layout only. One point shifts
a prediction; two or more, apart in load, tell what a step takes anyway from what grows with the load. Which records
belong to a configuration is decided elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, log
from statistics import fmean

STIFFNESS = 0.01
"""How strongly the two factors of a fit are held together, in squared relative errors: points a few percent apart in
load, or off by the usual 6 % between reruns, must not tear them apart."""

SIBLING_WEIGHT = 0.6
"""Share of a sibling's deviation that is expected of a configuration; its time to first token tells nothing."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One load of a measured run; None: not reported.

    Attributes
    ----------
    concurrency : float
        Requests at once in one copy.
    prompt_tokens, output_tokens : int
        Of a request, as measured.
    ttft_ms, tpot_ms : float or None
        Median, else mean.
    output_tokens_per_second : float or None
        Of one copy.
    """

    concurrency: float
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    output_tokens_per_second: float | None = None

    @property
    def token_ms(self) -> float | None:
        """Time per output token; where not reported, from throughput and time to first token by Little's law."""
        if self.tpot_ms is not None:
            return self.tpot_ms
        if self.output_tokens_per_second is None or self.output_tokens < 2:
            return None
        whole = self.concurrency * self.output_tokens / self.output_tokens_per_second * 1000
        left = (whole - (self.ttft_ms or 0.0)) / (self.output_tokens - 1)
        return left if left > 0 else None


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured point beside what is predicted of it, ms.

    Attributes
    ----------
    fixed_ms, tpot_ms : float
        Of the time per output token: the part that no load changes, and the whole.
    ttft_ms : float
        Time to first token.
    """

    measured: MeasuredPoint
    fixed_ms: float
    tpot_ms: float
    ttft_ms: float


class Tier(Enum):
    """What a correction rests on."""

    NONE = "no measurement of this configuration"
    SIBLINGS = "measured runs of the same model and GPU in another layout"
    ONE_POINT = "one measured load of this configuration"
    POINTS = "measured loads of this configuration"


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors on a prediction: of the fixed and of the load's part of a token's time, and of the first token's."""

    fixed: float = 1.0
    variable: float = 1.0
    ttft: float = 1.0
    tier: Tier = Tier.NONE

    def tpot(self, fixed: float, whole: float) -> float:
        """A corrected time per output token, of which `fixed` does not change with the load."""
        return self.fixed * fixed + self.variable * (whole - fixed)


UNCORRECTED = Correction()


def corrected_by(own: Sequence[Compared], siblings: Sequence[Sequence[Compared]] = ()) -> Correction:
    """The correction that measured points give.

    Parameters
    ----------
    own : sequence of Compared
        Points of the configuration itself. With any, siblings add nothing.
    siblings : sequence of sequences of Compared
        Points of each sibling; each sibling counts once.
    """
    timed = [each for each in own if each.measured.token_ms is not None]
    if timed:
        shift = _mean_ratio(timed)
        fixed, variable = _parts(timed, shift) if len(timed) > 1 else (shift, shift)
        return Correction(fixed, variable, _ttft_ratio(own), Tier.POINTS if len(timed) > 1 else Tier.ONE_POINT)
    known = [points for group in siblings if (points := [p for p in group if p.measured.token_ms is not None])]
    if not known:
        return UNCORRECTED
    shift = exp(SIBLING_WEIGHT * fmean(log(_mean_ratio(points)) for points in known))
    return Correction(shift, shift, 1.0, Tier.SIBLINGS)


def _mean_ratio(points: Sequence[Compared]) -> float:
    """Geometric mean of measured over predicted time per output token."""
    return exp(fmean(log((each.measured.token_ms or 0.0) / each.tpot_ms) for each in points))


def _ttft_ratio(points: Sequence[Compared]) -> float:
    """The same of the time to first token; 1 where it was not reported."""
    ratios = [log(each.measured.ttft_ms / each.ttft_ms) for each in points if each.measured.ttft_ms]
    return exp(fmean(ratios)) if ratios else 1.0


def _parts(points: Sequence[Compared], shift: float) -> tuple[float, float]:
    """Factors f and v that minimise `mean((f x fixed + v x rest) / measured - 1)^2`, held to `shift` by `STIFFNESS`.

    A factor that would fall below a tenth of the shift is held there.
    """
    rows, count = list[tuple[float, float]](), len(points)
    for each in points:
        measured = each.measured.token_ms or 1.0
        rows.append((each.fixed_ms / measured, (each.tpot_ms - each.fixed_ms) / measured))
    ff = sum(f * f for f, _ in rows) / count + STIFFNESS
    vv = sum(v * v for _, v in rows) / count + STIFFNESS
    fv = sum(f * v for f, v in rows) / count
    f1 = sum(f for f, _ in rows) / count + STIFFNESS * shift
    v1 = sum(v for _, v in rows) / count + STIFFNESS * shift
    determinant = ff * vv - fv * fv
    least = shift / 10
    return max(least, (f1 * vv - v1 * fv) / determinant), max(least, (v1 * ff - f1 * fv) / determinant)
