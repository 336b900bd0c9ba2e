"""Prices by the thousand: added once, all or nothing, never changed."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from service.catalogue.records.price import HostedPrice, InstanceType, Price, PriceKind
from service.sizing.hardware import Link
from service.storage import tables
from service.storage.catalogue import CHANNEL, current_revision, load_snapshot, publish
from service.storage.observations import Stored, store_observations

PRICE = Price(
    provider="acme",
    region="north-1",
    zone="",
    instance_type="x.8",
    gpu="h100-sxm",
    gpu_name="H100",
    ambiguous=(),
    gpu_count=8,
    gpu_fraction=None,
    kind=PriceKind.ON_DEMAND,
    currency="USD",
    amount_per_hour=Decimal("55.04"),
    host_included=True,
    observed_on=date(2026, 7, 1),
    source="a list",
)
HOSTED = HostedPrice(
    provider="acme",
    model="some/model",
    family="",
    currency="USD",
    input_per_million=Decimal("0.23"),
    output_per_million=Decimal("0.4"),
    cached_input_per_million=None,
    context_tokens=131072,
    deprecated_on=None,
    observed_on=date(2026, 7, 1),
    source="a list",
)
INSTANCE = InstanceType(
    provider="acme",
    instance_type="x.8",
    gpu="h100-sxm",
    gpu_name="H100",
    gpu_count=8,
    gpu_fraction=None,
    link=Link.NVLINK,
    link_domain_gpus=8,
    network="fast",
    network_gbit_per_s=400.0,
    vcpu=96,
    memory_gib=1024.0,
    observed_on=date(2026, 7, 1),
    source="a list",
)
AMBIGUOUS = replace(PRICE, gpu=None, ambiguous=("h100-pcie", "h100-sxm"), gpu_name="H100 80GB", instance_type="y")
SHARE = replace(PRICE, gpu_count=1, gpu_fraction=Decimal("0.125"), instance_type="z", zone="north-1a")


def store(engine: sa.Engine, *prices: Price, dry_run: bool = False) -> Stored:
    with engine.begin() as connection:
        return store_observations(connection, Price, prices, author="test", summary="prices", dry_run=dry_run)


def test_what_is_stored_is_read_back(engine: sa.Engine) -> None:
    """Money to the digit, cards that are not certain and shares of a card as well."""
    assert store(engine, PRICE, AMBIGUOUS, SHARE) == Stored(1, 3, 0, 0, ())
    with engine.begin() as connection:
        assert store_observations(connection, HostedPrice, [HOSTED], author="test", summary="hosted").added == 1
        assert publish(connection, [INSTANCE], author="test", summary="a machine") == 3
    with engine.connect() as connection:
        snapshot = load_snapshot(connection)
    assert set(snapshot.prices) == {PRICE, AMBIGUOUS, SHARE}
    assert {str(price.amount_per_hour) for price in snapshot.prices} == {"55.04"}
    assert (snapshot.hosted_prices, snapshot.instance_types) == ((HOSTED,), (INSTANCE,))


def test_the_same_again_adds_nothing(engine: sa.Engine) -> None:
    """And makes no revision."""
    store(engine, PRICE, SHARE)
    assert store(engine, PRICE, SHARE) == Stored(1, 0, 2, 0, ())


def test_a_later_day_stands_beside_the_earlier_one(engine: sa.Engine) -> None:
    """A price is never changed: the newer observation is another row, and old revisions do not see it."""
    store(engine, PRICE)
    cheaper = replace(PRICE, amount_per_hour=Decimal(50), observed_on=date(2026, 8, 1))
    assert store(engine, cheaper).revision == 2
    with engine.connect() as connection:
        assert set(load_snapshot(connection).prices) == {PRICE, cheaper}
        first = load_snapshot(connection, 1)
        assert first.prices == (PRICE,)
        later = load_snapshot(connection, earlier=first)
        assert (later, load_snapshot(connection, 1, earlier=later)) == (load_snapshot(connection), first)
        assert later.prices[0] is first.prices[0]


def test_a_contradiction_is_left_out_and_told(engine: sa.Engine) -> None:
    """Another amount for the same offer, source and day; what else came with it is taken."""
    store(engine, PRICE)
    other = replace(PRICE, amount_per_hour=Decimal(99))
    stored = store(engine, other, SHARE)
    assert (stored.added, stored.contradicting) == (1, 1)
    assert stored.contradictions == ("acme x.8 on 2026-07-01: 99 is not what is held from a list",)
    with engine.connect() as connection:
        assert set(load_snapshot(connection).prices) == {PRICE, SHARE}


def test_a_dry_run_counts_and_writes_nothing(engine: sa.Engine) -> None:
    """Neither rows nor a revision."""
    assert store(engine, PRICE, dry_run=True) == Stored(0, 1, 0, 0, ())
    with engine.connect() as connection:
        assert (current_revision(connection), load_snapshot(connection).prices) == (0, ())


def test_an_import_that_breaks_off_leaves_nothing(engine: sa.Engine) -> None:
    """A reader that fails after a thousand rows undoes them."""

    def broken() -> Iterator[Price]:
        for number in range(1000):
            yield replace(PRICE, instance_type=f"x.{number}")
        raise RuntimeError("the reader died")

    with pytest.raises(RuntimeError, match="the reader died"), engine.begin() as connection:
        store_observations(connection, Price, broken(), author="test", summary="prices")
    with engine.connect() as connection:
        assert (current_revision(connection), load_snapshot(connection).prices) == (0, ())


def test_a_killed_connection_leaves_nothing(engine: sa.Engine) -> None:
    """The server ends the session half-way: nothing of it is there, and the next import is whole."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def killed() -> Iterator[Price]:
        for number in range(2000):
            if number == 1000:
                with psycopg.connect(url, autocommit=True) as other:
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
            yield replace(PRICE, instance_type=f"x.{number}")

    with pytest.raises((DBAPIError, psycopg.Error)), engine.begin() as connection:
        store_observations(connection, Price, killed(), author="test", summary="prices")
    engine.dispose()
    with engine.connect() as connection:
        assert (current_revision(connection), load_snapshot(connection).prices) == (0, ())
    assert store(engine, PRICE).added == 1


