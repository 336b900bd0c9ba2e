"""Measurements that correct predictions: given, shown, and compared with what would have been predicted."""

import asyncio
from datetime import UTC, date, datetime
from typing import Any

from litestar import Request, Response

from service.api import responding
from service.api.calibrations.accuracy import AccuracyView, accuracy
from service.api.calibrations.reports import records_of_report
from service.api.calibrations.requests import (
    KINDS,
    MAX_LOG_BYTES,
    MAX_REPORT_BYTES,
    BenchmarkRequest,
    CalibrationQuery,
    StartupLogRequest,
    StartupRequest,
    StatusRequest,
)
from service.api.calibrations.taking import checked, startup_of_figures, startup_of_log, storable
from service.api.calibrations.views import (
    CalibrationPage,
    CalibrationTaken,
    CalibrationView,
    ReportTaken,
    StatusSet,
    TestTaken,
    measurement_view,
    view,
)
from service.api.operation import Operation
from service.api.paging import NoQuery, page, read_parameters
from service.api.problems import FieldError, Problem, invalid, malformed, unknown
from service.api.reading import read_body, read_bytes, require_json, too_large
from service.catalogue.records.calibration import StartupMeasurement, Status
from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.snapshot import Snapshot
from service.catalogue.startups import StartupRecord
from service.storage.calibrations import Stored, set_status, store_report, store_startup
from service.storage.engine import Engine, transaction
from service.storage.keys import ApiKey


