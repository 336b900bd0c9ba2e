"""The pastes of tests/data/topology, and pastes made up for a test."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

from service.sizing.topology import Topology

DIRECTORY = Path(__file__).parents[1] / "data" / "topology"


def paste(number: int) -> str:
    """The sample whose file name starts with `number`, its line endings as they are."""
    [path] = DIRECTORY.glob(f"{number:02}_*.txt")
    return path.read_bytes().decode()


NUMBERS = sorted(int(path.name[:2]) for path in DIRECTORY.glob("*.txt"))


def upper_triangle(topology: Topology) -> str:
    """The printed links above the diagonal, a row of the matrix to a line."""
    rows = (" ".join(str(link) for link in row[place + 1 :]) for place, row in enumerate(topology.links))
    return "\n".join(list(rows)[:-1])


def fabric_pairs(topology: Topology) -> set[tuple[int, int]]:
    """The pairs read as NVLink or XGMI."""
    return {(a, b) for a, b in combinations(topology.gpus, 2) if topology.link(a, b).is_fabric}


def link_paste(
    count: int,
    link: Callable[[int, int], str],
    nics_at: int | None = None,
    cpu: Callable[[int], str] = lambda gpu: f"{8 * gpu}-{8 * gpu + 7}",
    numa: Callable[[int], str] = lambda gpu: str(gpu // 4),
    gpu_numa_id: str = "N/A",
) -> str:
    """`nvidia-smi topo -m` of `count` GPUs and two NICs, which stand before GPU `nics_at` or last."""
    names = [f"GPU{gpu}" for gpu in range(count)]
    place = count if nics_at is None else nics_at
    names[place:place] = ["NIC0", "NIC1"]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row in names:
        both = [(row, column) for column in names]
        cells = [
            " X " if a == b else link(int(a[3:]), int(b[3:])) if a[:3] == b[:3] == "GPU" else "SYS" for a, b in both
        ]
        gpu = int(row[3:])
        tail = [cpu(gpu), numa(gpu), "", gpu_numa_id] if row.startswith("GPU") else ["", "", "", ""]
        lines.append("\t".join([row, *cells, *tail]))
    return "\n".join(lines) + "\n"


def peer_paste(count: int, status: Callable[[int, int], str], command: str = "") -> str:
    """`nvidia-smi topo -p2p` of `count` GPUs, after the command line if one is given."""
    lines = [command, "\t".join([" ", *(f"GPU{gpu}" for gpu in range(count))])]
    for a in range(count):
        lines.append("\t".join([f" GPU{a}", *("X" if a == b else status(a, b) for b in range(count))]))
    return "\n".join(lines) + "\n"
