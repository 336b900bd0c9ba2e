"""What a plan costs at the offers known."""

from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal

from service.sizing.answer import CostAnswer, ExchangeRateAnswer, PriceAnswer
from service.sizing.cost import USD, ExchangeRate, cents, currency_of, machines_needed, per_million_tokens, per_month
from service.sizing.cost.offer import Offer, cheapest
from service.sizing.judge import Feasible, once
from service.sizing.question import Machine, Question

OLD_DAYS = 180
"""Prices move by tens of per cent within half a year: an older one is warned of."""

SHOWN = Decimal("0.0001")
FINEST = Decimal("0.000001")
"""Step of the finest price lists; what is finer comes of an exchange rate."""


def offers_of(question: Question, machine: Machine) -> tuple[Offer, ...]:
    """The offers that may be used for a machine."""
    return question.offers.get(machine.instance or machine.gpu.slug, ())


@once
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


def seen_long_ago(observed_on: str, age_days: int) -> str:
    """When an old price was seen, for a sentence."""
    return f"seen on {observed_on}, {age_days} days before the day asked for, or before the newest price known"


def _unpriced(found: Feasible) -> str:
    """Why a plan has no price."""
    question, gpu = found.question, found.machine.gpu
    if offers_of(question, found.machine):
        together = min(found.layout.gpu_count, found.machine.gpus_per_node)
        return f"no machine with a known price holds {together} {gpu.name}, so cost is null"
    currency, listed = currency_of(question.exchange_rate), found.machine.instance or gpu.name
    if others := question.other_currencies.get(found.machine.instance or gpu.slug):
        return (
            f"{listed} is listed in {' and '.join(others)} and not in {currency}, so cost is null: "
            "give prices.exchange_rate"
        )
    return f"no price of {listed} matches what was asked, so cost is null"


def cheaper_in_smaller(found: Feasible) -> tuple[str, ...]:
    """Where the GPUs of a plan are listed for less than it is priced at, but in machines that hold too few of them.

    Such a list may be of single GPUs of larger machines, which only its provider can tell.
    """
    priced, count = offer_for(found), found.layout.gpu_count
    together = min(count, found.machine.gpus_per_node)
    smaller = [
        (offer.per_hour / offer.gpu_count, offer)
        for offer in offers_of(found.question, found.machine)
        if offer.instance_type and offer.gpu_count < together
    ]
    each, offer = min(smaller, key=lambda known: known[0], default=(None, None))
    if each is None or offer is None or (priced is not None and each * count >= priced[1]):
        return ()
    currency = currency_of(found.question.exchange_rate)
    return (
        f"{offer.provider} lists such GPUs at {hourly(each)} {currency} an hour each in {offer.instance_type}, which "
        f"holds {offer.gpu_count}: ask whether it has a machine of {together}",
    )


def price_warnings(found: Feasible) -> tuple[str, ...]:
    """What to know about the price used, or why there is none."""
    priced, smaller = offer_for(found), cheaper_in_smaller(found)
    if priced is None:
        return (_unpriced(found), *smaller)
    offer, _ = priced
    lines = list[str]()
    if offer.age_days > OLD_DAYS:
        lines.append(f"the price was {seen_long_ago(offer.observed_on, offer.age_days)}: ask again before you quote it")
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
    lines += smaller
    machines = machines_needed(found.layout.gpu_count, offer.gpu_count)
    if offer.instance_type and machines > 1:
        lines.append(
            f"the price is of {machines} machines: check that {offer.provider} joins them by a network, and how fast"
        )
    if not offer.instance_type and found.layout.gpu_count > 1:
        lines.append("the price is for single GPUs: check that one machine offers as many")
    if offer.kind == "spot":
        lines.append("spot machines are taken back at short notice")
    return tuple(lines)
