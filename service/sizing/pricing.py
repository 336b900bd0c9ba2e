"""What a plan costs at the offers known."""

from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache

from service.sizing.answer import CostAnswer, ExchangeRateAnswer, PriceAnswer
from service.sizing.cost import USD, ExchangeRate, cents, currency_of, per_million_tokens, per_month
from service.sizing.cost.offer import Offer, cheapest
from service.sizing.judge import Feasible
from service.sizing.question import Machine, Question

OLD_DAYS = 180
"""Prices move by tens of per cent within half a year: an older one is warned of."""

SHOWN = Decimal("0.0001")
FINEST = Decimal("0.000001")
"""Step of the finest price lists; what is finer comes of an exchange rate."""


def offers_of(question: Question, machine: Machine) -> tuple[Offer, ...]:
    """The offers that may be used for a machine."""
    return question.offers.get(machine.instance or machine.gpu.slug, ())


@lru_cache(maxsize=64)
def offer_for(found: Feasible) -> tuple[Offer, Decimal] | None:
    """The cheapest offer that carries a plan, and its cost per hour; None without any."""
    return cheapest(offers_of(found.question, found.machine), found.layout.gpu_count, found.machine.gpus_per_node)


def cost_of(question: Question, machine: Machine, gpu_count: int) -> float:
    """What a count of GPUs costs an hour, to rank by: without a price it comes last."""
    priced = cheapest(offers_of(question, machine), gpu_count, machine.gpus_per_node)
    return float("inf") if priced is None else float(priced[1])


def cost_per_hour(found: Feasible) -> float:
    """What a plan costs an hour, to rank by."""
    priced = offer_for(found)
    return float("inf") if priced is None else float(priced[1])


def cost_answer(found: Feasible, output_tokens_per_s: float) -> CostAnswer | None:
    """What a plan costs, always busy at its predicted throughput; None without a price."""
    priced = offer_for(found)
    if priced is None:
        return None
    offer, per_hour = priced
    return CostAnswer(
        currency=currency_of(found.question.exchange_rate),
        exchange_rate=exchange_answer(found.question.exchange_rate),
        per_hour=hourly(per_hour),
        per_month=plain(cents(per_month(per_hour))),
        per_million_output_tokens=shown(per_million_tokens(per_hour, output_tokens_per_s))
        if output_tokens_per_s > 0
        else None,
        price=price_answer(offer),
    )


def exchange_answer(rate: ExchangeRate | None) -> ExchangeRateAnswer | None:
    """An exchange rate as it is answered."""
    if rate is None:
        return None
    return ExchangeRateAnswer(rate.base, rate.quote, plain(rate.rate), rate.observed_on, rate.source or None)


def price_answer(offer: Offer) -> PriceAnswer:
    """An offer as it is answered."""
    return PriceAnswer(
        provider=offer.provider,
        kind=offer.kind,
        instance_type=offer.instance_type or None,
        region=offer.region or None,
        gpu_count=offer.gpu_count,
        per_hour=plain(offer.listed_per_hour),
        currency=offer.currency,
        observed_on=offer.observed_on,
        source=offer.source,
    )


def plain(amount: Decimal) -> str:
    """An amount in digits, never with an exponent."""
    return format(amount, "f")


def shown(amount: Decimal) -> str:
    """An amount to four decimals."""
    return plain(amount.quantize(SHOWN, ROUND_HALF_EVEN))


def hourly(amount: Decimal) -> str:
    """What an hour costs, as fine as price lists are."""
    rounded = amount.quantize(FINEST, ROUND_HALF_EVEN)
    return plain(amount if amount == rounded else rounded)


def price_warnings(found: Feasible) -> tuple[str, ...]:
    """What to know about the price used, or why there is none."""
    priced, gpu = offer_for(found), found.machine.gpu.name
    if priced is None:
        if not offers_of(found.question, found.machine):
            return (f"no price of {found.machine.instance or gpu} matches what was asked, so cost is null",)
        together = min(found.layout.gpu_count, found.machine.gpus_per_node)
        return (f"no machine with a known price holds {together} {gpu}, so cost is null",)
    offer, _ = priced
    lines = list[str]()
    if offer.age_days > OLD_DAYS:
        lines.append(
            f"the price was seen on {offer.observed_on}, {offer.age_days} days before the day asked for, or before the "
            "newest price known: ask again before you quote it"
        )
    rate = found.question.exchange_rate
    if rate is not None and offer.currency == USD:
        apart = abs((date.fromisoformat(rate.observed_on) - date.fromisoformat(offer.observed_on)).days)
        if apart > OLD_DAYS:
            lines.append(
                f"the exchange rate is of {rate.observed_on} and the price of {offer.observed_on}, {apart} days apart"
            )
    idle = -found.layout.gpu_count % offer.gpu_count
    if idle:
        lines.append(f"machines are rented whole: {idle} GPUs of {offer.instance_type} are paid for and idle")
    if not offer.instance_type and found.layout.gpu_count > 1:
        lines.append("the price is for single GPUs: check that one machine offers as many")
    if offer.kind == "spot":
        lines.append("spot machines are taken back at short notice")
    return tuple(lines)
