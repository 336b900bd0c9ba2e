"""`calibrate`: startup logs in files, kept as measurements."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from service.api.calibrations.requests import MAX_LOG_BYTES, StartupLogRequest
from service.api.calibrations.taking import checked, startup_of_log
from service.api.problems import Problem
from service.catalogue.startups import StartupRecord
from service.settings import Settings, StartupError
from service.storage import provision
from service.storage.calibrations import store_startup
from service.storage.catalogue import load_snapshot
from service.storage.engine import create_engine

AUTHOR = "command line"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the files and the card, which most logs do not name."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="what vLLM printed while it started; - for stdin")
    parser.add_argument("--gpu", help="catalogue slug of the card, where the log does not name it")
    parser.add_argument("--source", help="where the logs come from; otherwise the name of the file")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Keep each log's startup; one that is not understood keeps the others out too."""
    with provision.database(settings) as provided:
        provision.migrate(provided)
        provision.fill(provided)
        engine = create_engine(provided, pooled=False)
        with engine.begin() as connection:
            snapshot = load_snapshot(connection)
            for name in arguments.files:
                text, source = _text(name), arguments.source or f"startup log {Path(name).name}"
                asked = StartupLogRequest(text=text, gpu=arguments.gpu, source=source)
                try:
                    measurement, kept = startup_of_log(text, asked, snapshot, source)
                except Problem as problem:
                    raise StartupError(f"{name}: {problem.details.detail}.") from None
                record = StartupRecord(checked(measurement, snapshot), AUTHOR, datetime.now(UTC).date())
                _, held, is_new = store_startup(connection, record, text=kept)
                reason = f" ({held.measurement.reason})" if held.measurement.reason else ""
                print(f"{name}: {held.id} {held.measurement.status.value if is_new else 'was held already'}{reason}")
    return 0


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise StartupError(f"{name} cannot be read ({error.strerror}).") from None
    if not data or len(data) > MAX_LOG_BYTES:
        raise StartupError(f"{name} has {len(data)} bytes; a log has between 1 and {MAX_LOG_BYTES}.")
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd")
