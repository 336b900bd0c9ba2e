"""Every public paste is read as a person reads it. The expectations were written from the pastes by hand."""

import pytest

from service.sizing.hardware import Link, Vendor
from service.sizing.topology import LinkClass, PeerCapability, PeerStatus, read_topology

from .topology_pastes import NUMBERS, paste, upper_triangle

# Eight GPUs of one kind of pair each: GPU count, the class of every pair, NUMA nodes (None: not known).
TWO_NODES = (0, 0, 0, 0, 1, 1, 1, 1)
UNKNOWN_8 = (None,) * 8
UNIFORM = {
    4: (8, "NV18", TWO_NODES),
    5: (8, "NV18", TWO_NODES),
    7: (8, "NV18", TWO_NODES),
    8: (8, "NV12", TWO_NODES),
    11: (4, "NV4", (3, 2, 1, 0)),
    12: (4, "NV4", (None, None, None, None)),
    13: (4, "NV4", (0, 0, 1, 1)),
    16: (4, "NV4", (0, 0, 1, 1)),
    18: (2, "NODE", (0, 0)),
    24: (8, "NV8", (0, 0, 0, 0, 1, 1, 1, None)),
    26: (2, "NODE", (0, 0)),
    30: (4, "NV18", (0, 1, 1, 1)),
    31: (8, "NV18", TWO_NODES),
    33: (8, "NV18", (0, 0, 0, 0, 1, 1, None, None)),
    36: (8, "unknown", UNKNOWN_8),
    37: (4, "PHB", (0, 0, 0, 0)),
    40: (4, "XGMI", (0, 1, 2, 3)),
    41: (8, "XGMI", TWO_NODES),
    43: (4, "PCIE", (None, None, None, None)),
    44: (2, "PCIE", (None, None)),
    48: (8, "XGMI", UNKNOWN_8),
    51: (4, "NV18", (0, 0, 1, None)),
    52: (8, "SYS", TWO_NODES),
    53: (8, "NV18", TWO_NODES),
    54: (2, "NV12", (None, None)),
}

HYBRID_MESH = """\
NV1 NV1 NV2 NV2 {far} {far} {far}
NV2 NV1 {far} NV2 {far} {far}
NV2 {far} {far} NV1 {far}
{far} {far} {far} NV1
NV1 NV1 NV2
NV2 NV1
NV2"""
TWO_SOCKETS = "NODE SYS SYS\nSYS SYS\nNODE"
MIXED = {
    1: (HYBRID_MESH.format(far="SYS"), UNKNOWN_8),
    2: (HYBRID_MESH.format(far="PHB"), UNKNOWN_8),
    3: (HYBRID_MESH.format(far="SYS"), TWO_NODES),
    10: ("NV4 NODE\nNODE", (0, 0, 0)),
    15: (TWO_SOCKETS, (0, 0, 1, 1)),
    17: (TWO_SOCKETS, (0, 0, 1, 1)),
    20: ("PIX NODE NODE\nNODE NODE\nPIX", (None, None, None, None)),
    21: (
        (
            "PIX NODE NODE SYS SYS SYS SYS\nNODE NODE SYS SYS SYS SYS\nPIX SYS SYS SYS SYS\nSYS SYS SYS SYS\n"
            "PIX NODE NODE\nNODE NODE\nPIX"
        ),
        TWO_NODES,
    ),
    27: (
        "NV4 PHB PHB PHB PHB PHB\nPHB PHB PHB PHB PHB\nPXB PXB PXB PXB\nPXB PXB PXB\nPXB PXB\nPXB",
        (None,) * 7,
    ),
    28: ("NV12 SYS SYS\nSYS SYS\nNV12", (0, 0, 1, 1)),
    32: (
        (
            "NV18 NV18 NV18 NV18 NV18 NV18 NV18\nNV18 NV18 NV18 NV18 NV18 NV18\nNV18 NV18 NV18 NV18 NV18\n"
            "NV18 NV18 NV18 NV18\nNV18 NV18 NV18\nunknown unknown\nunknown"
        ),
        (0, 0, 0, 0, 1, None, None, None),
    ),
    42: (
        (
            "XGMI XGMI XGMI PCIE PCIE PCIE PCIE\nXGMI XGMI PCIE PCIE PCIE PCIE\nXGMI PCIE PCIE PCIE PCIE\n"
            "PCIE PCIE PCIE PCIE\nXGMI XGMI XGMI\nXGMI XGMI\nXGMI"
        ),
        UNKNOWN_8,
    ),
    46: (TWO_SOCKETS, (0, 0, 1, 1)),
    49: (
        (
            "NV18 NV18 NV18 NV18 NV18 NV18 NV18\nNV18 NV18 NV18 NV18 NV18 NV18\nNV18 NV18 NV18 NV18 NV18\n"
            "NV18 NV18 NV18 NV18\nNV18 NV18 NV18\nNV18 NV18\nunknown"
        ),
        (0, 0, 0, 1, 2, 2, None, None),
    ),
}
SINGLE = (14, 45)

