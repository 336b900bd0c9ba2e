"""Connections to Postgres."""

from collections.abc import Generator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.settings import Settings
from service.storage.url import CONNECT_TIMEOUT_S, libpq_url

POOL_SIZE = 5
POOL_OVERFLOW = 5
POOL_WAIT_S = 5
POOL_RECYCLE_S = 1800
STATEMENT_TIMEOUT_MS = 15_000


class DatabaseUnavailable(Exception):
    """The database cannot be reached, is busy for too long, or went away meanwhile; the same again may succeed."""


@contextmanager
def transaction(engine: Engine) -> Generator[Connection]:
    """A connection for one transaction: committed at the end, undone by any exception.

    Raises
    ------
    DatabaseUnavailable
        Nothing is known to be written.
    """
    try:
        with engine.begin() as connection:
            yield connection
    except (InterfaceError, OperationalError, PoolTimeout) as error:
        raise DatabaseUnavailable(str(error)) from error


def create_engine(settings: Settings, *, pooled: bool = True) -> Engine:
    """An engine for one process; create it after the process has started, never share it over a fork.

    A pool takes up to 10 connections; waiting longer than 5 s for one raises `sqlalchemy.exc.TimeoutError`.

    Parameters
    ----------
    settings : Settings
        With `database_url` set.
    pooled : bool
        False for commands, which use a connection or two and end.
    """
    if settings.database_url is None:
        raise ValueError("settings.database_url is not set")
    url = sa.make_url(libpq_url(settings.database_url)).set(drivername="postgresql+psycopg")
    connect = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "shardwise",
        "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c timezone=UTC",
        **({} if settings.prepare_statements else {"prepare_threshold": None}),
    }
    if not pooled:
        return sa.create_engine(url, poolclass=sa.NullPool, connect_args=connect)
    return sa.create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_timeout=POOL_WAIT_S,
        pool_recycle=POOL_RECYCLE_S,
        pool_pre_ping=True,
        connect_args=connect,
    )


def answers(engine: Engine) -> bool:
    """Whether the database answers."""
    try:
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
    except SQLAlchemyError:
        return False
    return True
