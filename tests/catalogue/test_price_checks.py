"""What makes a price doubtful, and how usual prices are found."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.catalogue.records.price import (
    HostedPrice,
    Price,
    PriceKind,
    check_hosted_price,
    check_price,
    hosted_model_key,
    money,
    typical_per_gpu_hour,
)

DAY = date(2026, 11, 1)
PRICE = Price(
    "aws", "us-east-1", "", "p5.48xlarge", "h100-sxm", "H100", (), 8, None, PriceKind.ON_DEMAND, "USD",
    Decimal("55.04"), True, DAY, "list",
)  # fmt: skip
HOSTED = HostedPrice(
    "deepinfra", "llama", "llama", "USD", Decimal("0.23"), Decimal("0.40"), None, 131072, None, DAY, "list"
)


def test_a_list_price_is_not_doubted() -> None:
    """55.04 for 8 x H100 is 6.88 each."""
    assert PRICE.amount_per_gpu_hour == Decimal("6.88")
    assert check_price(PRICE) is None
    assert check_price(PRICE, Decimal(3)) is None


@pytest.mark.parametrize("amount", ["0", "999", "9999", "99999.99", "9999.0"])
def test_zero_and_nines_are_placeholders(amount: str) -> None:
    """Lists that have no price put one of these."""
    doubt = check_price(replace(PRICE, amount_per_hour=Decimal(amount)))
    assert doubt is not None
    assert doubt.reason == "placeholder"


@pytest.mark.parametrize("amount", ["9.99", "99", "0.99", "19.99"])
def test_retail_nines_are_prices(amount: str) -> None:
    """9.99 an hour is how shops write ten."""
    assert check_price(replace(PRICE, amount_per_hour=Decimal(amount))) is None


def test_implausible_sums_are_outliers_even_without_a_usual_price() -> None:
    """2,001 an hour for eight cards is over 250 each; in yen it would be cheap."""
    dear = replace(PRICE, amount_per_hour=Decimal(2001))
    doubt = check_price(dear)
    assert doubt is not None
    assert doubt.reason == "outlier"
    assert check_price(replace(dear, currency="JPY")) is None


def test_usual_price_gives_each_provider_one_vote() -> None:
    """A asks 1, 1 and 9 (median 1), B asks 3, C asks 5: usual is 3. Spot has no vote, two providers are no usual."""

    def per_gpu(provider: str, amount: int, kind: PriceKind = PriceKind.ON_DEMAND, gpu: str = "l4") -> Price:
        return replace(PRICE, provider=provider, gpu=gpu, gpu_count=1, kind=kind, amount_per_hour=Decimal(amount))

    offers = [per_gpu("a", 1), per_gpu("a", 1), per_gpu("a", 9), per_gpu("b", 3), per_gpu("c", 5)]
    cheap = [per_gpu(name, 1, PriceKind.SPOT) for name in "defgh"]
    few = [per_gpu("a", 2, gpu="t4"), per_gpu("b", 2, gpu="t4")]
    assert typical_per_gpu_hour([*offers, *cheap, *few]) == {"l4": Decimal(3)}


@pytest.mark.parametrize(
    ("read", "write", "cached", "reason"),
    [
        ("0.23", "0.40", "0.05", None),
        ("0", "0.40", None, "placeholder"),
        ("0.23", "0", None, "placeholder"),
        ("0.000001", "0.4", None, "placeholder"),
        ("230000", "400000", None, "outlier"),
        ("5", "0.15", None, "contradiction"),
        ("0.23", "0.4", "0.3", "contradiction"),
    ],
)
def test_hosted_prices_are_doubted_by_rule(read: str, write: str, cached: str | None, reason: str | None) -> None:
    """Free or unknown, a wrong unit, prompt dearer than completion, cached prompt dearer than fresh."""
    price = replace(
        HOSTED,
        input_per_million=Decimal(read),
        output_per_million=Decimal(write),
        cached_input_per_million=None if cached is None else Decimal(cached),
    )
    doubt = check_hosted_price(price)
    assert (doubt.reason if doubt else None) == reason


@given(st.decimals(0, 10**9, allow_nan=False, places=9))
def test_money_is_rounded_to_a_millionth(amount: Decimal) -> None:
    """Within half a millionth, and written without an exponent or trailing zeros."""
    rounded = money(amount)
    assert abs(rounded - amount) <= Decimal("0.0000005")
    assert "E" not in str(rounded)
    assert "." not in str(rounded) or not str(rounded).endswith("0")


def test_ids_of_one_model_share_a_key_and_variants_do_not() -> None:
    """Owner and punctuation do not matter; a suffix does."""
    keys = {hosted_model_key(i) for i in ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b-instruct")}
    assert keys == {"llama3370binstruct"}
    assert hosted_model_key("meta-llama/Llama-3.3-70B-Instruct-Turbo") not in keys