# The fabric groups a person marks in the paste; a sample not named has none.
GROUPS = {
    **dict.fromkeys((1, 2, 3, 42), ((0, 1, 2, 3), (4, 5, 6, 7))),
    **dict.fromkeys((4, 5, 7, 8, 24, 31, 33, 41, 48, 53), (tuple(range(8)),)),
    **dict.fromkeys((11, 12, 13, 16, 30, 40, 51), ((0, 1, 2, 3),)),
    **dict.fromkeys((10, 27, 54), ((0, 1),)),
    28: ((0, 1), (2, 3)),
    32: ((0, 1, 2, 3, 4, 5),),
    49: ((0, 1, 2, 3, 4, 5, 6),),
}
AMD = (40, 41, 42, 43, 44, 45, 48)


def test_every_sample_has_an_expectation() -> None:
    """No paste is carried along unread."""
    assert sorted([*UNIFORM, *MIXED, *SINGLE]) == NUMBERS


@pytest.mark.parametrize("number", UNIFORM)
def test_machine_of_one_link_class(number: int) -> None:
    """Count, link class of every pair and NUMA nodes."""
    count, link, numa = UNIFORM[number]
    topology = read_topology(paste(number))
    assert topology.gpus == tuple(range(count))
    assert {str(topology.links[a][b]) for a in range(count) for b in range(count) if a != b} == {link}
    assert topology.numa_nodes == numa


@pytest.mark.parametrize("number", MIXED)
def test_machine_of_several_link_classes(number: int) -> None:
    """The matrix above the diagonal, and the NUMA nodes."""
    matrix, numa = MIXED[number]
    topology = read_topology(paste(number))
    assert upper_triangle(topology) == matrix
    assert topology.numa_nodes == numa


@pytest.mark.parametrize("number", SINGLE)
def test_one_gpu_has_no_pair_and_no_link(number: int) -> None:
    """Of one GPU nothing is claimed: no group, tensor parallel size 1."""
    topology = read_topology(paste(number))
    assert topology.gpus == (0,)
    assert topology.links[0][0].link_class is LinkClass.SELF
    assert topology.fabric_groups == ()
    assert topology.tensor_parallel_sizes.powers_of_two == (1,)


@pytest.mark.parametrize("number", NUMBERS)
def test_fabric_groups(number: int) -> None:
    """NVLink-complete and XGMI-complete groups, and the vendor they imply."""
    topology = read_topology(paste(number))
    groups = topology.fabric_groups
    assert tuple(group.gpus for group in groups) == GROUPS.get(number, ())
    assert topology.vendor is (Vendor.AMD if number in AMD else Vendor.NVIDIA)
    assert {group.link for group in groups} <= {Link.XGMI if number in AMD else Link.NVLINK}


@pytest.mark.parametrize("number", NUMBERS)
def test_matrices_are_symmetric(number: int) -> None:
    """Both directions of a pair read the same, in links and in peer status."""
    topology = read_topology(paste(number))
    for matrix in (topology.links, *(peers.status for peers in topology.peer_matrices)):
        assert all(matrix[a][b] == matrix[b][a] for a in range(len(matrix)) for b in range(len(matrix)))


@pytest.mark.parametrize("number", sorted(set(NUMBERS) - {5, 12, 2, 14, 24, 32, 33, 36, 48, 49, 51}))
def test_whole_pastes_raise_no_warning(number: int) -> None:
    """A complete, unambiguous paste is read in silence."""
    topology = read_topology(paste(number))
    assert topology.warnings == ()
    assert topology.unread == ()


def test_uneven_mesh_states_both_widths() -> None:
    """A DGX-1 quad has pairs of one and of two NVLinks (sample 01)."""
    quad, _ = read_topology(paste(1)).fabric_groups
    assert (quad.nvlinks_least, quad.nvlinks_most) == (1, 2)


