"""What the environment decides, read once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

Choice = TypeVar("Choice", bound=str)

CHECKOUT = Path(__file__).resolve().parents[1]


class StartupError(Exception):
    """Something outside the program keeps it from starting: one sentence for whoever started it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The service's settings.

    Attributes
    ----------
    database_url : str or None
        `DATABASE_URL`: a Postgres URL. None: a Postgres of our own in `data_dir`.
    data_dir : Path or None
        `SHARDWISE_DATA_DIR`: where that Postgres keeps its data. None: `storage.embedded` picks a place.
    host, port : str, int
        `SHARDWISE_HOST`, `SHARDWISE_PORT`: where the service listens.
    workers : int
        `SHARDWISE_WORKERS`: serving processes. Each takes up to 11 database connections.
    log_level, log_format : str
        `SHARDWISE_LOG_LEVEL` (debug, info, warning, error), `SHARDWISE_LOG_FORMAT` (console, json).
    prepare_statements : bool
        `SHARDWISE_PREPARE_STATEMENTS`: false behind a connection pooler that shares sessions between transactions.
    """

    database_url: str | None = None
    data_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"
    prepare_statements: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Settings from environment variables; an empty variable counts as absent.

        Raises
        ------
        StartupError
            A variable has a value that is not accepted.
        """
        given = {name: value.strip() for name, value in environment.items() if value.strip()}
        data_dir = given.get("SHARDWISE_DATA_DIR")
        return cls(
            database_url=given.get("DATABASE_URL"),
            data_dir=Path(data_dir).expanduser().absolute() if data_dir else None,
            host=given.get("SHARDWISE_HOST", "127.0.0.1"),
            port=_whole("SHARDWISE_PORT", given, 8000, 1, 65535),
            workers=_whole("SHARDWISE_WORKERS", given, 1, 1, 64),
            log_level=_one_of("SHARDWISE_LOG_LEVEL", given, "info", get_args(LogLevel)),
            log_format=_one_of("SHARDWISE_LOG_FORMAT", given, "console", get_args(LogFormat)),
            prepare_statements=_one_of("SHARDWISE_PREPARE_STATEMENTS", given, "true", ("true", "false")) == "true",
        )


def _whole(name: str, given: Mapping[str, str], default: int, low: int, high: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and low <= int(text) <= high:
        return int(text)
    raise StartupError(f"{name} is {text!r}; it takes a whole number from {low} to {high}.")


def _one_of(name: str, given: Mapping[str, str], default: Choice, choices: tuple[Choice, ...]) -> Choice:
    text = given.get(name, default)
    for choice in choices:
        if text == choice:
            return choice
    raise StartupError(f"{name} is {text!r}; it takes {', '.join(choices[:-1])} or {choices[-1]}.")