def test_an_import_is_announced(engine: sa.Engine) -> None:
    """So that every worker takes the new prices."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        store(engine, PRICE)
        assert [notice.payload for notice in listener.notifies(timeout=0.2)] == ["1"]


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"amount_per_hour": 0, "offer": "0" * 32}, "ck_prices_amount_positive"),
        ({"amount_per_hour": Decimal("NaN"), "offer": "0" * 32}, "ck_prices_amount_positive"),
        ({"kind": "rent", "offer": "0" * 32}, "ck_prices_kind_known"),
        ({"currency": "usd", "offer": "0" * 32}, "ck_prices_currency_form"),
        ({"gpu_count": 0, "offer": "0" * 32}, "ck_prices_gpu_count_positive"),
        ({"gpu_fraction": 1, "offer": "0" * 32}, "ck_prices_gpu_fraction_of_one"),
        ({"gpu": None, "offer": "0" * 32}, "ck_prices_gpu_known_or_ambiguous"),
        ({"source": "", "offer": "0" * 32}, "ck_prices_source_given"),
        ({"offer": "x"}, "ck_prices_offer_form"),
        ({}, "uq_prices_current"),
    ],
)
def test_the_database_refuses_prices_that_cannot_be(
    engine: sa.Engine, change: dict[str, object], constraint: str
) -> None:
    """Each rule holds without the service, a second price of one offer among them."""
    store(engine, PRICE)
    table = tables.prices.table
    with engine.begin() as connection:
        row = dict(connection.execute(sa.select(table)).mappings().one()) | change
        with pytest.raises(DBAPIError, match=constraint):
            connection.execute(table.insert().values({name: row[name] for name in row if name != "id"}))


@pytest.mark.parametrize("statement", ["UPDATE prices SET amount_per_hour = 1", "DELETE FROM prices"])
def test_prices_are_never_changed_or_deleted(engine: sa.Engine, statement: str) -> None:
    """Not even by hand."""
    store(engine, PRICE)
    with pytest.raises(DBAPIError, match="closed by a newer revision"), engine.begin() as connection:
        connection.execute(sa.text(statement))
