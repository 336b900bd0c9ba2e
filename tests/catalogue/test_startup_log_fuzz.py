"""Damaged logs: nothing crashes, nothing hangs, and no number is made up."""

import os
import random
import re
import string
from collections.abc import Callable
from dataclasses import fields

import pytest

from service.catalogue.importers.startup_log import LogNotUnderstood, Reading, Readings, read_startup_log
from tests.catalogue.startup_log_texts import NAMES, disguises, hard_wrapped, log_text

MUTANTS = int(os.environ.get("STARTUP_LOG_MUTANTS", "2000"))
"""How many damaged logs are read; 100,000 take about half an hour."""

BATCHES = 8
SCRAPS = (
    "\n",
    " ",
    "\n\n",
    "\r",
    "\t",
    "0",
    "9",
    ".",
    ",",
    "GiB",
    "\x1b[0m",
    "(",
    "'",
    '"',
    "{",
    "}",
    "...",
    "é",
    "\x00",
)
WORDS = ("GiB", "INFO", "pid", "model", "=", ":", "[", "tokens")

Damage = Callable[[str, random.Random], str]


def cut_out(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.choice((1, 2, 5, 20, 200, 2000)) :]


def put_in(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(SCRAPS) + text[at:]


def cut_end(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text))]


def cut_beginning(text: str, rng: random.Random) -> str:
    return text[rng.randrange(len(text)) :]


def repeat_part(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    end = at + rng.choice((1, 5, 200, 2000))
    return text[:end] + text[at:]


def swap_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


def wrap(text: str, rng: random.Random) -> str:
    return hard_wrapped(text, rng.randrange(20, 200))


def replace_word(text: str, rng: random.Random) -> str:
    return text.replace(rng.choice(WORDS), rng.choice(("", "X", " ", "\n")), rng.choice((1, 3, -1)))


def add_log(text: str, rng: random.Random) -> str:
    return text + "\n" + log_text(rng.choice(NAMES))


def scatter(text: str, rng: random.Random) -> str:
    letters = list(text)
    for _ in range(max(1, len(letters) // 300)):
        letters[rng.randrange(len(letters))] = rng.choice(string.printable)
    return "".join(letters)


def join_lines(text: str, rng: random.Random) -> str:
    return text.replace("\n", rng.choice(("", " ", "\r\n", "\\n")))


DAMAGES: tuple[Damage, ...] = (
    cut_out, put_in, cut_end, cut_beginning, repeat_part, swap_lines, wrap, replace_word, add_log, scatter, join_lines,
)  # fmt: skip


@pytest.fixture(scope="module")
def logs() -> list[str]:
    return [log_text(name) for name in NAMES] + [text for name in NAMES for _, text in disguises(log_text(name))]


@pytest.mark.parametrize("batch", range(BATCHES))
def test_damaged_logs_crash_nothing_and_make_up_nothing(batch: int, logs: list[str]) -> None:
    """Every number read from a damaged log stands in it, digit by digit, once line breaks are taken out."""
    rng = random.Random(batch)
    for _ in range(MUTANTS // BATCHES):
        text = rng.choice(logs)
        for _ in range(rng.choice((1, 1, 2, 3, 6, 12))):
            text = rng.choice(DAMAGES)(text, rng) or "\n"
        try:
            log = read_startup_log(text)
        except LogNotUnderstood:
            continue
        squeezed = _squeezed(text)
        for each in fields(log):
            value = getattr(log, each.name)
            readings = value.each if isinstance(value, Readings) else (value,) if isinstance(value, Reading) else ()
            for reading in readings:
                if isinstance(reading.value, int | float) and not isinstance(reading.value, bool):
                    digits = repr(reading.value).removesuffix(".0")
                    assert digits in squeezed, (each.name, reading)


def _squeezed(text: str) -> str:
    written_out = text.replace("\\r", "").replace("\\n", "").replace("\\t", "")
    without_colours = re.sub(r"(?:\x1b|\\u001b)\[[0-9;?]*[A-Za-z]|\[[0-9;]{1,12}m", "", written_out)
    return re.sub(r"[\s,>|#]", "", without_colours) + re.sub(r"[\s,]", "", text)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 2_000_000,
        "1" * 2_000_000,
        "1.1" * 600_000,
        "(" * 2_000_000,
        "'" * 2_000_000,
        "\x1b[1;" * 400_000,
        "> " * 800_000,
        "Available KV cache memory: " * 70_000,
        "non-default args: {" + "'a': [(" * 250_000,
        "INFO 09-07 00:14:16 [a.py:1] GPU KV cache size: " * 20_000,
        "Available KV cache memory: 1\n" * 20_000,
        '{"log":' * 300_000 + "}",
    ],
    ids=lambda text: text[:20],
)
def test_hostile_texts_are_read_in_linear_time(text: str) -> None:
    """Two megabytes of whatever might make a pattern backtrack are read, or refused, without hanging."""
    try:
        log = read_startup_log(text)
    except LogNotUnderstood:
        return
    assert log.kv_tokens is None
