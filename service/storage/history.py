"""What changed in the catalogue."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.storage.catalogue import MAPPERS, Row, read_rows


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that two revisions hold differently.

    Attributes
    ----------
    kind : str
        Table: "models", "gpus", ...
    key : tuple of str
        What it is about.
    before, after : record or None
        What either revision holds of it; None: nothing.
    before_row, after_row : mapping or None
        The same as rows of the table.
    """

    kind: str
    key: tuple[str, ...]
    before: Any
    after: Any
    before_row: Row | None
    after_row: Row | None


def changes(connection: sa.Connection, earlier: int, later: int, kind: str | None = None) -> Iterator[Change]:
    """What the catalogue of revision `later` holds otherwise than that of `earlier`, by kind (None: all) and key."""
    for mapper in sorted(MAPPERS, key=lambda mapper: mapper.table.table.name):
        table = mapper.table
        if kind not in (None, table.table.name):
            continue
        gone = read_rows(connection, mapper, table.at(earlier) & ~table.at(later))
        come = read_rows(connection, mapper, table.at(later) & ~table.at(earlier))
        for key in sorted(gone.keys() | come.keys()):
            before, after = gone.get(key), come.get(key)
            yield Change(
                kind=str(table.table.name),
                key=tuple(map(str, key)),
                before=before,
                after=after,
                before_row=None if before is None else mapper.to_row(before),
                after_row=None if after is None else mapper.to_row(after),
            )
