"""`import`: a list of prices."""

import argparse
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from service.settings import Settings, StartupError
from service.storage import provision

FORMATS = ("csv", "json", "skypilot", "gpuhunt", "hosted-csv", "hosted-json", "litellm")
HOSTED = {"hosted-csv": "csv", "hosted-json": "json", "litellm": "litellm"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the file and what it does not say."""
    parser.add_argument("file", type=Path, help="the list")
    parser.add_argument("--format", required=True, choices=FORMATS, help="what it is written in")
    parser.add_argument("--provider", help="whose prices they are (skypilot and gpuhunt files do not say)")
    parser.add_argument("--observed-on", type=date.fromisoformat, help="day of rows that do not say, YYYY-MM-DD")
    parser.add_argument("--source", help="where rows come from that do not say (the file's name unless given)")
    parser.add_argument("--dry-run", action="store_true", help="tell what would become of the rows, and keep nothing")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Take the list and print the account of it."""
    from rich.console import Console
    from rich.progress import wrap_file

    from service.catalogue.importers.formats import BadSetting
    from service.catalogue.importers.outcome import WrongFormat
    from service.cli.table import import_table

    errors = Console(stderr=True)
    try:
        size = arguments.file.stat().st_size
        with (
            provision.database(settings) as provided,
            arguments.file.open("rb") as file,
            wrap_file(file, size, description="Reading", console=errors, transient=True) as counted,
        ):
            provision.migrate(provided)
            started = perf_counter()
            stored, report = _store(provided, counted, arguments)
            seconds = perf_counter() - started
    except OSError as error:
        raise StartupError(f"cannot read {arguments.file}: {error.strerror}") from None
    except BadSetting as error:
        raise StartupError(f"--{error.name.replace('_', '-')}: {error}") from None
    except WrongFormat as error:
        raise StartupError(f"{arguments.file} is not {arguments.format}: {error}") from None
    Console().print(import_table(stored, report, dry_run=arguments.dry_run))
    print(f"{report.read:,} rows in {seconds:.1f} s, {report.read / seconds:,.0f} a second")
    return 0


def _store(settings: Settings, file: IO[bytes], arguments: argparse.Namespace) -> tuple[Any, Any]:
    from service.catalogue.importers.formats import (
        HostedFormat,
        Origin,
        PriceFormat,
        latest_day,
        read_hosted_prices,
        read_prices,
    )
    from service.catalogue.importers.outcome import Tally
    from service.catalogue.records.price import HostedPrice, Price
    from service.storage.engine import create_engine, transaction
    from service.storage.observations import store_observations, usual_prices

    origin = Origin(arguments.source or arguments.file.name, arguments.observed_on, arguments.provider, latest_day())
    summary = f"Import of {arguments.file.name} ({arguments.format})"
    tally = Tally()
    engine = create_engine(settings, pooled=False)
    with transaction(engine) as connection:
        if arguments.format in HOSTED:
            outcomes = read_hosted_prices(file, HostedFormat(HOSTED[arguments.format]), origin)
            kind, records = HostedPrice, tally.records(outcomes)
        else:
            typical = usual_prices(connection)
            kind, records = Price, tally.records(read_prices(file, PriceFormat(arguments.format), origin, typical))
        stored = store_observations(
            connection, kind, records, author="import", summary=summary, dry_run=arguments.dry_run
        )
    return stored, tally.report()
