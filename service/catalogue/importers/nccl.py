"""Output of the NCCL and RCCL tests (`all_reduce_perf` and its siblings) read into link measurements.

The layout is that of nccl-tests `src/common.cu` and `src/util.cu` from 2.0 to 2.18, which rccl-tests share: lines on
the devices, a header of three lines, a row for each message size with the results out of place and in place, and the
average bus bandwidth. Launchers put a prefix before every line. A row that does not line up with its header is refused
by its line, since a shifted column would be a wrong number.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from service.catalogue.records.calibration import Collective, LinkPoint
from service.catalogue.records.calibration_checks import bus_factor, point_contradictions


class TableNotUnderstood(ValueError):
    """The text holds no table of the tests, or one that is mangled.

    Attributes
    ----------
    line : int or None
        Number of the offending line, from 1; None if it is about the whole text.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


@dataclass(frozen=True, slots=True)
class LinkTest:
    """One table of a link test.

    Attributes
    ----------
    first_line : int
        Number of the line of its header.
    operation, world_size, nodes : Collective or None, int or None, int or None
        What was measured among how many GPUs of how many hosts; None where the text does not say.
    gpus : tuple of str
        Distinct names of the cards.
    out_of_place, in_place : tuple of LinkPoint
        Results in the order of the table.
    avg_busbw_gb_per_s : float or None
        The average the test prints below the table.
    missing : tuple of str
        What a measurement needs and the text does not give.
    contradictions : tuple of str
        Where the rows contradict themselves, the average, or report wrong results.
    """

    first_line: int
    operation: Collective | None
    world_size: int | None
    nodes: int | None
    gpus: tuple[str, ...]
    out_of_place: tuple[LinkPoint, ...]
    in_place: tuple[LinkPoint, ...]
    avg_busbw_gb_per_s: float | None
    missing: tuple[str, ...]
    contradictions: tuple[str, ...]


MAX_LINES = 200_000
MAX_ROWS = 1000
"""More message sizes than this in one table are refused."""

_PREFIX = re.compile(r"\[\d{1,6},\d{1,6}\]<std(?:out|err)>: ?|[\w./-]{1,120}: (?=[ ]{0,40}[#\d])")
_OPERATION = re.compile(
    r"(?<![a-z])(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|gather|scatter|sendrecv|hypercube)_perf"
)
_DEVICE = re.compile(
    r"# {0,8}Rank {1,8}(?P<rank>\d{1,6}) .{0,60}?Pid {1,12}\d{1,10} on {1,40}(?P<host>\S{1,120}) device {1,8}\d{1,4} "
    r"\[[^\]]{1,40}\] (?P<gpu>\S.{0,80})"
)
_AVERAGE = re.compile(r"# {0,4}Avg bus bandwidth {0,8}: {0,8}(?P<gb_per_s>\d{1,9}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?)")
_RESULT = ("time", "algbw", "busbw")
_WRONG = ("#wrong", "error")
_NOT_RUN = "N/A"
_AVERAGE_TOLERANCE = 0.01


@dataclass(slots=True)
class _Open:
    """A table being read."""

    first_line: int
    leading: int
    halves: int
    operation: Collective | None
    devices: dict[int, tuple[str, str]]
    points: tuple[list[LinkPoint], list[LinkPoint]] = field(default_factory=lambda: ([], []))
    average: float | None = None
    elided: bool = False


def has_table(text: str) -> bool:
    """Whether a text holds the header of a table."""
    lines = (line[_prefix_end(line) :].strip() for line in text.splitlines())
    return any(line.startswith("#") and line.lstrip("# ").split()[:2] == ["size", "count"] for line in lines)


def read_link_tests(
    text: str, operation: Collective | None = None, world_size: int | None = None
) -> tuple[LinkTest, ...]:
    """Every table of the NCCL or RCCL tests in a text.

    Parameters
    ----------
    text : str
        What the tests printed, with or without the lines before and after the table.
    operation, world_size : Collective or None, int or None
        Said by the caller, for pastes of the table alone. What the text says wins.

    Raises
    ------
    TableNotUnderstood
        No table is in the text, or a row does not line up with its header; the line is named.
    """
    if text.count("\n") > MAX_LINES:
        raise TableNotUnderstood(f"the text has more than {MAX_LINES:,} lines; give the output of the tests alone")
    tests = [_closed(table, operation, world_size) for table in _tables(text)]
    if not tests:
        raise TableNotUnderstood(
            "no table of the NCCL or RCCL tests was found; its header reads `#  size  count  type  redop  root  time  "
            "algbw  busbw  #wrong`"
        )
    return tuple(tests)


