"""Writing the catalogue makes revisions; reading one gives the catalogue as it was then."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from service.catalogue.records.gpu import Level, SourcedFigure
from service.catalogue.records.model import ModelRecord
from service.storage import tables
from service.storage.catalogue import CHANNEL, current_revision, load_snapshot, publish, revision_on, revisions
from service.storage.forms import CatalogueTable
from service.storage.seed import is_seeded, seed, shipped
from tests.examples import GPU, MODEL

USB_FIGURES = {name: {"value": 1} for name in ("memory_total_gib", "memory_bandwidth_gb_per_s", "usb_gb_per_s")}


def write(engine: sa.Engine, *records: object) -> int:
    with engine.begin() as connection:
        return publish(connection, records, author="test", summary="a change")


def count(connection: sa.Connection, tables_: Iterable[CatalogueTable] = tables.CATALOGUE) -> int:
    return sum(connection.scalar(sa.select(sa.func.count()).select_from(table.table)) or 0 for table in tables_)


def test_what_is_written_is_read_back(engine: sa.Engine) -> None:
    """Records survive the database unchanged."""
    assert write(engine, GPU, MODEL) == 1
    with engine.connect() as connection:
        snapshot = load_snapshot(connection)
    assert (snapshot.revision, snapshot.gpus, snapshot.models) == (1, (GPU,), (MODEL,))


def test_an_empty_catalogue_has_revision_zero(engine: sa.Engine) -> None:
    """Before anything was written."""
    with engine.connect() as connection:
        assert load_snapshot(connection).revision == 0


def test_a_revision_keeps_what_it_said(engine: sa.Engine) -> None:
    """A replaced record is still there for the revisions before, and one that came later is not."""
    write(engine, GPU)
    faster = replace(
        GPU, figures=dict(GPU.figures) | {"memory_bandwidth_gb_per_s": SourcedFigure(99, "DS", Level.SINGLE)}
    )
    write(engine, faster, MODEL)
    with engine.connect() as connection:
        first, second = load_snapshot(connection, 1), load_snapshot(connection, 2)
        names = [(revision.revision, revision.author) for revision in revisions(connection)]
    assert (first.gpus, first.models) == ((GPU,), ())
    assert (second.gpus, second.models) == ((faster,), (MODEL,))
    assert names == [(2, "test"), (1, "test")]


def test_writing_the_same_again_makes_no_revision(engine: sa.Engine) -> None:
    """So a repeated import changes nothing."""
    write(engine, GPU, MODEL)
    with engine.connect() as connection:
        rows = count(connection)
    assert write(engine, GPU, MODEL) == 1
    with engine.connect() as connection:
        assert count(connection) == rows


def test_a_failed_write_leaves_nothing(engine: sa.Engine) -> None:
    """All or nothing: two GPUs under one name are refused with everything that came with them."""
    with pytest.raises(ValueError, match="two GPUs answer to the name 'X100 SXM'"):
        write(engine, MODEL, GPU, replace(GPU, slug="x100-other", name="Other"))
    with engine.connect() as connection:
        assert (current_revision(connection), count(connection)) == (0, 0)


def test_a_record_given_twice_is_refused(engine: sa.Engine) -> None:
    """Which of the two is meant cannot be known."""
    with pytest.raises(ValueError, match="x100 is given twice"):
        write(engine, GPU, replace(GPU, notes="another"))


def test_a_new_revision_is_announced_on_commit(engine: sa.Engine) -> None:
    """Listeners hear its number once it can be read, and hear nothing of a write that changed nothing."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        with engine.begin() as connection:
            publish(connection, [GPU], author="test", summary="a change")
            assert list(listener.notifies(timeout=0.05)) == []
        write(engine, GPU)
        assert [notice.payload for notice in listener.notifies(timeout=0.2)] == ["1"]


def test_the_revision_of_a_moment_can_be_asked(engine: sa.Engine) -> None:
    """The newest one made by then."""
    start = datetime.now(UTC)
    write(engine, GPU)
    with engine.connect() as connection:
        assert revision_on(connection, start) == 0
        assert revision_on(connection, datetime.now(UTC)) == 1


@pytest.mark.parametrize("statement", ["UPDATE gpus SET name = 'other'", "DELETE FROM gpus", "DELETE FROM models"])
def test_rows_are_never_changed_or_deleted(engine: sa.Engine, statement: str) -> None:
    """Not even by hand."""
    write(engine, GPU, MODEL)
    with pytest.raises(DBAPIError, match="closed by a newer revision"), engine.begin() as connection:
        connection.execute(sa.text(statement))


def test_a_closed_row_is_not_opened_again(engine: sa.Engine) -> None:
    """History stays as it was."""
    write(engine, GPU)
    write(engine, replace(GPU, notes="newer"))
    with pytest.raises(DBAPIError, match="closed by a newer revision"), engine.begin() as connection:
        connection.execute(sa.text("UPDATE gpus SET to_revision = NULL WHERE to_revision = 2"))


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"slug": "X 100"}, "ck_gpus_slug_form"),
        ({"vendor": "acme"}, "ck_gpus_vendor_known"),
        ({"link": "usb", "figures": USB_FIGURES}, "ck_gpus_link_known"),
        ({"figures": {"memory_total_gib": {"value": 80}}}, "ck_gpus_figures_needed"),
        ({"node_sizes": []}, "ck_gpus_node_sizes_positive"),
        ({"node_sizes": [0]}, "ck_gpus_node_sizes_positive"),
        ({"source": ""}, "ck_gpus_source_given"),
        ({"to_revision": 1}, "ck_gpus_revisions_ordered"),
        ({"slug": "x200", "from_revision": 7}, "fk_gpus_from_revision_catalogue_revisions"),
        ({}, "ex_gpus_revisions"),
    ],
)
def test_the_database_refuses_rows_that_cannot_be(
    engine: sa.Engine, change: dict[str, object], constraint: str
) -> None:
    """Each rule holds without the service, overlapping revisions of one GPU among them."""
    write(engine, GPU)
    table = tables.gpus.table
    with engine.begin() as connection:
        row = dict(connection.execute(sa.select(table)).mappings().one()) | change
        insertion = table.insert().values({name: row[name] for name in row if name != "id"})
        with pytest.raises(DBAPIError, match=constraint):
            connection.execute(insertion)


def test_the_shipped_catalogue_is_seeded_once(engine: sa.Engine) -> None:
    """A second seed leaves a record alone that somebody replaced since."""
    with engine.begin() as connection:
        assert seed(connection) == 1
    url = engine.url.render_as_string(hide_password=False)
    assert is_seeded(url)
    with engine.connect() as connection:
        ours = replace(load_snapshot(connection).gpu("h100-sxm"), notes="our own")
    assert write(engine, ours) == 2
    with engine.begin() as connection:
        assert seed(connection) == 2
        assert load_snapshot(connection).gpu("h100-sxm").notes == "our own"


def test_every_shipped_record_survives_the_database(engine: sa.Engine) -> None:
    """A configuration with `Infinity` in it too."""
    records = list(shipped())
    write(engine, *records)
    with engine.connect() as connection:
        snapshot = load_snapshot(connection)
    written = {record.name: record for record in records if isinstance(record, ModelRecord)}
    assert {model.name: model for model in snapshot.models} == written
    assert all(model.sha256 == written[model.name].sha256 for model in snapshot.models)
