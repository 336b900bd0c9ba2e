"""Which GPUs belong together, what vLLM's all-reduce makes of them, which split suits the links."""

from collections.abc import Callable

import pytest

from service.sizing.hardware import Link
from service.sizing.topology import (
    LinkClass,
    Split,
    Topology,
    custom_all_reduce,
    nccl_p2p_disable,
    read_topology,
    splits,
)

from .topology_pastes import link_paste, paste, peer_paste


def sample(number: int) -> Topology:
    return read_topology(paste(number))


def machine(count: int, link: Callable[[int, int], str], peers: str = "") -> Topology:
    return read_topology(link_paste(count, link) + peers)


def read_status(count: int, status: str) -> str:
    return peer_paste(count, lambda a, b: status, "$ nvidia-smi topo -p2p r")


def shapes(found: tuple[Split, ...]) -> list[tuple[int, int]]:
    return [(split.tensor_parallel_size, split.pipeline_parallel_size) for split in found]


@pytest.mark.parametrize(
    ("number", "size", "devices"),
    [
        (1, 2, (0, 3)),  # a pair of two NVLinks before the pairs of one
        (1, 4, (0, 1, 2, 3)),
        (10, 2, (0, 1)),  # the bridged pair
        (15, 2, (0, 1)),  # one socket
        (21, 2, (0, 1)),  # one PCIe switch
        (21, 4, (0, 1, 2, 3)),  # one socket
        (27, 4, (2, 3, 4, 5)),  # PXB throughout; with the bridged pair some pairs would be PHB
        (27, 6, (0, 1, 2, 3, 4, 5)),  # every six cross PHB; these keep the bridge
        (30, 2, (1, 2)),  # GPU0 is alone on its NUMA node
        (42, 4, (0, 1, 2, 3)),
        (52, 4, (0, 1, 2, 3)),  # all SYS, but one NUMA node
    ],
)
def test_devices_for_a_size(number: int, size: int, devices: tuple[int, ...]) -> None:
    """The set whose worst pair is the closest, then the NUMA node, then the lowest."""
    assert sample(number).devices_for(size) == devices


def test_devices_of_one_numa_node_stand_together() -> None:
    """Where GPUs alternate between sockets the visible order does not."""
    text = link_paste(4, lambda a, b: "NV18", numa=lambda gpu: str(gpu % 2))
    assert read_topology(text).devices_for(4) == (0, 2, 1, 3)


@pytest.mark.parametrize("size", [0, -1, 5])
def test_size_that_does_not_fit(size: int) -> None:
    """The error names the size and what the topology offers."""
    with pytest.raises(ValueError, match=rf"{size} does not fit: the topology offers 4 GPUs, so 1 to 4"):
        sample(16).devices_for(size)


def test_unknown_gpu() -> None:
    """An index that the paste does not show is refused by name."""
    with pytest.raises(ValueError, match="GPU 7 is not in the topology, which has 0, 1, 2"):
        sample(10).link(0, 7)


def test_visible_devices() -> None:
    """CUDA must be told to count as nvidia-smi does; HIP has its own variable."""
    assert sample(16).visible_devices((2, 3)) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert sample(40).visible_devices((0, 1)) == {"HIP_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize(
    ("number", "powers_of_two", "others"),
    [(1, (1, 2, 4), (3,)), (8, (1, 2, 4, 8), (3, 5, 6, 7)), (15, (1,), ()), (28, (1, 2), ())],
)
def test_tensor_parallel_sizes(number: int, powers_of_two: tuple[int, ...], others: tuple[int, ...]) -> None:
    """Sizes up to the largest group, the usual ones apart."""
    sizes = sample(number).tensor_parallel_sizes
    assert (sizes.powers_of_two, sizes.others) == (powers_of_two, others)


def groups(count: int, edges: dict[tuple[int, int], str]) -> list[tuple[int, ...]]:
    topology = machine(count, lambda a, b: edges.get((min(a, b), max(a, b)), "SYS"))
    return [group.gpus for group in topology.fabric_groups]


