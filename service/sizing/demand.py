"""From people to load: how many of them wait for an answer at once, how often they ask, what the cache must hold.

People alternate between waiting for an answer and reading it and writing the next question. The interactive response
time law (Lazowska et al., Quantitative System Performance, 1984, ch. 3) then gives the mean of those waiting; how many
wait at a busy moment follows the binomial distribution, as each waits independently of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, lgamma, log, log1p, sqrt
from statistics import NormalDist

from service.sizing.crossing import crossing

SETTLED = 1e-7
"""Relative width at which the concurrency that a load settles at is known well enough."""

LEAST_SHARE = 1e-3
"""Of a request in flight, where the fewest are looked for."""

MOST_SUMMED = 1000
"""People up to whom the binomial distribution is summed; of more, its quantile is approximated."""

NEGLIGIBLE_DEVIATIONS = 10
"""Standard deviations below the mean under which no probability is counted (1e-6 at most)."""


@dataclass(frozen=True, slots=True)
class People:
    """Who uses a deployment.

    Attributes
    ----------
    people : int
        All who may use it.
    share_active : float
        Of them, how many use it in the busy hour.
    think_s : float
        From the end of an answer to the next question.
    answer_s : float or None
        From a question to the end of its answer; None: as predicted of the deployment.
    peak_chance : float
        Share of the busy hour in which more may be in flight than planned for.
    """

    people: int
    share_active: float
    think_s: float
    answer_s: float | None
    peak_chance: float


@dataclass(frozen=True, slots=True)
class Demand:
    """The load that people make of a deployment.

    Attributes
    ----------
    mean, peak : float, int
        Requests in flight on average, and at a busy moment.
    answer_s : float
        Of an answer at the mean.
    requests_per_second : float
        On average.
    """

    mean: float
    peak: int
    answer_s: float
    requests_per_second: float


def demand_of(people: People, answer_s: Callable[[float], float]) -> Demand:
    """The load that people make where answers take longer the more are in flight.

    Parameters
    ----------
    answer_s : callable
        Seconds of an answer at a concurrency; not called where the people's own time was given.
    """
    if people.answer_s is None:
        mean = settled_concurrency(people.people, people.share_active, people.think_s, answer_s)
        took = answer_s(mean)
    else:
        took = people.answer_s
        mean = mean_concurrency(people.people, people.share_active, took, people.think_s)
    return Demand(
        mean=mean,
        peak=max(1, peak_concurrency(people.people, min(1.0, mean / people.people), people.peak_chance)),
        answer_s=took,
        requests_per_second=arrival_rate(people.people, people.share_active, took, people.think_s),
    )


def active_people(people: int, share_active: float) -> float:
    """People who use the service in the same hour: `people x share_active`."""
    return people * share_active


def waiting_share(answer_s: float, think_s: float) -> float:
    """Share of the time that an active person waits: `answer_s / (answer_s + think_s)`.

    Parameters
    ----------
    answer_s : float
        Seconds from a question to the end of its answer.
    think_s : float
        Seconds from the end of an answer to the next question.
    """
    return answer_s / (answer_s + think_s)


def mean_concurrency(people: int, share_active: float, answer_s: float, think_s: float) -> float:
    """Requests in flight on average: active people times the share of the time that each waits."""
    return active_people(people, share_active) * waiting_share(answer_s, think_s)


def arrival_rate(people: int, share_active: float, answer_s: float, think_s: float) -> float:
    """Requests a second: every active person asks once in `answer_s + think_s`."""
    return active_people(people, share_active) / (answer_s + think_s)


def peak_concurrency(people: int, busy: float, chance: float = 0.01) -> int:
    """Requests in flight that are exceeded only with a `chance`.

    The smallest k with `P(X > k) <= chance` for X binomial of `people`, each waiting a share `busy` of the time
    (`share_active x waiting_share`).
    """
    if busy <= 0:
        return 0
    if busy >= 1:
        return people
    mean, deviation = people * busy, sqrt(people * busy * (1 - busy))
    if people > MOST_SUMMED:
        # Cornish and Fisher (1938): the normal quantile, and what the skewness adds to it.
        z = NormalDist().inv_cdf(1 - chance)
        return max(0, min(people, ceil(mean + z * deviation + (z * z - 1) * (1 - 2 * busy) / 6 - 0.5)))
    below = 0.0
    for count in range(max(0, int(mean - NEGLIGIBLE_DEVIATIONS * deviation)), people + 1):
        below += exp(_log_binomial(people, count) + count * log(busy) + (people - count) * log1p(-busy))
        if 1 - below <= chance:
            return count
    return people


def settled_concurrency(people: int, share_active: float, think_s: float, answer_s: Callable[[float], float]) -> float:
    """Requests in flight on average where answers take longer the more are in flight.

    Parameters
    ----------
    answer_s : callable
        Seconds of an answer at a concurrency; must not fall as it rises.
    """
    most = active_people(people, share_active)
    least = mean_concurrency(people, share_active, answer_s(min(1.0, most) * LEAST_SHARE), think_s)
    return crossing(
        lambda waiting: waiting - mean_concurrency(people, share_active, answer_s(waiting), think_s),
        least,
        most,
        SETTLED,
    )


def cached_tokens(conversations: int, mean_tokens: float, maximum_tokens: int, chance: float = 0.01) -> int:
    """Tokens that the cache must hold for conversations of varying length, exceeded only with about a `chance`.

    The mean of their sum, and a margin for its spread: lengths between 0 and the maximum with this mean have a variance
    of at most `mean x (maximum - mean)` (Bhatia and Davis, 2000), so `n` of them add up to
    `n x mean + z x sqrt(n x mean x (maximum - mean))` with the normal quantile z. Never less than one conversation of
    the maximum, never more than all of them.
    """
    mean = min(mean_tokens, float(maximum_tokens))
    margin = NormalDist().inv_cdf(1 - chance) * sqrt(conversations * mean * (maximum_tokens - mean))
    return min(conversations * maximum_tokens, max(maximum_tokens, ceil(conversations * mean + margin)))


def _log_binomial(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
