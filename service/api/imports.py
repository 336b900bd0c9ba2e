"""POST /prices/imports and /hosted-prices/imports: lists of prices, whole or not at all."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from time import perf_counter
from typing import IO, Annotated, Any

from litestar import Request, Response
from pydantic import Field

from service.api import responding
from service.api.contract import Contract, Text
from service.api.operation import Operation
from service.api.paging import read_parameters
from service.api.problems import FieldError, Problem, invalid, malformed
from service.api.reading import MAX_BODY_BYTES, too_large
from service.catalogue.importers.formats import (
    BadSetting,
    HostedFormat,
    Origin,
    PriceFormat,
    latest_day,
    read_hosted_prices,
    read_prices,
)
from service.catalogue.importers.outcome import ImportReport, Quarantined, Skipped, Tally, WrongFormat
from service.catalogue.records.price import HostedPrice, Price
from service.catalogue.snapshot import Snapshot
from service.sizing.quantities import Doc
from service.storage.engine import Engine, transaction
from service.storage.keys import ApiKey
from service.storage.observations import Stored, store_observations

MAX_FILE_BYTES = 8 * MAX_BODY_BYTES
IN_MEMORY_BYTES = 1 << 20
FILES = ("text/csv", "application/json", "application/x-ndjson", "text/plain")


class ImportQuery(Contract):
    """What a file does not say of itself."""

    observed_on: date | None = Field(
        default=None, description="day of the prices, for rows without one", examples=["2026-11-30"]
    )
    source: Text | None = Field(
        default=None, description="where the prices come from, for rows that do not say; null: who gave the file"
    )
    dry_run: bool = Field(default=False, description="tell what would become of the rows, and keep nothing")


class PriceImportQuery(ImportQuery):
    """How a list of machine prices is to be read."""

    format: PriceFormat = Field(description="what the file is written in")
    provider: Text | None = Field(
        default=None, description="whose prices they are: skypilot and gpuhunt files do not say", examples=["aws"]
    )


class HostedImportQuery(ImportQuery):
    """How a list of hosted prices is to be read."""

    format: HostedFormat = Field(description="what the file is written in")


@dataclass(frozen=True, slots=True)
class ImportAnswer:
    """What became of the rows of a file."""

    catalogue_revision: Annotated[int, Doc("newest catalogue revision, which holds what was added", example=2)]
    dry_run: Annotated[bool, Doc("true: nothing was kept", example=False)]
    rows_per_second: Annotated[float, Doc("rows of all kinds by the time it took to read and keep them", "1/s", 5200.0)]
    taken: Annotated[int, Doc("prices read and found good", example=1210)]
    added: Annotated[int, Doc("of these, new to the catalogue", example=1200)]
    known: Annotated[int, Doc("of these, held already", example=9)]
    contradicting: Annotated[
        int, Doc("of these, left out: another amount is held for the same offer, source and day", example=1)
    ]
    skipped: Annotated[dict[str, int], Doc("rows that hold nothing to take, by reason", example={"no_gpu": 310})]
    quarantined: Annotated[dict[str, int], Doc("rows that cannot be trusted, by reason", example={"outlier": 2})]
    unknown_names: Annotated[dict[str, int], Doc("names of GPUs not known here, with their rows")]
    examples: Annotated[dict[str, tuple[str, ...]], Doc("the first rows of each reason")]


async def import_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Take a list of machine prices."""
    query = read_parameters(request, PriceImportQuery)
    snapshot: Snapshot = request.app.state.snapshot

    def outcomes(stream: IO[bytes], origin: Origin) -> Iterator[Price | Skipped | Quarantined]:
        return read_prices(stream, query.format, origin, snapshot.typical_per_gpu_hour)

    return await _imported(request, query, Price, query.provider, query.format.value, outcomes)


