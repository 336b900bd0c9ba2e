"""Measurements in the database: kept once and whole, judged by revisions, seeded without undoing a judgement."""

from dataclasses import replace
from datetime import date
from math import inf

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from service.catalogue.records.calibration import (
    Collective,
    Latency,
    LinkMeasurement,
    LinkPoint,
    ServingFigures,
    ServingMeasurement,
    StartupMeasurement,
    Status,
)
from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.startups import StartupRecord
from service.storage import seed, tables
from service.storage.calibrations import set_status, store_report, store_startup
from service.storage.catalogue import current_revision, load_snapshot

DAY = date(2026, 11, 30)
LOAD = ServingRecord(
    ServingMeasurement(
        source="a test",
        model="m",
        engine="vllm",
        engine_version="0.19.0",
        gpu="h100-sxm",
        gpu_count=4,
        tensor_parallel_size=2,
        data_parallel_size=2,
        expert_parallel_size=4,
        precision="fp8",
        kv_cache_dtype="auto",
        enforce_eager=False,
        measured_on=DAY,
        derived=("output_tokens_per_s",),
        note="a note",
        figures=ServingFigures(
            input_tokens_mean=921.6,
            output_tokens_mean=128.5,
            concurrency=16.0,
            request_rate=inf,
            requests=200,
            failed=0,
            duration_s=40.0,
            ttft=Latency(1.0, 2.0, 3.0, 4.0, 5.0),
            tpot=Latency(median_ms=20.25),
            itl=Latency(mean_ms=6.5),
            e2e=Latency(p99_ms=7.5),
            output_tokens_per_s=640.0,
            total_tokens_per_s=5000.0,
            requests_per_s=5.0,
        ),
    ),
    "ana",
    DAY,
)
LINK = LinkRecord(
    LinkMeasurement(
        source="a test",
        gpu="h100-sxm",
        operation=Collective.ALL_TO_ALL,
        world_size=8,
        nodes=2,
        gpus=("NVIDIA H100 80GB HBM3",),
        out_of_place=(LinkPoint(1 << 28, 1119.8, 239.71, 209.75, 0), LinkPoint(1 << 29, 2157.5, 248.83, 217.73)),
        in_place=(),
        link="nvlink",
        note="a note",
    ),
    "ana",
    DAY,
)
STARTUP = StartupRecord(
    StartupMeasurement(source="a test", model="m", gpu="h100-sxm", weights_gib=15.0, available_kv_gib=54.0), "ana", DAY
)


def test_what_is_stored_is_read_back(engine: sa.Engine) -> None:
    """Every figure and condition, an infinite rate and results that were not run among them; the text beside."""
    with engine.begin() as connection:
        _, (load,) = store_report(connection, [LOAD], text="a report")
        revision, (link,) = store_report(connection, [LINK], text="another")
    assert (revision, load.is_new, link.is_new) == (2, True, True)
    assert isinstance(load.record, ServingRecord)
    assert load.record == replace(LOAD, report=load.record.report)
    with engine.connect() as connection:
        snapshot = load_snapshot(connection)
        texts = sa.select(tables.calibration_texts.c.digest, tables.calibration_texts.c.text)
        kept = {row.digest: row.text for row in connection.execute(texts)}
    assert (snapshot.servings, snapshot.links) == ((load.record,), (link.record,))
    assert {kept[record.report or ""] for record in (*snapshot.servings, *snapshot.links)} == {"a report", "another"}


def test_a_report_is_one_revision_and_one_text(engine: sa.Engine) -> None:
    """However many tests it holds; those held already stay as they are, and the same again makes none."""
    other = replace(LOAD, measurement=replace(LOAD.measurement, precision="bf16"))
    with engine.begin() as connection:
        assert store_report(connection, [LOAD], text="one")[0] == 1
        revision, stored = store_report(connection, [LOAD, other, other], text="both")
    assert (revision, [each.is_new for each in stored]) == (2, [False, True, True])
    with engine.begin() as connection:
        by_another = [replace(LOAD, recorded_by="ben"), replace(other, recorded_by="ben")]
        revision, stored = store_report(connection, by_another, text="both")
    assert (revision, {each.record.recorded_by for each in stored}) == (2, {"ana"})
    with engine.connect() as connection:
        assert len(load_snapshot(connection).servings) == 2
        assert connection.scalar(sa.select(sa.func.count()).select_from(tables.calibration_texts)) == 2


def test_a_report_that_breaks_off_leaves_nothing(engine: sa.Engine) -> None:
    """The second measurement cannot be kept, so neither is the first, nor the text."""
    broken = replace(LOAD, measurement=replace(LOAD.measurement, gpu_count=0))
    with pytest.raises(DBAPIError, match="sizes_positive"), engine.begin() as connection:
        store_report(connection, [LOAD, broken], text="both")
    with engine.connect() as connection:
        assert (current_revision(connection), load_snapshot(connection).servings) == (0, ())
        assert connection.scalar(sa.select(sa.func.count()).select_from(tables.calibration_texts)) == 0


