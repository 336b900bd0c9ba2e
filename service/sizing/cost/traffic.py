"""A day's traffic, and the copies that carry it."""

from dataclasses import dataclass, replace
from decimal import Decimal

from service.sizing.cost.money import (
    DAYS_PER_MONTH,
    SECONDS_PER_HOUR,
    InvalidCostInput,
    Number,
    above_zero,
    at_least_zero,
    decimal,
    fraction,
    whole_copies,
)

HOURS_PER_DAY = 24
LONGEST_MONTHS = 1200


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests over a day, each of the same length.

    Attributes
    ----------
    requests_per_second : tuple of 24 Decimal
        Mean load in each hour of the day.
    prompt_tokens, output_tokens : int
        Of one request.
    cached_fraction : Decimal
        Share of prompt tokens a provider's cache already holds.
    growth_per_month : Decimal
        0.05 for five per cent more each month.
    """

    requests_per_second: tuple[Decimal, ...]
    prompt_tokens: int
    output_tokens: int
    cached_fraction: Decimal = Decimal(0)
    growth_per_month: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        if len(self.requests_per_second) != HOURS_PER_DAY:
            raise InvalidCostInput(
                "requests_per_second", f"{len(self.requests_per_second)} hours given, a day has {HOURS_PER_DAY}"
            )
        for rate in self.requests_per_second:
            at_least_zero(rate, "requests_per_second")
        at_least_zero(self.prompt_tokens, "prompt_tokens")
        above_zero(self.output_tokens, "output_tokens")
        fraction(self.cached_fraction, "cached_fraction")
        if not -1 < decimal(self.growth_per_month, "growth_per_month") <= 10:
            raise InvalidCostInput("growth_per_month", f"{self.growth_per_month} is not above -1 and up to 10")


def steady_traffic(
    requests_per_second: Number,
    prompt_tokens: int,
    output_tokens: int,
    *,
    hours_per_day: int = HOURS_PER_DAY,
    cached_fraction: Number = 0,
    growth_per_month: Number = 0,
) -> Traffic:
    """The same load for the first `hours_per_day` hours of every day, none in the others."""
    rate = at_least_zero(requests_per_second, "requests_per_second")
    busy = _hours(hours_per_day)
    return Traffic(
        (rate,) * busy + (Decimal(0),) * (HOURS_PER_DAY - busy),
        prompt_tokens,
        output_tokens,
        decimal(cached_fraction, "cached_fraction"),
        decimal(growth_per_month, "growth_per_month"),
    )


def traffic_of_volume(
    output_tokens_per_month: Number,
    prompt_tokens: int,
    output_tokens: int,
    *,
    hours_per_day: int = HOURS_PER_DAY,
    cached_fraction: Number = 0,
    growth_per_month: Number = 0,
) -> Traffic:
    """The steady load that makes a volume of output tokens in a month.

    requests/s = volume / (output tokens x 3,600 x hours a day x 730 / 24). A thousand million tokens a month in
    answers of 500, around the clock: 2,000,000 requests / 2,628,000 s = 0.761 a second.
    """
    requests = at_least_zero(output_tokens_per_month, "output_tokens_per_month")
    requests /= above_zero(output_tokens, "output_tokens")
    seconds = _hours(hours_per_day) * DAYS_PER_MONTH * SECONDS_PER_HOUR
    return steady_traffic(
        requests / seconds,
        prompt_tokens,
        output_tokens,
        hours_per_day=hours_per_day,
        cached_fraction=cached_fraction,
        growth_per_month=growth_per_month,
    )


def grown(traffic: Traffic, months: int) -> Traffic:
    """The traffic `months` from now.

    load x (1 + growth)^months. 10 requests/s growing 5 % a month: 10 x 1.05^12 = 17.96 after a year.
    """
    if not 0 <= months <= LONGEST_MONTHS:
        raise InvalidCostInput("months", f"{months} is not between 0 and {LONGEST_MONTHS}")
    factor = (1 + traffic.growth_per_month) ** months
    return replace(traffic, requests_per_second=tuple(rate * factor for rate in traffic.requests_per_second))


def requests_per_month(traffic: Traffic) -> Decimal:
    """Requests of a month: the sum over the hours of a day x 3,600 s x 30.4167 days.

    2 a second for 10 hours a day: 2 x 36,000 x 30.4167 = 2,190,000.
    """
    return sum(traffic.requests_per_second, Decimal(0)) * SECONDS_PER_HOUR * DAYS_PER_MONTH


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a deployment, as far as traffic is concerned.

    Attributes
    ----------
    output_tokens_per_s : Number
        Throughput at the load it is planned for.
    concurrent_sequences : int or None
        Requests it holds at once; None if memory is no limit.
    request_seconds : Number or None
        Time from a request's arrival to its last token; needed with `concurrent_sequences`.
    """

    output_tokens_per_s: Number
    concurrent_sequences: int | None = None
    request_seconds: Number | None = None


