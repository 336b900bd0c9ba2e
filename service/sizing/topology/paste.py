"""From pasted text to the headers and rows of its matrices, whatever a terminal or a forum did to them."""

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise

from service.sizing.topology.clean import BDF, GPU, LINK_CELL, PEER_CELL, Line, clean_lines
from service.sizing.topology.links import LinkClass, PeerCapability, UnreadLine


class Kind(Enum):
    """What the cells of a matrix say."""

    LINKS = auto()
    """`nvidia-smi topo -m`."""
    PCIE_LINKS = auto()
    """`nvidia-smi topo -mp`, which prints the PCIe path even of a pair that has NVLink."""
    PEERS = auto()
    TYPES = auto()
    """Link types of the AMD tools."""
    WEIGHTS = auto()
    HOPS = auto()
    ACCESS = auto()


@dataclass(frozen=True, slots=True)
class Header:
    """Column labels in order. A label that names no GPU (a NIC, a garbled word) keeps its place."""

    columns: tuple[str, ...]
    has_numa: bool
    has_gpu_numa_id: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU's row: its cells, None where unreadable, and the affinity cells as printed."""

    label: str
    cells: tuple[str | None, ...]
    line: Line
    has_tail: bool = False
    cpu_affinity: str | None = None
    numa_affinity: str | None = None
    gpu_numa_id: str | None = None


@dataclass(slots=True)
class Section:
    """Every header (by its columns) and row of one kind of matrix."""

    headers: dict[tuple[str, ...], Header] = field(default_factory=dict[tuple[str, ...], Header])
    rows: list[Row] = field(default_factory=list[Row])


@dataclass(slots=True)
class Paste:
    """The matrices of a text.

    `sections` is keyed by kind and, for peer matrices, capability; `amd_numa` is GPU index to node as `rocm-smi`
    prints it.
    """

    sections: dict[tuple[Kind, PeerCapability | None], Section] = field(
        default_factory=dict[tuple[Kind, PeerCapability | None], Section]
    )
    amd_numa: dict[int, int] = field(default_factory=dict[int, int])
    unread: list[UnreadLine] = field(default_factory=list[UnreadLine])
    mig: bool = False


MOST_COLUMNS = 512
MOST_UNREAD = 100

_NICS = (
    r"NIC[0-9]+|mlx[0-9]+_\w+|NVSwitch[0-9]*|ib\w*[0-9]|hfi[0-9]+_[0-9]+|bnxt_\w+|roce\w+|rdmap\w+|cxi[0-9]+|ionic_\w+"
    r"|irdma\w+|qedr\w+|efa\w*[0-9]"
)

_LABEL = re.compile(rf"(?<![A-Za-z0-9_])({GPU}|{BDF}):?(?![A-Za-z0-9_\]:])")
_DEVICE = re.compile(rf"(?:{GPU}|{BDF}|{_NICS}):?")
_LINK_CELLS = re.compile(rf"(?:{LINK_CELL})+")
_LINK_THEN_LIST = re.compile(r"((?:NV[1-9][0-9]?(?=[A-Z])|PIX|PXB|PHB|NODE|SYS|SOC|X)+)(?:[0-9]|N/A).*")
_PEER_CELLS = re.compile(rf"(?:{PEER_CELL})+")
_AFFINITY_COLUMNS = re.compile(r"(?<![A-Za-z0-9])(?:CPU|NUMA|GPU)[ \t]+(?:Aff|NUMA)")
_LIST = re.compile(r"[0-9][0-9,-]*")
_AMD_CELL = re.compile(r"XGMI|PCIE|SELF|ENABLED|DISABLED|TRUE|FALSE|N/A|[0-9]{1,4}")
_COMMAND = re.compile(r"\btopo\b(?:[ \t]+(-mp|--matrix_pci)\b)?")
_PEER_COMMAND = re.compile(r"-p2p[ =]+(nvl|[rwnap])(?![a-z])")
_AMD_NUMA = re.compile(r"GPU\[([0-9]{1,3})\].{0,80}?Numa Node:[ \t]*([0-9]{1,4})\b")
_MIG = re.compile(r"\bMIG [0-9]+[cg]\.|\bMIG-(?:GPU-)?[0-9a-f]{8}-")
_AMD_TITLES = (
    (re.compile(r"link[ \t]*type", re.IGNORECASE), Kind.TYPES),
    (re.compile(r"\bweight", re.IGNORECASE), Kind.WEIGHTS),
    (re.compile(r"\bhops\b", re.IGNORECASE), Kind.HOPS),
    (re.compile(r"\baccess", re.IGNORECASE), Kind.ACCESS),
    (re.compile(r"\btable\b|numa", re.IGNORECASE), None),
)