@pytest.mark.parametrize("kind", ["startup", "serving", "link"])
def test_a_status_is_said_by_a_revision(engine: sa.Engine, kind: str) -> None:
    """Of any kind of measurement; the revision before keeps its own, and the same again makes none."""
    with engine.begin() as connection:
        if kind == "startup":
            id_ = store_startup(connection, STARTUP)[1].record.id
        else:
            id_ = store_report(connection, [LOAD] if kind == "serving" else [LINK], text="a report")[1][0].record.id
    with engine.begin() as connection:
        changed = set_status(connection, id_, Status.WITHDRAWN, "a wrong card", author="ben")
        same = set_status(connection, id_, Status.WITHDRAWN, "a wrong card", author="ben")
        assert set_status(connection, "0" * 16, Status.WITHDRAWN, "none such", author="ben") is None
    assert changed is not None
    assert same is not None
    assert (changed[0], changed[1].is_new, same[0], same[1].is_new) == (2, True, 2, False)
    with engine.connect() as connection:
        before, after = (load_snapshot(connection, revision).calibrations[id_] for revision in (1, 2))
    assert before.is_accepted
    assert (after.measurement.status, after.measurement.reason) == (Status.WITHDRAWN, "a wrong card")
    assert after == before.judged(Status.WITHDRAWN, "a wrong card")


def test_seeding_again_undoes_no_judgement(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer package ships the same measurements: one that was withdrawn stays so, and new ones come."""
    monkeypatch.setattr(seed, "shipped", lambda: iter([STARTUP]))
    with engine.begin() as connection:
        assert seed.seed(connection) == 1
        set_status(connection, STARTUP.id, Status.WITHDRAWN, "a wrong card", author="ben")
    monkeypatch.setattr(seed, "shipped", lambda: iter([STARTUP, LOAD]))
    monkeypatch.setattr(seed, "TAKEN", b"more")
    with engine.begin() as connection:
        assert seed.seed(connection) == 3
        snapshot = load_snapshot(connection)
    assert [each.measurement.status for each in snapshot.startups] == [Status.WITHDRAWN]
    assert snapshot.servings == (LOAD,)


def test_every_shipped_load_test_corrects_plans(engine: sa.Engine) -> None:
    """After the seed."""
    loads = [record for record in seed.shipped() if isinstance(record, ServingRecord)]
    with engine.begin() as connection:
        store_report(connection, loads, text="shipped")
        found = load_snapshot(connection).serving_points("openai/gpt-oss-120b")
    assert (len(loads), {gpu: len(points) for gpu, points in found.items()}) == (438, {"b200-sxm": 15, "h100-sxm": 30})


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"digest": "x"}, "ck_serving_calibrations_digest_form"),
        ({"source": ""}, "ck_serving_calibrations_source_given"),
        ({"status": "fine"}, "ck_serving_calibrations_(status_known|reason_given)"),
        ({"status": "withdrawn"}, "ck_serving_calibrations_reason_given"),
        ({"reason": "none"}, "ck_serving_calibrations_reason_given"),
        ({"gpu": "H 100"}, "ck_serving_calibrations_gpu_form"),
        ({"model": ""}, "ck_serving_calibrations_model_length"),
        ({"engine": ""}, "ck_serving_calibrations_engine_given"),
        ({"expert_parallel_size": 0}, "ck_serving_calibrations_sizes_positive"),
        ({"concurrency": 0}, "ck_serving_calibrations_load_positive"),
        ({"failed": -1}, "ck_serving_calibrations_counts_not_negative"),
        ({"report": "0" * 16}, "fk_serving_calibrations_report_calibration_texts"),
        ({}, "uq_serving_calibrations_current"),
    ],
)
def test_the_database_refuses_load_tests_that_cannot_be(
    engine: sa.Engine, change: dict[str, object], constraint: str
) -> None:
    """Each rule holds without the service, a second row of one test among them."""
    table = tables.serving_calibrations.table
    with engine.begin() as connection:
        store_report(connection, [LOAD], text="a report")
        row = dict(connection.execute(sa.select(table)).mappings().one())
        fresh = ({} if constraint.startswith("uq_") else {"digest": "f" * 16}) | change
        with pytest.raises(DBAPIError, match=constraint):
            connection.execute(table.insert().values({name: (row | fresh)[name] for name in row if name != "id"}))


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"operation": "sum"}, "ck_link_calibrations_operation_known"),
        ({"link": "usb"}, "ck_link_calibrations_link_known"),
        ({"nodes": 9}, "ck_link_calibrations_sizes_positive"),
        ({"out_of_place_time_us": [1.0]}, "ck_link_calibrations_out_of_place_even"),
        ({"in_place_wrong": [0]}, "ck_link_calibrations_in_place_even"),
    ],
)
def test_the_database_refuses_link_tests_that_cannot_be(
    engine: sa.Engine, change: dict[str, object], constraint: str
) -> None:
    """Each rule holds without the service."""
    table = tables.link_calibrations.table
    with engine.begin() as connection:
        store_report(connection, [LINK], text="a report")
        row = dict(connection.execute(sa.select(table)).mappings().one()) | {"digest": "f" * 16} | change
        with pytest.raises(DBAPIError, match=constraint):
            connection.execute(table.insert().values({name: row[name] for name in row if name != "id"}))


@pytest.mark.parametrize("table", ["serving_calibrations", "link_calibrations"])
def test_rows_are_never_changed_or_deleted(engine: sa.Engine, table: str) -> None:
    """Not even by hand."""
    with engine.begin() as connection:
        store_report(connection, [LOAD], text="a report")
        store_report(connection, [LINK], text="another")
    for statement in (f"UPDATE {table} SET status = 'withdrawn', reason = 'x'", f"DELETE FROM {table}"):
        with pytest.raises(DBAPIError, match="closed by a newer revision"), engine.begin() as connection:
            connection.execute(sa.text(statement))
