"""Units, and a number that says where it comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

GIB = 1 << 30
"""Bytes in a GiB (2^30)."""

GB = 10**9
"""Bytes in a GB (10^9)."""


class Basis(StrEnum):
    """Where a number comes from."""

    GIVEN = "given"
    CATALOGUE = "catalogue"
    MEASURED = "measured"
    COMPUTED = "computed"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Doc:
    """What a field of an answer means, for its readers and for the published contract."""

    description: str
    unit: str | None = None
    example: object = None

    def __get_pydantic_json_schema__(self, core: object, handler: Callable[[object], dict[str, object]]) -> object:
        """Publish the description, unit and example with the field's schema."""
        schema = handler(core)
        schema["description"] = f"{self.description} ({self.unit})" if self.unit else self.description
        if self.example is not None:
            schema["examples"] = [self.example]
        return schema


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its range, unit and origin.

    Attributes
    ----------
    value, low, high : float
        The central value and the band around it; equal where the value is exact.
    unit : str
        Unit of the three numbers, as in the field names ("GiB", "ms", ...).
    basis : Basis
        Kind of origin.
    source : str
        The rule, catalogue row or measurement it comes from.
    """

    value: Annotated[float, Doc("central value", example=24.8)]
    low: Annotated[float, Doc("optimistic end of the band", example=22.1)]
    high: Annotated[float, Doc("pessimistic end of the band", example=30.2)]
    unit: Annotated[str, Doc("unit of the three numbers", example="ms")]
    basis: Annotated[Basis, Doc("kind of origin", example="computed")]
    source: Annotated[str, Doc("rule, catalogue row or measurement behind it", example="roofline")]


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer not below `numerator / denominator`."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` not below `value`."""
    return ceil_div(value, multiple) * multiple
