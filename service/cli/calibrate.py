"""`calibrate`: startup logs and reports of load and link tests in files, kept as measurements."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from service.api.calibrations.reports import OF_LINKS, records_of_report
from service.api.calibrations.requests import KINDS, MAX_REPORT_BYTES, BenchmarkRequest, StartupLogRequest
from service.api.calibrations.taking import checked, startup_of_log, storable
from service.api.problems import Problem
from service.api.reading import read_query
from service.catalogue.importers.nccl import LinkTest
from service.catalogue.importers.report import ReportNotUnderstood, read_report
from service.catalogue.importers.startup_log import LogNotUnderstood, read_startup_log
from service.catalogue.servings import LinkRecord
from service.catalogue.snapshot import Snapshot
from service.catalogue.startups import StartupRecord
from service.settings import Settings, StartupError
from service.storage import provision
from service.storage.calibrations import Stored, store_report, store_startup
from service.storage.catalogue import load_snapshot
from service.storage.engine import Connection, create_engine

AUTHOR = "command line"

COMMON = frozenset({"gpu", "source", "note"})
OF_STARTUPS = frozenset(StartupLogRequest.model_fields) - {"text"}
OF_LOADS = frozenset(BenchmarkRequest.model_fields) - OF_LINKS - {"text"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the files, and an option for each condition that they may leave out."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="what vLLM printed while it started; a result of vllm bench serve, GuideLLM, GenAI-Perf, AIPerf or llm-d; "
        "output of nccl-tests; - for standard input",
    )
    fields = BenchmarkRequest.model_fields | StartupLogRequest.model_fields
    for name in sorted(fields.keys() - {"text"}):
        option, told = _option(name), fields[name].description
        if fields[name].annotation == bool | None:
            parser.add_argument(option, help=told, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(option, help=told, metavar="VALUE")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Keep the measurements of every file; one file that is not understood keeps the others out too."""
    texts = [(name, _text(name)) for name in arguments.files]
    said = {
        name: value for name in OF_STARTUPS | OF_LOADS | OF_LINKS if (value := getattr(arguments, name)) is not None
    }
    table = Table("File", "Measurement", "Of", "Status", box=box.SIMPLE_HEAD)
    with provision.database(settings) as provided:
        provision.migrate(provided)
        provision.fill(provided)
        with create_engine(provided, pooled=False).begin() as connection:
            snapshot, used = load_snapshot(connection), set[str]()
            for name, text in texts:
                try:
                    for stored in _kept(connection, snapshot, name, text, said, used):
                        table.add_row(name, *_told(stored))
                except Problem as problem:
                    raise StartupError(f"{name}: {problem.details.detail}.") from None
            if unused := said.keys() - used:
                raise StartupError(f"No file is of a kind that takes {', '.join(map(_option, sorted(unused)))}.")
    Console(markup=False, highlight=False).print(table)
    return 0


def _kept(
    connection: Connection, snapshot: Snapshot, name: str, text: str, said: Mapping[str, Any], used: set[str]
) -> Iterator[Stored]:
    """Keep what a text measured; `used` is told which conditions it takes.

    Raises
    ------
    StartupError
        The text is none that is known.
    """
    today = datetime.now(UTC).date()
    try:
        tests = read_report(text)
    except ReportNotUnderstood as error:
        _require_log(name, text, error)
        given = _fitting(said, OF_STARTUPS, used) | {"text": text}
        asked = read_query({"source": f"startup log {Path(name).name}"} | given, StartupLogRequest)
        measurement, _ = startup_of_log(text, asked, snapshot, AUTHOR)
        yield store_startup(connection, StartupRecord(checked(measurement, snapshot), AUTHOR, today), text=text)[1]
        return
    fits = OF_LINKS | COMMON if isinstance(tests[0], LinkTest) else OF_LOADS
    given = _fitting(said, fits, used) | {"text": text}
    asked = read_query({"source": f"report {Path(name).name}"} | given, BenchmarkRequest)
    yield from store_report(connection, records_of_report(asked, text, snapshot, AUTHOR, today), text=text)[1]


def _require_log(name: str, text: str, no_report: ReportNotUnderstood) -> None:
    try:
        read_startup_log(text)
    except LogNotUnderstood as no_log:
        raise StartupError(f"{name} is no report ({no_report}) and no startup log ({no_log}).") from None


def _fitting(said: Mapping[str, Any], fields: frozenset[str], used: set[str]) -> dict[str, Any]:
    fitting = {name: value for name, value in said.items() if name in fields}
    used.update(fitting)
    return fitting


def _told(stored: Stored) -> tuple[str, str, str]:
    """Its id, what it is of, and its status."""
    record, measured = stored.record, stored.record.measurement
    what = record.measurement.operation.value if isinstance(record, LinkRecord) else record.measurement.model
    status = measured.status.value if stored.is_new else f"was held already, {measured.status.value}"
    return (
        record.id,
        f"{KINDS[type(record)]}: {what} on {measured.gpu}",
        f"{status}: {measured.reason}" if measured.reason else status,
    )


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise StartupError(f"{name} cannot be read ({error.strerror}).") from None
    if not data or len(data) > MAX_REPORT_BYTES:
        raise StartupError(f"{name} has {len(data)} bytes; it may have between 1 and {MAX_REPORT_BYTES}.")
    return storable(data.decode("utf-8", "replace"))
