"""Connections to Postgres."""

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from service.settings import Settings, StartupError

CONNECT_TIMEOUT_S = 5
POOL_SIZE = 5
POOL_OVERFLOW = 5
POOL_WAIT_S = 5
POOL_RECYCLE_S = 1800
STATEMENT_TIMEOUT_MS = 15_000
SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
EXAMPLE = "postgresql://user:password@host:5432/database"


def libpq_url(database_url: str) -> str:
    """The URL as libpq takes it.

    Raises
    ------
    StartupError
        It is not a Postgres URL. The message does not repeat it, for it may hold a password.
    """
    scheme, separator, rest = database_url.partition("://")
    if separator and scheme in SCHEMES:
        url = f"postgresql://{rest}"
        try:
            conninfo_to_dict(url)
        except psycopg.Error:
            pass
        else:
            return url
    raise StartupError(f"DATABASE_URL is not a Postgres URL; it takes the form {EXAMPLE}.")


def check_reachable(database_url: str) -> None:
    """Connect once.

    Raises
    ------
    StartupError
        The URL is malformed, or the server is not there, refuses the password or lacks the database.
    """
    url = libpq_url(database_url)
    try:
        psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S).close()
    except psycopg.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else "no reason given"
        raise StartupError(f"The database named by DATABASE_URL cannot be used: {reason}") from None


def create_engine(settings: Settings, *, pooled: bool = True) -> sa.Engine:
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
