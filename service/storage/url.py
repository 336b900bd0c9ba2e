"""The database's URL."""

from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from service.settings import StartupError

CONNECT_TIMEOUT_S = 5
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
    url = f"postgresql://{rest}"
    try:
        _ = urlsplit(url).port
        conninfo_to_dict(url)
    except (ValueError, psycopg.Error):
        separator = ""
    if not separator or scheme not in SCHEMES:
        raise StartupError(f"DATABASE_URL is not a Postgres URL; it takes the form {EXAMPLE}.")
    return url


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
        raise StartupError(f"The database named by DATABASE_URL cannot be used: {_reason(error)}.") from None


def _reason(error: psycopg.Error) -> str:
    """The first cause in libpq's report, which may name several attempts and add hints."""
    lines = [line.strip(" \t-") for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("Multiple connection attempts")]
    return causes[0].removeprefix("connection failed: ").removesuffix(".") if causes else "no reason given"