async def import_hosted_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Take a list of hosted prices."""
    query = read_parameters(request, HostedImportQuery)

    def outcomes(stream: IO[bytes], origin: Origin) -> Iterator[HostedPrice | Skipped | Quarantined]:
        return read_hosted_prices(stream, query.format, origin)

    return await _imported(request, query, HostedPrice, None, query.format.value, outcomes)


Outcomes = Callable[[IO[bytes], Origin], Iterator[Any]]


async def _imported(
    request: Request[Any, Any, Any],
    query: ImportQuery,
    kind: type[Price] | type[HostedPrice],
    provider: str | None,
    form: str,
    outcomes: Outcomes,
) -> Response[bytes]:
    _require_file(request)
    key: ApiKey = request.state.key
    origin = Origin(query.source or f"given by {key.name}", query.observed_on, provider, latest_day())
    # Kept until it is whole, so that a slow sender holds no transaction open.
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES) as file:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_FILE_BYTES:
                raise too_large(MAX_FILE_BYTES)
            file.write(chunk)
        if not size:
            raise malformed("the body is empty; send the file")
        file.seek(0)
        summary = f"Prices ({form})" if kind is Price else f"Hosted prices ({form})"
        started = perf_counter()
        stored, report = await asyncio.to_thread(
            _store, request.app.state.engine, file, kind, origin, outcomes, key.name, summary, query.dry_run
        )
    rate = report.read / (perf_counter() - started)
    if stored.added and not query.dry_run:
        await request.app.state.refresh()
    content = responding.ENCODER.encode(answer_of(stored, report, rate, dry_run=query.dry_run))
    return responding.answer(content, stored.revision)


def _store(
    engine: Engine,
    file: IO[bytes],
    kind: type[Price] | type[HostedPrice],
    origin: Origin,
    outcomes: Outcomes,
    author: str,
    summary: str,
    dry_run: bool,
) -> tuple[Stored, ImportReport]:
    tally = Tally()
    try:
        with transaction(engine) as connection:
            records = tally.records(outcomes(file, origin))
            stored = store_observations(connection, kind, records, author=author, summary=summary, dry_run=dry_run)
    except BadSetting as error:
        raise invalid((FieldError(error.name, str(error)),)) from None
    except WrongFormat as error:
        raise Problem(400, "wrong_format", "Wrong format", str(error)) from None
    return stored, tally.report()


def answer_of(stored: Stored, report: ImportReport, rows_per_second: float, *, dry_run: bool) -> ImportAnswer:
    """The account of an import."""
    told = {"contradicts_catalogue": stored.contradictions} if stored.contradictions else {}
    return ImportAnswer(
        catalogue_revision=stored.revision,
        dry_run=dry_run,
        rows_per_second=round(rows_per_second, 1),
        taken=report.taken,
        added=stored.added,
        known=stored.known,
        contradicting=stored.contradicting,
        skipped=report.skipped,
        quarantined=report.quarantined,
        unknown_names=report.unknown_names,
        examples=report.examples | told,
    )


def _require_file(request: Request[Any, Any, Any]) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in FILES:
        given = kind or "a body without Content-Type"
        raise Problem(
            415, "unsupported_media_type", "Unsupported media type", f"send one of {', '.join(FILES)}, not {given}"
        )


OPERATIONS = (
    Operation(
        method="POST",
        path="/prices/imports",
        name="import_prices",
        summary="Import prices of machines",
        description="Takes a list of prices, the file itself being the body: our own CSV or JSON, a SkyPilot "
        "`vms.csv`, or a gpuhunt catalogue. Good rows are added as one catalogue revision or, on any failure, not at "
        "all; placeholders, outliers, contradictions, days to come and unknown cards are left out and told. The same "
        "file again adds nothing. Columns (or fields) of our own: `provider`, `gpu_slug` (or the card's name), "
        "`gpu_count`, `kind` (as in `GET /prices`), and `price_per_instance_hour_usd` or `price_per_gpu_hour_usd` (or, "
        "with `currency`, the same without `_usd`); where known `region`, `zone`, `instance_type`, `host_included`, "
        "`observed_on`, `source` and `note`. Without `instance_type` the price is of single GPUs.",
        tag="catalogue",
        handler=import_prices,
        answer=ImportAnswer,
        file_bodies=FILES,
        query=PriceImportQuery,
        problems=(400, 413, 415),
        role="curator",
    ),
    Operation(
        method="POST",
        path="/hosted-prices/imports",
        name="import_hosted_prices",
        summary="Import prices of hosted models",
        description="Takes a list of prices per million tokens, the file itself being the body: our own CSV or JSON, "
        "or LiteLLM's `model_prices_and_context_window.json`. As `POST /prices/imports` otherwise. Columns "
        "(or fields) of our own: `provider`, `api_model_id`, `input_usd_per_mtok` and `output_usd_per_mtok` (or, with "
        "`currency`, `input_per_mtok` and `output_per_mtok`); where known `cached_input_usd_per_mtok` (or "
        "`cached_input_per_mtok`), `model_family`, `context_tokens`, `deprecation_date`, `observed_on`, `source` and "
        "`note`.",
        tag="catalogue",
        handler=import_hosted_prices,
        answer=ImportAnswer,
        file_bodies=FILES,
        query=HostedImportQuery,
        problems=(400, 413, 415),
        role="curator",
    ),
)
