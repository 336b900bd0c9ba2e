"""From the header and rows of one matrix to what each pair of GPUs reads, trusting only what lines up.

The diagonal is what shows that a row has not lost or gained a cell: its X must stand in the row's own column, and the
row must be as wide as the others. A row that fails may contradict its mirror cells but never speak alone.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

from service.sizing.topology.links import TopologyNotUnderstood, UnreadLine
from service.sizing.topology.paste import Header, Row, Section

MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class Grid:
    """One matrix by label.

    Attributes
    ----------
    labels : tuple of str
        GPU labels by number, PCI addresses in column order.
    rows : dict of str to Row
        At most one row for each label.
    columns : dict of str to int
        Which cell of a row speaks of which GPU.
    sound : frozenset of str
        Labels of the rows that line up.
    alone : frozenset of str
        Those of them whose word counts without a mirror cell: none if some row stands under another GPU's label, and
        not the rows that differ from a mirror cell elsewhere.
    warnings : tuple of str
    unread : tuple of UnreadLine
    """

    labels: tuple[str, ...]
    rows: dict[str, Row]
    columns: dict[str, int]
    sound: frozenset[str]
    alone: frozenset[str]
    warnings: tuple[str, ...]
    unread: tuple[UnreadLine, ...]

    def cell(self, a: str, b: str) -> str | None:
        """What row `a` says of GPU `b`; None where it says nothing readable."""
        row, column = self.rows.get(a), self.columns.get(b)
        return row.cells[column] if row is not None and column is not None and column < len(row.cells) else None

    def pair(self, a: str, b: str) -> tuple[str, ...]:
        """What both rows say of the pair: nothing, one reading, or two that differ.

        Two readings count if one of their rows lines up, a single one if its row is in `alone`.
        """
        readings = {label: cell for label, cell in ((a, self.cell(a, b)), (b, self.cell(b, a))) if cell is not None}
        counts = not self.sound.isdisjoint(readings) if len(readings) == 2 else self.alone.issuperset(readings)
        return tuple(sorted(set(readings.values()))) if counts else ()


def assemble(section: Section) -> Grid:
    """Line up the rows of a section under its header, or without one.

    Raises
    ------
    TopologyNotUnderstood
        No row; two different headers, or different rows of several GPUs; more than 64 GPUs; neither the header nor
        the rows alone give the columns.
    """
    if not section.rows:
        raise TopologyNotUnderstood("no row of the matrix was found below its header: paste the GPU rows too")
    if len(section.headers) > 1:
        raise TopologyNotUnderstood("the text holds matrices with different columns: paste one machine at a time")
    warnings: list[str] = []
    unread: list[UnreadLine] = []
    rows, contradictory = _one_row_each(section.rows, warnings)
    if len(contradictory) > 1:
        raise TopologyNotUnderstood(
            f"the text holds two different rows each for {', '.join(sorted(contradictory))}: "
            "paste one machine at a time"
        )
    header = next(iter(section.headers.values()), None)
    width = _width(list(rows.values()), header)
    last = _without_cut_cell(section.rows[-1], rows, width, header)
    rows[last.label] = last

    columns, misnamed = _columns(header, rows, width, warnings)
    if len(columns) > MOST_GPUS:
        raise TopologyNotUnderstood(f"the matrix names {len(columns)} GPUs; at most {MOST_GPUS} are read")
    sound: set[str] = set()
    for label, row in list(rows.items()):
        place = columns.get(label)
        at = _self_at(row)
        if place is None:
            unread.append(row.line.unread(f"the row does not stand under a column named {label}"))
            misnamed = True
            del rows[label]
        elif label in contradictory:
            unread.append(row.line.unread(f"{label} has two rows that differ"))
        elif at == place and len(row.cells) == width:
            sound.add(label)
        elif row is last and len(row.cells) < width and (at == place or (at is None and len(row.cells) <= place)):
            warnings.append(f"{label} row incomplete: the paste ends after {len(row.cells)} of {width} cells")
        else:
            unread.append(row.line.unread(f"the cells of {label} do not line up with the columns"))
            misnamed = misnamed or (at is not None and at in {columns[other] for other in columns if other != label})
    missing = [label for label in columns if label not in rows]
    if missing:
        warnings.append(f"no row for {', '.join(missing)}: read from the other rows where they show the pair")
    labels = tuple(sorted(columns, key=lambda label: (_number(label) or 0, columns[label])))
    in_cells = {label: column for label, column in columns.items() if column < width}
    grid = Grid(labels, rows, in_cells, frozenset(sound), frozenset(), tuple(warnings), tuple(unread))
    differing = {label for pair in combinations(labels, 2) if len(grid.pair(*pair)) > 1 for label in pair}
    return grid if misnamed else replace(grid, alone=grid.sound - differing)


def _self_at(row: Row) -> int | None:
    """Where the row's only X stands; None without one, or with several."""
    places = [place for place, cell in enumerate(row.cells) if cell == "X"]
    return places[0] if len(places) == 1 else None


