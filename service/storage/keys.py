"""API keys: made once, shown once, kept as a hash."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from service.storage.tables import api_keys

ROLES = ("reader", "quoter", "curator", "admin")
"""What a key may do, each role all that those before it may."""

FORM = re.compile(r"sw_([0-9a-f]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
"""A key as text: the part that finds its row, then 256 random bits."""

PREFIX_BYTES = 6
SECRET_BYTES = 32
USE_NOTED_EVERY = "1 minute"
"""How often the use of a key is written down at most."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key.

    Attributes
    ----------
    prefix : str
        The part of the key that finds it and that it is called by.
    name, role : str
        Whom it was made for, and one of `ROLES`.
    created_at, last_used_at, revoked_at : datetime
        When; None: never.
    """

    prefix: str
    name: str
    role: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None

    def may(self, role: str) -> bool:
        """Whether the key's role covers another."""
        return ROLES.index(self.role) >= ROLES.index(role)


KEPT = tuple(api_keys.c[name] for name in ApiKey.__dataclass_fields__)


def sha256(key: str) -> str:
    """Hash of a key. Its 256 random bits need no slow hash: nobody guesses them."""
    return hashlib.sha256(key.encode()).hexdigest()


def create(connection: sa.Connection, name: str, role: str) -> str:
    """Make a key, in the caller's transaction, and return its text, which is not to be had again."""
    prefix = secrets.token_hex(PREFIX_BYTES)
    key = f"sw_{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    connection.execute(api_keys.insert().values(prefix=prefix, sha256=sha256(key), name=name, role=role))
    return key


def find(connection: sa.Connection, key: str) -> ApiKey | None:
    """The key that a text is, and note its use; None: no such key, or it is revoked."""
    form = FORM.fullmatch(key)
    if form is None:
        return None
    found = sa.select(api_keys.c.sha256, *KEPT).where(api_keys.c.prefix == form[1])
    row = connection.execute(found).mappings().one_or_none()
    if row is None or not hmac.compare_digest(row["sha256"], sha256(key)) or row["revoked_at"] is not None:
        return None
    unnoted = api_keys.c.last_used_at.is_(None) | (
        api_keys.c.last_used_at < sa.func.now() - sa.cast(USE_NOTED_EVERY, sa.Interval)
    )
    connection.execute(
        api_keys.update().where(api_keys.c.prefix == form[1], unnoted).values(last_used_at=sa.func.now())
    )
    return _kept(row)


def all_keys(connection: sa.Connection) -> list[ApiKey]:
    """Every key ever made, the newest first."""
    rows = connection.execute(sa.select(*KEPT).order_by(api_keys.c.id.desc())).mappings()
    return [_kept(row) for row in rows]


def revoke(connection: sa.Connection, prefix: str) -> ApiKey | None:
    """End a key at once; None: there is none of that prefix. A key that has ended keeps its date."""
    revoked_at = sa.func.coalesce(api_keys.c.revoked_at, sa.func.now())
    ended = api_keys.update().where(api_keys.c.prefix == prefix).values(revoked_at=revoked_at).returning(*KEPT)
    row = connection.execute(ended).mappings().one_or_none()
    return _kept(row) if row else None


def _kept(row: sa.RowMapping) -> ApiKey:
    return ApiKey(**{column.name: row[column.name] for column in KEPT})
