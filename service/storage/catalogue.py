"""Reading and writing the catalogue."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from service.catalogue.importers.building import offer_key
from service.catalogue.records.gpu import Disagreement, GpuRecord, Level, SourcedFigure
from service.catalogue.records.model import ModelRecord
from service.catalogue.records.price import HostedPrice, InstanceType, Price, PriceKind
from service.catalogue.records.revision import RevisionRecord
from service.catalogue.records.source import SourceRecord
from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.snapshot import Snapshot
from service.catalogue.startups import StartupRecord
from service.sizing.hardware import Link, Vendor
from service.storage import json_values, tables
from service.storage.forms import CatalogueTable
from service.storage.measurement_rows import (
    Row,
    link_from_row,
    link_to_row,
    serving_from_row,
    serving_to_row,
    startup_from_row,
    startup_to_row,
)
from service.storage.tables import catalogue_revisions

CHANNEL = "catalogue"
"""Where a new revision's number is announced."""

WRITER_LOCK = 7_368_617
"""Advisory lock that lets one writer at a time make a revision, so that revisions become visible in order."""

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Mapper(Generic[Record]):
    """How records of one kind become rows of one table, and rows records."""

    kind: type[Record]
    table: CatalogueTable
    to_row: Callable[[Record], dict[str, Any]]
    from_row: Callable[[Row], Record]

    def key(self, row: Row) -> tuple[Any, ...]:
        """What the row is about."""
        return tuple(row[column] for column in self.table.key)


def _gpu_to_row(gpu: GpuRecord) -> dict[str, Any]:
    row = asdict(gpu)
    return row | {"aliases": list(gpu.aliases), "node_sizes": list(gpu.node_sizes)}


def gpu_from_row(row: Row) -> GpuRecord:
    """A GPU from a row of its table, or from an object of the shipped file."""
    figures = {
        name: SourcedFigure(figure["value"], figure["source"], Level(figure["level"]))
        for name, figure in sorted(row["figures"].items())
    }
    converted: dict[str, Any] = {
        "aliases": tuple(row["aliases"]),
        "vendor": Vendor(row["vendor"]),
        "link": Link(row["link"]),
        "node_sizes": tuple(row["node_sizes"]),
        "figures": figures,
        "disagreements": tuple(Disagreement(**other) for other in row["disagreements"]),
    }
    return GpuRecord(**(dict(row) | converted))


def _model_to_row(model: ModelRecord) -> dict[str, Any]:
    return {
        "name": model.name,
        "config": json_values.encode(model.config),
        "config_sha256": model.sha256,
        "hf_quant_config": json_values.encode(model.hf_quant_config),
        "weights_bytes": model.weights_bytes,
        "fidelity": model.fidelity,
        "source": model.source,
        "as_of": model.as_of,
        "reader_version": model.reader_version,
        "revision": model.revision,
    }


def model_from_row(row: Row) -> ModelRecord:
    """A model from a row of its table."""
    values = {name: value for name, value in row.items() if name != "config_sha256"}
    values["config"] = json_values.decode(row["config"])
    values["hf_quant_config"] = json_values.decode(row["hf_quant_config"])
    return ModelRecord(**values)


def _instance_to_row(instance: InstanceType) -> dict[str, Any]:
    return asdict(instance) | {"ambiguous": list(instance.ambiguous)}


def instance_from_row(row: Row) -> InstanceType:
    """A machine from a row of its table."""
    link = None if row["link"] is None else Link(row["link"])
    values: dict[str, Any] = dict(row) | {"ambiguous": tuple(row["ambiguous"]), "link": link}
    return InstanceType(**values)


PRICE_FIELDS = tuple(field.name for field in fields(Price))
_price_values = attrgetter(*PRICE_FIELDS)
_KINDS = {kind.value: kind for kind in PriceKind}


def price_to_row(price: Price) -> dict[str, Any]:
    """A row of the table of prices."""
    row: dict[str, Any] = dict(zip(PRICE_FIELDS, _price_values(price), strict=True))
    return row | {"offer": offer_key(price), "ambiguous": list(price.ambiguous), "kind": price.kind.value}


def price_from_row(row: Row) -> Price:
    """A price from a row of its table; text that many prices share is kept once."""
    kept, gpu = sys.intern, row["gpu"]
    return Price(
        provider=kept(row["provider"]),
        region=kept(row["region"]),
        zone=kept(row["zone"]),
        instance_type=kept(row["instance_type"]),
        gpu=None if gpu is None else kept(gpu),
        gpu_name=kept(row["gpu_name"]),
        ambiguous=tuple(row["ambiguous"]),
        gpu_count=row["gpu_count"],
        gpu_fraction=row["gpu_fraction"],
        kind=_KINDS[row["kind"]],
        currency=kept(row["currency"]),
        amount_per_hour=row["amount_per_hour"],
        host_included=row["host_included"],
        observed_on=_same_day(row["observed_on"]),
        source=kept(row["source"]),
        note=kept(row["note"]),
    )


