"""The three dumps in which vLLM prints its conditions, scanned without evaluating anything.

`args: Namespace(host=None, ...)` up to 0.8, `non-default args: {...}` from 0.9, and the engine's configuration
`model='...', speculative_config=None, ...` in every version. Values may be the representation of any object, so only
their extent is found here; what a value means is decided by who asks for it.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from service.catalogue.importers.startup_log.text import Message

_PAIR = re.compile(
    r"\s{0,8}(?:['\"](?P<quoted>[A-Za-z_]\w{0,80})['\"]\s{0,8}:|(?P<bare>[A-Za-z_]\w{0,80})\s{0,4}=)\s{0,8}"
)
_ELISION = re.compile(r"\s{0,8}(?:\.{2,6}|\u2026|\[\.\.\.\])\s{0,8}")
_INITIALIZING = re.compile(
    r"Initializingan?(?P<engine>V[01])?LLMengine\(v(?P<version>[0-9][\w.+-]{0,79})\)(?P<config>withconfig:)?"
)
_MARK = re.compile(r"\\.|['\"(\[{)\]},]", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"

_UNREADABLE = "\u2026"
"""Stands for a value that is there, but broken where no wrap falls."""


class DumpKind(Enum):
    """Which of the three dumps it is."""

    NON_DEFAULT = auto()
    NAMESPACE = auto()
    CONFIG = auto()


@dataclass(frozen=True, slots=True)
class Printed:
    """A printed value: its text, and where it begins in the message."""

    raw: str
    start: int


@dataclass(frozen=True, slots=True)
class Dump:
    """One dump.

    Attributes
    ----------
    kind : DumpKind
        Which dump.
    values : dict of str to Printed
        What it names; a part that is cut off or elided is left out.
    whole : bool
        Whether nothing is left out, so that a name that is absent was absent.
    message : Message
        Where it stands.
    """

    kind: DumpKind
    values: dict[str, Printed]
    whole: bool
    message: Message


@dataclass(frozen=True, slots=True)
class EngineLine:
    """The line on which the engine introduces itself.

    Attributes
    ----------
    version : str or None
        The version it gives; None where its characters did not stand together.
    engine : str or None
        "V0" or "V1" where the line says so.
    config : Dump or None
        The configuration it prints, where the paste kept it.
    message : Message
        Where it stands.
    """

    version: str | None
    engine: str | None
    config: Dump | None
    message: Message


def holds_arguments(message: Message) -> bool:
    """Whether a message is a dump of arguments."""
    return "non-defaultargs:{" in message.squeezed or "args:Namespace(" in message.squeezed


def introduces_engine(message: Message) -> bool:
    """Whether a message is the engine's introduction of itself."""
    return "LLMengine(v" in message.squeezed and _INITIALIZING.search(message.squeezed) is not None


def read_arguments(message: Message) -> Dump:
    """The dump of arguments in a message that holds one."""
    for words, kind, closing in (
        ("non-defaultargs:{", DumpKind.NON_DEFAULT, "}"),
        ("args:Namespace(", DumpKind.NAMESPACE, ")"),
    ):
        at = message.squeezed.find(words)
        if at >= 0:
            return _dump(message, kind, message.in_text(at + len(words) - 1) + 1, closing)
    raise ValueError("the message holds no dump of arguments")


def read_engine_line(message: Message) -> EngineLine:
    """The engine's introduction of itself in a message that holds one."""
    match = _INITIALIZING.search(message.squeezed)
    if match is None:
        raise ValueError("the message holds no engine's introduction")
    start, end = match.span("version")
    version = match["version"] if message.together(start, end).end == end else None
    config = None
    if match["config"]:
        config = _dump(message, DumpKind.CONFIG, message.in_text(match.end() - 1) + 1, None)
    return EngineLine(version, match["engine"], config, message)


def _dump(message: Message, kind: DumpKind, at: int, closing: str | None) -> Dump:
    spans, whole = _spans(message.text, at, closing)
    values: dict[str, Printed] = {}
    for start, end in spans:
        elided = _ELISION.match(message.text, start, end)
        whole = whole and elided is None
        pair = _PAIR.match(message.text, elided.end() if elided else start, end)
        if pair is None:
            whole = whole and not message.text[start:end].strip()
            continue
        intact = message.intact(pair.end(), end)
        raw = message.text[pair.end() : end].strip() if intact else _UNREADABLE
        values.setdefault(pair["quoted"] or pair["bare"], Printed(raw, pair.end()))
    return Dump(kind, values, whole, message)


def _spans(text: str, at: int, closing: str | None) -> tuple[list[tuple[int, int]], bool]:
    """Where each comma-separated part stands, and whether the closing bracket came.

    A part that nothing ends is dropped: it may be cut.
    """
    spans: list[tuple[int, int]] = []
    begin, depth, quote = at, 0, ""
    for match in _MARK.finditer(text, at):
        mark = match[0]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "'\"":
            quote = mark
        elif mark in _OPEN:
            depth += 1
        elif mark in _CLOSE and depth > 0:
            depth -= 1
        elif mark in _CLOSE:
            if mark == closing:
                return [*spans, (begin, match.start())], True
            return spans, False
        elif mark == "," and depth == 0:
            spans.append((begin, match.start()))
            begin = match.end()
    return spans, False


def as_text(raw: str) -> str | None:
    """The text of a quoted or bare value; "none" for None, since silence is something else."""
    if raw == "None":
        return "none"
    if len(raw) >= 2 and raw[0] in "'\"" and raw[-1] == raw[0]:
        return raw[1:-1] or None
    return raw if re.fullmatch(r"[\w.+/:-]{1,200}", raw) else None


def as_int(raw: str) -> int | None:
    """The value of an integer, None for anything else."""
    return int(raw) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", raw) else None


def as_float(raw: str) -> float | None:
    """The value of a plain decimal, None for anything else."""
    return float(raw) if re.fullmatch(r"-?(?:0|[1-9]\d{0,11})(?:\.\d{1,18})?", raw) else None


def as_bool(raw: str) -> bool | None:
    """The value of True or False, None for anything else."""
    return {"True": True, "False": False}.get(raw)
