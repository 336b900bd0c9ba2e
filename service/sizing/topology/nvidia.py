"""The matrices of `nvidia-smi topo`, put together."""

from itertools import combinations

from service.sizing.hardware import Vendor
from service.sizing.topology.grid import Grid, assemble
from service.sizing.topology.links import (
    UNKNOWN,
    Doubts,
    LinkClass,
    PairLink,
    PeerCapability,
    PeerMatrix,
    PeerStatus,
    TopologyNotUnderstood,
    square,
)
from service.sizing.topology.machine import Topology, exclude_each_other, number_list
from service.sizing.topology.paste import Kind, Paste, Row


def nvidia_topology(paste: Paste) -> Topology:
    """The topology of the link and peer matrices of a paste. TopologyNotUnderstood where they contradict each other."""
    grids = {key: assemble(section) for key, section in paste.sections.items()}
    nvlink_shown = (Kind.LINKS, None) in grids
    links = grids.get((Kind.LINKS if nvlink_shown else Kind.PCIE_LINKS, None))
    labels = (links or max(grids.values(), key=lambda grid: len(grid.labels))).labels
    for grid in grids.values():
        if not set(grid.labels) <= set(labels):
            raise TopologyNotUnderstood(
                f"the matrices name different GPUs ({', '.join(labels)} against {', '.join(grid.labels)}): "
                "paste one machine at a time"
            )
    if not labels:
        raise TopologyNotUnderstood("no row of the matrix stands under a column of its own name")
    rows = [links.rows.get(label) if links is not None else None for label in labels]
    nodes = _numa_nodes(rows)
    doubts = Doubts()
    peers = tuple(
        _peer_matrix(capability, grid, labels)
        for (kind, capability), grid in grids.items()
        if kind is Kind.PEERS and capability is not None
    )
    matrix = _links(labels, links, nvlink_shown, peers, doubts)
    warnings = [warning for grid in grids.values() for warning in grid.warnings] + doubts.warnings()
    if not nvlink_shown:
        warnings.append("this output does not print NVLink: paste `nvidia-smi topo -m` to see it")
    if any(_is_coherent(row) for row in rows):
        warnings.append(
            "the GPU NUMA ID column is filled: a Grace machine, whose NVLink domain may reach over more trays than "
            "this matrix shows"
        )
    if any(row is not None and row.numa_affinity and node is None for row, node in zip(rows, nodes, strict=True)):
        warnings.append("the NUMA affinity spans several nodes: no NUMA split is known")
    if paste.mig:
        warnings.append("the text names MIG slices: the matrix shows their parent GPUs, slices have no links")
    return Topology(
        vendor=Vendor.NVIDIA,
        gpus=tuple(int(label[3:]) for label in labels),
        names=labels,
        links=matrix,
        peer_matrices=peers,
        numa_nodes=nodes,
        numa_affinity=tuple(row.numa_affinity if row is not None else None for row in rows),
        cpu_affinity=tuple(row.cpu_affinity if row is not None else None for row in rows),
        nvlink_shown=nvlink_shown,
        mig=paste.mig,
        warnings=tuple(dict.fromkeys(warnings)),
        unread=(*paste.unread, *(line for grid in grids.values() for line in grid.unread)),
    )


def _peer_matrix(capability: PeerCapability, grid: Grid, labels: tuple[str, ...]) -> PeerMatrix:
    status: dict[tuple[str, str], PeerStatus | None] = {}
    for a, b in combinations(labels, 2):
        readings = [PeerStatus(reading) for reading in grid.pair(a, b) if reading != "X"]
        worse = [reading for reading in readings if reading is not PeerStatus.OK]
        status[a, b] = status[b, a] = (worse or readings or [None])[0]
    return PeerMatrix(capability, tuple(tuple(status.get((a, b)) for b in labels) for a in labels))


def _links(
    labels: tuple[str, ...], grid: Grid | None, nvlink_shown: bool, peers: tuple[PeerMatrix, ...], doubts: Doubts
) -> tuple[tuple[PairLink, ...], ...]:
    """Every pair by the link matrix; NVLink must not be denied by its own peer status, and may be shown by it alone."""
    nvlink = next((matrix.status for matrix in peers if matrix.capability is PeerCapability.NVLINK), None)
    pairs: dict[tuple[int, int], PairLink] = {}
    for (i, a), (j, b) in combinations(enumerate(labels), 2):
        pair = _pair_link(grid, a, b, doubts) if grid is not None else UNKNOWN
        status = nvlink[i][j] if nvlink is not None else None
        if pair.link_class is LinkClass.NVLINK and status not in (None, PeerStatus.OK):
            doubts.add(f"`topo -m` shows NVLink but `topo -p2p n` says {status} (fabric manager or IMEX?)", a, b)
            pair = UNKNOWN
        elif status is PeerStatus.OK and not pair.is_fabric:
            if nvlink_shown and pair.link_class is not LinkClass.UNKNOWN:
                doubts.add(f"`topo -p2p n` says OK but `topo -m` shows {pair}, which is taken", a, b)
            else:
                doubts.add("NVLink by `topo -p2p n`, which does not say how many", a, b)
                pair = PairLink(LinkClass.NVLINK)
        pairs[i, j] = pair
    return square(len(labels), pairs)


def _pair_link(grid: Grid, a: str, b: str, doubts: Doubts) -> PairLink:
    readings = grid.pair(a, b)
    if not readings or "X" in readings:
        doubts.add("no sound reading, treated as unknown", a, b)
        return UNKNOWN
    if len(readings) > 1:
        doubts.add("the two directions differ, the farther is taken", a, b)
    return min((_link(reading) for reading in readings), key=lambda pair: pair.closeness)


def _link(cell: str) -> PairLink:
    if cell.startswith("NV"):
        return PairLink(LinkClass.NVLINK, nvlinks=int(cell[2:]))
    return PairLink(LinkClass(cell))


def _is_coherent(row: Row | None) -> bool:
    """Whether the GPU is a memory node of its own, as on Grace."""
    return row is not None and row.gpu_numa_id is not None


def _numa_nodes(rows: list[Row | None]) -> tuple[int | None, ...]:
    """The CPU NUMA node of each GPU.

    One number is the node. A list names a node, its first, where it cannot mean "any of these": on Grace, or where the
    lists of different GPUs share no number. A list that all GPUs share spans the machine.
    """
    apart = exclude_each_other([row.numa_affinity for row in rows if row is not None])

    def node(row: Row | None) -> int | None:
        numbers = number_list(row.numa_affinity) if row is not None and row.numa_affinity is not None else None
        if row is None or numbers is None:
            return None
        named = len(numbers) == 1 or (row.cpu_affinity is not None and (apart or _is_coherent(row)))
        return min(numbers) if named else None

    return tuple(node(row) for row in rows)