def replica_requests_per_second(replica: Replica, output_tokens: int, target_utilisation: Number = 1) -> Decimal:
    """Requests a second one copy carries: by throughput, and by the room it has (Little's law).

    min(tokens/s x utilisation / output tokens, sequences / seconds each stays). 2,000 tokens/s used to 0.8 with
    answers of 400: 4 a second; 32 sequences of 10 s: 3.2. It carries 3.2.
    """
    busy = fraction(target_utilisation, "target_utilisation", zero=False)
    carried = above_zero(replica.output_tokens_per_s, "output_tokens_per_s") * busy
    carried /= above_zero(output_tokens, "output_tokens")
    if replica.concurrent_sequences is None:
        return carried
    if replica.request_seconds is None:
        raise InvalidCostInput("request_seconds", "needed to tell what concurrent_sequences can carry")
    room = above_zero(replica.concurrent_sequences, "concurrent_sequences")
    return min(carried, room / above_zero(replica.request_seconds, "request_seconds"))


def replicas_needed(requests_per_second: Number, replica_carries: Number) -> int:
    """Copies for a load: ceil(load / what one carries). 10 a second at 3.2 each: 4. No load: 0."""
    load = at_least_zero(requests_per_second, "requests_per_second")
    return whole_copies(load / above_zero(replica_carries, "replica_carries"), "requests_per_second")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Copies by hour of the day, and what they serve in a month.

    Attributes
    ----------
    replicas : tuple of 24 int
        Copies in each hour when scaled by the hour.
    peak, floor : int
        Most and fewest of them.
    output_tokens_per_month : Decimal
        What is served.
    utilisation : Decimal
        Share of the scaled copies' throughput that is used; 0 without copies.
    """

    replicas: tuple[int, ...]
    peak: int
    floor: int
    output_tokens_per_month: Decimal
    utilisation: Decimal


def fleet(traffic: Traffic, replica: Replica, *, target_utilisation: Number = 1, floor: int = 1) -> Fleet:
    """The copies a day of traffic needs, never fewer than `floor`.

    Of each hour: ceil(load / what one carries). A copy that carries 1 request/s, 4 requests/s for 6 hours a day and
    none else, floor 1: 4 copies for 6 hours and 1 for 18.

    Parameters
    ----------
    target_utilisation : Number
        Share of its throughput a copy is planned for; what is left takes bursts within the hour.
    floor : int
        Copies kept without load; 0 scales to nothing, and the first request waits for a start.
    """
    carries = replica_requests_per_second(replica, traffic.output_tokens, target_utilisation)
    least = int(at_least_zero(floor, "floor"))
    replicas = tuple(max(least, replicas_needed(load, carries)) for load in traffic.requests_per_second)
    served = requests_per_month(traffic) * traffic.output_tokens
    seconds = sum(replicas) * DAYS_PER_MONTH * SECONDS_PER_HOUR
    possible = seconds * above_zero(replica.output_tokens_per_s, "output_tokens_per_s")
    return Fleet(
        replicas=replicas,
        peak=max(replicas),
        floor=min(replicas),
        output_tokens_per_month=served,
        utilisation=served / possible if possible else Decimal(0),
    )


def _hours(hours_per_day: int) -> int:
    if not 1 <= hours_per_day <= HOURS_PER_DAY:
        raise InvalidCostInput("hours_per_day", f"{hours_per_day} is not between 1 and {HOURS_PER_DAY}")
    return hours_per_day
