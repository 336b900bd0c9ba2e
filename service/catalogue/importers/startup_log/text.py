"""A pasted log as messages: colours, quoting, line wraps and process labels taken off.

A log reaches us through terminals, container runtimes, issue trackers and chat. What they do to it is undone here, and
only here: the readers of lines see one message each, and can ask whether the digits they found stood together.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

MAX_MESSAGE_CHARS = 262_144
"""A message longer than this is cut: vLLM's longest (its configuration) takes some 10,000 characters."""

MAX_LINES = 500_000
"""More lines than this are refused: a startup prints some hundreds, a day of requests some hundred thousand."""

_MAX_MESSAGE_LINES = 4_000
_BLOCK = 64
"""Lines over which the width of a paste is judged, with as many before and behind."""

_MIN_WIDTH = 40
"""No terminal is narrower than this."""

_ANSI = re.compile(
    r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\^\[|#033|\u241b)\[[0-9;?]{0,32}[A-Za-z]"  # an escape, raw or written out
    r"|\[(?:[0-9]{1,3};){0,4}[0-9]{1,3}m"  # what is left of one where the escape character was lost
)
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)"
_DATE = r"\d\d-\d\d \d\d:\d\d:\d\d"
_FILE = r"\[?[\w./-]{1,120}\.py:\d"
_TAG = (
    r"\((?:[A-Za-z][\w.-]{0,60} )?(?:rank=\d{1,6} )?pid=\d{1,9}(?:, ip=[\w.:]{1,45})?\)"
    r"|\((?:Worker|EngineCore|APIServer)\w{0,40}\)"
)
_PROCESS = re.compile(rf"(?P<tag>{_TAG})|\[(?P<rank>rank\d{{1,5}})\]:")
_HEADER = re.compile(rf"(?:(?:{_TAG}) ){{0,4}}\[?\b{_LEVEL}\b\]?:?\s{{1,4}}(?={_DATE}|{_FILE})")
_START = re.compile(
    rf"{_TAG}|\[?{_LEVEL}\b|\[rank\d|```|\$ "
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d[-/]\d\d |[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d|[\w.-]{1,80} {0,20}\| "
    r"|Traceback|[\w.]{0,80}Error: |Loading |Capturing |Processed |Rendering |File \"|# \w{2,5} blocks: "
)
"""What a line that begins a message begins with: a process, a level, a time, a container's name, a known word."""

_WORD = re.compile(r"\S+")
_LEVELS = ("INFO", "WARN", "ERROR", "DEBUG", "CRITICAL")
_UNFINISHED = re.compile(r"(?:\.py:\d{1,6}\]|,)$")
"""How a line ends whose message goes on: behind the place in the source, or behind a comma."""

_QUOTE = re.compile(r"(?:[ \t]{0,8}>){0,8}[ \t]{0,200}(?:[│┃|]{1,2}[ \t]{1,8})?")
_MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE", "line", "textPayload", "body", "text")


_ENTITIES = (("&#39;", "'"), ("&#x27;", "'"), ("&apos;", "'"), ("&quot;", '"'), ("&#34;", '"'))
_TYPOGRAPHY = {0x2018: "'", 0x2019: "'", 0x201A: "'", 0x201C: '"', 0x201D: '"', 0x200B: "", 0x2060: ""}


class TooLong(ValueError):
    """The paste has more lines than are read."""


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a message was broken over two lines of the paste.

    Attributes
    ----------
    offset : int
        Where, in characters of the joined message.
    at_width : bool
        Whether the line was as long as the paste is wide, so that the break may stand inside a word or a number.
    line : int
        Number of the line behind it.
    """

    offset: int
    at_width: bool
    line: int


@dataclass(frozen=True, slots=True)
class Together:
    """How far characters stood together: to `end`, and whether a line break that may not be a wrap stopped them."""

    end: int
    broken: bool


@dataclass(frozen=True)
class Message:
    """One logged message.

    Attributes
    ----------
    line : int
        Number of the line of the paste it begins on, from 1.
    text : str
        Its text with prefixes, the lines it was broken over put together again.
    breaks : tuple of Break
        Where it was broken.
    ended : bool
        False where the paste stops right behind it, so that it may be cut.
    """

    line: int
    text: str
    breaks: tuple[Break, ...]
    ended: bool

    @property
    def last_line(self) -> int:
        """Number of the line of the paste it ends on."""
        return self.breaks[-1].line if self.breaks else self.line

    @cached_property
    def process(self) -> str:
        """The label of the process that printed it ("Worker_TP0 pid=12"), innermost first; empty where none is."""
        label = ""
        for match in _PROCESS.finditer(self.text, 0, 400):
            label = match["rank"] or match["tag"][1:-1]
        return label

    @cached_property
    def squeezed(self) -> str:
        """The text without any white space, in which a wrap at any column leaves no trace."""
        return "".join(self.text.split())

    @cached_property
    def _words(self) -> tuple[list[int], list[int]]:
        """Where each run without white space begins, in the squeezed text and in the text."""
        squeezed_at, text_at, size = list[int](), list[int](), 0
        for match in _WORD.finditer(self.text):
            squeezed_at.append(size)
            text_at.append(match.start())
            size += match.end() - match.start()
        return squeezed_at, text_at

    def together(self, start: int, end: int) -> Together:
        """How far the squeezed characters from `start` stood together in the paste, at most to `end`.

        A space ends them; so does a line break, unless it falls at the paste's own width.
        """
        squeezed_at, _ = self._words
        after = bisect_right(squeezed_at, start)
        word_end = squeezed_at[after] if after < len(squeezed_at) else len(self.squeezed)
        reach = min(end, word_end)
        begin = self.in_text(start)
        at = bisect_right(self._offsets, begin)
        while at < len(self.breaks) and self.breaks[at].offset < begin + reach - start:
            if not self.breaks[at].at_width:
                return Together(start + self.breaks[at].offset - begin, broken=True)
            at += 1
        return Together(reach, broken=False)

    def intact(self, start: int, end: int) -> bool:
        """Whether no line break that may not be a wrap falls inside `text[start:end]`."""
        at = bisect_right(self._offsets, start)
        return all(each.at_width for each in self.breaks[at : bisect_left(self._offsets, end)])

    def in_text(self, squeezed_offset: int) -> int:
        """Where the squeezed character at `squeezed_offset` stands in `text`; its length for one behind the last."""
        squeezed_at, text_at = self._words
        if squeezed_offset >= len(self.squeezed):
            return len(self.text)
        word = bisect_right(squeezed_at, squeezed_offset) - 1
        return text_at[word] + squeezed_offset - squeezed_at[word]

    def line_at(self, offset: int) -> int:
        """Number of the line of the paste on which `text[offset]` stands."""
        at = bisect_right(self._offsets, offset)
        return self.breaks[at - 1].line if at else self.line

    def runs_to_a_cut(self, end: int) -> bool:
        """Whether the squeezed text ends at `end` where the paste itself stops."""
        return not self.ended and end == len(self.squeezed)

    def around(self, start: int) -> str:
        """Up to 240 readable characters of the message, beginning near the squeezed offset `start`."""
        at = self.in_text(start)
        begin = 0 if at < 160 else at
        return self.text[begin : begin + 240].strip()

    @cached_property
    def _offsets(self) -> list[int]:
        return [each.offset for each in self.breaks]


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    width: int
    starts: bool
    ended: bool


def read_messages(text: str, first_words: tuple[str, ...]) -> Iterator[Message]:
    """The messages of a pasted log, in order.

    Parameters
    ----------
    text : str
        The paste: plain, coloured, quoted, wrapped, one JSON object a line, or one line with written-out line ends.
    first_words : tuple of str
        How the messages that matter begin; a line that begins with one, bullets and quotes aside, begins a message.

    Raises
    ------
    TooLong
        It has more than `MAX_LINES` lines.
    """
    lines = list(_lines(_plain(_unescaped(text.removeprefix("\ufeff"))), first_words))
    widths = _wrap_widths(lines)
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at].text:
            while end < len(lines) and lines[end].text and not lines[end].starts:
                end += 1
            yield _joined(lines, at, end, widths)
        at = end


def _plain(text: str) -> str:
    """The paste with plain quotation marks and without invisible marks, as it was before a web page or an editor."""
    if "&" in text:
        for entity, character in _ENTITIES:
            text = text.replace(entity, character)
    return text if text.isascii() else text.translate(_TYPOGRAPHY)


def _unescaped(text: str) -> str:
    """The paste with written-out line ends made real, where it has hardly any real ones."""
    written = text.count("\\n")
    if written < 4 or written < 2 * text.count("\n"):
        return text
    for escape, character in (("\\r", ""), ("\\n", "\n"), ("\\t", "\t"), ('\\"', '"')):
        text = text.replace("\\" + escape, character).replace(escape, character)
    return text


def _lines(text: str, first_words: tuple[str, ...]) -> Iterator[_Line]:
    physical = text.split("\n")
    last = len(physical)
    if last + text.count("\r") - text.count("\r\n") > MAX_LINES:
        raise TooLong(f"the text has more than {MAX_LINES:,} lines; only the lines of the startup are needed")
    before = ""
    for number, raw in enumerate(physical, start=1):
        for part in [part for part in _out_of_json(raw).split("\r") if part] or [""]:
            width = len(part.rstrip())
            clean = _ANSI.sub("", part) if "[" in part else part
            pieces = _pieces(clean.replace("\xa0", " ").replace("\t", " "))
            for piece in pieces:
                bare = piece[_quote_end(piece) :].rstrip(" |│┃\\")
                ended = number < last or piece is not pieces[-1]
                yield _Line(number, bare, width, _starts(bare, before, first_words), ended)
                before = bare


def _starts(line: str, before: str, first_words: tuple[str, ...]) -> bool:
    """Whether a message begins with this line, the one before it being known."""
    if _START.match(line) or (_has_level(line) and _HEADER.search(line, 0, 300)):
        return True
    return line.lstrip(" -*+`#>\"'0123456789.:").startswith(first_words) and _UNFINISHED.search(before) is None


def _has_level(line: str) -> bool:
    return any(level in line for level in _LEVELS)


def _quote_end(line: str) -> int:
    match = _QUOTE.match(line)
    return match.end() if match else 0


def _out_of_json(line: str) -> str:
    """The message of a line that is one JSON object of a container runtime or a log collector."""
    if not (line.startswith("{") and line.rstrip().endswith("}")):
        return line
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return line
    for key in _MESSAGE_KEYS:
        if isinstance(fields.get(key), str):
            return fields[key].rstrip("\r\n")
    return line


def _pieces(line: str) -> list[str]:
    """A line cut before each further message that was run together with it."""
    if len(line) < 80 or sum(map(line.count, _LEVELS)) < 2:
        return [line]
    cuts = [0]
    for match in _HEADER.finditer(line):
        if match.start() > cuts[-1] + 40:
            cuts.append(match.start())
    return [line[begin:end] for begin, end in pairwise([*cuts, len(line)])]


def _joined(lines: list[_Line], begin: int, end: int, widths: list[int]) -> Message:
    text = lines[begin].text
    parts, size = [text], len(text)
    breaks: list[Break] = []
    for at in range(begin + 1, min(end, begin + _MAX_MESSAGE_LINES)):
        if size > MAX_MESSAGE_CHARS:
            break
        breaks.append(Break(size, lines[at - 1].width == widths[(at - 1) // _BLOCK], lines[at].number))
        parts.append(lines[at].text)
        size += len(lines[at].text)
    return Message(lines[begin].number, "".join(parts)[:MAX_MESSAGE_CHARS], tuple(breaks), lines[end - 1].ended)


def _wrap_widths(lines: list[_Line]) -> list[int]:
    """For each block of lines the width of the paste there: that of its longest lines if several share it, else -1."""
    blocks = [[line.width for line in lines[at : at + _BLOCK]] for at in range(0, len(lines), _BLOCK)]
    widths: list[int] = []
    for at in range(len(blocks)):
        around = [width for block in blocks[max(0, at - 1) : at + 2] for width in block]
        widest = max(around)
        widths.append(widest if widest >= _MIN_WIDTH and around.count(widest) > 1 else -1)
    return widths
