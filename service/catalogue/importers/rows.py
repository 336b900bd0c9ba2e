"""CSV and JSON text to numbered rows, in bounded memory, without losing a good row to a bad neighbour."""

import codecs
import csv
import io
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, cast

from service.catalogue.importers.outcome import WrongFormat
from service.catalogue.records.price import MICRO, money

LONGEST_RECORD_LINES = 20
"""A quoted field may run over this many lines; a quote still open after them was never meant to open."""

LONGEST_RECORD_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """A data row: its number (the header is 1) and its cells by lower-case column name, blanks stripped."""

    number: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The cell, or an empty string if the column or the cell is missing."""
        return self.cells.get(column, "")


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read, and why."""

    number: int
    why: str


def storable(text: str) -> bool:
    """Whether a database takes a text: no NUL and no half of a surrogate pair (JSON can spell both)."""
    return "\0" not in text and not _SURROGATE.search(text)


_SURROGATE = re.compile("[\ud800-\udfff]")


class BadValue(ValueError):
    """A cell that does not hold what its column promises."""


def read_csv(lines: Iterable[str] | Iterable[bytes], required: Iterable[str]) -> Iterator[Row | BadRow]:
    """Rows of a comma-separated file with a header, read by column name.

    Takes a byte-order mark, either line ending, quoted fields (also over several lines) and columns in any order.
    A row with a broken quote, a NUL, a wrong number of fields or bytes that are not UTF-8 becomes a `BadRow`, and
    the next line is read as a row of its own.

    Raises
    ------
    WrongFormat
        If there is no header, or a `required` column is missing from it.
    """
    records = _csv_records(lines)
    header = next(records, None)
    if header is None:
        raise WrongFormat("the file is empty: a header line was expected")
    if isinstance(header, str):
        raise WrongFormat(f"the header line cannot be read: {header}")
    columns = [name.casefold() for name in header]
    missing = [name for name in required if name.casefold() not in columns]
    if missing:
        raise WrongFormat(f"missing column {', '.join(missing)}; the header has {', '.join(header)}"[:500])
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise WrongFormat(f"column {', '.join(twice)} is named twice")
    for number, record in enumerate(records, start=2):
        if isinstance(record, str):
            yield BadRow(number, record)
        elif len(record) != len(columns):
            yield BadRow(number, f"{len(record)} fields where the header has {len(columns)}")
        else:
            yield Row(number, dict(zip(columns, record, strict=True)))


def _csv_records(lines: Iterable[str] | Iterable[bytes]) -> Iterator[list[str] | str]:
    """Fields of each record, or the sentence that says why a line is none; blank lines are passed over."""
    source = _decoded(lines)
    waiting: deque[str | None] = deque()
    width: int | None = None
    while True:
        line = waiting.popleft() if waiting else next(source, _END)
        if line is _END:
            return
        if line is None:
            yield "not UTF-8 text"
            continue
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        following: list[str | None] = []
        while text.count('"') % 2 and len(following) < LONGEST_RECORD_LINES:
            extra = waiting.popleft() if waiting else next(source, _END)
            if extra is _END:
                break
            following.append(extra)
            if extra is None:
                break
            text += "\n" + extra.rstrip("\r\n")
        parsed = _fields(text)
        if following and (isinstance(parsed, str) or (width is not None and len(parsed) != width)):
            parsed = "a quoted field is never closed"
            waiting.extendleft(reversed(following))
        if width is None and isinstance(parsed, list):
            width = len(parsed)
        yield parsed


_END = ""
"""What an exhausted source gives: no line is empty, each has at least its line ending or a character."""


def _fields(text: str) -> list[str] | str:
    if len(text) > LONGEST_RECORD_CHARS:
        return f"longer than {LONGEST_RECORD_CHARS} characters"
    if "\0" in text:
        return "contains a NUL character"
    try:
        records = list(csv.reader(io.StringIO(text, newline="\n"), strict=True))
    except csv.Error as error:
        return f"not comma-separated values: {error}"
    if len(records) != 1:
        return "a quoted field is never closed"
    return [field.strip() for field in records[0]]


def _decoded(lines: Iterable[str] | Iterable[bytes]) -> Iterator[str | None]:
    first = True
    for line in lines:
        if isinstance(line, bytes):
            if first:
                _require_text(line)
            try:
                text = line.decode("utf-8-sig" if first else "utf-8")
            except UnicodeDecodeError:
                text = None
        else:
            text = line.removeprefix("\ufeff") if first else line
        first = False
        if text != "":
            yield text


def read_json(chunks: Iterable[str] | Iterable[bytes]) -> Iterator[Row | BadRow]:
    """Objects of a JSON array or of JSON Lines, one at a time, as rows; values become text.

    Numbers keep every digit they were written with. In JSON Lines a broken line is a `BadRow`.

    Raises
    ------
    WrongFormat
        If the text is neither, or an array breaks off or holds something that is not JSON.
    """
    texts = _decoded_json(chunks)
    buffer = ""
    for text in texts:
        buffer += text
        if buffer.lstrip():
            break
    buffer = buffer.lstrip("\ufeff \t\r\n")
    if buffer.startswith("["):
        yield from _array(buffer[1:], texts)
    elif buffer.startswith("{"):
        yield from _json_lines(buffer, texts)
    else:
        raise WrongFormat("a JSON array of objects, or one object a line, was expected")


