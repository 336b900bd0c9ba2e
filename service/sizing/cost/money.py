"""Money is `Decimal`; rates and counts may be any number. An hour becomes a month and a year."""

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal

from service.sizing.errors import SizingError

Number = int | float | Decimal

HOURS_PER_MONTH = Decimal(730)
"""8,760 hours of a year over twelve months: what cloud providers bill a month as."""

HOURS_PER_YEAR = 12 * HOURS_PER_MONTH
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


class InvalidCostInput(SizingError):
    """A number a cost cannot be computed from.

    Attributes
    ----------
    field : str
        Name of the argument.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def decimal(value: Number, field: str) -> Decimal:
    """A number as `Decimal`, digit for digit as it prints (0.1 is 0.1).

    Raises
    ------
    InvalidCostInput
        If it is not finite.
    """
    exact = value if isinstance(value, Decimal) else Decimal(str(value))
    if not exact.is_finite():
        raise InvalidCostInput(field, f"{value} is not a number")
    return exact


def at_least_zero(value: Number, field: str) -> Decimal:
    """`decimal`, refusing what is below zero."""
    exact = decimal(value, field)
    if exact < 0:
        raise InvalidCostInput(field, f"{value} is below 0")
    return exact


def above_zero(value: Number, field: str) -> Decimal:
    """`decimal`, refusing zero and what is below."""
    exact = decimal(value, field)
    if exact <= 0:
        raise InvalidCostInput(field, f"{value} is not above 0")
    return exact


def fraction(value: Number, field: str, *, zero: bool = True) -> Decimal:
    """`decimal` between 0 and 1; 0 itself only if `zero`."""
    exact = at_least_zero(value, field) if zero else above_zero(value, field)
    if exact > 1:
        raise InvalidCostInput(field, f"{value} is above 1 (50 % is 0.5)")
    return exact


def amount(value: Decimal | int, field: str) -> Decimal:
    """A sum of money, not below zero.

    Raises
    ------
    InvalidCostInput
        If it is negative or not finite.
    TypeError
        If it is a float: money that went through binary fractions is no longer what was asked.
    """
    if isinstance(value, float):
        raise TypeError(f"{field} is a float; money is Decimal")
    return at_least_zero(value, field)


MOST_COPIES = 10**9
_NEARLY = Decimal("1e-12")


def whole_copies(needed: Decimal, field: str) -> int:
    """Smallest whole number not below `needed`; what exceeds one by under 10^-12 is an artefact of division."""
    if needed > MOST_COPIES:
        raise InvalidCostInput(field, f"takes over {MOST_COPIES:,} copies")
    return int(needed.quantize(_NEARLY, ROUND_HALF_EVEN).to_integral_value(ROUND_CEILING))


def per_month(per_hour: Decimal, hours: Number = HOURS_PER_MONTH) -> Decimal:
    """Cost of a month of `hours` at `per_hour`.

    cost = per_hour x hours. 55.04 an hour x 730 = 40,179.20 a month.
    """
    return amount(per_hour, "per_hour") * at_least_zero(hours, "hours")


def per_year(per_hour: Decimal) -> Decimal:
    """Cost of a year without a pause.

    cost = per_hour x 8,760. 55.04 an hour x 8,760 = 482,150.40 a year.
    """
    return amount(per_hour, "per_hour") * HOURS_PER_YEAR


def cents(value: Decimal) -> Decimal:
    """A sum rounded to hundredths, half to even: for showing, never for further arithmetic."""
    return value.quantize(Decimal("0.01"), ROUND_HALF_EVEN)
