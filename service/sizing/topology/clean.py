"""A paste without what terminals and forums put into it."""

import re
from dataclasses import dataclass
from itertools import pairwise

from service.sizing.topology.links import UnreadLine

GPU = r"GPU[0-9]{1,3}"
BDF = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
LINK_CELL = r"NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC|X"
PEER_CELL = r"OK|CNS|GNS|TNS|NS|DR|U|X"

_ROW_START = re.compile(rf"(?<![A-Za-z0-9_]){GPU}:?[ \t]+(?=(?:(?:{LINK_CELL})+|(?:{PEER_CELL})+)(?:\s|$))")
_ESCAPES = re.compile(
    r"(?:\x1b|\^\[|\\e|\\0?33|\\x1b|\\u001b|\u241b|\u2190)\[[0-9;?]*[A-Za-z]|\[[0-9]{0,3}(?:;[0-9]{1,3})*[mK](?![A-Za-z])"
)
_CHARACTERS = (
    (re.compile(r"[\u00a0\u2000-\u200a\u202f\u205f\u3000\x00\x08\x0b\x0c\x1b\x1c-\x1e\x85\u2028\u2029]|&nbsp;"), " "),
    (re.compile(r"[\u200b-\u200d\u2060\ufeff\u00ad*`\"']"), ""),
    (re.compile(r"[\u2010-\u2015\u2212]"), "-"),
    (re.compile(r"[\u00d7\u2715\u2716]"), "X"),
    (re.compile(r"[|\u00a6\u2502\u2503\u2506\u2507\u250a\u250b\u2551]|,(?=[ \t]*[A-Za-z])"), "\t"),
    (re.compile(r"[\u2500-\u257f]"), " "),
    (re.compile(r"(?<=[0-9]),[ \t]+(?=[0-9])"), ","),
    (re.compile(rf"({GPU}|NIC[0-9]+|mlx[0-9]+_[0-9]+)(?=GPU|NIC|mlx|NV[0-9]|PIX|PXB|PHB|NODE|SYS|CPU Aff)"), r"\1 "),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A cleaned line, or the part of one that starts at a row label, with its place in the paste."""

    number: int
    text: str
    raw: str

    def unread(self, reason: str) -> UnreadLine:
        return UnreadLine(self.number, self.raw.strip()[:200], reason)


def clean_lines(text: str) -> list[Line]:
    """The lines of a paste without escapes, table drawing and typographic characters, cut where a row starts."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if re.search(r"\\[tn]\s?GPU", text):
        text = text.replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")
    lines: list[Line] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        cleaned = _ESCAPES.sub("", raw)
        for pattern, replacement in _CHARACTERS:
            cleaned = pattern.sub(replacement, cleaned)
        starts = [0, *(match.start() for match in _ROW_START.finditer(cleaned) if match.start()), len(cleaned)]
        lines += [Line(number, cleaned[a:b], raw) for a, b in pairwise(starts)]
    return lines