@lru_cache(maxsize=8192)
def _same_day(day: date) -> date:
    """One object for each day, of which many prices are."""
    return day


MAPPERS: tuple[Mapper[Any], ...] = (
    Mapper(SourceRecord, tables.sources, asdict, lambda row: SourceRecord(**row)),
    Mapper(GpuRecord, tables.gpus, _gpu_to_row, gpu_from_row),
    Mapper(ModelRecord, tables.models, _model_to_row, model_from_row),
    Mapper(InstanceType, tables.instance_types, _instance_to_row, instance_from_row),
    Mapper(Price, tables.prices, price_to_row, price_from_row),
    Mapper(HostedPrice, tables.hosted_prices, asdict, lambda row: HostedPrice(**row)),
    Mapper(StartupRecord, tables.calibrations, startup_to_row, startup_from_row),
    Mapper(ServingRecord, tables.serving_calibrations, serving_to_row, serving_from_row),
    Mapper(LinkRecord, tables.link_calibrations, link_to_row, link_from_row),
)
FIELDS: Mapping[type, str] = {
    SourceRecord: "sources",
    GpuRecord: "gpus",
    ModelRecord: "models",
    InstanceType: "instance_types",
    Price: "prices",
    HostedPrice: "hosted_prices",
    StartupRecord: "startups",
    ServingRecord: "servings",
    LinkRecord: "links",
}
"""Where a snapshot holds each kind."""

EMPTY = Snapshot(0)
OBSERVATIONS = frozenset({Price, HostedPrice, StartupRecord, ServingRecord, LinkRecord})
"""Kinds whose records never contradict another kind's: a writer of others need not read them."""

ROWS_AT_A_TIME = 5000
BOOKKEEPING = frozenset({"id", "from_revision", "to_revision"})


def current_revision(connection: sa.Connection) -> int:
    """The newest revision; 0 before the first."""
    return connection.scalar(sa.select(sa.func.coalesce(sa.func.max(catalogue_revisions.c.revision), 0))) or 0


def revisions(connection: sa.Connection) -> list[RevisionRecord]:
    """Every revision, the newest first."""
    newest_first = sa.select(catalogue_revisions).order_by(catalogue_revisions.c.revision.desc())
    return [RevisionRecord(*row) for row in connection.execute(newest_first)]


def revision_on(connection: sa.Connection, moment: datetime) -> int:
    """The revision that was the newest at a moment; 0 before the first."""
    newest = sa.func.coalesce(sa.func.max(catalogue_revisions.c.revision), 0)
    return connection.scalar(sa.select(newest).where(catalogue_revisions.c.created_at <= moment)) or 0


def read_rows(
    connection: sa.Connection, mapper: Mapper[Any], where: sa.ColumnElement[bool]
) -> dict[tuple[Any, ...], Any]:
    """Records of one kind by their keys, in their order."""
    order = [mapper.table.table.c[column] for column in mapper.table.key]
    return {mapper.key(row): mapper.from_row(row) for row in _rows(connection, mapper, where, order)}


def _rows(
    connection: sa.Connection,
    mapper: Mapper[Any],
    where: sa.ColumnElement[bool],
    order: Sequence[sa.ColumnElement[Any]] = (),
) -> Iterator[Row]:
    """Rows of one kind without their bookkeeping, some at a time."""
    columns = [column for column in mapper.table.table.c if column.name not in BOOKKEEPING]
    names = [column.name for column in columns]
    selected = sa.select(*columns).where(where).order_by(*order)
    for row in connection.execute(selected, execution_options={"yield_per": ROWS_AT_A_TIME}):
        yield dict(zip(names, row, strict=True))


def read_records(connection: sa.Connection, mapper: Mapper[Record], where: sa.ColumnElement[bool]) -> Iterator[Record]:
    """Records of one kind, some at a time, in no order."""
    return map(mapper.from_row, _rows(connection, mapper, where))


def load_snapshot(connection: sa.Connection, revision: int | None = None, *, earlier: Snapshot = EMPTY) -> Snapshot:
    """The catalogue as of a revision (None: the newest).

    Every table is read as of one revision number, so a writer that commits meanwhile changes nothing.

    Parameters
    ----------
    earlier : Snapshot
        Of the same database: what did not change since is taken from it and not read again.
    """
    if revision is None:
        revision = current_revision(connection)
    if revision == earlier.revision:
        return earlier
    records: dict[str, tuple[Any, ...]] = {
        FIELDS[mapper.kind]: _records_at(connection, mapper, revision, earlier) for mapper in MAPPERS
    }
    return Snapshot(revision=revision, **records)


