"""GPU topology pastes: what they show, and what follows for a vLLM layout.

`read_topology` turns pasted text into a `Topology`; `custom_all_reduce`, `nccl_p2p_disable` and `splits` answer what
vLLM makes of it.
"""

from service.sizing.topology.advice import Advice, Split, Verdict, custom_all_reduce, nccl_p2p_disable, splits
from service.sizing.topology.links import (
    LinkClass,
    PairLink,
    PeerCapability,
    PeerMatrix,
    PeerStatus,
    TopologyNotUnderstood,
    UnreadLine,
)
from service.sizing.topology.machine import FabricGroup, TensorParallelSizes, Topology
from service.sizing.topology.reader import read_topology

__all__ = [
    "Advice",
    "FabricGroup",
    "LinkClass",
    "PairLink",
    "PeerCapability",
    "PeerMatrix",
    "PeerStatus",
    "Split",
    "TensorParallelSizes",
    "Topology",
    "TopologyNotUnderstood",
    "UnreadLine",
    "Verdict",
    "custom_all_reduce",
    "nccl_p2p_disable",
    "read_topology",
    "splits",
]
