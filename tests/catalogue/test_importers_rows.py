"""CSV and JSON text becomes numbered rows, and one bad row costs only itself."""

import csv
import gzip
import io
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.catalogue.importers.outcome import WrongFormat
from service.catalogue.importers.rows import BadRow, BadValue, Row, amount, count, day, flag, read_csv, read_json


def cells(text: str) -> list[dict[str, str] | int]:
    """Cells of each good row, the number of each bad one."""
    rows = read_csv(io.StringIO(text, newline=""), ())
    return [dict(row.cells) if isinstance(row, Row) else row.number for row in rows]


FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.lists(FIELD, min_size=3, max_size=3), max_size=8))
def test_what_a_csv_writer_wrote_is_read_back(records: list[list[str]]) -> None:
    """Any text, quoted as the csv module quotes it, comes back with its blanks stripped."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b", "c"])
    writer.writerows(records)
    assert cells(out.getvalue()) == [dict(zip("abc", map(str.strip, record), strict=True)) for record in records]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_no_bytes_break_the_reader(lines: list[bytes]) -> None:
    """Whatever the lines hold, each data row is a row or a bad row."""
    for row in read_csv([b"a,b\n", *(line + b"\n" for line in lines)], ()):
        assert isinstance(row, Row | BadRow)


def test_an_open_quote_costs_only_its_own_line() -> None:
    """Row 3 never closes its quote; rows 2, 4 and 5 are read."""
    text = 'a,b\n1,2\n"3,4\n5,6\n7,8\n'
    assert cells(text) == [{"a": "1", "b": "2"}, 3, {"a": "5", "b": "6"}, {"a": "7", "b": "8"}]


def test_two_open_quotes_cost_two_lines() -> None:
    """Two broken lines could be read as one field over several lines: they are not."""
    text = 'a,b\n"1,2\n3,4\n5,6"\n7,8\n'
    assert cells(text) == [2, {"a": "3", "b": "4"}, 4, {"a": "7", "b": "8"}]


def test_wrong_number_of_fields_and_nul_are_bad_rows() -> None:
    """Too few, too many, a NUL."""
    assert cells("a,b\n1\n1,2,3\n1,\0\n1,2\n") == [2, 3, 4, {"a": "1", "b": "2"}]


def test_text_that_is_not_utf_8_is_a_bad_row() -> None:
    """Latin-1 in row 2 leaves row 3 alone."""
    first, second = read_csv([b"a\n", "Zürich\n".encode("latin-1"), b"Bern\n"], ("a",))
    assert first == BadRow(2, "not UTF-8 text")
    assert second == Row(3, {"a": "Bern"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "the file is empty"),
        ([b"\xff\xfea\x00"], "UTF-16"),
        ([gzip.compress(b"price\n")], "packed by gzip"),
        (["provider;price\n"], "missing column price"),
        (["price,PRICE\n"], "named twice"),
    ],
)
def test_a_file_of_another_shape_is_refused(lines: list[str] | list[bytes], message: str) -> None:
    """No header, another encoding, another separator, a doubled column."""
    with pytest.raises(WrongFormat, match=message):
        list(read_csv(lines, ("price",)))


JSON_OBJECTS = st.lists(
    st.dictionaries(st.text("abc", min_size=1), st.integers() | st.text('x {}[],"\\é', max_size=8), max_size=3),
    max_size=6,
)


@given(JSON_OBJECTS, st.integers(1, 7))
def test_json_arrays_are_read_in_chunks_of_any_size(objects: list[dict[str, int | str]], size: int) -> None:
    """The chunks may cut anywhere, even inside a character."""
    text = json.dumps(objects, ensure_ascii=False).encode()
    rows = list(read_json(text[i : i + size] for i in range(0, len(text), size)))
    assert rows == [Row(n, {k: str(v).strip() for k, v in o.items()}) for n, o in enumerate(objects, start=1)]


def test_json_numbers_keep_their_digits() -> None:
    """0.1 stays 0.1, not its nearest binary fraction."""
    (row,) = read_json(['[{"price": 0.10000000000000001}]'])
    assert row == Row(1, {"price": "0.10000000000000001"})


def test_a_broken_json_line_costs_only_itself() -> None:
    """Line 2 is no JSON; line 3 is read. An entry that is no plain object is a bad row."""
    rows = list(read_json(['{"a": 1}\n', "{oops\n", '{"a": 3}\n', '{"a": [1]}\n', "4\n"]))
    assert [row.number if isinstance(row, BadRow) else dict(row.cells) for row in rows] == [
        {"a": "1"},
        2,
        {"a": "3"},
        4,
        5,
    ]


def test_json_text_that_no_database_takes_is_a_bad_row() -> None:
    """JSON can spell a NUL and half of a surrogate pair."""
    rows = list(read_json(['{"a": "x\\u0000"}\n', '{"a": "x\\ud800"}\n', '{"a": "\\ud83d\\ude00"}\n']))
    assert [isinstance(row, BadRow) for row in rows] == [True, True, False]


@pytest.mark.parametrize("text", ["", "price,gpu\n", "7", '{\n "prices": []\n}', '[{"a": 1}, oops]', '[{"a": 1}', "[1"])
def test_text_that_is_no_json_list_is_refused(text: str) -> None:
    """Empty, CSV, a lone value, an object of lists, an array that is broken or breaks off."""
    with pytest.raises(WrongFormat):
        list(read_json([text]))


@pytest.mark.parametrize(
    ("text", "value"),
    [("2.49", "2.49"), ("10", "10"), ("8.0", "8"), ("1.04e-06", "0.000001"), ("0.36979999999999996", "0.3698")],
)
def test_amounts_are_rounded_to_a_millionth(text: str, value: str) -> None:
    """Half to even, without trailing zeros."""
    assert str(amount(text, "price")) == value


@pytest.mark.parametrize("text", ["", "-1", "+1", "1,5", "$2", "2 USD", "nan", "inf", "1e999", "٣", "1_000", "9" * 40])
def test_anything_but_a_plain_number_is_no_amount(text: str) -> None:
    """Signs, symbols, separators, infinities and digits of other scripts."""
    with pytest.raises(BadValue, match="price is"):
        amount(text, "price")


def test_other_cells_are_strict_too() -> None:
    """Counts above 0 and up to 1024, days as YYYY-MM-DD, flags true or false."""
    assert count("0.125", "n") == Decimal("0.125")
    assert flag("True", "spot") is True
    assert day("2026-02-28", "d").isoformat() == "2026-02-28"
    assert day("2026-02", "d").isoformat() == "2026-02-01"
    for bad in ("0", "0.0", "1025", "x"):
        with pytest.raises(BadValue):
            count(bad, "n")
    for bad in ("2026-02-30", "2026-2-1", "2026-13", "2026", "20260228", "2026-W01-1"):
        with pytest.raises(BadValue):
            day(bad, "d")
    with pytest.raises(BadValue):
        flag("1", "spot")