def _records_at(connection: sa.Connection, mapper: Mapper[Any], revision: int, earlier: Snapshot) -> tuple[Any, ...]:
    """The records of one kind as of a revision, in the order of their keys; prices in the order they came first.

    Prices are many, and one is hardly ever replaced, so those that came are put behind those that are held.
    """
    table, held = mapper.table, getattr(earlier, FIELDS[mapper.kind])
    came = table.at(revision) & ~table.at(earlier.revision)
    gone = table.at(earlier.revision) & ~table.at(revision)
    if mapper.kind is Price and not _any(connection, gone):
        return (*held, *_ordered(connection, mapper, came)) if _any(connection, came) else held
    if _any(connection, came | gone):
        return tuple(_ordered(connection, mapper, table.at(revision)))
    return held


def _any(connection: sa.Connection, where: sa.ColumnElement[bool]) -> bool:
    return bool(connection.scalar(sa.select(sa.exists().where(where))))


def _ordered(connection: sa.Connection, mapper: Mapper[Any], where: sa.ColumnElement[bool]) -> Iterator[Any]:
    """Records by key, text by its code points whatever the database's locale; prices by revision first."""
    columns = mapper.table.table.c
    order: list[sa.ColumnElement[Any]] = [columns.from_revision] if mapper.kind is Price else []
    for name in mapper.table.key:
        column = columns[name]
        order.append(sa.collate(column, "C") if isinstance(column.type, sa.Text) else column)
    return map(mapper.from_row, _rows(connection, mapper, where, order))


def publish(connection: sa.Connection, records: Iterable[object], *, author: str, summary: str) -> int:
    """Add or replace records, in the caller's transaction, as one new revision.

    Records equal to what the catalogue holds are left out; where nothing is left no revision is made. The new
    revision is announced on `CHANNEL` when the transaction commits.

    Parameters
    ----------
    records : iterable of catalogue records
        Of any kinds in `MAPPERS`.
    author, summary : str
        Who makes the revision, and what it brings.

    Returns
    -------
    int
        The newest revision.

    Raises
    ------
    ValueError
        The catalogue would contradict itself, or a record is given twice.
    """
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITER_LOCK)))
    revision = current_revision(connection)
    given = list(records)
    untouched = OBSERVATIONS - {type(record) for record in given}
    held = {
        mapper.kind: {} if mapper.kind in untouched else read_rows(connection, mapper, mapper.table.current)
        for mapper in MAPPERS
    }
    fresh: dict[type, dict[tuple[Any, ...], Any]] = {mapper.kind: {} for mapper in MAPPERS}
    for record in given:
        key = _mapper(record).key(_mapper(record).to_row(record))
        if key in fresh[type(record)]:
            raise ValueError(f"{' '.join(map(str, key))} is given twice")
        if held[type(record)].get(key) != record:
            fresh[type(record)][key] = record
    if not any(fresh.values()):
        return revision
    revision += 1
    _snapshot(revision, {kind: held[kind] | fresh[kind] for kind in held})
    open_revision(connection, revision, author=author, summary=summary)
    for mapper in MAPPERS:
        if changes := fresh[mapper.kind]:
            replaced = [key for key in changes if key in held[mapper.kind]]
            _write(connection, mapper, revision, changes.values(), replaced)
    announce(connection, revision)
    return revision


def open_revision(connection: sa.Connection, revision: int, *, author: str, summary: str) -> None:
    """Begin a revision, whose rows follow in the same transaction."""
    connection.execute(catalogue_revisions.insert().values(revision=revision, author=author, summary=summary))


def announce(connection: sa.Connection, revision: int) -> None:
    """Tell every listener of a revision once the transaction commits."""
    connection.execute(sa.select(sa.func.pg_notify(CHANNEL, str(revision))))


def _mapper(record: object) -> Mapper[Any]:
    return next(mapper for mapper in MAPPERS if mapper.kind is type(record))


def _write(
    connection: sa.Connection,
    mapper: Mapper[Any],
    revision: int,
    records: Iterable[object],
    replaced: Sequence[tuple[Any, ...]],
) -> None:
    table = mapper.table.table
    if replaced:
        key = sa.tuple_(*(table.c[column] for column in mapper.table.key))
        closed = table.update().where(mapper.table.current, key.in_(replaced))
        connection.execute(closed.values(to_revision=revision))
    rows = [mapper.to_row(record) | {"from_revision": revision} for record in records]
    connection.execute(table.insert(), rows)


def _snapshot(revision: int, records: Mapping[type, Mapping[tuple[Any, ...], Any]]) -> Snapshot:
    """The catalogue of these records, to see that it does not contradict itself."""
    values: dict[str, tuple[Any, ...]] = {FIELDS[kind]: tuple(several.values()) for kind, several in records.items()}
    return Snapshot(revision=revision, **values)
