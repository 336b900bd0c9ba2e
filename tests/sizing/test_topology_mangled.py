"""Terminals, forums and people change a paste; what it says must not change with it."""

import json
import re
from collections.abc import Callable

import pytest

from service.sizing.hardware import Vendor
from service.sizing.topology import (
    LinkClass,
    PeerCapability,
    PeerStatus,
    Topology,
    TopologyNotUnderstood,
    read_topology,
)

from .topology_pastes import fabric_pairs, link_paste, paste, peer_paste, upper_triangle


def pairs_bridged(a: int, b: int) -> str:
    return "NV12" if a // 2 == b // 2 else "SYS"


def nvswitch(a: int, b: int) -> str:
    return "NV18"


BRIDGED = link_paste(4, pairs_bridged, numa=lambda gpu: str(gpu // 2))
BRIDGED_MATRIX = "NV12 SYS SYS\nSYS SYS\nNV12"


def each_line(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(line) for line in text.split("\n"))


HARMLESS: dict[str, Callable[[str], str]] = {
    "windows line endings": lambda text: text.replace("\n", "\r\n"),
    "old mac line endings": lambda text: text.replace("\n", "\r"),
    "non-breaking spaces": lambda text: text.replace(" ", "\u00a0"),
    "zero-width space in front": lambda text: "\ufeff" + text,
    "tabs expanded": each_line(lambda line: line.expandtabs(8)),
    "blanks collapsed": lambda text: re.sub(r"[ \t]+", " ", text),
    "tabs doubled": lambda text: text.replace("\t", "\t\t"),
    "indented": each_line(lambda line: "      " + line),
    "quoted": each_line(lambda line: "> " + line),
    "box drawn": each_line(lambda line: f"\u2502{line}\u2502\n\u251c\u2500\u253c\u2500\u2524".replace("\t", "\u2502")),
    "markdown table": each_line(lambda line: "| " + line.replace("\t", " | ") + " |"),
    "markdown bold labels": lambda text: re.sub(r"(GPU\d)", r"**\1**", text),
    "timestamps": each_line(lambda line: "2026-03-01T10:00:00Z [gpu-node-7] " + line),
    "grep with line numbers": each_line(lambda line: "log/topo.txt:12:" + line),
    "container log prefix": each_line(lambda line: "(EngineCore pid=77) INFO " + line),
    "shell prompt around": lambda text: f"root@gpu01:~# nvidia-smi topo -m\n{text}root@gpu01:~# ",
    "string in JSON": lambda text: json.dumps({"topology": text}),
    "newlines lost": lambda text: text.replace("\n", " "),
    "underlined header": lambda text: "\x1b[4m" + text.replace("\n", "\x1b[0m\n", 1),
    "underline codes without escape byte": lambda text: "[4m" + text.replace("\n", "[0m\n", 1),
    "bold labels in the terminal": lambda text: re.sub(r"(GPU\d)", "\x1b[1m\\1\x1b[22m", text),
    "caret escapes": lambda text: re.sub(r"(GPU\d)", r"^[[1m\1^[[0m", text),
    "header wrapped between GPUs": lambda text: text.replace("\tGPU2", "\n  GPU2", 1),
    "header wrapped before the affinity": lambda text: text.replace("\tCPU Affinity", "\nCPU Affinity", 1),
    "every line wrapped": each_line(lambda line: line.replace("\tSYS\tSYS\t", "\tSYS\tSYS\n", 1)),
    "glued header": lambda text: text.replace("GPU0\tGPU1", "GPU0GPU1", 1).replace("NIC0\tNIC1", "NIC0NIC1", 1),
    "glued cells": lambda text: text.replace("SYS\tSYS", "SYSSYS"),
    "affinity glued to the last link": lambda text: re.sub(r"SYS\t(\d)", r"SYS\1", text),
    "multiplication sign for self": lambda text: text.replace(" X ", " \u00d7 "),
    "legend in front": lambda text: paste(1).split("Legend:")[1] + text,
    "legend behind": lambda text: text + "\nLegend:" + paste(1).split("Legend:")[1],
    "pasted twice": lambda text: text + "\n" + text,
    "rows backwards": lambda text: "\n".join([text.split("\n")[0], *reversed(text.split("\n")[1:])]),
    "network rows dropped": lambda text: "\n".join(line for line in text.split("\n") if not line.startswith("NIC")),
    "network cards by name": lambda text: text.replace("NIC0", "mlx5_bond_0").replace("NIC1", "rocep181s0f0"),
    "no header": lambda text: text.split("\n", 1)[1],
    "row missing": lambda text: re.sub(r"\nGPU2.*", "", text),
    "header garbled": lambda text: text.replace("GPU1", "GP?1", 1),
    "header from another machine": lambda text: text.replace("GPU1", "GPU9", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_links_survive(name: str) -> None:
    """Whatever was done to the text, the matrix is the same."""
    assert upper_triangle(read_topology(HARMLESS[name](BRIDGED))) == BRIDGED_MATRIX


@pytest.mark.parametrize("name", sorted(set(HARMLESS) - {"row missing"}))
def test_numa_nodes_survive(name: str) -> None:
    """The NUMA node is found by what its cell looks like and where it stands."""
    assert read_topology(HARMLESS[name](BRIDGED)).numa_nodes == (0, 0, 1, 1)


@pytest.mark.parametrize("name", HARMLESS)
def test_numa_node_is_never_wrong(name: str) -> None:
    """Where a node cannot be read it is unknown."""
    nodes = read_topology(HARMLESS[name](BRIDGED)).numa_nodes
    assert all(node in (None, right) for node, right in zip(nodes, (0, 0, 1, 1), strict=True))


@pytest.mark.parametrize("nics_at", [0, 2, 4])
@pytest.mark.parametrize("header", [True, False])
def test_network_cards_may_stand_anywhere(nics_at: int, header: bool) -> None:
    """NIC columns before, between and after the GPUs, with and without the header."""
    text = link_paste(4, pairs_bridged, nics_at)
    assert upper_triangle(read_topology(text if header else text.split("\n", 1)[1])) == BRIDGED_MATRIX


@pytest.mark.parametrize("count", range(1, 17))
def test_one_to_sixteen_gpus(count: int) -> None:
    """GPU labels of one and of two digits."""
    topology = read_topology(link_paste(count, lambda a, b: "NV6"))
    assert topology.gpus == tuple(range(count))
    assert len(fabric_pairs(topology)) == count * (count - 1) // 2


def test_old_driver_words() -> None:
    """SOC is what drivers before 375 called SYS; they print no NUMA column."""
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-7\nGPU1\tSOC\t X \t8-15\n"
    topology = read_topology(text)
    assert topology.link(0, 1).link_class is LinkClass.SYS
    assert topology.numa_groups == ((0,), (1,))


@pytest.mark.parametrize("expand", [False, True])
def test_grace_tray(expand: bool) -> None:
    """A filled GPU NUMA ID is the GPU's own memory node; the CPU node is the first of the list."""
    text = link_paste(
        4,
        nvswitch,
        cpu=lambda gpu: "0-71" if gpu < 2 else "72-143",
        numa=lambda gpu: "0,3-9,11-17" if gpu < 2 else "1,19-25,27-33",
        gpu_numa_id="2",
    )
    assert read_topology(text.expandtabs(8) if expand else text).numa_nodes == (0, 0, 1, 1)


def test_one_cell_against_its_mirror_takes_the_farther() -> None:
    """A pair printed NV12 one way and SYS the other is SYS, and the doubt is told."""
    topology = read_topology(BRIDGED.replace("GPU0\t X \tNV12", "GPU0\t X \tSYS"))
    assert topology.link(0, 1).link_class is LinkClass.SYS
    assert topology.fabric_groups[0].gpus == (2, 3)
    assert any("GPU0-GPU1" in warning and "farther" in warning for warning in topology.warnings)


def test_two_link_counts_take_the_smaller() -> None:
    """NV12 one way and NV4 the other is NV4."""
    topology = read_topology(BRIDGED.replace("GPU0\t X \tNV12", "GPU0\t X \tNV4"))
    assert topology.link(0, 1).nvlinks == 4


def test_row_that_lost_a_cell_cannot_move_a_link() -> None:
    """Without its SYS cell GPU1's NV18 would stand under GPU0; the diagonal gives it away."""
    far = link_paste(3, lambda a, b: "NV18" if {a, b} == {1, 2} else "SYS")
    topology = read_topology(
        far.replace("GPU0\t X \tSYS\tSYS", "GPU0\t X \tSYS").replace("GPU2\tSYS\tNV18", "GPU2\tNV18")
    )
    assert fabric_pairs(topology) <= {(1, 2)}
    assert topology.unread


def test_row_that_another_contradicts_is_not_believed_alone() -> None:
    """GPU0's cells were exchanged and GPU2's row is lost: the NV18 of GPU0 to GPU2 is nobody's word."""
    text = link_paste(3, lambda a, b: "NV18" if {a, b} == {0, 1} else "SYS")
    topology = read_topology(re.sub(r"\nGPU2.*", "", text.replace("X \tNV18\tSYS", "X \tSYS\tNV18", 1)))
    assert fabric_pairs(topology) == set()


def test_row_under_a_wrong_name_is_not_used() -> None:
    """Two rows that call themselves GPU1: what only they show stays unknown, and the lines are listed."""
    text = link_paste(4, pairs_bridged).replace("\nGPU3", "\nGPU1")
    topology = read_topology(text)
    assert fabric_pairs(topology) <= {(0, 1), (2, 3)}
    assert any(line.text.startswith("GPU1") for line in topology.unread)


def test_line_without_label_is_listed() -> None:
    """A garbled row label: the line is reported with its number, the pair is read from the other rows."""
    topology = read_topology(BRIDGED.replace("\nGPU1", "\nGP_1"))
    assert upper_triangle(topology) == BRIDGED_MATRIX
    assert [(line.number, line.text[:9]) for line in topology.unread] == [(3, "GP_1\tNV12")]


def test_single_digit_link_at_the_cut_is_unknown() -> None:
    """A paste that ends in NV1 may have said NV18."""
    whole = link_paste(2, nvswitch)
    cut = whole[: whole.index("NV18") + 3]
    topology = read_topology(cut)
    assert topology.link(0, 1).link_class is LinkClass.UNKNOWN


@pytest.mark.parametrize("command", ["nvidia-smi topo -mp", "nvidia-smi topo --matrix_pci"])
def test_pcie_view_denies_nothing(command: str) -> None:
    """`topo -mp` prints the PCIe path of every pair, so it cannot show that there is no NVLink."""
    topology = read_topology(f"$ {command}\n" + link_paste(2, lambda a, b: "SYS"))
    assert topology.link(0, 1).link_class is LinkClass.SYS
    assert topology.link_of((0, 1)) is None
    assert any("does not print NVLink" in warning for warning in topology.warnings)


def test_pcie_view_does_not_weaken_the_link_matrix() -> None:
    """`-m` and `-mp` in one paste: the NVLinks of `-m` stand."""
    pcie = link_paste(4, lambda a, b: "SYS")
    topology = read_topology(f"$ nvidia-smi topo -m\n{BRIDGED}\n$ nvidia-smi topo -mp\n{pcie}")
    assert upper_triangle(topology) == BRIDGED_MATRIX


def test_links_and_several_peer_matrices() -> None:
    """Each status matrix is kept under the capability its command names."""
    text = f"nvidia-smi topo -m\n{BRIDGED}" + "".join(
        peer_paste(4, lambda a, b, status=status: status, f"$ nvidia-smi topo -p2p {letter}")
        for letter, status in (("r", "OK"), ("w", "CNS"), ("a", "GNS"))
    )
    topology = read_topology(text)
    assert upper_triangle(topology) == BRIDGED_MATRIX
    assert [matrix.capability for matrix in topology.peer_matrices] == [
        PeerCapability.READ,
        PeerCapability.WRITE,
        PeerCapability.ATOMICS,
    ]
    assert topology.peer_status(PeerCapability.WRITE, 0, 3) is PeerStatus.CNS
    assert topology.peer_access(0, 3) is False


def test_nvlink_that_its_own_status_denies_is_not_claimed() -> None:
    """`-m` NV18 with `-p2p n` NS: the fabric is down."""
    topology = read_topology(link_paste(4, nvswitch) + peer_paste(4, lambda a, b: "NS", "topo -p2p n"))
    assert fabric_pairs(topology) == set()
    assert any("fabric manager" in warning for warning in topology.warnings)


def test_nvlink_status_alone_shows_nvlink_without_a_count() -> None:
    """`-p2p n` OK is the driver's own word for NVLink between a pair."""
    topology = read_topology(peer_paste(2, lambda a, b: "OK", "$ nvidia-smi topo -p2p n"))
    assert topology.link(0, 1).link_class is LinkClass.NVLINK
    assert topology.link(0, 1).nvlinks is None


def test_nvlink_status_does_not_overrule_a_printed_path() -> None:
    """`-m` SYS and `-p2p n` OK contradict: SYS is taken."""
    topology = read_topology(BRIDGED + peer_paste(4, lambda a, b: "OK", "topo -p2p n"))
    assert fabric_pairs(topology) == {(0, 1), (2, 3)}


def test_pcie_status_does_not_deny_nvlink() -> None:
    """`-p2p p` prints NS on machines whose peers talk over NVLink."""
    topology = read_topology(link_paste(2, nvswitch) + peer_paste(2, lambda a, b: "NS", "topo -p2p p"))
    assert topology.peer_access(0, 1) is True


def test_mig_slices_form_no_group() -> None:
    """The matrix prints the parent GPUs; slices have no links."""
    listing = "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n"
    topology = read_topology(listing + BRIDGED)
    assert topology.mig
    assert topology.fabric_groups == ()
    assert topology.tensor_parallel_sizes.powers_of_two == (1,)


AMD_SMI = [
    {
        "gpu": a,
        "bdf": f"0000:{a}1:00.0",
        "links": [
            {
                "gpu": b,
                "bdf": f"0000:{b}1:00.0",
                "weight": 0 if a == b else 15,
                "link_status": "ENABLED",
                "link_type": "SELF" if a == b else "XGMI" if a // 2 == b // 2 else "PCIE",
                "num_hops": 0 if a == b else 1 if a // 2 == b // 2 else 3,
            }
            for b in range(4)
        ],
    }
    for a in range(4)
]


def amd_pairs_joined(topology: Topology) -> bool:
    return topology.vendor is Vendor.AMD and upper_triangle(topology) == "XGMI PCIE PCIE\nPCIE PCIE\nXGMI"


def test_amd_smi_json() -> None:
    """`amd-smi topology --json`, with the command in front, and with the commas its manual leaves behind."""
    text = "$ amd-smi topology --json\n" + json.dumps(AMD_SMI, indent=4)
    topology = read_topology(text)
    assert amd_pairs_joined(topology)
    assert (topology.link(0, 1).weight, topology.link(0, 2).hops) == (15, 3)
    assert amd_pairs_joined(read_topology(text.replace("}", "},").replace("},,", "},")[:-1] + "]"))


def test_amd_smi_json_before_rocm_6_4() -> None:
    """Formerly one object of gpu_0, gpu_1 ... per quantity."""
    old = [
        {
            "gpu": entry["gpu"],
            "link_accessibility": {f"gpu_{link['gpu']}": "DISABLED" for link in entry["links"]},
            "hops": {f"gpu_{link['gpu']}": link["num_hops"] for link in entry["links"]},
            "link_type": {f"gpu_{link['gpu']}": link["link_type"] for link in entry["links"]},
        }
        for entry in AMD_SMI
    ]
    topology = read_topology(json.dumps(old))
    assert topology.link(0, 2).link_class is LinkClass.PCIE
    assert topology.link(0, 1).link_class is LinkClass.UNKNOWN, "XGMI whose access is disabled is not claimed"
    assert topology.peer_access(0, 2) is False


def test_rocm_smi_json() -> None:
    """`rocm-smi --showtopo --json` prints each pair once."""
    system = {}
    for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        near = a // 2 == b // 2
        system[f"(Topology) Weight between DRM devices {a} and {b}"] = "15" if near else "72"
        system[f"(Topology) Hops between DRM devices {a} and {b}"] = "1" if near else "3"
        system[f"(Topology) Link type between DRM devices {a} and {b}"] = "XGMI" if near else "PCIE"
    cards = {f"card{gpu}": {"(Topology) Numa Node": str(gpu // 2), "(Topology) Numa Affinity": "0"} for gpu in range(4)}
    topology = read_topology(json.dumps({"system": system, **cards}))
    assert amd_pairs_joined(topology)
    assert topology.numa_nodes == (0, 0, 1, 1)
    assert topology.link(0, 3).weight == 72


def test_xgmi_over_several_hops_is_no_direct_link() -> None:
    """vLLM counts XGMI only at one hop."""
    text = (
        "Hops between two GPUs ==\n GPU0 GPU1\nGPU0 0 2\nGPU1 2 0\n"
        "Link Type between two GPUs ==\n GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n"
    )
    topology = read_topology(text)
    assert topology.link(0, 1).link_class is LinkClass.XGMI
    assert topology.fabric_groups == ()


NOT_UNDERSTOOD = {
    "nothing": "",
    "prose": "GPU0 and GPU1 are joined by NVLink, GPU2 is not.",
    "a legend": "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n  NV#  = NVLinks\n",
    "a header alone": "\tGPU0\tGPU1\tCPU Affinity\n",
    "nvidia-smi -L": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n",
    "two machines of one size": link_paste(4, nvswitch) + "\nnode2:\n" + link_paste(4, lambda a, b: "SYS"),
    "two machines of two sizes": link_paste(4, nvswitch) + "\n" + link_paste(8, nvswitch),
    "two vendors": link_paste(4, nvswitch) + "\n" + paste(40),
    "links of one machine, peers of another": link_paste(2, nvswitch) + peer_paste(4, lambda a, b: "OK", "topo -p2p r"),
    "JSON that is cut": json.dumps(AMD_SMI)[:-30],
    "JSON that lacks a GPU": json.dumps(AMD_SMI[:3]),
    "deep JSON": "[" * 100_000 + '"link_type"',
    "too many GPUs": link_paste(65, nvswitch),
    "too long": " " * 200_000,
    "a number no machine has": "GPU" + "9" * 5000 + " X NV4\n",
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_refused(name: str) -> None:
    """What cannot be read without guessing is refused with a sentence, never with a crash."""
    with pytest.raises(TopologyNotUnderstood, match=r"\w+ \w+"):
        read_topology(NOT_UNDERSTOOD[name])
