"""Fixtures that need the real database; without `DATABASE_URL` a Postgres of the tests' own."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import hypothesis
import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from service.settings import Settings
from service.storage import embedded, migrations, seed
from service.storage.engine import create_engine
from service.storage.url import libpq_url

# The same examples every time: whoever wants others says `--hypothesis-seed=random --hypothesis-profile=default`.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")

QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "60"}


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that the user Postgres runs as can enter, which a home need not be when root runs the tests."""
    directory = Path(tempfile.mkdtemp(prefix="shardwise-tests-", dir="/tmp"))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory for a Postgres of the test's own, not made yet."""
    with open_directory() as directory:
        yield directory / "data"


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """URL of a Postgres on which the tests may create databases."""
    if given := os.environ.get("DATABASE_URL"):
        yield libpq_url(given)
        return
    with open_directory() as directory, embedded.running(directory / "data", QUICK) as url:
        yield url


class Databases:
    """Makes databases, and drops what it made."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._made: list[str] = []

    def make(self, template: str = "template1") -> Settings:
        """A new database, copied from another one that nobody is connected to."""
        name = f"shardwise_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        self._made.append(name)
        url = sa.make_url(self._server_url).set(database=name)
        return Settings(database_url=url.render_as_string(hide_password=False))

    def drop_all(self) -> None:
        """Drop every database made here, whoever still uses it."""
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            for name in self._made:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def databases(server_url: str) -> Iterator[Databases]:
    """Makes databases for tests that need one of their own."""
    databases = Databases(server_url)
    yield databases
    if "DATABASE_URL" in os.environ:
        databases.drop_all()


@pytest.fixture(scope="session")
def migrated_template(databases: Databases) -> str:
    """Name of a database with every migration and no rows."""
    settings = databases.make()
    engine = create_engine(settings, pooled=False)
    with engine.connect() as connection:
        migrations.upgrade(connection)
    return str(sa.make_url(str(settings.database_url)).database)


@pytest.fixture(scope="session")
def seeded_template(databases: Databases, migrated_template: str) -> str:
    """Name of a database with the shipped catalogue."""
    settings = databases.make(migrated_template)
    with create_engine(settings, pooled=False).begin() as connection:
        seed.seed(connection)
    return str(sa.make_url(str(settings.database_url)).database)


@pytest.fixture(scope="session")
def settings(databases: Databases, seeded_template: str) -> Settings:
    """Settings of a database with the shipped catalogue, for tests that only read it."""
    return replace(databases.make(seeded_template), log_level="warning")


@pytest.fixture(scope="session")
def scratch(databases: Databases, migrated_template: str) -> Settings:
    """Settings of a migrated database that `empty_settings` empties again and again."""
    return databases.make(migrated_template)


@pytest.fixture
def empty_settings(scratch: Settings) -> Settings:
    """Settings of a migrated database with no rows, the test's own until it ends."""
    with psycopg.connect(libpq_url(str(scratch.database_url))) as connection:
        connection.execute("TRUNCATE catalogue_revisions, api_keys, calibration_texts RESTART IDENTITY CASCADE")
    return scratch


@pytest.fixture
def engine(empty_settings: Settings) -> Iterator[sa.Engine]:
    """An engine on a migrated database with no rows, the test's own until it ends."""
    engine = create_engine(empty_settings, pooled=False)
    yield engine
    engine.dispose()