_DECODER = json.JSONDecoder(parse_float=Decimal)
_SEPARATORS = frozenset(" \t\r\n,")
_FIRST_READ_CHARS = 4096


def _array(buffer: str, texts: Iterator[str]) -> Iterator[Row | BadRow]:
    number = 0
    position = 0
    while True:
        while buffer[position : position + 1] in _SEPARATORS:
            position += 1
        if buffer.startswith("]", position):
            return
        value: object = None
        try:
            value, end = _DECODER.raw_decode(buffer, position)
            # A number or word at the edge of the buffer may go on in the next chunk; an object cannot.
            complete = buffer.startswith("{", position) or end < len(buffer)
        except (ValueError, RecursionError):
            end, complete = position, False
        if complete:
            number += 1
            yield _json_row(number, value)
            position = end
            continue
        if len(buffer) - position > LONGEST_RECORD_CHARS:
            raise WrongFormat(f"entry {number + 1} of the array is not JSON")
        # Doubling keeps the cost of trying again in proportion to the text, however small the chunks are.
        buffer = buffer[position:]
        position = 0
        have = len(buffer)
        wanted = max(2 * have, _FIRST_READ_CHARS)
        parts = [buffer]
        while have < wanted and (more := next(texts, None)) is not None:
            parts.append(more)
            have += len(more)
        if have == len(buffer):
            raise WrongFormat(f"entry {number + 1} of the array is not JSON, or the array breaks off there")
        buffer = "".join(parts)


def _json_lines(buffer: str, texts: Iterator[str]) -> Iterator[Row | BadRow]:
    number = 0
    for line in _lines(buffer, texts):
        if not line.strip():
            continue
        number += 1
        try:
            value = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            if number == 1:
                raise WrongFormat("a JSON array of objects, or one object a line, was expected") from None
            yield BadRow(number, f"not JSON: {error}"[:200])
        else:
            yield _json_row(number, value)


def _lines(buffer: str, texts: Iterator[str]) -> Iterator[str]:
    while True:
        *whole, buffer = buffer.split("\n")
        yield from whole
        if len(buffer) > LONGEST_RECORD_CHARS:
            raise WrongFormat(f"a line is longer than {LONGEST_RECORD_CHARS} characters")
        more = next(texts, None)
        if more is None:
            yield buffer
            return
        buffer += more


def _json_row(number: int, value: object) -> Row | BadRow:
    if not isinstance(value, dict):
        return BadRow(number, "an object was expected")
    cells: dict[str, str] = {}
    for key, item in cast("dict[str, Any]", value).items():
        if item is None:
            continue
        if isinstance(item, dict | list):
            return BadRow(number, f"{key} holds a list or an object")
        text = ("true" if item else "false") if isinstance(item, bool) else str(item)
        if not storable(text) or not storable(key):
            return BadRow(number, "contains a NUL character or half of a surrogate pair")
        cells[key.casefold()] = text.strip()
    return Row(number, cells)


def _decoded_json(chunks: Iterable[str] | Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    first = True
    for chunk in chunks:
        if isinstance(chunk, str):
            yield chunk
            continue
        if first:
            _require_text(chunk)
        first = False
        try:
            yield decoder.decode(chunk)
        except UnicodeDecodeError:
            raise WrongFormat("the file is not UTF-8 text") from None


NO_TEXT = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "packed by gzip", b"PK\x03\x04": "packed as zip"}
"""How files begin that are no text, and what they are."""


def _require_text(start: bytes) -> None:
    for mark, what in NO_TEXT.items():
        if start.startswith(mark):
            raise WrongFormat(f"the file is {what}; plain UTF-8 is expected")


_AMOUNT = re.compile(r"([0-9]{1,9}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,2})?")

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?")


def amount(text: str, column: str) -> Decimal:
    """A price: a plain number, no sign, symbol or thousands separator. Rounded to a millionth (half to even).

    Raises
    ------
    BadValue
        If it is anything else.
    """
    if not _AMOUNT.fullmatch(text):
        raise BadValue(f"{column} is {text[:40]!r}; a plain number such as 2.49 was expected")
    return money(Decimal(text))


def count(text: str, column: str) -> Decimal:
    """A number of GPUs, whole or a fraction, above 0 and at most 1,024.

    Raises
    ------
    BadValue
        If it is anything else.
    """
    if not _AMOUNT.fullmatch(text) or not MICRO < (value := Decimal(text)) <= 1024:
        raise BadValue(f"{column} is {text[:40]!r}; a count above 0 and up to 1024 was expected")
    return value


def day(text: str, column: str) -> date:
    """A calendar day written YYYY-MM-DD; of YYYY-MM the first, so that nothing passes for newer than it may be.

    Raises
    ------
    BadValue
        If it is anything else.
    """
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text if len(text) > len("YYYY-MM") else f"{text}-01")
    except ValueError:
        pass
    raise BadValue(f"{column} is {text[:40]!r}; a day such as 2026-01-31 was expected")


def flag(text: str, column: str) -> bool:
    """true or false, in any case.

    Raises
    ------
    BadValue
        If it is anything else.
    """
    if text.casefold() not in ("true", "false"):
        raise BadValue(f"{column} is {text[:40]!r}; true or false was expected")
    return text.casefold() == "true"
