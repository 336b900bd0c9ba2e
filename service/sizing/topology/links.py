"""The words of a topology: how two GPUs are joined, and whether they may reach each other's memory."""

from dataclasses import dataclass
from enum import StrEnum

from service.sizing.hardware import Link


class LinkClass(StrEnum):
    """What the path between two GPUs crosses, closest first.

    NVLINK to SYS are the classes of `nvidia-smi topo -m` (its legend; old drivers print SOC for SYS). XGMI and PCIE
    are the link types of `rocm-smi --showtopo` and `amd-smi topology`; there PCIE says nothing about distance, the
    hops do. UNKNOWN is a pair the paste does not show, or shows in two ways that cannot both be true.
    """

    SELF = "X"
    NVLINK = "NV"
    XGMI = "XGMI"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    PCIE = "PCIE"
    SYS = "SYS"
    UNKNOWN = "unknown"


_ORDER = {link_class: -place for place, link_class in enumerate(LinkClass)}
_LINKS = {
    LinkClass.NVLINK: Link.NVLINK,
    LinkClass.XGMI: Link.XGMI,
    LinkClass.SELF: None,
    LinkClass.UNKNOWN: None,
}


@dataclass(frozen=True, slots=True)
class PairLink:
    """How one pair of GPUs is joined.

    Attributes
    ----------
    link_class : LinkClass
    nvlinks : int or None
        Bonded NVLinks of the pair (the # of NV#); None where only `-p2p n` shows the link. A count, not a speed: a
        link carries 50 GB/s both ways on V100, A100 and Hopper, 28 on GA102, 100 on Blackwell.
    weight, hops : int or None
        AMD only. Weight is about 15 per XGMI hop and 20 per PCIe segment; hops is 1 for a pair reachable over XGMI,
        2 for PCIe in one NUMA node, 3 across nodes. None where not printed.
    """

    link_class: LinkClass
    nvlinks: int | None = None
    weight: int | None = None
    hops: int | None = None

    @property
    def is_fabric(self) -> bool:
        """Whether the pair talks over NVLink or XGMI, without crossing PCIe."""
        return self.link_class in (LinkClass.NVLINK, LinkClass.XGMI)

    @property
    def link(self) -> Link | None:
        """The kind of link a plan names; None for a GPU with itself and for an unknown pair."""
        return _LINKS.get(self.link_class, Link.PCIE)

    @property
    def closeness(self) -> tuple[int, int, int, int]:
        """Sorts pairs from far to close: the class, then more NVLinks, fewer hops, less weight."""
        return _ORDER[self.link_class], self.nvlinks or 0, -(self.hops or 0), -(self.weight or 0)

    def __str__(self) -> str:
        """As the tool prints it: NV18, PIX, XGMI."""
        return f"{self.link_class}{self.nvlinks or ''}"


SELF = PairLink(LinkClass.SELF)
UNKNOWN = PairLink(LinkClass.UNKNOWN)


def square(size: int, pairs: dict[tuple[int, int], PairLink]) -> tuple[tuple[PairLink, ...], ...]:
    """The symmetric matrix of `pairs`, which are keyed by (lower, higher) place, with SELF on the diagonal."""
    places = range(size)
    return tuple(tuple(SELF if a == b else pairs[min(a, b), max(a, b)] for b in places) for a in places)


class Doubts:
    """Pairs gathered by what is wrong with them, so that one warning names them together."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[str]] = {}

    def add(self, doubt: str, a: str, b: str) -> None:
        """Note `doubt` about the pair of the GPUs named `a` and `b`."""
        self._pairs.setdefault(doubt, []).append(f"{a}-{b}")

    def warnings(self) -> list[str]:
        """One sentence for each doubt, with its pairs."""
        return [f"{doubt}: {', '.join(pairs)}" for doubt, pairs in self._pairs.items()]


class PeerStatus(StrEnum):
    """A cell of `nvidia-smi topo -p2p`; ENABLED and DISABLED of the AMD tools are read as OK and NS."""

    OK = "OK"
    CNS = "CNS"
    GNS = "GNS"
    TNS = "TNS"
    NS = "NS"
    DR = "DR"
    U = "U"


class PeerCapability(StrEnum):
    """Which peer question a status matrix answers."""

    READ = "r"
    WRITE = "w"
    NVLINK = "n"
    ATOMICS = "a"
    PCIE = "p"
    ACCESS = "access"
    """The access table of the AMD tools."""
    UNSTATED = "unstated"
    """A status matrix pasted without the command that printed it."""


@dataclass(frozen=True, slots=True)
class PeerMatrix:
    """One peer-to-peer status matrix; None where the paste does not show the pair, and on the diagonal.

    Where the two directions of a pair differ, both cells hold the worse one.
    """

    capability: PeerCapability
    status: tuple[tuple[PeerStatus | None, ...], ...]


@dataclass(frozen=True, slots=True)
class UnreadLine:
    """A line of the paste that looks like part of a matrix and was not used.

    `number` counts from 1; `text` is the line as pasted, at most 200 characters of it.
    """

    number: int
    text: str
    reason: str


class TopologyNotUnderstood(ValueError):
    """The text holds no topology that can be read without guessing.

    Attributes
    ----------
    unread : tuple of UnreadLine
        The lines that looked like part of a matrix.
    """

    def __init__(self, message: str, unread: tuple[UnreadLine, ...] = ()) -> None:
        super().__init__(message)
        self.unread = unread