def read_paste(text: str) -> Paste:
    """Sort the lines of a paste into headers, rows and the rest."""
    return _Reader().read(clean_lines(text))


_OpenRow = tuple[Section, Line, int]
"""Where the link row just read belongs, its line and where its cells begin: the next line may continue it."""


class _Reader:
    """Walks the lines once, carrying what an earlier line says about the next."""

    def __init__(self) -> None:
        self.paste = Paste()
        self.header: Header | None = None
        self.loose_headers: dict[tuple[str, ...], Header] = {}
        self.title: Kind | None = None
        self.capability = PeerCapability.UNSTATED
        self.pcie_only = False
        self.open_row: _OpenRow | None = None
        self.after_header = False

    def read(self, lines: list[Line]) -> Paste:
        for line in lines:
            if line.text.strip():
                self._line(line)
        for section in self.paste.sections.values():
            if not section.headers:
                section.headers.update(self.loose_headers)
        del self.paste.unread[MOST_UNREAD:]
        return self.paste

    def _line(self, line: Line) -> None:
        open_row, self.open_row = self.open_row, None
        after_header, self.after_header = self.after_header, False
        self.paste.mig = self.paste.mig or _MIG.search(line.text) is not None
        if numa := _AMD_NUMA.search(line.text):
            self.paste.amd_numa[int(numa[1])] = int(numa[2])
            return
        named_command = self._command(line.text)
        label = _LABEL.search(line.text)
        if label is None:
            if not named_command:
                self._unlabelled(line, open_row, after_header)
        elif header := read_header(line.text):
            if len(header.columns) == 1 and self.header is not None and header.columns[0] in self.header.columns:
                self.paste.unread.append(line.unread("a row without cells"))
            else:
                self._header(header, after_header)
        elif (row := self._row(line, canonical(label[1]), label.end())) is not None:
            kind, capability, read = row
            section = self.paste.sections.setdefault((kind, capability), Section())
            if self.header is not None:
                section.headers[self.header.columns] = self.header
                self.loose_headers.pop(self.header.columns, None)
            section.rows.append(read)
            if kind in (Kind.LINKS, Kind.PCIE_LINKS):
                self.open_row = section, line, label.end()

    def _header(self, header: Header, after_header: bool) -> None:
        if after_header and self.header is not None and not set(header.columns) & set(self.header.columns):
            del self.loose_headers[self.header.columns]
            header = Header(
                self.header.columns + header.columns,
                self.header.has_numa or header.has_numa,
                self.header.has_gpu_numa_id or header.has_gpu_numa_id,
            )
        self.header = self.loose_headers[header.columns] = header
        self.after_header = True

    def _command(self, text: str) -> bool:
        """Whether the text names the command whose output follows."""
        if command := _PEER_COMMAND.search(text):
            self.capability = PeerCapability("n" if command[1] == "nvl" else command[1])
            return True
        if command := _COMMAND.search(text):
            self.pcie_only = command[1] is not None
            self.capability = PeerCapability.UNSTATED
            return True
        return False

    def _unlabelled(self, line: Line, open_row: _OpenRow | None, after_header: bool) -> None:
        tokens = line.text.split()
        cells = [token for token in tokens if _LINK_CELLS.fullmatch(token.upper())]
        if not cells and not _LIST.fullmatch(tokens[0]):
            for pattern, kind in _AMD_TITLES:
                if pattern.search(line.text) and ("==" in line.text or "TABLE" in line.text or "between" in line.text):
                    self.title = kind
                    return
        if after_header and self.header is not None and _AFFINITY_COLUMNS.search(line.text):
            tail = Header(self.header.columns, "NUMA Aff" in line.text, "GPU NUMA" in line.text)
            self.header = self.loose_headers[tail.columns] = tail
            self.after_header = True
            return
        if open_row is not None and self._continues(open_row, line, tokens):
            return
        columns = self.header.columns if self.header is not None else ()
        side_by_side = any(a in cells and b in cells for a, b in pairwise(tokens))
        if side_by_side and not any(_DEVICE.fullmatch(token) or token in columns for token in tokens):
            self.paste.unread.append(line.unread("a row without a readable GPU label"))

    def _continues(self, open_row: _OpenRow, line: Line, tokens: list[str]) -> bool:
        """Join a row that was wrapped to this line, if the row is short or lacks its affinity cells."""
        section, start, label_end = open_row
        row = section.rows[-1]
        width = len(self.header.columns) if self.header is not None else 0
        first, *_ = tokens
        wants_cells = len(row.cells) < width and not row.has_tail and _LINK_CELLS.fullmatch(first.upper())
        wants_tail = len(row.cells) == width and not row.has_tail and _LIST.fullmatch(first)
        if not (wants_cells or wants_tail):
            return False
        joined = Line(start.number, start.text.rstrip() + "\t" + line.text.lstrip(), start.raw)
        section.rows[-1] = read_link_row(joined, row.label, label_end, self.header)
        self.open_row = section, joined, label_end
        return True

    def _row(self, line: Line, label: str, start: int) -> tuple[Kind, PeerCapability | None, Row] | None:
        tokens = line.text[start:].split()
        words = set(tokens)
        if words & {"XGMI", "PCIE"} or (words and words <= {"0", "SELF", "N/A"} and self.title is Kind.TYPES):
            return Kind.TYPES, None, _amd_row(line, label, tokens)
        if words and {word.upper() for word in words} <= {"ENABLED", "DISABLED", "TRUE", "FALSE"}:
            return Kind.ACCESS, None, _amd_row(line, label, tokens)
        if self.title in (Kind.WEIGHTS, Kind.HOPS) and words and all(_AMD_CELL.fullmatch(word) for word in words):
            return self.title, None, _amd_row(line, label, tokens)
        if not label.startswith("GPU"):
            return None
        peers = [token for token in tokens if _PEER_CELLS.fullmatch(token.upper())]
        links = [token for token in tokens if _LINK_CELLS.fullmatch(token.upper())]
        if len(peers) > len(links) or (peers and peers == links and self.capability is not PeerCapability.UNSTATED):
            return Kind.PEERS, self.capability, _peer_row(line, label, tokens)
        row = read_link_row(line, label, start, self.header)
        unreadable = sum(cell is None for cell in row.cells)
        if not row.cells or unreadable * 2 > len(row.cells):
            if links:
                self.paste.unread.append(line.unread("most cells of the row are unreadable"))
            return None
        return Kind.PCIE_LINKS if self.pcie_only else Kind.LINKS, None, row


