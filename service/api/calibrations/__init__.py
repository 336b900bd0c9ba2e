"""Measurements that correct predictions: given, shown, and compared with what would have been predicted."""

import asyncio
from datetime import UTC, date, datetime
from typing import Any

from litestar import Request, Response

from service.api import responding
from service.api.calibrations.accuracy import AccuracyView, accuracy
from service.api.calibrations.requests import MAX_LOG_BYTES, CalibrationQuery, StartupLogRequest, StartupRequest
from service.api.calibrations.taking import checked, startup_of_figures, startup_of_log
from service.api.calibrations.views import CalibrationPage, CalibrationTaken, CalibrationView, view
from service.api.operation import Operation
from service.api.paging import NoQuery, page, read_parameters
from service.api.problems import FieldError, Problem, invalid, unknown
from service.api.reading import read_body, read_bytes, require_json
from service.catalogue.records.calibration import StartupMeasurement
from service.catalogue.snapshot import Snapshot
from service.catalogue.startups import StartupRecord
from service.storage.calibrations import store_startup
from service.storage.engine import Engine, transaction
from service.storage.keys import ApiKey


async def post_startup_log(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Read a pasted log, sent as JSON or as plain text, and keep what it measured."""
    body = await read_bytes(request, limit=2 * MAX_LOG_BYTES)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    conditions: StartupLogRequest | None = None
    if kind == "application/json":
        conditions = read_body(body, StartupLogRequest)
        text = conditions.text
    elif kind == "text/plain":
        text = body.decode("utf-8", "replace")
    else:
        raise Problem(415, "unsupported_media_type", "Unsupported media type", "send application/json or text/plain")
    snapshot: Snapshot = request.app.state.snapshot
    measurement, kept = await asyncio.to_thread(startup_of_log, text, conditions, snapshot, _who(request))
    return await _keep(request, measurement, kept)


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
    revision, held, is_new = await asyncio.to_thread(_store, request.app.state.engine, record, text)
    if request.app.state.snapshot.revision < revision:
        await request.app.state.refresh()
    answer = CalibrationTaken(revision, "created" if is_new else "unchanged", view(held))
    return responding.answer(
        responding.ENCODER.encode(answer),
        revision,
        status=201 if is_new else 200,
        headers={"Location": f"/calibrations/{held.id}"} if is_new else None,
    )


def _store(engine: Engine, record: StartupRecord, text: str | None) -> tuple[int, StartupRecord, bool]:
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
    found = [record for record in snapshot.startups if query.finds(record)]
    items, following = page(found, lambda record: record.id, query)
    answer = CalibrationPage(snapshot.revision, tuple(map(view, items)), following)
    return responding.conditional(request, answer, snapshot.revision)


def get_calibration(request: Request[Any, Any, Any]) -> Response[bytes]:
    """One measurement."""
    read_parameters(request, NoQuery)
    snapshot: Snapshot = request.app.state.snapshot
    wanted: str = request.path_params["id"]
    record = next((each for each in snapshot.startups if each.id == wanted), None)
    if record is None:
        raise unknown("calibration", wanted, ())
    return responding.conditional(request, view(record), snapshot.revision)


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
        description="Every measurement with its conditions, source and status.",
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
)
