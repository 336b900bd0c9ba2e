"""Sums of other currencies than USD, at a rate that was given with its day."""

from dataclasses import dataclass
from decimal import Decimal

from service.sizing.cost.money import InvalidCostInput, above_zero, amount

USD = "USD"
"""The currency of what is not said to be in another."""


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """What one unit of `base` was worth in `quote` on a day; one of the two is USD.

    Attributes
    ----------
    base, quote : str
        Currencies by their three letters.
    rate : Decimal
        `quote` for one `base`.
    observed_on : str
        The day it was fixed (YYYY-MM-DD).
    source : str
        Who fixed it; empty if not stated.

    Raises
    ------
    InvalidCostInput
        If the rate is not above zero, or not between USD and another currency.
    """

    base: str
    quote: str
    rate: Decimal
    observed_on: str
    source: str = ""

    def __post_init__(self) -> None:
        above_zero(self.rate, "rate")
        if (self.base == USD) == (self.quote == USD):
            message = f"{self.quote} for a {self.base} is no rate between {USD} and another currency"
            raise InvalidCostInput("quote", message)

    @property
    def currency(self) -> str:
        """The currency beside USD."""
        return self.quote if self.base == USD else self.base

    def from_usd(self, value: Decimal) -> Decimal:
        """A sum in USD in the other currency.

        value / rate where the rate is USD for one unit, else value x rate. At 1.08 USD for a EUR, 108 USD are 100 EUR;
        at 150 JPY for a USD they are 16,200 JPY.
        """
        return amount(value, "value") * self.rate if self.base == USD else amount(value, "value") / self.rate


def currency_of(rate: ExchangeRate | None) -> str:
    """The currency that sums are told in: USD unless a rate is given."""
    return USD if rate is None else rate.currency


def is_exchangeable(currency: str, rate: ExchangeRate | None) -> bool:
    """Whether sums in `currency` can be told in `currency_of(rate)`."""
    return currency in (USD, currency_of(rate))


def exchanged(value: Decimal, currency: str, rate: ExchangeRate | None) -> Decimal:
    """A sum in `currency` in `currency_of(rate)`, not rounded.

    Raises
    ------
    InvalidCostInput
        If `currency` is neither that nor USD.
    """
    if currency == currency_of(rate):
        return value
    if rate is None or currency != USD:
        raise InvalidCostInput("currency", f"{currency} cannot be exchanged for {currency_of(rate)} at the rate given")
    return rate.from_usd(value)