def canonical(label: str) -> str:
    """A label without leading zeros or capitals in a PCI address; any other word unchanged."""
    if re.fullmatch(GPU, label):
        return f"GPU{int(label[3:])}"
    return label.lower() if re.fullmatch(BDF, label) else label


def read_header(text: str) -> Header | None:
    """The column labels of a line, or None if the line is no header."""
    affinity = _AFFINITY_COLUMNS.search(text)
    tokens = text[: affinity.start() if affinity else len(text)].split()
    start = next((place for place, token in enumerate(tokens) if _DEVICE.fullmatch(token)), len(tokens))
    columns = tuple(canonical(token.rstrip(":")) for token in tokens[start:])
    gpus = [column for column in columns if _LABEL.fullmatch(column)]
    if not gpus or len(columns) > MOST_COLUMNS or any(_LINK_CELLS.fullmatch(column) for column in columns):
        return None
    if len(gpus) == 1 and not affinity and len(columns) > 1 and not all(map(_DEVICE.fullmatch, columns)):
        return None
    if sum(any(character.isdigit() for character in column) for column in columns) * 3 < len(columns) * 2:
        return None
    return Header(columns, "NUMA Aff" in text, "GPU NUMA" in text)


def read_link_row(line: Line, label: str, start: int, header: Header | None) -> Row:
    """A row of `nvidia-smi topo -m`: link cells up to the first affinity cell, glued cells split."""
    cells: list[str | None] = []
    end = start
    for token in re.finditer(r"\S+", line.text[start:]):
        word = token[0].upper()
        if _LINK_CELLS.fullmatch(word):
            cells += [match[0] for match in re.finditer(LINK_CELL, word)]
        elif glued := _LINK_THEN_LIST.fullmatch(word):
            cells += [match[0] for match in re.finditer(LINK_CELL, glued[1])]
            end = start + token.start() + glued.end(1)
            break
        elif _LIST.fullmatch(word) or word == "N/A" or _DEVICE.fullmatch(token[0]) or len(word) > 5:
            break
        else:
            cells.append("X" if word == "-" else None)
            continue
        end = start + token.end()
    while cells and cells[-1] is None:
        cells.pop()
    cells = [str(LinkClass.SYS) if cell == "SOC" else cell for cell in cells]
    tail = line.text[end:]
    cpu, numa, gpu_numa = _affinity(tail, line.text[start:end], header)
    return Row(label, tuple(cells), line, bool(tail.strip()), cpu, numa, gpu_numa)


