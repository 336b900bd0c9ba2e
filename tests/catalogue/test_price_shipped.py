"""The prices that come with the package are clean, dated, sourced and consistent."""

import json
from collections import Counter
from datetime import date
from decimal import Decimal
from importlib.resources import files
from typing import cast

import pytest

from service.catalogue.importers import gpu_names
from service.catalogue.records.price import (
    HostedPrice,
    InstanceType,
    Price,
    PriceKind,
    check_price,
    typical_per_gpu_hour,
    usual,
)
from service.catalogue.shipped import shipped_hosted_prices, shipped_instance_types, shipped_prices


@pytest.fixture(scope="module")
def prices() -> tuple[Price, ...]:
    return shipped_prices()


@pytest.fixture(scope="module")
def instances() -> tuple[InstanceType, ...]:
    return shipped_instance_types()


@pytest.fixture(scope="module")
def hosted() -> tuple[HostedPrice, ...]:
    return shipped_hosted_prices()


def test_there_are_many_from_many(prices: tuple[Price, ...]) -> None:
    """At least a thousand observations over at least twenty providers, in every kind."""
    assert len(prices) >= 1000
    assert len({price.provider for price in prices}) >= 20
    assert {price.kind for price in prices} == set(PriceKind)


def test_every_row_has_a_day_and_a_source(
    prices: tuple[Price, ...], hosted: tuple[HostedPrice, ...], instances: tuple[InstanceType, ...]
) -> None:
    """None is from the future of the list or of unknown origin."""
    for row in (*prices, *hosted, *instances):
        assert date(2023, 1, 1) <= row.observed_on <= date(2026, 11, 30)
        assert row.source


def test_none_is_an_outlier_against_the_others(prices: tuple[Price, ...]) -> None:
    """Each price is within 5 % and 50 times of what its card usually costs."""
    typical = typical_per_gpu_hour(prices)
    assert [price for price in prices if check_price(price, usual(price, typical))] == []


def test_known_list_prices_are_there(prices: tuple[Price, ...]) -> None:
    """AWS asked 55.04 an hour for p5.48xlarge in 2026, 98.32 before its cut of June 2025; OCI 80 for 8 x H100."""
    asked = {
        (p.instance_type, p.amount_per_hour)
        for p in prices
        if p.kind is PriceKind.ON_DEMAND and p.region in ("us-east-1", "us-ashburn-1")
    }
    assert {
        ("p5.48xlarge", Decimal("55.04")),
        ("p5.48xlarge", Decimal("98.32")),
        ("BM.GPU.H100.8", Decimal(80)),
    } <= asked


def test_a_machine_has_the_same_gpus_wherever_it_is_named(
    prices: tuple[Price, ...], instances: tuple[InstanceType, ...]
) -> None:
    """The price list and the machine list agree on card and count."""
    machines = {(i.provider, i.instance_type): (i.gpu, i.gpu_count) for i in instances}
    priced = [p for p in prices if (p.provider, p.instance_type) in machines]
    assert len(priced) > 500
    assert [p for p in priced if machines[p.provider, p.instance_type] != (p.gpu, p.gpu_count)] == []


def test_prices_that_leave_out_the_host_say_so(prices: tuple[Price, ...]) -> None:
    """Where processors and memory are billed on top."""
    without = {price.provider for price in prices if not price.host_included}
    assert without == {"coreweave", "modal", "salad"}


def test_links_of_machines_are_plausible(instances: tuple[InstanceType, ...]) -> None:
    """One GPU has no link, more have one; bridges join pairs; no domain is larger than the machine."""
    for machine in instances:
        assert (machine.link is None) == (machine.gpu_count == 1)
        assert 1 <= machine.link_domain_gpus <= machine.gpu_count
    by_type = {i.instance_type: i for i in instances}
    assert by_type["Standard_NC96ads_A100_v4"].link_domain_gpus == 2
    assert by_type["p5.48xlarge"].network_gbit_per_s == 3200


def test_hosted_prices_cover_many_models(hosted: tuple[HostedPrice, ...]) -> None:
    """Thousands of prices of dozens of providers; one provider, model and source has one price."""
    assert len(hosted) >= 2000
    assert len({price.provider for price in hosted}) >= 50
    repeats = Counter((p.provider, p.model, p.observed_on, p.source) for p in hosted)
    assert max(repeats.values()) == 1


@pytest.mark.parametrize("name", ["prices.csv", "hosted_prices.csv", "instances.csv"])
def test_files_are_small(name: str) -> None:
    """Under a MiB each."""
    assert len(files("service.catalogue").joinpath("data", name).read_bytes()) < 1 << 20


def test_name_tables_hold_cards_of_the_catalogue() -> None:
    """Every slug a name leads to is catalogued, with the memory it is marketed with."""
    catalogue = cast("dict[str, list[dict[str, object]]]", json.loads(_catalogue("gpus.json")))["gpus"]
    slugs = {str(gpu["slug"]) for gpu in catalogue}
    tables = (gpu_names.COMMON, gpu_names.SKYPILOT, gpu_names.GPUHUNT, gpu_names.OWN)
    named = {slug for table in tables for found in table.values() for slug in found}
    named |= set(gpu_names.BARE_GPUS.values()) | set(gpu_names.FORM_FACTOR)
    named |= {slug for rules in gpu_names.INSTANCE_GPUS.values() for _, slug in rules}
    assert named <= set(gpu_names.MEMORY_GB) <= slugs


def test_names_are_looked_up_as_the_tables_spell_them() -> None:
    """A key with a dash or the maker's name in it could never be found."""
    for table in (gpu_names.COMMON, gpu_names.SKYPILOT, gpu_names.GPUHUNT, gpu_names.OWN):
        assert [name for name in table if gpu_names.key(name) != name] == []


def _catalogue(name: str) -> str:
    return files("service.catalogue").joinpath("data", name).read_text("utf-8")