def test_groups_of_a_ring_take_the_wider_links() -> None:
    """Four GPUs in a ring of NV1 and NV2 split into the NV2 pairs."""
    assert groups(4, {(0, 1): "NV1", (1, 2): "NV2", (2, 3): "NV1", (0, 3): "NV2"}) == [(0, 3), (1, 2)]


def test_groups_leave_no_partner_behind() -> None:
    """On the path 2-0-1-3 the middle pair would strand both ends."""
    assert groups(4, {(0, 2): "NV4", (0, 1): "NV4", (1, 3): "NV4"}) == [(0, 2), (1, 3)]


def test_groups_of_three_and_a_pair() -> None:
    """A triangle with a tail keeps the triangle."""
    assert groups(5, {(0, 1): "NV2", (0, 2): "NV2", (1, 2): "NV2", (2, 3): "NV2", (3, 4): "NV2"}) == [(0, 1, 2), (3, 4)]


def test_weakest_link_of_a_group() -> None:
    """A group is as fast as its farthest pair."""
    bridged = sample(28)
    assert bridged.link_of((0, 1)) is Link.NVLINK
    assert bridged.weakest((0, 1, 2)).link_class is LinkClass.SYS
    assert bridged.link_of((0, 1, 2)) is Link.PCIE
    assert bridged.link_of((0,)) is None
    assert sample(40).link_of((0, 1, 2, 3)) is Link.XGMI
    assert sample(32).link_of((0, 6, 7)) is None


def nvlink(a: int, b: int) -> str:
    return "NV12"


def pcie(a: int, b: int) -> str:
    return "PHB"


# World size, links, peer status or nothing, amd_gfx -> verdict: vLLM 0.33 custom_all_reduce.py, read line by line.
@pytest.mark.parametrize(
    ("topology", "count", "enabled", "words"),
    [
        (machine(1, nvlink), 1, False, "nothing to reduce"),
        (machine(2, nvlink), 2, True, "NVLink"),
        (machine(3, nvlink), 3, False, "2, 4, 6, 8, 16 GPUs, not 3"),
        (machine(4, nvlink), 4, True, "NVLink"),
        (machine(5, nvlink), 5, False, "not 5"),
        (machine(6, nvlink), 6, True, "NVLink"),
        (machine(7, nvlink), 7, False, "not 7"),
        (machine(8, nvlink), 8, True, "NVLink"),
        (machine(16, nvlink), 16, False, "through NCCL above 8"),
        (machine(2, nvlink, read_status(2, "NS")), 2, False, "denies access"),
        (machine(2, pcie, read_status(2, "OK")), 2, True, "peer access"),
        (machine(2, pcie, read_status(2, "CNS")), 2, False, "denies access"),
        (machine(2, pcie), 2, None, "topo -p2p r"),
        (machine(4, pcie, read_status(4, "OK")), 4, False, "weakest pair is PHB"),
        (machine(4, pcie), 4, False, "more than two GPUs"),
        (sample(28), 4, False, "weakest pair is SYS"),
        (sample(36), 2, True, "peer access"),
        (sample(36), 8, None, "does not show"),
        (sample(37), 2, True, "peer access"),
        (sample(26), 2, False, "denies access"),
    ],
)
def test_custom_all_reduce(topology: Topology, count: int, enabled: bool | None, words: str) -> None:
    """On, off, or not to be told from the paste, and the reason."""
    verdict = custom_all_reduce(topology, topology.devices_for(count))
    assert verdict.enabled is enabled
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("topology", "count", "message"),
    [
        (
            machine(3, nvlink),
            3,
            (
                "Custom allreduce is disabled due to an unsupported world size: 3. "
                "Supported world sizes: [2, 4, 6, 8, 16]."
            ),
        ),
        (sample(21), 4, "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs."),
        (
            sample(26),
            2,
            ("Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed."),
        ),
    ],
)
def test_the_engines_own_words(topology: Topology, count: int, message: str) -> None:
    """The line that vLLM will log."""
    found = custom_all_reduce(topology, topology.devices_for(count)).engine_message
    assert found is not None
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("number", "gfx", "enabled"),
    [(40, "gfx942", True), (48, "gfx950", True), (40, "gfx90a", False), (40, None, None), (43, "gfx942", False)],
)
def test_custom_all_reduce_on_amd(number: int, gfx: str | None, enabled: bool | None) -> None:
    """MI300 and newer, every pair in one XGMI hop; the paste does not name the card."""
    topology = sample(number)
    assert custom_all_reduce(topology, topology.gpus, gfx).enabled is enabled


