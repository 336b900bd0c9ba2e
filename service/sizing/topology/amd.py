"""The tables of `rocm-smi --showtopo` and `amd-smi topology`, and their JSON."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, cast

from service.sizing.hardware import Vendor
from service.sizing.topology.grid import MOST_GPUS, assemble
from service.sizing.topology.links import (
    UNKNOWN,
    Doubts,
    LinkClass,
    PairLink,
    PeerCapability,
    PeerMatrix,
    PeerStatus,
    TopologyNotUnderstood,
    UnreadLine,
    square,
)
from service.sizing.topology.machine import Topology
from service.sizing.topology.paste import Kind, Paste, Row, Section

_ENABLED = {"ENABLED": True, "TRUE": True, "DISABLED": False, "FALSE": False}
_ROCM_PAIR = re.compile(
    r"(Weight|Hops|Link type|Link accessible) between DRM devices ([0-9]{1,3}) and ([0-9]{1,3})\W{1,6}?([A-Za-z0-9/]+)",
    re.IGNORECASE,
)
_ROCM_NODE = re.compile(r"card([0-9]{1,3})\"\s*:\s*\{[^{}]{0,2000}?Numa Node\"\s*:\s*\"?([0-9]{1,4})\b")
_JSON_START = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)


@dataclass(slots=True)
class _Readings:
    """Everything printed about the pairs, by (row, column) index; a pair may be printed once or in both directions."""

    names: list[str]
    types: dict[tuple[int, int], set[str]] = field(default_factory=dict[tuple[int, int], set[str]])
    weights: dict[tuple[int, int], set[str]] = field(default_factory=dict[tuple[int, int], set[str]])
    hops: dict[tuple[int, int], set[str]] = field(default_factory=dict[tuple[int, int], set[str]])
    access: dict[tuple[int, int], set[str]] = field(default_factory=dict[tuple[int, int], set[str]])
    numa: dict[int, int] = field(default_factory=dict[int, int])
    warnings: list[str] = field(default_factory=list[str])
    unread: list[UnreadLine] = field(default_factory=list[UnreadLine])

    def add(self, target: dict[tuple[int, int], set[str]], a: int, b: int, value: object) -> None:
        target.setdefault((min(a, b), max(a, b)), set()).add(str(value).upper())


def amd_topology(paste: Paste) -> Topology:
    """The topology of the AMD tables of a paste. TopologyNotUnderstood where labels and columns contradict."""
    sections = {kind: section for (kind, _), section in paste.sections.items()}
    if Kind.TYPES in sections:
        rows = [_with_diagonal(row) for row in sections[Kind.TYPES].rows]
        grid = assemble(Section(sections[Kind.TYPES].headers, rows))
        readings = _Readings(list(grid.labels), warnings=list(grid.warnings), unread=[*paste.unread, *grid.unread])
        for (i, a), (j, b) in combinations(enumerate(grid.labels), 2):
            readings.types[i, j] = set(grid.pair(a, b)) - {"X"}
    else:
        first = next(iter(sections.values()))
        readings = _Readings(list(dict.fromkeys(row.label for row in first.rows)), unread=paste.unread)
    for kind, target in (
        (Kind.WEIGHTS, readings.weights),
        (Kind.HOPS, readings.hops),
        (Kind.ACCESS, readings.access),
    ):
        for row in sections[kind].rows if kind in sections else ():
            if row.label in readings.names and len(row.cells) == len(readings.names):
                a = readings.names.index(row.label)
                for b, cell in enumerate(row.cells):
                    if b != a and cell is not None:
                        readings.add(target, a, b, cell)
    readings.numa = paste.amd_numa
    return _topology(readings)


def _with_diagonal(row: Row) -> Row:
    """The row with its own cell, printed 0 or SELF, written X."""
    return Row(row.label, tuple("X" if cell in ("0", "SELF") else cell for cell in row.cells), row.line)


def amd_json_topology(text: str) -> Topology | None:
    """The topology of `amd-smi topology --json` or `rocm-smi --showtopo --json`; None if the text is neither.

    Raises
    ------
    TopologyNotUnderstood
        It is one of them, but cut or with GPU numbers missing.
    """
    if _ROCM_PAIR.search(text) or re.search(r"\(Topology\) Numa Node\"", text):
        return _rocm_json(text)
    start = _JSON_START.search(text)
    if start is None or not re.search(r"\"(?:link_type|link_accessibility)\"", text):
        return None
    try:
        document = json.JSONDecoder().raw_decode(re.sub(r",(\s*[\]}])", r"\1", text[start.start() :]).lstrip())[0]
    except (ValueError, RecursionError):
        raise TopologyNotUnderstood("the JSON of amd-smi is incomplete: paste all of it") from None
    return _amd_smi_json(document)


def _rocm_json(text: str) -> Topology:
    """`rocm-smi` prints each pair once, in one object."""
    found = _ROCM_PAIR.findall(text)
    nodes = {int(card): int(node) for card, node in _ROCM_NODE.findall(text)}
    gpus = sorted({int(gpu) for _, a, b, _ in found for gpu in (a, b)} | set(nodes))
    readings = _Readings([f"GPU{gpu}" for gpu in _in_a_row(gpus)], numa=nodes)
    targets = {
        "weight": readings.weights,
        "hops": readings.hops,
        "link type": readings.types,
        "link accessible": readings.access,
    }
    for what, a, b, value in found:
        readings.add(targets[what.lower()], int(a), int(b), value)
    return _topology(readings)


def _amd_smi_json(document: Any) -> Topology:
    """`amd-smi` prints each pair in both directions: a list of links per GPU, formerly one object per quantity."""
    entries = [entry for entry in _objects(document) if isinstance(entry.get("gpu"), int)]
    readings = _Readings([])
    names = {entry["gpu"]: str(entry.get("bdf") or f"GPU{entry['gpu']}") for entry in entries}
    readings.names = [names[gpu] for gpu in _in_a_row(sorted(names))]
    directions: dict[tuple[int, int], int] = {}
    for entry in entries:
        for peer, link in _peers(entry):
            if peer == entry["gpu"]:
                continue
            if peer not in names:
                raise TopologyNotUnderstood(f"the JSON links GPU {peer} but does not list it: paste all of it")
            pair = (min(peer, entry["gpu"]), max(peer, entry["gpu"]))
            directions[pair] = directions.get(pair, 0) + 1
            for target, key in (
                (readings.types, "link_type"),
                (readings.weights, "weight"),
                (readings.hops, "num_hops"),
                (readings.access, "link_status"),
            ):
                if key in link:
                    readings.add(target, *pair, link[key])
    for pair, count in directions.items():
        if count != 2:
            readings.types[pair] = set()
    return _topology(readings)


def _objects(document: Any) -> list[dict[str, Any]]:
    found = cast(list[Any], document) if isinstance(document, list) else [document]
    return [cast(dict[str, Any], entry) for entry in found if isinstance(entry, dict)]


def _peers(entry: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any]]]:
    """(peer GPU, its link) of either JSON form."""
    for link in _objects(entry.get("links", [])):
        if isinstance(link.get("gpu"), int):
            yield link["gpu"], link
    peers: dict[int, dict[str, Any]] = {}
    for key, name in (
        ("link_type", "link_type"),
        ("weight", "weight"),
        ("hops", "num_hops"),
        ("link_accessibility", "link_status"),
    ):
        for gpu, value in _objects(entry.get(key))[0].items() if isinstance(entry.get(key), dict) else ():
            if number := re.fullmatch(r"gpu_([0-9]{1,3})", gpu):
                peers.setdefault(int(number[1]), {})[name] = value
    yield from peers.items()


def _in_a_row(gpus: list[int]) -> list[int]:
    """`gpus`, if they count 0, 1, 2 ... as the tools do."""
    if not gpus or gpus != list(range(len(gpus))) or len(gpus) > MOST_GPUS:
        raise TopologyNotUnderstood(
            f"the JSON names GPUs {', '.join(map(str, gpus[:MOST_GPUS])) or 'of no number'}; expected 0, 1, 2 ... "
            f"without a gap, at most {MOST_GPUS}"
        )
    return gpus


def _topology(readings: _Readings) -> Topology:
    names = readings.names
    if not names:
        raise TopologyNotUnderstood("no row of the table stands under a column of its own name")
    doubts = Doubts()
    pairs: dict[tuple[int, int], PairLink] = {}
    status: dict[tuple[int, int], PeerStatus] = {}
    for a, b in combinations(range(len(names)), 2):
        enabled = {_ENABLED.get(word) for word in readings.access.get((a, b), set())}
        if enabled:
            status[a, b] = status[b, a] = PeerStatus.OK if enabled == {True} else PeerStatus.NS
        pairs[a, b] = _pair_link(readings, a, b, enabled, doubts)
    warnings = readings.warnings + doubts.warnings()
    if not names[0].startswith("GPU"):
        warnings.append("the tables name PCI addresses: GPU numbers are places in the table, check them against HIP's")
    by_row = range(len(names))
    gpus = tuple(int(name[3:]) if name.startswith("GPU") else place for place, name in enumerate(names))
    access = PeerMatrix(PeerCapability.ACCESS, tuple(tuple(status.get((a, b)) for b in by_row) for a in by_row))
    return Topology(
        vendor=Vendor.AMD,
        gpus=gpus,
        names=tuple(names),
        links=square(len(names), pairs),
        peer_matrices=(access,) if status else (),
        numa_nodes=tuple(readings.numa.get(gpu) for gpu in gpus),
        numa_affinity=(None,) * len(names),
        cpu_affinity=(None,) * len(names),
        nvlink_shown=True,
        mig=False,
        warnings=tuple(dict.fromkeys(warnings)),
        unread=tuple(readings.unread),
    )


def _pair_link(readings: _Readings, a: int, b: int, enabled: set[bool | None], doubts: Doubts) -> PairLink:
    types = readings.types.get((a, b), set())
    names = readings.names
    weights = {int(word) for word in readings.weights.get((a, b), set()) if word.isdecimal()} - {0}
    hops = {int(word) for word in readings.hops.get((a, b), set()) if word.isdecimal()} - {0}
    if not types or not types <= {"XGMI", "PCIE"}:
        doubts.add("no sound link type, treated as unknown", names[a], names[b])
        return UNKNOWN
    if len(types) > 1:
        doubts.add("the two directions differ, the farther is taken", names[a], names[b])
    link_class = LinkClass.PCIE if "PCIE" in types else LinkClass.XGMI
    if link_class is LinkClass.XGMI and enabled - {True}:
        doubts.add("XGMI, but access is not enabled: treated as unknown", names[a], names[b])
        return UNKNOWN
    if link_class is LinkClass.XGMI and max(hops, default=1) > 1:
        doubts.add("XGMI over more than one hop: not counted as a direct link", names[a], names[b])
    return PairLink(link_class, weight=max(weights, default=None), hops=max(hops, default=None))