def test_split_without_numa_column_follows_cpu_affinity() -> None:
    """Sample 01 has no NUMA column; its CPU lists exclude each other, so they show the split."""
    assert read_topology(paste(1)).numa_groups == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(("number", "affinity"), [(2, "0-1"), (12, "0-3"), (14, "0,8,252-255")])
def test_affinity_over_all_nodes_names_no_node(number: int, affinity: str) -> None:
    """An affinity that spans the nodes is kept as printed, and no split is claimed."""
    topology = read_topology(paste(number))
    assert set(topology.numa_affinity) == {affinity}
    assert topology.numa_groups == ()
    assert topology.warnings == ("the NUMA affinity spans several nodes: no NUMA split is known",)


def test_empty_affinity_cell_does_not_shift_the_numa_node() -> None:
    """Sample 30: GPU1 to GPU3 have no CPU affinity and still are on node 1."""
    topology = read_topology(paste(30))
    assert topology.cpu_affinity == ("44-51,148-155", None, None, None)
    assert topology.numa_groups == ((0,), (1, 2, 3))


def test_lone_gpu_numa_id_is_not_an_affinity() -> None:
    """Sample 54: both affinity cells are empty; the N/A belongs to the last column."""
    topology = read_topology(paste(54))
    assert topology.cpu_affinity == (None, None)
    assert topology.numa_affinity == (None, None)


def test_grace_tray_is_said_to_be_part_of_a_larger_domain() -> None:
    """Sample 51: the GPU NUMA ID column is filled, and the matrix shows one tray."""
    topology = read_topology(paste(51))
    assert topology.numa_affinity[:3] == ("0,3-9,11-17", "0,3-9,11-17", "1,19-25,27-33")
    assert any("NVLink domain may reach over more trays" in warning for warning in topology.warnings)
    assert any("GPU3 row incomplete" in warning for warning in topology.warnings)


def test_cut_row_is_completed_by_the_other_rows() -> None:
    """Sample 24: GPU7's row ends after four cells; column 7 of the rows above gives the rest."""
    assert any("GPU7 row incomplete" in warning for warning in read_topology(paste(24)).warnings)


def test_cut_cell_is_not_a_narrow_link() -> None:
    """Sample 32 ends in NV1, which was NV18; what no whole row shows is unknown, and said to be."""
    topology = read_topology(paste(32))
    assert topology.link(5, 6).link_class is LinkClass.UNKNOWN
    assert any("GPU5-GPU6, GPU5-GPU7, GPU6-GPU7" in warning for warning in topology.warnings)


def test_missing_header_is_said() -> None:
    """Sample 05 lost its header: GPUs are counted by their rows."""
    assert read_topology(paste(5)).warnings == ("the header row is missing: GPUs are counted by their rows",)


def test_peer_status_is_no_link() -> None:
    """Sample 36, `-p2p r` all OK: peers may read each other, and nothing is known of the links."""
    topology = read_topology(paste(36))
    assert topology.peer_status(PeerCapability.READ, 0, 7) is PeerStatus.OK
    assert topology.peer_access(0, 7) is True
    assert topology.link_of((0, 7)) is None
    assert not topology.nvlink_shown


def test_peer_status_beside_links() -> None:
    """Sample 37: PHB between all GPUs, and peers may reach each other. Sample 26: they may not."""
    assert read_topology(paste(37)).peer_access(0, 3) is True
    assert read_topology(paste(26)).peer_access(0, 1) is False
    assert read_topology(paste(26)).peer_status(PeerCapability.UNSTATED, 0, 1) is PeerStatus.NS


def test_amd_weight_and_hops() -> None:
    """Sample 40: weight 15, one hop. Sample 43: weight 52, three hops. Sample 42 prints no weights."""
    near, far, hive = (read_topology(paste(number)) for number in (40, 43, 42))
    assert (near.link(0, 1).weight, near.link(0, 1).hops) == (15, 1)
    assert (far.link(0, 1).weight, far.link(0, 1).hops) == (52, 3)
    assert (hive.link(0, 4).weight, hive.link(0, 4).hops) == (None, 3)


def test_amd_smi_tables() -> None:
    """Sample 48: PCI addresses for labels, one hop, weights of zero mean unknown, access enabled."""
    topology = read_topology(paste(48))
    assert topology.names[:2] == ("0000:0d:00.0", "0000:26:00.0")
    assert (topology.link(0, 7).weight, topology.link(0, 7).hops) == (None, 1)
    assert topology.peer_access(0, 7) is True
