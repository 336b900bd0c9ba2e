"""Runs migrations: one at a time, one transaction each, giving up rather than holding others up."""

from typing import Any

import sqlalchemy as sa
from alembic import context

from service.settings import Settings
from service.storage.engine import create_engine
from service.storage.tables import metadata

LOCK = 7_368_616
LOCK_TIMEOUT_MS = 2_000
STATEMENT_TIMEOUT_MS = 5_000

OPTIONS: dict[str, Any] = {
    "target_metadata": metadata,
    "transaction_per_migration": True,
    "compare_type": True,
    "compare_server_default": True,
}


def offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(dialect_name="postgresql", literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def online(connection: sa.Connection) -> None:
    """Run on a connection, holding the lock that keeps other migrators out."""
    connection.execute(sa.text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
    connection.execute(sa.text(f"SET lock_timeout = {LOCK_TIMEOUT_MS}"))
    connection.execute(sa.text(f"SET statement_timeout = {STATEMENT_TIMEOUT_MS}"))
    connection.commit()
    try:
        context.configure(connection=connection, **OPTIONS)
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(sa.text("SELECT pg_advisory_unlock(:lock)"), {"lock": LOCK})
        connection.execute(sa.text("RESET lock_timeout"))
        connection.execute(sa.text("RESET statement_timeout"))
        connection.commit()


if context.is_offline_mode():
    offline()
elif (given := context.config.attributes.get("connection")) is not None:
    online(given)
else:
    with create_engine(Settings.from_environment(), pooled=False).connect() as own:
        online(own)
