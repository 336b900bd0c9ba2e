"""Which price observations a plan may rest on, and which offer carries it for the least."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.catalogue.offers import PricesWanted, best_offers, is_comparable, other_currencies
from service.catalogue.records.price import InstanceType, Price, PriceKind
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing.cost import ExchangeRate
from service.sizing.cost.offer import Offer, cheapest

PRICE = Price(
    provider="acme",
    region="north",
    zone="",
    instance_type="x.8",
    gpu="h100-sxm",
    gpu_name="H100",
    ambiguous=(),
    gpu_count=8,
    gpu_fraction=None,
    kind=PriceKind.ON_DEMAND,
    currency="USD",
    amount_per_hour=Decimal(40),
    host_included=True,
    observed_on=date(2026, 7, 1),
    source="a list",
)
WANTED = PricesWanted()


def asked(*prices: Price, wanted: PricesWanted = WANTED) -> list[tuple[str, Decimal]]:
    return [(offer.instance_type, offer.per_hour) for offer in best_offers(prices, wanted)]


def test_the_newest_observation_holds_even_where_it_is_dearer() -> None:
    """A price that rose is not what it was."""
    risen = replace(PRICE, observed_on=date(2026, 8, 1), amount_per_hour=Decimal(50))
    assert asked(PRICE, risen) == asked(risen, PRICE) == [("x.8", Decimal(50))]
    assert asked(PRICE, risen, wanted=PricesWanted(as_of=date(2026, 7, 31))) == [("x.8", Decimal(40))]


def test_of_two_sources_of_one_day_the_dearer_holds() -> None:
    """A promise must not rest on the more hopeful of two."""
    assert asked(PRICE, replace(PRICE, source="another", amount_per_hour=Decimal(39))) == [("x.8", Decimal(40))]


def test_of_two_hosts_of_one_day_the_cheaper_holds() -> None:
    """On a marketplace two prices are two machines, not two accounts of one."""
    wanted = PricesWanted(kind=PriceKind.MARKETPLACE)
    host = replace(PRICE, kind=PriceKind.MARKETPLACE)
    assert asked(host, replace(host, amount_per_hour=Decimal(39)), wanted=wanted) == [("x.8", Decimal(39))]


def test_what_is_left_out_for_its_currency_alone_is_told() -> None:
    """Not what is in USD, nor what was not asked for."""
    euro = replace(PRICE, currency="EUR")
    yen = replace(PRICE, currency="JPY", kind=PriceKind.SPOT)
    assert other_currencies([PRICE, euro, yen], WANTED) == ("EUR",)
    rate = ExchangeRate("EUR", "USD", Decimal("1.25"), "2026-11-02")
    assert other_currencies([PRICE, euro, yen], PricesWanted(exchange_rate=rate)) == ()


def test_the_cheapest_place_of_each_size_remains() -> None:
    """Whoever and wherever it is, unless asked otherwise."""
    south = replace(PRICE, region="south", amount_per_hour=Decimal(30))
    other = replace(PRICE, provider="other", instance_type="y.8", amount_per_hour=Decimal(35))
    small = replace(PRICE, instance_type="x.1", gpu_count=1, amount_per_hour=Decimal(6))
    everything = (PRICE, south, other, small)
    assert asked(*everything) == [("x.1", Decimal(6)), ("x.8", Decimal(30))]
    assert asked(*everything, wanted=PricesWanted(provider="other")) == [("y.8", Decimal(35))]
    assert asked(PRICE, south, wanted=PricesWanted(region="north")) == [("x.8", Decimal(40))]


def test_a_price_for_all_regions_holds_in_each() -> None:
    """One that names no region is not left out where a region is asked for."""
    assert asked(replace(PRICE, region=""), wanted=PricesWanted(region="north")) == [("x.8", Decimal(40))]


@pytest.mark.parametrize(
    "change",
    [
        {"host_included": False},
        {"gpu": None, "ambiguous": ("h100-sxm", "h100-pcie")},
        {"gpu_fraction": Decimal("0.5")},
    ],
)
def test_prices_of_something_else_are_not_compared(change: dict[str, object]) -> None:
    """Without the host, of a card that is not certain, of a share of a card."""
    assert is_comparable(PRICE)
    assert not is_comparable(replace(PRICE, **change))


def test_a_price_in_another_currency_needs_a_rate() -> None:
    """At 1.25 USD for a EUR, 40 USD are 32 EUR and dearer than 30; at 1.40 they are 28.57 and cheaper."""
    euro = replace(PRICE, provider="other", instance_type="y.8", currency="EUR", amount_per_hour=Decimal(30))
    assert asked(PRICE, euro) == [("x.8", Decimal(40))]
    assert asked(euro, wanted=PricesWanted(exchange_rate=ExchangeRate("USD", "JPY", Decimal(150), "2026-11-02"))) == []
    weak, strong = (ExchangeRate("EUR", "USD", Decimal(rate), "2026-11-02") for rate in ("1.25", "1.40"))
    assert asked(PRICE, euro, wanted=PricesWanted(exchange_rate=weak)) == [("y.8", Decimal(30))]
    (offer,) = best_offers([PRICE, euro], PricesWanted(exchange_rate=strong))
    assert offer.per_hour.quantize(Decimal("0.01")) == Decimal("28.57")
    assert (offer.instance_type, offer.currency, offer.listed_per_hour) == ("x.8", "USD", Decimal(40))


def test_age_is_counted_from_the_day_asked_or_the_newest_price() -> None:
    """1 July to 31 July are 30 days; to 29 September 90."""
    (offer,) = best_offers([PRICE], PricesWanted(as_of=date(2026, 7, 31)))
    assert offer.age_days == 30
    later = replace(PRICE, gpu="l4", observed_on=date(2026, 9, 29))
    (offer,) = Snapshot(1, prices=(PRICE, later)).offers(WANTED, "h100-sxm")
    assert offer.age_days == 90


def test_a_bare_name_that_two_providers_have_is_not_guessed() -> None:
    """Both full names are told."""
    machine = InstanceType(
        provider="acme",
        instance_type="gpu-8",
        gpu="h100-sxm",
        gpu_name="H100",
        gpu_count=8,
        gpu_fraction=None,
        link=None,
        link_domain_gpus=1,
        network="",
        network_gbit_per_s=None,
        vcpu=None,
        memory_gib=None,
        observed_on=date(2026, 7, 1),
        source="a list",
    )
    other = replace(machine, provider="other")
    snapshot = Snapshot(1, instance_types=(machine, other))
    assert snapshot.instance("OTHER/gpu-8") is other
    with pytest.raises(UnknownName) as caught:
        snapshot.instance("gpu-8")
    assert caught.value.nearest == ("acme/gpu-8", "other/gpu-8")


offers = st.builds(
    Offer,
    provider=st.just("acme"),
    kind=st.just("on_demand"),
    instance_type=st.sampled_from(["", "x"]),
    region=st.just(""),
    gpu_count=st.integers(1, 16),
    per_hour=st.decimals("0.01", "1000", places=2),
    observed_on=st.just("2026-07-01"),
    source=st.just("a list"),
    age_days=st.just(0),
    currency=st.just("USD"),
    listed_per_hour=st.just(Decimal(1)),
)


@given(offers=st.lists(offers, max_size=8), gpu_count=st.integers(1, 32), node=st.sampled_from([1, 2, 4, 8]))
def test_the_offer_chosen_holds_the_plan_and_none_that_does_is_cheaper(
    offers: list[Offer], gpu_count: int, node: int
) -> None:
    """Whole machines, each with as many GPUs as the plan keeps together."""
    serving = [offer for offer in offers if not offer.instance_type or offer.gpu_count >= min(gpu_count, node)]
    found = cheapest(offers, gpu_count, node)
    if found is None:
        assert not serving
        return
    offer, cost = found
    assert offer in serving
    assert cost == -(-gpu_count // offer.gpu_count) * offer.per_hour
    assert all(cost <= -(-gpu_count // other.gpu_count) * other.per_hour for other in serving)
