"""Long lists in pages, by key."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from litestar import Request
from pydantic import Field

from service.api.contract import INTEGRAL, Contract, Text
from service.api.problems import FieldError, invalid
from service.api.reading import read_query

Item = TypeVar("Item")
Query = TypeVar("Query", bound=Contract)

DEFAULT_LIMIT = 100


class PageQuery(Contract):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=500), INTEGRAL] = Field(
        default=DEFAULT_LIMIT, description="most entries to return"
    )
    after: Text | None = Field(default=None, description="key of the last entry seen; null: from the start")


class NoQuery(Contract):
    """No parameters at all."""


def read_parameters(request: Request[Any, Any, Any], model: type[Query]) -> Query:
    """The query parameters of a request.

    Raises
    ------
    Problem
        400: a parameter is unknown, given twice, or wrong.
    """
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in values:
            raise invalid((FieldError(name, "is given twice"),))
        values[name] = value
    return read_query(values, model)


def page(items: Sequence[Item], key: Callable[[Item], str], query: PageQuery) -> tuple[tuple[Item, ...], str | None]:
    """The entries after `query.after` in key order, and the key to continue after; None at the end."""
    ordered = sorted(items, key=key)
    if query.after is not None:
        ordered = [item for item in ordered if key(item) > query.after]
    chosen = tuple(ordered[: query.limit])
    return chosen, key(chosen[-1]) if len(chosen) < len(ordered) else None
