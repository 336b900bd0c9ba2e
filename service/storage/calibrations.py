"""Taking measurements into the catalogue, each once."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from service.catalogue.startups import StartupRecord
from service.storage.catalogue import MAPPERS, WRITER_LOCK, publish, read_rows
from service.storage.tables import calibration_texts

STARTUPS = next(mapper for mapper in MAPPERS if mapper.kind is StartupRecord)


def store_startup(
    connection: sa.Connection, record: StartupRecord, *, text: str | None = None
) -> tuple[int, StartupRecord, bool]:
    """Put a measured startup into the catalogue, in the caller's transaction, with the text it was read from.

    A startup that is held already stays as it is, whoever reports it again.

    Returns
    -------
    int, StartupRecord, bool
        The newest revision, the startup as it is held, and whether it is new.
    """
    # Taken before the catalogue is looked at, so that of two writers the second sees what the first wrote.
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITER_LOCK)))
    table = STARTUPS.table
    held = read_rows(connection, STARTUPS, table.current & (table.table.c.digest == record.id))
    for before in held.values():
        return publish(connection, (), author=record.recorded_by, summary=""), before, False
    if text is not None:
        kept = insert(calibration_texts).values(digest=record.id, text=text)
        connection.execute(kept.on_conflict_do_nothing())
    summary = f"Startup of {record.measurement.model} on {record.measurement.gpu}"
    return publish(connection, [record], author=record.recorded_by, summary=summary), record, True
