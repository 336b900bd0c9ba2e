"""From price observations to the offers a plan may rest on."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from service.catalogue.records.price import Price, PriceKind
from service.sizing.cost.exchange import ExchangeRate, exchanged, is_exchangeable
from service.sizing.cost.offer import Offer


@dataclass(frozen=True, slots=True)
class PricesWanted:
    """Which prices may be used; None: any provider, any region, up to the newest, only those in USD."""

    kind: PriceKind = PriceKind.ON_DEMAND
    provider: str | None = None
    region: str | None = None
    as_of: date | None = None
    exchange_rate: ExchangeRate | None = None


def is_comparable(price: Price) -> bool:
    """Whether a price is for whole cards that are known for certain, host included."""
    return price.gpu is not None and price.gpu_fraction is None and price.host_included


def best_offers(
    prices: Iterable[Price],
    wanted: PricesWanted,
    instance: tuple[str, str] | None = None,
    newest_on: date | None = None,
) -> tuple[Offer, ...]:
    """The cheapest offer of each machine size, the smallest machine first.

    Of each offer (provider, place, machine, terms) the newest observation up to `wanted.as_of` holds, however much
    cheaper an older one was. Of two of one day the dearer holds, for they contradict each other; but the cheaper where
    hosts set their own prices, for there they are two offers.

    Parameters
    ----------
    prices : iterable of Price
        Comparable ones (`is_comparable`) of one card.
    instance : tuple of str, optional
        Provider and instance type, where only one machine is considered.
    newest_on : date, optional
        The day from which ages are counted where no day was asked for.
    """
    newest: dict[tuple[str, str, str, str, int], tuple[Price, Decimal]] = {}
    for price in prices:
        if not is_exchangeable(price.currency, wanted.exchange_rate) or not _is_wanted(price, wanted, instance):
            continue
        place = price.provider, price.region, price.zone, price.instance_type, price.gpu_count
        per_hour = exchanged(price.amount_per_hour, price.currency, wanted.exchange_rate)
        held = newest.get(place)
        if held is None or _supersedes(price, per_hour, *held):
            newest[place] = price, per_hour
    cheapest: dict[tuple[int, bool], tuple[Price, Decimal]] = {}
    for price, per_hour in sorted(newest.values(), key=_by_amount):
        cheapest.setdefault((price.gpu_count, bool(price.instance_type)), (price, per_hour))
    counted_from = wanted.as_of or newest_on
    return tuple(_offer(*each, counted_from) for _, each in sorted(cheapest.items(), key=lambda found: found[0]))


def other_currencies(
    prices: Iterable[Price], wanted: PricesWanted, instance: tuple[str, str] | None = None
) -> tuple[str, ...]:
    """Currencies of the prices that would be offers if the rate given covered them; parameters as of `best_offers`."""
    found = {price.currency for price in prices if _is_wanted(price, wanted, instance)}
    return tuple(sorted(each for each in found if not is_exchangeable(each, wanted.exchange_rate)))


def _supersedes(price: Price, per_hour: Decimal, other: Price, other_per_hour: Decimal) -> bool:
    """Whether one observation of an offer holds rather than another."""
    if price.observed_on != other.observed_on:
        return price.observed_on > other.observed_on
    return per_hour < other_per_hour if price.is_set_by_host else per_hour > other_per_hour


def _is_wanted(price: Price, wanted: PricesWanted, instance: tuple[str, str] | None) -> bool:
    return (
        price.kind is wanted.kind
        and (wanted.provider is None or price.provider == wanted.provider)
        and (wanted.region is None or price.region in ("", wanted.region))
        and (wanted.as_of is None or price.observed_on <= wanted.as_of)
        and (instance is None or (price.provider, price.instance_type) == instance)
    )


def _by_amount(priced: tuple[Price, Decimal]) -> tuple[object, ...]:
    price, per_hour = priced
    return per_hour, -price.observed_on.toordinal(), price.provider, price.region, price.instance_type


def _offer(price: Price, per_hour: Decimal, counted_from: date | None) -> Offer:
    return Offer(
        provider=price.provider,
        kind=price.kind.value,
        instance_type=price.instance_type,
        region=price.region,
        gpu_count=price.gpu_count,
        per_hour=per_hour,
        observed_on=price.observed_on.isoformat(),
        source=price.source,
        age_days=max(0, (counted_from - price.observed_on).days) if counted_from else 0,
        currency=price.currency,
        listed_per_hour=price.amount_per_hour,
    )
