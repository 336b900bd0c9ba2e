"""POST /compare: one workload over models, precisions, GPUs and counts."""

import asyncio
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from litestar import Request, Response
from litestar.response import Stream

from service import RULES_VERSION
from service.api import responding
from service.api.contract import CompareRequest, DeploymentRequest, ModelReference, PlanRequest, Precision
from service.api.operation import Operation
from service.api.plans import machines_of, question_about, shape_of, workload_of
from service.api.problems import FieldError, Problem, invalid
from service.api.reading import read_body, read_bytes, require_json
from service.catalogue.snapshot import Snapshot
from service.sizing.compare import Comparison, Standings, Summary, Unsizable, cells, compare
from service.sizing.question import Machine, Question
from service.telemetry import logger

NDJSON = "application/x-ndjson"

MOST_ROWS = 1000
"""Rows of one JSON answer: some 6 kB each."""

MOST_STREAMED_ROWS = 50_000

GZIP_LEVEL = 1
GZIP_FORMAT = 31
"""`zlib`'s number for the largest window with a gzip header."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The last line of a stream."""

    summary: Summary


async def post_compare(request: Request[Any, Any, Any]) -> Response[Any]:
    """Answer a comparison, as one JSON object or one row a line."""
    require_json(request)
    snapshot: Snapshot = request.app.state.snapshot
    asked = read_body(await read_bytes(request), CompareRequest)
    workload_of(asked)
    cases = cases_of(asked)
    machines = machines_of(asked.hardware, snapshot)
    streamed = NDJSON in request.headers.get("accept", "")
    _require_few(len(cases) * len(machines) * len(set(asked.hardware.gpu_counts or (0,))), streamed)
    if streamed:
        # Read before the first byte is sent, so that an unknown name is still a 404.
        questions = await asyncio.to_thread(lambda: list(_questions(cases, machines, snapshot)))
        packed = "gzip" in request.headers.get("accept-encoding", "")
        lines = _lines(questions, snapshot.revision)
        response = Stream(_gzip(lines) if packed else lines, media_type=NDJSON, status_code=200)
        response.headers["X-Catalogue-Revision"] = str(snapshot.revision)
        response.headers["X-Rules-Version"] = str(RULES_VERSION)
        response.headers["Vary"] = "Accept-Encoding"
        if packed:
            response.headers["Content-Encoding"] = "gzip"
        return response
    content = await asyncio.to_thread(_compared, cases, machines, snapshot)
    return responding.answer(content, snapshot.revision)


def _lines(questions: Iterable[Question | Unsizable], revision: int) -> Iterator[bytes]:
    """Each row as it is found, and at the end what is best among them; nothing but that is kept of a row."""
    standings = Standings()
    for cell in cells(questions):
        try:
            row = cell.row()
        except Exception as fault:  # noqa: BLE001 - whatever it is, the stream goes on
            # The answer has begun, so a fault of ours can be no problem any more, and the other rows are still good.
            logger.exception("row failed", gpu=cell.machine.gpu.slug, exc_info=fault)
            row = cell.refused("internal_error", "the service failed on this row; the fault has been logged")
        standings.add(row)
        yield responding.ENCODER.encode(row) + b"\n"
    summary = standings.summary(catalogue_revision=revision, rules_version=RULES_VERSION)
    yield responding.ENCODER.encode(Ending(summary)) + b"\n"


