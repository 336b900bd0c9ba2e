"""Keys are made, found and ended; what is kept of one does not give it away."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from service.storage.keys import FORM, ROLES, all_keys, create, find, revoke
from service.storage.tables import api_keys


def made(engine: sa.Engine, role: str = "curator") -> str:
    with engine.begin() as connection:
        return create(connection, "ana", role)


def test_a_key_is_found_by_its_whole_text(engine: sa.Engine) -> None:
    """With its name and role."""
    key = made(engine)
    with engine.begin() as connection:
        found = find(connection, key)
    assert found is not None
    assert (found.name, found.role, found.revoked_at) == ("ana", "curator", None)
    assert key.startswith(f"sw_{found.prefix}_")


def test_keys_are_long_and_never_alike(engine: sa.Engine) -> None:
    """43 characters of base64 are 256 bits and two more."""
    keys = {made(engine) for _ in range(8)}
    assert len({key.rpartition("_")[2] for key in keys}) == len({key.split("_")[1] for key in keys}) == 8
    assert all(FORM.fullmatch(key) and len(key) == len("sw__") + 12 + 43 for key in keys)


def test_the_database_holds_the_hash_alone(engine: sa.Engine) -> None:
    """Whoever reads it can write nothing with it."""
    key = made(engine)
    with engine.connect() as connection:
        row = connection.execute(sa.select(api_keys)).mappings().one()
    assert row["sha256"] == hashlib.sha256(key.encode()).hexdigest()
    assert key[len("sw_") + 13 :] not in str(dict(row))


def test_a_key_is_not_found_by_less_or_else(engine: sa.Engine) -> None:
    """Not by its prefix, another secret, other case, nor with anything around it."""
    key = made(engine)
    other = key[:-1] + ("A" if key[-1] != "A" else "B")
    with engine.begin() as connection:
        for wrong in ("", "sw_", key[:16], other, key.upper(), f" {key}", f"{key}\n", f"{key}x", "sw_" + "0" * 12):
            assert find(connection, wrong) is None


def test_a_revoked_key_is_not_found(engine: sa.Engine) -> None:
    """And keeps the date of its end when it is revoked again."""
    key = made(engine)
    prefix = key.split("_")[1]
    with engine.begin() as connection:
        ended = revoke(connection, prefix)
    with engine.begin() as connection:
        again = revoke(connection, prefix)
        assert find(connection, key) is None
        assert revoke(connection, "0" * 12) is None
    assert ended is not None
    assert again is not None
    assert ended.revoked_at == again.revoked_at is not None


def test_keys_are_listed_with_their_last_use(engine: sa.Engine) -> None:
    """The newest first; the use is written down once a minute."""
    first, second = made(engine, "admin"), made(engine)
    with engine.begin() as connection:
        find(connection, first)
    with engine.begin() as connection:
        listed = all_keys(connection)
        find(connection, first)
        again = all_keys(connection)
    assert [key.prefix for key in listed] == [second.split("_")[1], first.split("_")[1]]
    assert listed[0].last_used_at is None
    assert listed[1].last_used_at is not None
    assert datetime.now(UTC) - listed[1].last_used_at < timedelta(minutes=5)
    assert again == listed


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_what_those_before_it_may(engine: sa.Engine, role: str) -> None:
    """reader, quoter, curator, admin."""
    key = made(engine, role)
    with engine.begin() as connection:
        found = find(connection, key)
    assert found is not None
    assert [found.may(other) for other in ("reader", "quoter", "curator", "admin")] == [
        True,
        role in ("quoter", "curator", "admin"),
        role in ("curator", "admin"),
        role == "admin",
    ]


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"prefix": "short"}, "ck_api_keys_prefix_form"),
        ({"sha256": "x"}, "ck_api_keys_sha256_form"),
        ({"name": ""}, "ck_api_keys_name_length"),
        ({"role": "king"}, "ck_api_keys_role_known"),
    ],
)
def test_the_database_refuses_keys_that_cannot_be(engine: sa.Engine, change: dict[str, str], constraint: str) -> None:
    """Without the service too."""
    row = {"prefix": "0" * 12, "sha256": "0" * 64, "name": "ana", "role": "reader"} | change
    with pytest.raises(IntegrityError, match=constraint), engine.begin() as connection:
        connection.execute(api_keys.insert().values(row))