def _tables(text: str) -> Iterator[_Open]:
    table: _Open | None = None
    operation: Collective | None = None
    devices: dict[int, tuple[str, str]] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw[_prefix_end(raw) :].strip()
        columns = _header(line, number)
        if columns is not None:
            if table is not None:
                yield table
            table = _Open(number, *columns, operation, devices)
            devices = {}
            continue
        named = _OPERATION.search(line)
        if named and (table is None or table.average is not None):
            operation = Collective(named[1])
        device = _DEVICE.match(line)
        if device:
            devices[int(device["rank"])] = (device["host"], device["gpu"].strip())
        if table is not None and table.average is None:
            _take(table, line, number)
    if table is not None:
        yield table


def _prefix_end(line: str) -> int:
    match = _PREFIX.match(line)
    return match.end() if match else 0


def _header(line: str, number: int) -> tuple[int, int] | None:
    """How many columns lead a row and how many results follow, from a header line; None for any other line."""
    words = line.lstrip("# ").split()
    if words[:2] != ["size", "count"] or not line.startswith("#"):
        return None
    if "time" not in words:
        raise TableNotUnderstood("the header has no column `time`", number)
    leading = words.index("time")
    results = words[leading:]
    half = [*_RESULT, next((word for word in results if word in _WRONG), "")]
    if results not in (half, [*half, *half]):
        raise TableNotUnderstood(
            f"the header has the columns {' '.join(results)}; time algbw busbw #wrong are needed", number
        )
    return leading, len(results) // len(half)


def _take(table: _Open, line: str, number: int) -> None:
    average = _AVERAGE.match(line)
    if average:
        table.average = float(average["gb_per_s"])
        return
    if line.startswith(("...", "…")):
        table.elided = True
        return
    words = line.split()
    if not words or not words[0].isdecimal():
        return
    expected = table.leading + 4 * table.halves
    if len(words) != expected:
        raise TableNotUnderstood(f"the row has {len(words)} cells, the header {expected}: {line[:100]}", number)
    size = int(words[0]) if len(words[0]) < 19 else None
    if size is None or not words[1].isdecimal():
        raise TableNotUnderstood(f"size and count are not whole numbers: {line[:100]}", number)
    for half in range(table.halves):
        at = table.leading + 4 * half
        point = _point(size, words[at : at + 4], number)
        if point is not None:
            table.points[half].append(point)


def _point(size_bytes: int, cells: list[str], number: int) -> LinkPoint | None:
    """One result; None where it was not run (in place, for some operations)."""
    if _NOT_RUN in cells[:3]:
        return None
    try:
        time_us, algbw, busbw = (float(cell) for cell in cells[:3])
        # Old versions print an error instead of a count of wrong elements; it says nothing about counts.
        wrong = int(cells[3]) if cells[3].isdecimal() and len(cells[3]) < 19 else None
    except ValueError:
        raise TableNotUnderstood(f"a result is no number: {' '.join(cells)}", number) from None
    if not (0 < time_us < 1e12 and 0 <= algbw < 1e6 and 0 <= busbw < 1e6):
        raise TableNotUnderstood(f"a result is out of range: {' '.join(cells)}", number)
    return LinkPoint(size_bytes, time_us, algbw, busbw, wrong)


def _closed(table: _Open, operation: Collective | None, world_size: int | None) -> LinkTest:
    out_of_place, in_place = table.points
    if not out_of_place and not in_place:
        raise TableNotUnderstood("the header is followed by no row", table.first_line)
    if max(len(out_of_place), len(in_place)) > MAX_ROWS:
        raise TableNotUnderstood(f"the table has more than {MAX_ROWS:,} rows", table.first_line)
    operation = table.operation or operation
    ranks = len(table.devices) if table.devices else world_size
    gpus = tuple(dict.fromkeys(gpu for _, gpu in table.devices.values()))
    hosts = {host for host, _ in table.devices.values()}
    said = {"operation": operation, "world_size": ranks, "gpus": gpus or None}
    return LinkTest(
        first_line=table.first_line,
        operation=operation,
        world_size=ranks,
        nodes=len(hosts) or None,
        gpus=gpus,
        out_of_place=tuple(out_of_place),
        in_place=tuple(in_place),
        avg_busbw_gb_per_s=table.average,
        missing=tuple(name for name, value in said.items() if value is None),
        contradictions=tuple(_contradictions(table, operation, ranks)),
    )


def _contradictions(table: _Open, operation: Collective | None, world_size: int | None) -> Iterator[str]:
    points = [point for half in table.points for point in half]
    if operation is not None and world_size is not None:
        factor = bus_factor(operation, world_size)
        for point in points:
            yield from point_contradictions(point, factor)
    if table.devices and sorted(table.devices) != list(range(len(table.devices))):
        yield f"the devices listed are ranks {', '.join(map(str, sorted(table.devices)))}"
    if table.average is None or table.elided:
        return
    mean = sum(point.busbw_gb_per_s for point in points) / len(points)
    ran_everywhere = table.halves == 1 or len(table.points[0]) == len(table.points[1])
    if ran_everywhere and abs(mean - table.average) > _AVERAGE_TOLERANCE * mean + 0.01:
        yield f"the rows average {mean:.2f} GB/s, the test says {table.average:g}: rows are missing or changed"
