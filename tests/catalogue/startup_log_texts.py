"""Startup logs for the tests, and what pastes do to them.

The files in `tests/data/logs` were composed from vLLM's own format strings (0.6.6, 0.8.5, 0.11.2, 0.20.2, 0.33.0), with
figures that obey vLLM's arithmetic; those of v0.11.2-tp4.log are a published startup (ashishkamra/vllm-memory-estimator
validation_db.json, uuid f2961598).
"""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

LOGS = Path(__file__).parent.parent / "data" / "logs"
NAMES = (
    "v0.6.6-v0.log",
    "v0.8.5-v1-tp2.log",
    "v0.11.2-tp4.log",
    "v0.20.2-needs-more-cache.log",
    "v0.33.0-one-gpu.log",
)


def log_text(name: str) -> str:
    """One of the logs, line ends as they are."""
    return (LOGS / name).read_bytes().decode()


def hard_wrapped(text: str, width: int) -> str:
    """Broken at a column, inside words and numbers, as a terminal does."""
    return "\n".join(
        line[at : at + width] for line in text.split("\n") for at in (range(0, len(line), width) if line else [0])
    )


def soft_wrapped(text: str, width: int) -> str:
    """Broken at blanks, as an editor does."""
    return "\n".join(
        piece
        for line in text.split("\n")
        for piece in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    )


def prefixed(text: str, prefix: str) -> str:
    """Every line with a prefix."""
    return "\n".join(prefix + line for line in text.split("\n"))


def disguises(text: str) -> Iterator[tuple[str, str]]:
    """The same log as it arrives through terminals, containers, collectors and chat."""
    for width in (60, 79, 80, 100, 145, 200):
        yield f"wrapped at column {width}", hard_wrapped(text, width)
        yield f"wrapped at column {width}, indented", prefixed(hard_wrapped(text, width), "    ")
        yield f"wrapped at blanks before {width}", soft_wrapped(text, width)
        yield f"wrapped at blanks before {width}, quoted", prefixed(soft_wrapped(text, width), "> ")
    yield "on one line", text.replace("\r\n", " ").replace("\n", " ")
    yield "Windows line ends", text.replace("\r\n", "\n").replace("\n", "\r\n")
    yield "Kubernetes", prefixed(text, "2026-05-01T21:55:02.609123456Z stderr F ")
    yield "Docker Compose", prefixed(text, "vllm-openai_1  | ")
    yield "journald", prefixed(text, "Feb 22 06:34:55 host env[2827]: ")
    yield "quoted", prefixed(text, "> ")
    yield "commented out", prefixed(text, "# ")
    yield "coloured", re.sub(r"(INFO|WARNING|ERROR)", "\x1b[32m\\1\x1b[0m", text)
    yield "coloured, escape characters lost", re.sub(r"(INFO|WARNING|ERROR)", r"[32m\1[0m", text)
    yield "quotation marks of a web page", text.replace("'", "&#39;").replace('"', "&quot;")
    yield "quotation marks of a word processor", text.replace("'", "\u2019")
    yield "marks for line breaks", text.replace("GiB", "GiB\u200b")
    yield "dates removed", re.sub(r"(INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d ", r"\1 ", text)
    yield (
        "Docker's JSON lines",
        "\n".join(json.dumps({"log": line + "\n", "stream": "stderr"}) for line in text.split("\n")),
    )
    yield "inside a JSON string", json.dumps({"stdout": text})