def _gzip(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines packed, each sent on at once."""
    packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_FORMAT)
    for line in lines:
        yield packer.compress(line) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


def _compared(cases: list[PlanRequest], machines: tuple[Machine, ...], snapshot: Snapshot) -> bytes:
    questions = _questions(cases, machines, snapshot)
    comparison = compare(questions, catalogue_revision=snapshot.revision, rules_version=RULES_VERSION)
    return responding.ENCODER.encode(comparison)


def cases_of(asked: CompareRequest) -> list[PlanRequest]:
    """A plan request for each model and precision.

    Raises
    ------
    Problem
        400: no model, or a list beside its singular.
    """
    models = _either(asked, "model", "models", asked.model)
    precisions = _either(asked, "precision", "precisions", asked.precision)
    if not models:
        raise invalid((FieldError("model", "is missing; give model, or models for several"),))
    shared = {name: getattr(asked, name) for name in DeploymentRequest.model_fields}
    return [_case(model, precision, shared) for model in _distinct(models) for precision in _distinct(precisions)]


def _case(model: ModelReference, precision: Precision, shared: dict[str, Any]) -> PlanRequest:
    return PlanRequest.model_construct(model=model, precision=precision, **shared)


def _either(asked: CompareRequest, one: str, several: str, value: Any) -> list[Any]:
    """What is given as one value or as a list of them."""
    listed = getattr(asked, several)
    if listed is None:
        return [] if value is None else [value]
    if one in asked.model_fields_set and value is not None:
        raise invalid((FieldError(several, f"give either {one} or {several}, not both"),))
    return listed


def _distinct(values: list[Any]) -> list[Any]:
    found = list[Any]()
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _require_few(count: int, streamed: bool) -> None:
    most = MOST_STREAMED_ROWS if streamed else MOST_ROWS
    if count > most:
        hint = "ask for fewer" if streamed else f"ask for fewer, or send Accept: {NDJSON} for one row a line"
        message = f"{count} rows were asked for and at most {most} are given; {hint}"
        raise invalid((FieldError("hardware", message),))


def _questions(
    cases: list[PlanRequest], machines: tuple[Machine, ...], snapshot: Snapshot
) -> Iterator[Question | Unsizable]:
    """The question of each case; what is wrong with a model itself is told in its rows.

    Raises
    ------
    Problem
        404 for an unknown name.
    """
    for case in cases:
        try:
            model = shape_of(case, snapshot)
        except Problem as problem:
            if problem.details.status == 404:
                raise
            yield _unsizable(case, machines, problem)
            continue
        yield question_about(model, case, machines, snapshot)


def _unsizable(case: PlanRequest, machines: tuple[Machine, ...], problem: Problem) -> Unsizable:
    code = problem.details.type.rpartition("/")[2]
    return Unsizable(
        model=case.model if isinstance(case.model, str) else case.model.name,
        precision=case.precision,
        machines=machines,
        gpu_counts=tuple(dict.fromkeys(case.hardware.gpu_counts)) if case.hardware.gpu_counts else None,
        code="invalid_config" if code == "invalid_request" else code,
        message=problem.details.detail,
    )


EXAMPLES = {
    "One model on four GPUs": {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "precision": "fp8",
        "workload": {"context_tokens": 8192, "concurrent_sequences": 11},
        "hardware": {"gpus": ["h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm4-80gb"]},
    },
    "Two models at two precisions": {
        "models": ["Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B-Instruct"],
        "precisions": ["checkpoint", "fp8"],
        "workload": {"context_tokens": 8192, "concurrent_sequences": 16},
        "hardware": {"gpus": ["h100-sxm"], "gpu_counts": [2, 4]},
    },
}

OPERATIONS = (
    Operation(
        method="POST",
        path="/compare",
        name="compare",
        summary="Compare models, precisions and GPUs",
        description="A plan for each model, precision and GPU (and count, where `hardware.gpu_counts` is given), which "
        "is best for what, what no other row beats, and how far a price must move before the cheapest is another. A "
        "model that cannot be sized is a row with the reason. At most 1,000 rows; with `Accept: application/x-ndjson` "
        "up to 50,000, one row a line as it is found, and in the last line `summary` with `rows` (their number), "
        "`best`, `pareto` and `flips` as in the JSON answer: a stream without it was cut short. A row on which the "
        "service fails is refused with `internal_error`. With `Accept-Encoding: gzip` the lines are packed.",
        tag="plans",
        handler=post_compare,
        answer=Comparison,
        text_answers=(NDJSON,),
        body=CompareRequest,
        problems=(400, 404, 413, 415),
        examples=EXAMPLES,
    ),
)
