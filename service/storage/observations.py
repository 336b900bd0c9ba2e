"""Taking many prices at once into the catalogue."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from service.catalogue.records.price import HostedPrice, Price, typical_per_gpu_hour
from service.storage.catalogue import (
    BOOKKEEPING,
    MAPPERS,
    WRITER_LOCK,
    Mapper,
    announce,
    current_revision,
    open_revision,
    read_records,
)

STATED = {
    Price: ("amount_per_hour",),
    HostedPrice: ("currency", "input_per_million", "output_per_million", "cached_input_per_million"),
}
"""What may not differ between two observations of one key."""

EXAMPLES = 5
STAGED = "staged"
IMPORT_TIMEOUT = "300s"


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of the records of one import.

    Attributes
    ----------
    revision : int
        The newest revision; unchanged where nothing was added.
    added, known, contradicting : int
        Records that are new, that were held already, and that say otherwise than one held of the same offer, source
        and day; the last are left out.
    contradictions : tuple of str
        The first few of those.
    """

    revision: int
    added: int
    known: int
    contradicting: int
    contradictions: tuple[str, ...]


def store_observations(
    connection: sa.Connection,
    kind: type[Price] | type[HostedPrice],
    records: Iterable[Price] | Iterable[HostedPrice],
    *,
    author: str,
    summary: str,
    dry_run: bool = False,
) -> Stored:
    """Add prices, in the caller's transaction, as at most one new revision; the same again adds nothing.

    The records are copied into a table of the transaction as they come, so memory does not grow with them.

    Parameters
    ----------
    kind : type
        Of all records.
    dry_run : bool
        Say what would become of them, and add nothing.
    """
    mapper = next(mapper for mapper in MAPPERS if mapper.kind is kind)
    connection.execute(sa.text(f"SET LOCAL statement_timeout = '{IMPORT_TIMEOUT}'"))
    count = _stage(connection, mapper, records)
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITER_LOCK)))
    held = mapper.table.table
    staged = sa.table(STAGED, *(sa.column(column.name, column.type) for column in _columns(mapper)))
    same = sa.and_(*(held.c[name] == staged.c[name] for name in mapper.table.key), mapper.table.current)
    differs = sa.or_(*(held.c[name].is_distinct_from(staged.c[name]) for name in STATED[kind]))
    fresh = (
        sa.select(*staged.c)
        .where(~sa.exists().where(same))
        .ext(pg.distinct_on(*(staged.c[name] for name in mapper.table.key)))
    )
    contradicting = sa.select(*staged.c).join(held, sa.and_(same, differs))
    added = connection.scalar(sa.select(sa.func.count()).select_from(fresh.subquery())) or 0
    doubted = connection.scalar(sa.select(sa.func.count()).select_from(contradicting.subquery())) or 0
    examples = tuple(_told(row, STATED[kind]) for row in connection.execute(contradicting.limit(EXAMPLES)).mappings())
    revision = current_revision(connection)
    if added and not dry_run:
        revision += 1
        open_revision(connection, revision, author=author, summary=summary)
        names = [column.name for column in _columns(mapper)]
        chosen = fresh.add_columns(sa.literal(revision, sa.Integer))
        connection.execute(held.insert().from_select([*names, "from_revision"], chosen))
        announce(connection, revision)
    return Stored(revision, added, count - added - doubted, doubted, examples)


def usual_prices(connection: sa.Connection) -> Mapping[str, Decimal]:
    """Usual USD per GPU and hour of each card by the prices held, which are read without being kept."""
    mapper = next(mapper for mapper in MAPPERS if mapper.kind is Price)
    return typical_per_gpu_hour(read_records(connection, mapper, mapper.table.current))


def _columns(mapper: Mapper[Any]) -> list[sa.Column[Any]]:
    return [column for column in mapper.table.table.c if column.name not in BOOKKEEPING]


def _stage(connection: sa.Connection, mapper: Mapper[Any], records: Iterable[object]) -> int:
    """Copy records into a table that ends with the transaction, and count them."""
    names = [column.name for column in _columns(mapper)]
    listed = ", ".join(names)
    source = mapper.table.table.name
    connection.execute(sa.text(f"DROP TABLE IF EXISTS pg_temp.{STAGED}"))
    connection.execute(
        sa.text(f"CREATE TEMPORARY TABLE {STAGED} ON COMMIT DROP AS SELECT {listed} FROM {source} WITH NO DATA")
    )
    count = 0
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {STAGED} ({listed}) FROM STDIN") as copy:
        for record in records:
            row = mapper.to_row(record)
            copy.write_row([row[name] for name in names])
            count += 1
    connection.execute(sa.text(f"ANALYZE {STAGED}"))
    return count


def _told(row: sa.RowMapping, stated: tuple[str, ...]) -> str:
    what = row.get("instance_type") or row.get("model") or row.get("gpu_name")
    amounts = " and ".join(str(row[name]) for name in stated if row[name] is not None)
    return f"{row['provider']} {what} on {row['observed_on']}: {amounts} is not what is held from {row['source']}"