def _affinity(tail: str, cells: str, header: Header | None) -> tuple[str | None, str | None, str | None]:
    """CPU affinity, NUMA affinity and GPU NUMA ID of a row; None for what is empty or cannot be told apart.

    Empty cells count only between tabs, and only if tabs do not also serve as padding between the link cells. Blanks
    lose them: then a lone list is the CPU affinity, unless it stands too far right to follow the last link cell.
    """
    has_numa = header is None or header.has_numa
    fields = [text.strip() for text in tail.split("\t")]
    padded = re.search(r"\S *\t *\t[ \t]*\S", cells) is not None
    if len(fields) > 1 and not padded and all(not text or text == "N/A" or _LIST.fullmatch(text) for text in fields):
        cpu, numa, *rest = [*(text if _LIST.fullmatch(text) else None for text in fields[not fields[0] :]), None, None]
        return cpu, numa if has_numa else None, next((text for text in rest if text), None)
    words = tail.split()
    lists: list[str] = []
    for word in words:
        if not (_LIST.fullmatch(word) or word == "N/A"):
            break
        if word != "N/A":
            lists.append(word)
    if len(lists) >= 3:
        return lists[0], lists[1], lists[2]
    if len(lists) == 2 and has_numa and ("N/A" in words or header is None or not header.has_gpu_numa_id):
        return lists[0], lists[1], None
    if len(lists) == 1:
        gap = len(tail) - len(tail.lstrip())
        widest = max((len(blanks) for blanks in re.findall(r"(?<=\S) +(?=\S)", cells)), default=0)
        if gap > 8 and widest <= 8 and "\t" not in tail:
            return (None, lists[0], None) if has_numa else (None, None, None)
        return lists[0], None, None
    return None, None, None


def _peer_row(line: Line, label: str, tokens: list[str]) -> Row:
    cells: list[str | None] = []
    for token in tokens:
        word = token.upper()
        cells += [match[0] for match in re.finditer(PEER_CELL, word)] if _PEER_CELLS.fullmatch(word) else [None]
    return Row(label, tuple(cells), line)


def _amd_row(line: Line, label: str, tokens: list[str]) -> Row:
    words = (token.upper() for token in tokens)
    return Row(label, tuple(word if _AMD_CELL.fullmatch(word) else None for word in words), line)
