"""From pasted text to a Topology."""

from service.sizing.topology.amd import amd_json_topology, amd_topology
from service.sizing.topology.links import TopologyNotUnderstood
from service.sizing.topology.machine import Topology
from service.sizing.topology.nvidia import nvidia_topology
from service.sizing.topology.paste import Kind, read_paste

LONGEST_TEXT = 1 << 17


def read_topology(text: str) -> Topology:
    """Read pasted output of `nvidia-smi topo` or of the AMD tools.

    Parameters
    ----------
    text : str
        `nvidia-smi topo -m` (or `-mp`), `nvidia-smi topo -p2p r|w|n|a|p`, `rocm-smi --showtopo`, `amd-smi topology`,
        the AMD tools' JSON too; one machine, one or several of these together, with whatever else was copied along.

    Returns
    -------
    Topology
        What the text shows. A pair it does not show, or shows in two ways, never gets the better reading: the farther
        class of two, UNKNOWN where one cell is unreadable and the other cannot stand alone. Each such case is a
        warning, and each matrix line left out is in `unread`.

    Raises
    ------
    TopologyNotUnderstood
        No matrix in the text, matrices of different machines, labels that contradict the diagonal, or more than
        128 KiB of text.
    """
    if len(text) > LONGEST_TEXT:
        raise TopologyNotUnderstood(f"the text has {len(text)} characters; at most {LONGEST_TEXT} are read")
    if (topology := amd_json_topology(text)) is not None:
        return topology
    paste = read_paste(text)
    kinds = {kind for kind, _ in paste.sections}
    nvidia = kinds & {Kind.LINKS, Kind.PCIE_LINKS, Kind.PEERS}
    try:
        if nvidia and kinds - nvidia:
            raise TopologyNotUnderstood("the text holds both NVIDIA and AMD matrices: paste one machine at a time")
        if kinds:
            return nvidia_topology(paste) if nvidia else amd_topology(paste)
    except TopologyNotUnderstood as error:
        raise TopologyNotUnderstood(str(error), tuple(paste.unread)) from None
    raise TopologyNotUnderstood(
        "no topology matrix found: paste the output of `nvidia-smi topo -m`, `rocm-smi --showtopo` or "
        "`amd-smi topology`, with the line that names the columns",
        tuple(paste.unread),
    )
