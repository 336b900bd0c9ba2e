"""JSON values that JSONB cannot hold as they are, and back.

JSONB knows no `Infinity` or `NaN`, which real configurations contain, and turns `1e+16` into an integer and `-0.0`
into `0.0`. Such numbers are kept as `{"$float": "..."}`; a key of the value's own that begins with `$` gets another.
"""

import math
from typing import Any, cast

FLOAT = "$float"


def encode(value: Any) -> Any:
    """The value as JSONB can hold it."""
    match value:
        case float() if (
            not math.isfinite(value) or repr(value) == "-0.0" or (value.is_integer() and "e" in repr(value))
        ):
            return {FLOAT: repr(value)}
        case dict():
            return {_escape(key): encode(item) for key, item in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [encode(item) for item in cast("list[Any]", value)]
        case _:
            return value


def decode(value: Any) -> Any:
    """The value that `encode` was given."""
    match value:
        case {"$float": str() as number, **rest} if not rest:
            return float(number)
        case dict():
            return {_unescape(key): decode(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [decode(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _escape(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _unescape(key: str) -> str:
    return key.removeprefix("$") if key.startswith("$") else key
