"""What a paste says about one machine, and what follows from it alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from service.sizing.hardware import Link, Vendor
from service.sizing.topology.graph import closest_set, disjoint_cliques
from service.sizing.topology.links import (
    SELF,
    LinkClass,
    PairLink,
    PeerCapability,
    PeerMatrix,
    PeerStatus,
    UnreadLine,
)


@dataclass(frozen=True, slots=True)
class TensorParallelSizes:
    """Tensor parallel sizes that stay inside a fabric group; a model's heads must still divide by them."""

    powers_of_two: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FabricGroup:
    """GPUs of which every pair is joined by NVLink, or every pair by XGMI.

    Attributes
    ----------
    gpus : tuple of int
        Indices as the tool prints them, ascending; two or more.
    link : Link
        NVLINK or XGMI.
    nvlinks_least, nvlinks_most : int or None
        Bonded NVLinks of the thinnest and the widest pair. Equal behind an NVSwitch; a mesh may be uneven, and there
        the total of a GPU is shared among its peers. None for XGMI, and where only `-p2p n` shows the links.
    """

    gpus: tuple[int, ...]
    link: Link
    nvlinks_least: int | None
    nvlinks_most: int | None


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs of one operating-system image and how they reach each other.

    Matrices are square, in the order of `gpus`. Nothing here is guessed: a pair or a NUMA node that the paste does not
    show is UNKNOWN or None.

    Attributes
    ----------
    vendor : Vendor
        NVIDIA or AMD, by the tool that printed the paste.
    gpus : tuple of int
        Indices as printed; for `amd-smi` tables, which print PCI addresses, the place in the table.
    names : tuple of str
        Row labels: GPU0, or a PCI address.
    links : tuple of tuple of PairLink
        Symmetric; SELF on the diagonal.
    peer_matrices : tuple of PeerMatrix
        Peer-to-peer status, one for each capability pasted.
    numa_nodes : tuple of int or None
        CPU NUMA node of each GPU.
    numa_affinity, cpu_affinity : tuple of str or None
        The cells as printed. An affinity that spans every node ("0-1") names no node.
    nvlink_shown : bool
        False for `nvidia-smi topo -mp` and for a status matrix alone: a pair without NVLink may have it.
    mig : bool
        The paste names MIG slices. A slice has no peer access to another, so no group is formed.
    warnings : tuple of str
        What is missing, contradictory or easily misread.
    unread : tuple of UnreadLine
        Lines that look like part of a matrix and were not used.
    """

    vendor: Vendor
    gpus: tuple[int, ...]
    names: tuple[str, ...]
    links: tuple[tuple[PairLink, ...], ...]
    peer_matrices: tuple[PeerMatrix, ...]
    numa_nodes: tuple[int | None, ...]
    numa_affinity: tuple[str | None, ...]
    cpu_affinity: tuple[str | None, ...]
    nvlink_shown: bool
    mig: bool
    warnings: tuple[str, ...]
    unread: tuple[UnreadLine, ...]

    @property
    def gpu_count(self) -> int:
        """GPUs the paste shows; a container or a tray shows only its own."""
        return len(self.gpus)

    def link(self, a: int, b: int) -> PairLink:
        """How GPU `a` and GPU `b` are joined. ValueError for an index that is not in `gpus`."""
        return self.links[self._place(a)][self._place(b)]

    def weakest(self, gpus: Sequence[int]) -> PairLink:
        """The farthest pair among `gpus`: what a tensor parallel group of them waits for. SELF for a single GPU."""
        return min((self.link(a, b) for a, b in combinations(gpus, 2)), key=lambda pair: pair.closeness, default=SELF)

    def link_of(self, gpus: Sequence[int]) -> Link | None:
        """The kind of link of the weakest pair; None for one GPU, an unknown pair, or a paste that hides NVLink."""
        weakest = self.weakest(gpus)
        return weakest.link if self.nvlink_shown or weakest.is_fabric else None

    def peer_status(self, capability: PeerCapability, a: int, b: int) -> PeerStatus | None:
        """The status printed for a pair; None where no matrix of that capability shows it."""
        for matrix in self.peer_matrices:
            if matrix.capability is capability:
                return matrix.status[self._place(a)][self._place(b)]
        return None

    def peer_access(self, a: int, b: int) -> bool | None:
        """Whether the two GPUs may read and write each other's memory, over whatever link; None if not shown.

        Read and write status decide where pasted. NVLink, atomics or PCIe status OK each imply access; NS of one of
        those alone denies nothing (`-p2p p` prints NS on machines whose peers talk over NVLink). A status matrix
        pasted without its command denies access unless it says OK. Without any matrix NVLink and XGMI imply access.
        """
        by_capability = {
            capability: status
            for capability in PeerCapability
            if (status := self.peer_status(capability, a, b)) not in (None, PeerStatus.U)
        }
        deciding = [
            by_capability[capability]
            for capability in (PeerCapability.READ, PeerCapability.WRITE, PeerCapability.ACCESS)
            if capability in by_capability
        ]
        if deciding:
            return all(status is PeerStatus.OK for status in deciding)
        if PeerStatus.OK in by_capability.values() or self.link(a, b).is_fabric:
            return True
        return False if PeerCapability.UNSTATED in by_capability else None

    @property
    def fabric_groups(self) -> tuple[FabricGroup, ...]:
        """Disjoint groups that are complete in NVLink (or XGMI), the largest possible first.

        A hybrid cube mesh of eight V100 gives its two quads; two bridged pairs give the pairs. A GPU in no group has
        no such link to spare. XGMI pairs that the driver reports at more than one hop do not count.
        """
        if self.mig:
            return ()
        neighbours = [
            frozenset(b for b, pair in enumerate(row) if pair.is_fabric and (pair.hops or 0) <= 1) for row in self.links
        ]
        widths = [[pair.nvlinks or 0 for pair in row] for row in self.links]
        return tuple(self._group(clique) for clique in disjoint_cliques(neighbours, widths))

    def _group(self, places: Iterable[int]) -> FabricGroup:
        gpus = tuple(self.gpus[place] for place in places)
        pairs = [self.link(a, b) for a, b in combinations(gpus, 2)]
        nvlinks = [pair.nvlinks for pair in pairs if pair.nvlinks]
        return FabricGroup(
            gpus=gpus,
            link=Link.NVLINK if pairs[0].link_class is LinkClass.NVLINK else Link.XGMI,
            nvlinks_least=min(nvlinks, default=None),
            nvlinks_most=max(nvlinks, default=None),
        )

    @property
    def tensor_parallel_sizes(self) -> TensorParallelSizes:
        """Sizes that some fabric group can hold; 1 always."""
        largest = max((len(group.gpus) for group in self.fabric_groups), default=1)
        sizes = range(1, largest + 1)
        return TensorParallelSizes(
            powers_of_two=tuple(size for size in sizes if size & (size - 1) == 0),
            others=tuple(size for size in sizes if size & (size - 1)),
        )

    @property
    def numa_groups(self) -> tuple[tuple[int, ...], ...]:
        """GPUs that share a CPU NUMA node, ordered by their lowest GPU; empty where no split is known.

        By NUMA node; where the paste has no NUMA column, by equal CPU affinity, if the lists exclude each other.
        """
        keys: tuple[int | str | None, ...] = self.numa_nodes
        if not any(affinity is not None for affinity in (*self.numa_nodes, *self.numa_affinity)):
            keys = self.cpu_affinity if exclude_each_other(self.cpu_affinity) else (None,) * self.gpu_count
        groups: dict[int | str, list[int]] = {}
        for gpu, key in zip(self.gpus, keys, strict=True):
            if key is not None:
                groups.setdefault(key, []).append(gpu)
        return tuple(sorted(tuple(group) for group in groups.values()))

    def devices_for(self, tensor_parallel_size: int, among: Sequence[int] | None = None) -> tuple[int, ...]:
        """The GPUs to put together for one tensor parallel group, in the order to make them visible.

        The set whose worst pair is the closest; among equals one inside a NUMA node, then the one with more close
        pairs, then the lowest indices. GPUs of one NUMA node stand together.

        Parameters
        ----------
        tensor_parallel_size : int
        among : sequence of int, optional
            GPUs to choose from; all of them if omitted.

        Raises
        ------
        ValueError
            The size is below 1 or above the GPUs to choose from, or above 1 on MIG slices.
        """
        allowed = tuple(sorted(self.gpus if among is None else among))
        if not 1 <= tensor_parallel_size <= len(allowed):
            raise ValueError(
                f"tensor_parallel_size {tensor_parallel_size} does not fit: the topology offers {len(allowed)} GPUs, "
                f"so 1 to {len(allowed)} are accepted"
            )
        if self.mig and tensor_parallel_size > 1:
            raise ValueError("MIG slices have no peer access to each other: tensor_parallel_size must be 1")
        closeness = [[pair.closeness for pair in row] for row in self.links]
        pools = [[self._place(gpu) for gpu in group if gpu in allowed] for group in self.numa_groups]
        pools.append([self._place(gpu) for gpu in allowed])
        chosen = closest_set(closeness, tensor_parallel_size, pools)
        return self.in_numa_order(self.gpus[place] for place in chosen)

    def in_numa_order(self, gpus: Iterable[int]) -> tuple[int, ...]:
        """`gpus` ascending, those of one NUMA node side by side."""
        node_of = {gpu: place for place, group in enumerate(self.numa_groups) for gpu in group}
        return tuple(sorted(gpus, key=lambda gpu: (node_of.get(gpu, len(node_of)), gpu)))

    def visible_devices(self, gpus: Sequence[int]) -> dict[str, str]:
        """The environment that shows exactly `gpus` to vLLM, in this order.

        CUDA numbers cards fastest first unless told to follow the bus, as `nvidia-smi` does.
        """
        indices = ",".join(str(gpu) for gpu in gpus)
        if self.vendor is Vendor.AMD:
            return {"HIP_VISIBLE_DEVICES": indices}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": indices}

    def _place(self, gpu: int) -> int:
        if gpu not in self.gpus:
            raise ValueError(f"GPU {gpu} is not in the topology, which has {', '.join(map(str, self.gpus))}")
        return self.gpus.index(gpu)


def number_list(text: str) -> frozenset[int] | None:
    """The numbers of a Linux list ("0-2,8"); None if it is malformed or names more than 65,536 of them."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and len(first) <= 5 and (not dash or (last.isdecimal() and len(last) <= 5))):
            return None
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers) if 0 < len(numbers) <= 1 << 16 else None


def exclude_each_other(lists: Sequence[str | None]) -> bool:
    """Whether the distinct lists are two or more, all readable, and no number stands in two of them."""
    distinct = [number_list(text) for text in {text for text in lists if text is not None}]
    readable = [numbers for numbers in distinct if numbers is not None]
    return len(readable) == len(distinct) > 1 and sum(map(len, readable)) == len(frozenset[int]().union(*readable))