async def post_startup_log(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Read a pasted log, sent as JSON or as plain text, and keep what it measured."""
    body = await read_bytes(request, limit=2 * MAX_LOG_BYTES)
    conditions = read_body(body, StartupLogRequest) if _is_json(request) else None
    text = conditions.text if conditions else body.decode("utf-8", "replace")
    snapshot: Snapshot = request.app.state.snapshot
    measurement, kept = await asyncio.to_thread(startup_of_log, text, conditions, snapshot, _who(request))
    return await _keep(request, measurement, kept)


async def post_benchmark(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Read the report of a load or link test, sent as JSON or as plain text, and keep what it measured."""
    body = await read_bytes(request, limit=2 * MAX_REPORT_BYTES)
    if _is_json(request):
        asked = read_body(body, BenchmarkRequest)
    elif len(body) > MAX_REPORT_BYTES:
        raise too_large(MAX_REPORT_BYTES)
    elif not body:
        raise malformed("the body is empty; send the report")
    else:
        asked = BenchmarkRequest(text=body.decode("utf-8", "replace"))
    text, snapshot, who = storable(asked.text), request.app.state.snapshot, _who(request)
    records = await asyncio.to_thread(records_of_report, asked, text, snapshot, who, _today())
    revision, stored = await asyncio.to_thread(_store_report, request.app.state.engine, records, text)
    await _catch_up(request, revision)
    created = sum(each.is_new for each in stored)
    kind = KINDS[type(records[0])]
    answer = ReportTaken(revision, kind, created, tuple(map(_test_taken, stored)))
    location = {"Location": f"/calibrations/{stored[0].record.id}"} if created == len(stored) == 1 else None
    content = responding.ENCODER.encode(answer)
    return responding.answer(content, revision, status=201 if created else 200, headers=location)


def _test_taken(stored: Stored) -> TestTaken:
    shown = measurement_view(stored.record)
    assert not isinstance(shown, CalibrationView)
    return TestTaken("created" if stored.is_new else "unchanged", shown)


def _store_report(
    engine: Engine, records: tuple[ServingRecord, ...] | tuple[LinkRecord, ...], text: str
) -> tuple[int, tuple[Stored, ...]]:
    with transaction(engine) as connection:
        return store_report(connection, records, text=text)


async def post_status(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Say what a measurement may be used for."""
    require_json(request)
    asked = read_body(await read_bytes(request), StatusRequest)
    if asked.status is not Status.ACCEPTED and not asked.reason.strip():
        raise invalid((FieldError("reason", f"say why the measurement is {asked.status.value}"),))
    wanted: str = request.path_params["id"]
    if not wanted.isalnum():
        # The database does not take every character, and no digest has another.
        raise unknown("calibration", wanted, ())
    changed = await asyncio.to_thread(_set_status, request.app.state.engine, wanted, asked, _who(request))
    if changed is None:
        raise unknown("calibration", wanted, ())
    revision, stored = changed
    await _catch_up(request, revision)
    answer = StatusSet(revision, "changed" if stored.is_new else "unchanged", measurement_view(stored.record))
    return responding.answer(responding.ENCODER.encode(answer), revision)


def _set_status(engine: Engine, id_: str, asked: StatusRequest, who: str) -> tuple[int, Stored] | None:
    with transaction(engine) as connection:
        return set_status(connection, id_, asked.status, asked.reason.strip(), author=who)


def _is_json(request: Request[Any, Any, Any]) -> bool:
    """Whether the body is JSON; if not, it is plain text.

    Raises
    ------
    Problem
        415: it is neither.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "text/plain"):
        raise Problem(415, "unsupported_media_type", "Unsupported media type", "send application/json or text/plain")
    return kind == "application/json"


async def _catch_up(request: Request[Any, Any, Any], revision: int) -> None:
    """See to it that this worker answers from a revision at least."""
    if request.app.state.snapshot.revision < revision:
        await request.app.state.refresh()


async def post_calibration(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Keep a startup given in figures."""
    require_json(request)
    asked = read_body(await read_bytes(request), StartupRequest)
    snapshot: Snapshot = request.app.state.snapshot
    return await _keep(request, startup_of_figures(asked, snapshot, _who(request)), None)


async def _keep(request: Request[Any, Any, Any], measurement: StartupMeasurement, text: str | None) -> Response[bytes]:
    if not 1 <= len(measurement.model) <= 200 or not measurement.model.isprintable():
        raise invalid((FieldError("model", "the log names no model of at most 200 printable characters: give it"),))
    record = StartupRecord(checked(measurement, request.app.state.snapshot), _who(request), _today())
    revision, stored = await asyncio.to_thread(_store, request.app.state.engine, record, text)
    await _catch_up(request, revision)
    held = stored.record
    assert isinstance(held, StartupRecord)
    answer = CalibrationTaken(revision, "created" if stored.is_new else "unchanged", view(held))
    return responding.answer(
        responding.ENCODER.encode(answer),
        revision,
        status=201 if stored.is_new else 200,
        headers={"Location": f"/calibrations/{held.id}"} if stored.is_new else None,
    )


def _store(engine: Engine, record: StartupRecord, text: str | None) -> tuple[int, Stored]:
    with transaction(engine) as connection:
        return store_startup(connection, record, text=text)


def _who(request: Request[Any, Any, Any]) -> str:
    key: ApiKey = request.state.key
    return f"{key.name} ({key.prefix})"


def _today() -> date:
    return datetime.now(UTC).date()


def list_calibrations(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Measurements, a page at a time."""
    query = read_parameters(request, CalibrationQuery)
    snapshot: Snapshot = request.app.state.snapshot
    found = [id_ for id_, record in snapshot.calibrations.items() if query.finds(record)]
    ids, following = page(found, str, query)
    shown = tuple(measurement_view(snapshot.calibrations[id_]) for id_ in ids)
    answer = CalibrationPage(snapshot.revision, shown, following)
    return responding.conditional(request, answer, snapshot.revision)


def get_calibration(request: Request[Any, Any, Any]) -> Response[bytes]:
    """One measurement."""
    read_parameters(request, NoQuery)
    snapshot: Snapshot = request.app.state.snapshot
    wanted: str = request.path_params["id"]
    record = snapshot.calibrations.get(wanted)
    if record is None:
        raise unknown("calibration", wanted, ())
    return responding.conditional(request, measurement_view(record), snapshot.revision)


async def get_accuracy(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Predicted against measured, over every accepted startup."""
    read_parameters(request, NoQuery)
    snapshot: Snapshot = request.app.state.snapshot
    remembered: tuple[int, AccuracyView] | None = getattr(request.app.state, "accuracy", None)
    if remembered is None or remembered[0] != snapshot.revision:
        remembered = snapshot.revision, await asyncio.to_thread(accuracy, snapshot)
        request.app.state.accuracy = remembered
    return responding.conditional(request, remembered[1], snapshot.revision)


EXAMPLE_LOG = """\
INFO 11-30 10:00:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-32B', 'max_model_len': 8192}
INFO 11-30 10:00:09 [core.py:94] Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-32B', \
speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, \
data_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto
INFO 11-30 10:00:30 [gpu_model_runner.py:4000] Model loading took 61.03 GiB memory and 20.1 seconds
INFO 11-30 10:00:40 [gpu_worker.py:400] Available KV cache memory: 6.52 GiB
INFO 11-30 10:00:41 [kv_cache_utils.py:1300] GPU KV cache size: 26,704 tokens
"""
EXAMPLE_REPORT = """\
{"date": "20261130-100000", "backend": "vllm", "model_id": "Qwen/Qwen3-32B", "num_prompts": 200, \
"request_rate": "inf", "max_concurrency": 16, "duration": 40.0, "completed": 200, "failed": 0, \
"total_input_tokens": 204800, "total_output_tokens": 25600, "request_throughput": 5.0, "output_throughput": 640.0, \
"total_token_throughput": 5760.0, "mean_ttft_ms": 380.5, "median_ttft_ms": 371.2, "p99_ttft_ms": 910.4, \
"mean_tpot_ms": 22.2, "median_tpot_ms": 21.9, "p99_tpot_ms": 27.5}
"""

OPERATIONS = (
    Operation(
        method="POST",
        path="/calibrations/startup-log",
        name="add_startup_log",
        summary="Add a startup log",
        description="Reads what vLLM printed while it started and keeps it as a measurement: it replaces or corrects "
        "the predicted weights and working space of the same model on the same GPU. Conditions that the log leaves out "
        "are asked for by name; a doubtful log is kept in quarantine and corrects nothing. The same startup posted "
        "twice is kept once. Send the text as JSON, or raw as text/plain.",
        tag="calibrations",
        handler=post_startup_log,
        answer=CalibrationTaken,
        other_statuses=(201,),
        body=StartupLogRequest,
        plain_text_body=True,
        problems=(400, 404, 413, 415),
        examples={"A log and its card": {"gpu": "h100-sxm", "text": EXAMPLE_LOG}},
        role="curator",
    ),
    Operation(
        method="POST",
        path="/calibrations/benchmark",
        name="add_benchmark",
        summary="Add the report of a load or link test",
        description="Reads the result of `vllm bench serve` (JSON or its table on the console), GuideLLM, GenAI-Perf, "
        "AIPerf or llm-d, our own rows in CSV or JSON, or the output of nccl-tests, told from the content, and keeps "
        "every test in it as a measurement: all or none. Conditions that the report leaves out are asked for by name; "
        "tests that contradict themselves, what is said beside them or their likes are kept in quarantine and correct "
        "nothing. Accepted load tests correct the times of plans, accepted link tests the collectives in them. The "
        "same test posted twice is kept once. Send the text as JSON, or raw as text/plain.",
        tag="calibrations",
        handler=post_benchmark,
        answer=ReportTaken,
        other_statuses=(201,),
        body=BenchmarkRequest,
        plain_text_body=True,
        problems=(400, 404, 413, 415),
        examples={
            "A load test and its deployment": {
                "gpu": "h100-sxm",
                "engine_version": "0.19.0",
                "tensor_parallel_size": 2,
                "text": EXAMPLE_REPORT,
            }
        },
        role="curator",
    ),
    Operation(
        method="POST",
        path="/calibrations",
        name="add_calibration",
        summary="Add a measured startup",
        description="The same as `POST /calibrations/startup-log`, in figures.",
        tag="calibrations",
        handler=post_calibration,
        answer=CalibrationTaken,
        other_statuses=(201,),
        body=StartupRequest,
        problems=(400, 404, 413, 415),
        examples={
            "One card": {
                "engine_version": "0.19.0",
                "model": "Qwen/Qwen3-32B",
                "gpu": "h100-sxm",
                "gpu_memory_utilization": 0.9,
                "weights_gib": 61.03,
                "available_kv_gib": 6.52,
            }
        },
        role="curator",
    ),
    Operation(
        method="GET",
        path="/calibrations",
        name="list_calibrations",
        summary="List measurements",
        description="Every measurement with its conditions, source and status: startups, load tests, link tests.",
        tag="calibrations",
        handler=list_calibrations,
        answer=CalibrationPage,
        query=CalibrationQuery,
        problems=(400,),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/calibrations/accuracy",
        name="get_accuracy",
        summary="Predicted against measured",
        description="For every accepted startup of a model and GPU that can be sized: predicted cache memory against "
        "measured, by the formulas alone and corrected by other startups, beside common rules. For load tests: times, "
        "throughput and the largest load that keeps a promise, beside a plain roofline. What could not be compared is "
        "named.",
        tag="calibrations",
        handler=get_accuracy,
        answer=AccuracyView,
        query=NoQuery,
        problems=(400,),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/calibrations/{id}",
        name="get_calibration",
        summary="Show a measurement",
        description="One measurement with its conditions, source and status.",
        tag="calibrations",
        handler=get_calibration,
        answer=CalibrationView,
        query=NoQuery,
        path_parameters={"id": "id of the measurement"},
        problems=(400, 404),
        cacheable=True,
    ),
    Operation(
        method="POST",
        path="/calibrations/{id}/status",
        name="set_calibration_status",
        summary="Accept, quarantine or withdraw a measurement",
        description="Says what a measurement of any kind may be used for, from a new catalogue revision on: one that "
        "is not accepted corrects nothing. Earlier revisions keep what they said. The same again changes nothing.",
        tag="calibrations",
        handler=post_status,
        answer=StatusSet,
        body=StatusRequest,
        path_parameters={"id": "id of the measurement"},
        problems=(400, 404, 413, 415),
        role="curator",
    ),
)
