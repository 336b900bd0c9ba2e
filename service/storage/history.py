"""What changed in the catalogue."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.storage.catalogue import MAPPERS, Row, read_rows


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """What a change is about: a table, and the values of its key there."""

    kind: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return "/".join((self.kind, *map(str, self.values)))


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


def changed_keys(
    connection: sa.Connection, earlier: int, later: int, *, kind: str | None, after: str | None, most: int
) -> list[ChangedKey]:
    """The first `most` keys after `after` of which two revisions may hold different rows, by kind (None: all) and key.

    Keys alone are read: a list of prices brings hundreds of thousands of rows in one revision.
    """
    found = list[ChangedKey]()
    for mapper in sorted(MAPPERS, key=lambda mapper: mapper.table.table.name):
        table, name = mapper.table, str(mapper.table.table.name)
        prefix = f"{name}/"
        if kind not in (None, name) or (after is not None and after > prefix and not after.startswith(prefix)):
            continue
        columns = [table.table.c[column] for column in table.key]
        text = sa.func.concat_ws("/", *(sa.cast(column, sa.Text) for column in columns)).collate("C")
        differs = table.at(earlier) != table.at(later)
        chosen = sa.select(*columns).where(differs).group_by(*columns).order_by(text).limit(most - len(found))
        if after is not None and after.startswith(prefix):
            chosen = chosen.where(text > after.removeprefix(prefix))
        found += [ChangedKey(name, tuple(row)) for row in connection.execute(chosen)]
        if len(found) == most:
            break
    return found


def changes(connection: sa.Connection, earlier: int, later: int, keys: Sequence[ChangedKey]) -> Iterator[Change]:
    """What the catalogue of revision `later` holds otherwise than that of `earlier` of these keys, in their order."""
    for mapper in sorted(MAPPERS, key=lambda mapper: mapper.table.table.name):
        table, name = mapper.table, str(mapper.table.table.name)
        wanted = [each.values for each in keys if each.kind == name]
        if not wanted:
            continue
        among = sa.tuple_(*(table.table.c[column] for column in table.key)).in_(wanted)
        gone = read_rows(connection, mapper, table.at(earlier) & ~table.at(later) & among)
        come = read_rows(connection, mapper, table.at(later) & ~table.at(earlier) & among)
        for key in wanted:
            before, after = gone.get(key), come.get(key)
            if before == after:
                # What was changed and changed back.
                continue
            yield Change(
                kind=name,
                key=tuple(map(str, key)),
                before=before,
                after=after,
                before_row=None if before is None else mapper.to_row(before),
                after_row=None if after is None else mapper.to_row(after),
            )
