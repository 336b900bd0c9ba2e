"""Taking measurements into the catalogue, each once, and changing what they may be used for."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from service.catalogue.records.calibration import Status
from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.startups import StartupRecord
from service.storage.catalogue import MAPPERS, WRITER_LOCK, publish, read_rows
from service.storage.tables import calibration_texts

Record = StartupRecord | ServingRecord | LinkRecord

MEASURED = tuple(mapper for mapper in MAPPERS if mapper.kind in (StartupRecord, ServingRecord, LinkRecord))


@dataclass(frozen=True, slots=True)
class Stored:
    """A measurement as the catalogue holds it, and whether the caller's request made it so."""

    record: Record
    is_new: bool


def store_startup(connection: sa.Connection, record: StartupRecord, *, text: str | None = None) -> tuple[int, Stored]:
    """Put a measured startup into the catalogue, in the caller's transaction, with the text it was read from.

    A startup that is held already stays as it is, whoever reports it again.

    Returns
    -------
    int, Stored
        The newest revision, and the startup as it is held.
    """
    summary = f"Startup of {record.measurement.model} on {record.measurement.gpu}"
    kept = None if text is None else (record.id, text)
    revision, (stored,) = _store(connection, [record], kept, author=record.recorded_by, summary=summary)
    return revision, stored


def store_report(
    connection: sa.Connection, records: Sequence[ServingRecord] | Sequence[LinkRecord], *, text: str
) -> tuple[int, tuple[Stored, ...]]:
    """Put the measurements of one report into the catalogue, in the caller's transaction, as at most one new revision.

    One that is held already stays as it is, whoever reports it again.

    Parameters
    ----------
    records : sequence of ServingRecord or of LinkRecord
        At least one.
    text : str
        The report.

    Returns
    -------
    int, tuple of Stored
        The newest revision, and each measurement as it is held.
    """
    report = hashlib.sha256(text.encode()).hexdigest()[:16]
    first = records[0].measurement
    what = f"Load of {records[0].measurement.model}" if isinstance(records[0], ServingRecord) else "Link"
    more = f" and {len(records) - 1} more" if len(records) > 1 else ""
    return _store(
        connection,
        [replace(record, report=report) for record in records],
        (report, text),
        author=records[0].recorded_by,
        summary=f"{what} on {first.gpu}{more}",
    )


def _store(
    connection: sa.Connection, records: Sequence[Record], kept: tuple[str, str] | None, *, author: str, summary: str
) -> tuple[int, tuple[Stored, ...]]:
    # Taken before the catalogue is looked at, so that of two writers the second sees what the first wrote.
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITER_LOCK)))
    given = {record.id: record for record in records}
    held = _held(connection, list(given))
    fresh = [record for id_, record in given.items() if id_ not in held]
    if fresh and kept is not None:
        digest, text = kept
        connection.execute(insert(calibration_texts).values(digest=digest, text=text).on_conflict_do_nothing())
    revision = publish(connection, fresh, author=author, summary=summary)
    return revision, tuple(Stored(held.get(record.id, record), record.id not in held) for record in records)


def _held(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Record]:
    """Measurements with these ids, of whichever kind, as the newest revision has them."""
    found: dict[str, Record] = {}
    for mapper in MEASURED:
        rows = read_rows(connection, mapper, mapper.table.current & mapper.table.table.c.digest.in_(ids))
        found |= {record.id: record for record in rows.values()}
    return found


def without_held(connection: sa.Connection, records: Iterable[object]) -> Iterator[object]:
    """Records of any kinds without the measurements that the catalogue holds already."""
    given = list(records)
    held = _held(connection, [record.id for record in given if isinstance(record, Record)])
    return (record for record in given if not isinstance(record, Record) or record.id not in held)


def set_status(
    connection: sa.Connection, id_: str, status: Status, reason: str, *, author: str
) -> tuple[int, Stored] | None:
    """Say what a measurement may be used for, in the caller's transaction, as a new revision.

    Parameters
    ----------
    id_ : str
        Of the measurement.
    reason : str
        Why; kept with the measurement unless it is accepted, and in the revision.

    Returns
    -------
    int, Stored, or None
        The newest revision and the measurement as it is held now; None: there is none of that id.
    """
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITER_LOCK)))
    before = _held(connection, [id_]).get(id_)
    if before is None:
        return None
    after = before.judged(status, "" if status is Status.ACCEPTED else reason)
    summary = f"Measurement {id_} {status.value}{': ' if reason else ''}{reason}"
    revision = publish(connection, [after], author=author, summary=summary)
    return revision, Stored(after, after != before)
