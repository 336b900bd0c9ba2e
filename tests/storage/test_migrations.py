"""The migrations give the tables that the code describes, and can be undone."""

import re

import psycopg
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError

from service.settings import Settings, StartupError
from service.storage import migrations
from service.storage.catalogue import load_snapshot
from service.storage.engine import create_engine
from service.storage.seed import seed
from service.storage.tables import metadata
from service.storage.url import libpq_url
from tests.conftest import Databases

SCHEMA = """
    SELECT 'column', table_name, column_name,
           concat_ws(' ', data_type, udt_name, is_nullable, column_default, identity_generation)
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
    UNION ALL
    SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid <> 0
        AND conrelid::regclass::text <> 'alembic_version'
    UNION ALL
    SELECT 'index', tablename, indexname, indexdef
    FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    ORDER BY 1, 2, 3, 4
"""
FUNCTIONS = """
    SELECT 'function', proname, '', '' FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND NOT EXISTS (
        SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
    UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, '' FROM pg_trigger WHERE NOT tgisinternal
    ORDER BY 1, 2, 3
"""


def schema(connection: sa.Connection, *queries: str) -> list[tuple[str, ...]]:
    return [tuple(row) for query in queries for row in connection.execute(sa.text(query))]


def revisions() -> list[str]:
    """Every migration's number, the oldest first."""
    return [script.revision for script in ScriptDirectory(str(migrations.DIRECTORY)).walk_revisions()][::-1]


def test_numbers_follow_each_other_from_one_head_recorded_in_a_file() -> None:
    """Two branches that both add a migration meet in a conflict of `HEAD`, not in two heads."""
    script = ScriptDirectory(str(migrations.DIRECTORY))

    assert script.get_heads() == [migrations.head()]
    assert revisions() == [f"{number:04}" for number in range(1, len(revisions()) + 1)]
    assert all(re.fullmatch(r"\d{4}_\w+\.py", file.name) for file in (migrations.DIRECTORY / "versions").glob("*.py"))


def test_tables_in_code_equal_those_the_migrations_make(databases: Databases, engine: sa.Engine) -> None:
    """Columns, every constraint and every index, as Postgres itself writes them."""
    described = create_engine(databases.make(), pooled=False)
    with described.begin() as connection:
        connection.execute(sa.text("CREATE EXTENSION btree_gist"))
        metadata.create_all(connection)
    with described.connect() as expected, engine.connect() as migrated:
        assert schema(migrated, SCHEMA) == schema(expected, SCHEMA)


def test_alembic_finds_nothing_to_add(engine: sa.Engine) -> None:
    """A change of the tables without its migration fails here."""
    with engine.connect() as connection:
        migrations.check(connection)


def test_each_migration_is_undone_without_a_trace(databases: Databases) -> None:
    """Up, down and up again, one at a time: the schema after each step is the one before it."""
    with create_engine(databases.make(), pooled=False).connect() as connection:
        before = {"base": schema(connection, SCHEMA, FUNCTIONS)}
        for revision in revisions():
            migrations.upgrade(connection, revision)
            before[revision] = schema(connection, SCHEMA, FUNCTIONS)
        down = ["base", *revisions()][-2::-1]
        for revision in down:
            migrations.downgrade(connection, revision)
            assert schema(connection, SCHEMA, FUNCTIONS) == before[revision]
        migrations.upgrade(connection)
        assert schema(connection, SCHEMA, FUNCTIONS) == before[migrations.head()]


def test_upgrades_keep_the_rows_that_are_there(databases: Databases) -> None:
    """A filled catalogue survives going down to the first migration's tables and up again."""
    with create_engine(databases.make(), pooled=False).connect() as connection:
        migrations.upgrade(connection)
        with connection.begin():
            seed(connection)
        migrations.downgrade(connection, revisions()[0])
        migrations.upgrade(connection)
        assert load_snapshot(connection).gpu("h100-sxm").gpus_per_node == 8


def test_sql_can_be_rendered_and_run_elsewhere(databases: Databases, engine: sa.Engine) -> None:
    """`migrate --sql` gives a script that ends in the same schema."""
    other = databases.make()
    with psycopg.connect(libpq_url(str(other.database_url)), autocommit=True) as connection:
        connection.execute(migrations.sql().encode())
    with create_engine(other, pooled=False).connect() as rendered, engine.connect() as migrated:
        assert schema(rendered, SCHEMA, FUNCTIONS) == schema(migrated, SCHEMA, FUNCTIONS)


def test_being_current_is_known_without_alembic(databases: Databases, empty_settings: Settings) -> None:
    """A start that has nothing to do asks one question."""
    assert migrations.is_current(str(empty_settings.database_url))
    assert not migrations.is_current(str(databases.make().database_url))


def test_a_database_of_a_newer_version_is_refused(databases: Databases, migrated_template: str) -> None:
    """Rather than run against tables it does not know."""
    engine = create_engine(databases.make(migrated_template), pooled=False)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with engine.connect() as connection, pytest.raises(StartupError, match="newer version of shardwise"):
        migrations.upgrade(connection)


def test_a_migration_gives_up_where_it_would_hold_up_the_service(databases: Databases, migrated_template: str) -> None:
    """It waits for a lock no longer than its timeout."""
    settings = databases.make(migrated_template)
    engine = create_engine(settings, pooled=False)
    with psycopg.connect(libpq_url(str(settings.database_url))) as reader, engine.connect() as connection:
        reader.execute("SELECT FROM gpus")
        with pytest.raises(OperationalError, match="lock timeout"):
            migrations.downgrade(connection, "base")
