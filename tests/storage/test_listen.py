"""Every worker hears of every revision, sooner or later."""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest
import sqlalchemy as sa

from service.settings import Settings
from service.storage import listen
from service.storage.catalogue import publish
from service.storage.url import libpq_url
from tests.examples import GPU, MODEL

PATIENCE_S = 60


def publish_one(engine: sa.Engine, record: object) -> None:
    with engine.begin() as connection:
        publish(connection, [record], author="test", summary="a change")


def heard(
    url: str, scenario: Callable[[Callable[[int], Awaitable[None]]], Awaitable[None]], *, known: int = 0
) -> list[int]:
    """The revisions a follower reports while a scenario runs, which is given a way to wait for one of them."""
    reported: list[int] = []

    async def follow_through() -> None:
        news = asyncio.Condition()

        async def changed(revision: int) -> None:
            async with news:
                reported.append(revision)
                news.notify_all()

        async def until(revision: int) -> None:
            async with news:
                await news.wait_for(lambda: revision in reported)

        follower = asyncio.create_task(listen.follow(url, changed, known))
        await asyncio.wait_for(scenario(until), PATIENCE_S)
        follower.cancel()

    asyncio.run(follow_through())
    return reported


def test_a_revision_made_meanwhile_is_heard_of(engine: sa.Engine, empty_settings: Settings) -> None:
    """And one that was there before, but not known."""

    async def scenario(until: Callable[[int], Awaitable[None]]) -> None:
        await until(1)
        await asyncio.to_thread(publish_one, engine, MODEL)
        await until(2)

    publish_one(engine, GPU)
    assert heard(str(empty_settings.database_url), scenario) == [1, 2]


def test_what_is_known_is_not_reported(engine: sa.Engine, empty_settings: Settings) -> None:
    """Only the next one is."""

    async def scenario(until: Callable[[int], Awaitable[None]]) -> None:
        await asyncio.to_thread(publish_one, engine, MODEL)
        await until(2)

    publish_one(engine, GPU)
    assert heard(str(empty_settings.database_url), scenario, known=1) == [2]


def test_a_lost_connection_loses_no_revision(
    engine: sa.Engine, empty_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One made while nobody listened is found after the next connect."""
    monkeypatch.setattr(listen, "FIRST_PAUSE_S", 0.01)
    url = str(empty_settings.database_url)

    def cut_off() -> None:
        with psycopg.connect(libpq_url(url)) as connection:
            cut = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'shardwise listener' AND datname = current_database()"
            ).fetchall()
        assert cut

    async def scenario(until: Callable[[int], Awaitable[None]]) -> None:
        await until(1)
        await asyncio.to_thread(cut_off)
        await asyncio.to_thread(publish_one, engine, MODEL)
        await until(2)

    publish_one(engine, GPU)
    assert heard(url, scenario) == [1, 2]


def test_a_failing_reader_is_asked_again(
    engine: sa.Engine, empty_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revision counts as known only once it was taken in."""
    monkeypatch.setattr(listen, "FIRST_PAUSE_S", 0.01)
    attempts: list[int] = []

    async def changed(revision: int) -> None:
        attempts.append(revision)
        if len(attempts) < 3:
            raise RuntimeError("not yet")

    async def follow_through() -> None:
        follower = asyncio.create_task(listen.follow(str(empty_settings.database_url), changed, 0))
        async with asyncio.timeout(PATIENCE_S):
            while len(attempts) < 3:
                await asyncio.sleep(0.01)
        follower.cancel()

    publish_one(engine, GPU)
    asyncio.run(follow_through())
    assert attempts == [1, 1, 1]
