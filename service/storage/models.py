"""Taking models into the catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from service.catalogue.records.model import ModelRecord
from service.storage.catalogue import MAPPERS, WRITER_LOCK, publish, read_rows

MODELS = next(mapper for mapper in MAPPERS if mapper.kind is ModelRecord)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model as the catalogue holds it after it was given.

    Attributes
    ----------
    before, after : ModelRecord
        What was held, None for nothing; and what is held now: the same object where nothing changed.
    """

    before: ModelRecord | None
    after: ModelRecord

    @property
    def is_changed(self) -> bool:
        """Whether it is new or changed."""
        return self.after is not self.before


def store_models(
    connection: sa.Connection, records: Sequence[ModelRecord], *, author: str, summary: str
) -> tuple[int, tuple[StoredModel, ...]]:
    """Put models into the catalogue, in the caller's transaction, as at most one new revision.

    A model is what its name says, in any case. One that is held with the same configuration and size stays as it is,
    wherever the new one comes from.

    Returns
    -------
    int, tuple of StoredModel
        The newest revision, and what became of each record.

    Raises
    ------
    ValueError
        A model is given twice.
    """
    # Taken before the catalogue is looked at, so that of two writers the second sees what the first wrote.
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITER_LOCK)))
    held = {model.name.casefold(): model for model in read_rows(connection, MODELS, MODELS.table.current).values()}
    stored = tuple(_stored(held.get(record.name.casefold()), record) for record in records)
    revision = publish(connection, [each.after for each in stored if each.is_changed], author=author, summary=summary)
    return revision, stored


def _stored(before: ModelRecord | None, given: ModelRecord) -> StoredModel:
    return StoredModel(before, given if before is None else before.succeeded_by(given))
