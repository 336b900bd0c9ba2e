"""JSONB gives back what it was given."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from service.storage.json_values import decode, encode

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["$float", "$", "$$float"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | KEYS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))


@pytest.fixture(scope="module")
def connection(server_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server_url) as connection:
        yield connection


def through_postgres(connection: psycopg.Connection[Any], value: object) -> object:
    row = connection.execute("SELECT %s::jsonb", (Jsonb(encode(value)),)).fetchone()
    return decode(row[0]) if row else None


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_any_value_survives(connection: psycopg.Connection[Any], value: object) -> None:
    """To the spelling: integers stay integers, `-0.0` keeps its sign, `NaN` and `Infinity` pass."""
    assert json.dumps(through_postgres(connection, value), sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1e16, 1e300, -0.0, 1e-7, 0.1, {"$float": "1.5"}])
def test_awkward_values_survive(connection: psycopg.Connection[Any], value: object) -> None:
    """Those that JSONB itself refuses or changes."""
    back = through_postgres(connection, [value])
    assert json.dumps(back) == json.dumps([value])