def test_two_amd_gpus_over_pcie() -> None:
    """vLLM asks for no peer test on AMD, so a PCIe pair of MI300 has it."""
    topology = sample(43)
    assert custom_all_reduce(topology, (0, 1), "gfx942").enabled is True


def test_nccl_p2p_disable() -> None:
    """Never with NVLink; pointless where peers are denied; elsewhere a repair for a named symptom, at a price."""
    joined = nccl_p2p_disable(sample(8), range(8))
    denied = nccl_p2p_disable(sample(26), (0, 1))
    plain = nccl_p2p_disable(sample(37), (0, 1, 2, 3))
    single = nccl_p2p_disable(sample(8), (0,))
    assert (joined.helps, denied.helps, plain.helps, single.helps) == (False, False, None, False)
    assert "many times slower" in joined.cost
    assert "already copies through host memory" in denied.reason
    assert "hangs" in plain.reason
    assert "--disable-custom-all-reduce" in plain.cost


@pytest.mark.parametrize(
    ("topology", "count", "expected"),
    [
        (sample(8), 8, [(8, 1)]),
        (sample(8), 2, [(2, 1)]),
        (sample(1), 8, [(4, 2), (8, 1)]),
        (sample(1), 4, [(4, 1)]),
        (sample(28), 4, [(2, 2), (4, 1)]),
        (sample(42), 8, [(4, 2), (8, 1)]),
        (sample(15), 4, [(1, 4), (2, 2), (4, 1)]),
        (sample(15), 3, [(1, 3), (3, 1)]),
        (sample(26), 2, [(1, 2), (2, 1)]),
        (sample(37), 2, [(2, 1), (1, 2)]),
        (sample(37), 1, [(1, 1)]),
        (machine(4, pcie, read_status(4, "NS")), 4, [(1, 4), (4, 1)]),
    ],
)
def test_splits(topology: Topology, count: int, expected: list[tuple[int, int]]) -> None:
    """Tensor parallelism inside groups, pipeline stages across; on PCIe alone stages of one GPU first."""
    assert shapes(splits(topology, count)) == expected


def test_split_keeps_each_stage_in_its_group() -> None:
    """Each run of tensor-parallel-size devices is one group."""
    best, all_over = splits(sample(1), 8)
    assert best.devices == (0, 1, 2, 3, 4, 5, 6, 7)
    assert best.link is Link.NVLINK
    assert best.custom_all_reduce.enabled is True
    assert all_over.link is Link.PCIE
    assert all_over.custom_all_reduce.enabled is False
    _, switches, _ = splits(sample(20), 4)
    assert switches.devices == (0, 1, 2, 3)


def test_two_gpus_with_peer_access_reduce_over_pcie() -> None:
    """vLLM's own all-reduce works on a PCIe pair, so tensor parallelism is offered first."""
    best, _ = splits(sample(37), 2)
    assert best.custom_all_reduce.enabled is True
    assert best.link is Link.PCIE


def test_mig_slices_are_used_one_by_one() -> None:
    """A size above 1 is refused on MIG slices."""
    text = "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n" + link_paste(4, nvlink)
    topology = read_topology(text)
    assert topology.devices_for(1) == (0,)
    assert custom_all_reduce(topology, (0, 1)).enabled is False
    with pytest.raises(ValueError, match="MIG slices have no peer access"):
        splits(topology, 2)


@pytest.mark.parametrize("chance", [3, 5, 7])
def test_a_large_irregular_machine_is_split_in_bounded_time(chance: int) -> None:
    """Sixty-four GPUs with holes everywhere: groups are still complete and disjoint."""
    topology = machine(64, lambda a, b: "SYS" if (a * b) % chance == 1 else "NV4")
    found = topology.fabric_groups
    assert len({gpu for group in found for gpu in group.gpus}) == sum(len(group.gpus) for group in found)
    assert all(group.nvlinks_least == 4 for group in found)
