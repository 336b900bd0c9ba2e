"""The same traffic at a hosted API, and the volume from which one's own deployment is cheaper."""

from dataclasses import dataclass
from decimal import Decimal

from service.sizing.cost.exchange import ExchangeRate, exchanged
from service.sizing.cost.money import (
    MILLION,
    MOST_COPIES,
    Number,
    above_zero,
    amount,
    at_least_zero,
    fraction,
    whole_copies,
)
from service.sizing.cost.traffic import Traffic, requests_per_month


@dataclass(frozen=True, slots=True)
class HostedRate:
    """A hosted model's prices per million tokens; cached prompt tokens cost as fresh ones unless stated."""

    input_per_million: Decimal
    output_per_million: Decimal
    cached_input_per_million: Decimal | None = None


def exchanged_rate(listed: HostedRate, currency: str, rate: ExchangeRate | None) -> HostedRate:
    """A hosted model's prices in `currency` in the currency of an answer; raises as `exchanged`."""
    cached = listed.cached_input_per_million
    return HostedRate(
        exchanged(listed.input_per_million, currency, rate),
        exchanged(listed.output_per_million, currency, rate),
        None if cached is None else exchanged(cached, currency, rate),
    )


def hosted_per_request(
    rate: HostedRate, prompt_tokens: Number, output_tokens: Number, cached_fraction: Number = 0
) -> Decimal:
    """Cost of one request.

    (fresh x input + cached x cached input + output x output price) / 1,000,000. 3,000 prompt and 500 output tokens at
    0.23 and 0.40: (690 + 200) / 1,000,000 = 0.00089.
    """
    prompt = at_least_zero(prompt_tokens, "prompt_tokens")
    cached = prompt * fraction(cached_fraction, "cached_fraction")
    fresh_price = amount(rate.input_per_million, "input_per_million")
    stated = rate.cached_input_per_million
    cached_price = fresh_price if stated is None else amount(stated, "cached_input_per_million")
    written = at_least_zero(output_tokens, "output_tokens") * amount(rate.output_per_million, "output_per_million")
    return ((prompt - cached) * fresh_price + cached * cached_price + written) / MILLION


def hosted_per_month(rate: HostedRate, traffic: Traffic) -> Decimal:
    """Cost of a month of `traffic`: requests x cost of one.

    2,190,000 requests at 0.00089: 1,949.10.
    """
    each = hosted_per_request(rate, traffic.prompt_tokens, traffic.output_tokens, traffic.cached_fraction)
    return requests_per_month(traffic) * each


def hosted_per_million_output_tokens(
    rate: HostedRate, prompt_tokens: Number, output_tokens: Number, cached_fraction: Number = 0
) -> Decimal:
    """What a million output tokens cost together with the prompts that lead to them.

    cost of a request / output tokens x 1,000,000. 0.00089 for 500: 1.78.
    """
    each = hosted_per_request(rate, prompt_tokens, output_tokens, cached_fraction)
    return each / above_zero(output_tokens, "output_tokens") * MILLION


def self_hosted_per_month(
    output_tokens_per_month: Number, replica_per_month: Decimal, replica_tokens_per_month: Number
) -> Decimal:
    """Cost of a volume on whole copies that run all month, at least one.

    max(1, ceil(volume / what a copy makes)) x its cost. 3,000 million tokens on copies that make 1,314 million at
    2,000 a month: 3 copies, 6,000.
    """
    volume = at_least_zero(output_tokens_per_month, "output_tokens_per_month")
    capacity = above_zero(replica_tokens_per_month, "replica_tokens_per_month")
    copies = whole_copies(volume / capacity, "output_tokens_per_month")
    return max(1, copies) * amount(replica_per_month, "replica_per_month")


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where one's own deployment becomes as cheap as a hosted API.

    Attributes
    ----------
    first : Decimal or None
        Output tokens per month from which one copy is no dearer, while it suffices; None if it is dearer even full.
    lasting : Decimal or None
        Volume from which it stays no dearer however many copies are added; None if it never does.
    utilisation : Decimal
        Share of a copy's tokens that must be sold to break even; above 1 it cannot.
    """

    first: Decimal | None
    lasting: Decimal | None
    utilisation: Decimal


def break_even(replica_per_month: Decimal, replica_tokens_per_month: Number, hosted_per_million: Decimal) -> BreakEven:
    """The volume at which `self_hosted_per_month` and the hosted price meet.

    First: cost of a copy / hosted price x 1,000,000. A copy at 2,000 a month against 2.00 per million breaks even at
    1,000 million tokens; if it makes 1,250 million a month that is at 0.8 of its capacity.

    Each further copy is a step up, so just beyond a full copy the hosted price can win again. From n copies on it
    cannot, with n the smallest that satisfies (n + 1) x cost <= price x n x capacity: here 3 x 2,000 > 2 x 2,500 and
    5 x 2,000 <= 2 x 5,000, so n = 4 and the lasting break-even is 4 x 1,000 = 4,000 million.

    Parameters
    ----------
    replica_tokens_per_month : Number
        Output tokens a copy makes at the utilisation it is planned for.
    hosted_per_million : Decimal
        Hosted price per million output tokens, prompts included (`hosted_per_million_output_tokens`).
    """
    cost = amount(replica_per_month, "replica_per_month")
    capacity = above_zero(replica_tokens_per_month, "replica_tokens_per_month")
    price = above_zero(amount(hosted_per_million, "hosted_per_million"), "hosted_per_million")
    volume = cost / price * MILLION
    utilisation = volume / capacity
    margin = price * capacity / MILLION - cost
    if margin < 0:
        return BreakEven(None, None, utilisation)
    if cost > margin * MOST_COPIES:
        return BreakEven(volume, None, utilisation)
    return BreakEven(volume, whole_copies(cost / margin, "replica_tokens_per_month") * volume, utilisation)