def _one_row_each(rows: list[Row], warnings: list[str]) -> tuple[dict[str, Row], set[str]]:
    """One row for each label; of two that differ, the cells on which they agree."""
    merged: dict[str, Row] = {}
    contradictory: set[str] = set()
    repeated = False
    for row in rows:
        other = merged.get(row.label)
        if other is None:
            merged[row.label] = row
            continue
        short, long = sorted((other, row), key=lambda candidate: len(candidate.cells))
        if long.cells[: len(short.cells)] == short.cells:
            repeated = repeated or len(short.cells) == len(long.cells)
            merged[row.label] = long
            continue
        contradictory.add(row.label)
        agreed = tuple(a if a == b else None for a, b in zip(other.cells, row.cells, strict=False))
        merged[row.label] = Row(row.label, agreed, row.line)
    if repeated:
        warnings.append("the same rows stand in the text twice: if they are of two machines, read one at a time")
    return merged, contradictory


def _width(rows: list[Row], header: Header | None) -> int:
    """The width most rows have, the header counting as one; the wider of two equally common."""
    widths = Counter(len(row.cells) for row in rows)
    if header is not None:
        widths[len(header.columns)] += 1
    return max(widths, key=lambda width: (widths[width], width))


def _without_cut_cell(row: Row, rows: dict[str, Row], width: int, header: Header | None) -> Row:
    """The last row, without a last cell that the end of the paste may have cut: NV1 may have been NV18."""
    row = rows[row.label]
    gpus = sum(column.startswith("GPU") for column in header.columns) if header is not None else 0
    unfinished = len(row.cells) < width or len(rows) < gpus
    if row.cells and not row.has_tail and unfinished and re.fullmatch(r"NV[0-9]", row.cells[-1] or ""):
        return Row(row.label, (*row.cells[:-1], None), row.line)
    return row


def _columns(
    header: Header | None, rows: dict[str, Row], width: int, warnings: list[str]
) -> tuple[dict[str, int], bool]:
    """Which column belongs to which GPU, and whether some label contradicts the diagonal."""
    if header is not None:
        named = _named(header)
        clash = len(named) < sum(map(_is_gpu, header.columns))
        added = False
        for label, row in rows.items():
            at = _self_at(row)
            if at is not None and named.get(label) != at:
                taken = at < len(header.columns) and _is_gpu(header.columns[at])
                clash = clash or label in named or taken
                named.setdefault(label, at)
                added = True
        if not clash and (not added or _counts_up(named)):
            _extend(named, rows, width)
            return _without_unconfirmed(named, rows, warnings), False
    alone = _columns_of_rows(rows)
    if alone is not None and (header is None or set(alone) == set(rows)):
        warnings.append(
            "the header row is missing: GPUs are counted by their rows"
            if header is None
            else "the header row does not match the rows: columns are taken from the rows"
        )
        return alone, False
    if header is None:
        raise TopologyNotUnderstood(
            "the header row is missing and the rows do not line up by themselves: paste the line that names the columns"
        )
    named = _named(header)
    warnings.append("the header row contradicts some rows: pairs that only one row shows are treated as unknown")
    return _without_unconfirmed(named, rows, warnings), True


def _is_gpu(label: str) -> bool:
    return re.fullmatch(r"GPU[0-9]+|[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", label) is not None


def _named(header: Header) -> dict[str, int]:
    return {label: place for place, label in enumerate(header.columns) if _is_gpu(label)}


def _counts_up(named: dict[str, int]) -> bool:
    """Whether the labels are GPU0, GPU1, GPU2 ... in column order, as `nvidia-smi` and `rocm-smi` print them."""
    return [_number(label) for label in sorted(named, key=lambda label: named[label])] == list(range(len(named)))


def _number(label: str) -> int | None:
    return int(label[3:]) if label.startswith("GPU") else None


def _extend(named: dict[str, int], rows: dict[str, Row], width: int) -> None:
    """Add GPUs whose rows follow on from a header that was cut at the right."""
    for label, row in rows.items():
        follows = _number(label) == len(named) and _self_at(row) is None
        if label not in named and follows and all(cell != "X" for cell in row.cells):
            named[label] = width + len(named)


def _without_unconfirmed(named: dict[str, int], rows: dict[str, Row], warnings: list[str]) -> dict[str, int]:
    """Drop columns without a row unless their names continue the count, as a tool prints them."""
    if _counts_up(named):
        return named
    dropped = [label for label in named if label not in rows]
    if dropped:
        warnings.append(f"columns without a row of their own and out of order were not used: {', '.join(dropped)}")
    return {label: place for label, place in named.items() if label in rows}


def _columns_of_rows(rows: dict[str, Row]) -> dict[str, int] | None:
    """Columns by the diagonal alone; None unless labels and diagonal tell the same story.

    Either every label equals its column, and then a row missing in between is a GPU too; or the labels are 0, 1, 2 ...
    in column order, with columns of other devices among them.
    """
    placed: list[tuple[int, int]] = []
    for label, row in rows.items():
        place, number = _self_at(row), _number(label)
        if place is None or number is None:
            return None
        placed.append((place, number))
    placed.sort()
    if all(place == number for place, number in placed):
        return {f"GPU{number}": number for number in range(placed[-1][1] + 1)}
    if [number for _, number in placed] == list(range(len(placed))) and len(dict(placed)) == len(placed):
        return {f"GPU{number}": place for place, number in placed}
    return None
