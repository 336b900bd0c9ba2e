"""Hearing of new revisions."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from service.storage.catalogue import CHANNEL
from service.storage.url import CONNECT_TIMEOUT_S, libpq_url

RECHECK_S = 30.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
NEWEST = "SELECT coalesce(max(revision), 0) FROM catalogue_revisions"

log = logging.getLogger(__name__)


async def follow(database_url: str, changed: Callable[[int], Awaitable[object]], known: int) -> None:
    """Call `changed` with each new revision, for ever; cancel to end.

    The connection is its own, never a pool's. Notices can be lost, so the newest revision is also read after every
    connect and every 30 s: what is right does not depend on them. A failure, `changed`'s too, is logged and tried
    again after a growing pause.

    Parameters
    ----------
    database_url : str
        Postgres, reached directly and not through a pooler that shares sessions.
    changed : callable
        Takes the new revision; awaited before the next one is looked for.
    known : int
        The revision the caller has already.
    """
    pause = FIRST_PAUSE_S
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(
                libpq_url(database_url),
                autocommit=True,
                application_name="shardwise listener",
                connect_timeout=CONNECT_TIMEOUT_S,
                **KEEPALIVE,
            ) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                while True:
                    newest = await _newest(connection)
                    if newest != known:
                        await changed(newest)
                        known = newest
                    pause = FIRST_PAUSE_S
                    async for _ in connection.notifies(timeout=RECHECK_S, stop_after=1):
                        pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the next try may succeed, and stopping never helps
            log.warning("catalogue listener failed, next try in %.1f s: %s", pause, error)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, LONGEST_PAUSE_S)


async def _newest(connection: psycopg.AsyncConnection) -> int:
    row = await (await connection.execute(NEWEST)).fetchone()
    return row[0] if row else 0
