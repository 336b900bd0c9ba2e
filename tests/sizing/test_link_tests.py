"""Measured link tests that move collectives: which, by how much, and what is said of them."""

from dataclasses import replace
from typing import Any

import pytest

from service.sizing.answer import Plan
from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.performance.collectives import AS_USUAL, Scale, all_reduce
from service.sizing.performance.link_tests import LinkTest, measured_links
from tests.sizing.performance_cases import GPUS
from tests.sizing.test_corrections import EIGHT, measured, served, tpot
from tests.sizing.test_plan import H100, L40S, ask, recommended

KIB, MIB = 1 << 10, 1 << 20

# NCCL 2.29 and 2.27 all-reduce, microseconds, from aiconfigurator-core 0.12.0.
H100_8 = {
    512: 15.6,
    32 * KIB: 18.4,
    512 * KIB: 20.1,
    8 * MIB: 78.9,
    32 * MIB: 199.8,
    128 * MIB: 578.7,
    512 * MIB: 2111.1,
}
L40S_8 = {512: 22.6, 32 * KIB: 90.3, 512 * KIB: 502.6, 8 * MIB: 9987.8, 32 * MIB: 38854.0, 512 * MIB: 649471.0}
L40S_4 = {512: 11.9, 32 * KIB: 20.1, 512 * KIB: 163.0, 8 * MIB: 2458.8, 32 * MIB: 9836.6, 512 * MIB: 156034.0}
# The same of vLLM's own all-reduce.
VLLM_L40S_8 = {32 * MIB: 30062.3, 512 * MIB: 480823.4}
VLLM_L40S_4 = {32 * MIB: 13598.0, 512 * MIB: 216162.2}

FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0, "sendrecv": None}
"""Of (n - 1) / n: bytes over the bus for each of a message (nccl-tests `doc/PERFORMANCE.md`)."""


def about(value: float, rel: float | None = None) -> Any:
    """A number to compare records with."""
    return pytest.approx(value, rel=rel)


def link_test(
    times_us: dict[int, float],
    *,
    ranks: int = 8,
    operation: str = "all_reduce",
    nodes: int = 1,
    link: Link | None = None,
    name: str = "a",
) -> LinkTest:
    """A link test with these times by size."""
    each = FACTORS[operation]
    factor = 1.0 if each is None else each * (ranks - 1) / ranks
    points = tuple((size, time * 1e-6) for size, time in times_us.items())
    return LinkTest(name, "a test", operation, link, ranks, nodes, factor, points)


def slower(times: float, times_us: dict[int, float] = H100_8) -> dict[int, float]:
    """The same machine so many times slower."""
    return {size: time * times for size, time in times_us.items()}


def scales(gpu: Gpu, layout: Layout, *tests: LinkTest, gpus_per_node: int = 8) -> dict[str, Scale]:
    """How the collectives that a layout uses are moved."""
    found = measured_links(gpu, gpu.link, gpus_per_node, layout, tests)
    return {} if found is None else {each.kind.value: each.scale for each in found.found}


def test_a_usual_machine_changes_nothing() -> None:
    """NCCL on H100 is held against H100 and H200 together; a published run of another machine is within 5 %."""
    scale = scales(H100, EIGHT, link_test(H100_8))["all_reduce"]
    assert scale.start == pytest.approx(1, abs=0.02)
    assert scale.rate == pytest.approx(1, abs=0.02)
    # nccl-tests on 8 x H100, published: 419.49 and 435.46 GB/s of bus bandwidth.
    elsewhere = link_test({256 * MIB: 1119.8, 512 * MIB: 2157.5})
    assert scales(H100, EIGHT, elsewhere)["all_reduce"].rate == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("ranks", "nccl", "vllm", "was", "left"),
    [(8, L40S_8, VLLM_L40S_8, 0.8, 0.45), (4, L40S_4, VLLM_L40S_4, 0.7, 0.5)],
)
def test_cards_across_sockets_take_what_nccl_took(
    ranks: int, nccl: dict[int, float], vllm: dict[int, float], was: float, left: float
) -> None:
    """L40S without peer access between sockets: the engine's time, which the test has not seen, is far closer."""
    gpu = GPUS["l40s"]
    usual = all_reduce(ranks, gpu, Link.PCIE, 8, start_factor=1)
    moved = usual.scaled(scales(gpu, Layout(ranks), link_test(nccl, ranks=ranks))["all_reduce"])
    for size, time_us in vllm.items():
        assert abs(usual.seconds(size) * 1e6 / time_us - 1) > was
        assert abs(moved.seconds(size) * 1e6 / time_us - 1) < left


def test_the_engines_own_kernels_share_part_of_a_longer_start() -> None:
    """Twice NCCL's usual 15.8 us: 2^0.6 on NVLink, where the engine sums by itself; all of it over PCIe."""
    assert scales(H100, EIGHT, link_test({512: 31.6}))["all_reduce"] == Scale(about(2**0.6), 1.0)
    assert scales(L40S, EIGHT, link_test({512: 48.4}))["all_reduce"] == Scale(about(2.0), 1.0)


def test_a_shorter_start_says_nothing_of_the_engines_own_kernels() -> None:
    """NCCL in CUDA graphs starts in half the time; the engine's kernels always run in them."""
    assert scales(H100, EIGHT, link_test({512: 7.9}))["all_reduce"].start == 1
    assert scales(L40S, EIGHT, link_test({512: 12.1}))["all_reduce"].start == pytest.approx(0.5)


def test_only_what_was_measured_is_moved() -> None:
    """Long messages tell no start, short ones no rate, those between neither."""
    long = {size: time for size, time in slower(2).items() if size >= 8 * MIB}
    assert scales(H100, EIGHT, link_test(long))["all_reduce"] == Scale(1.0, about(0.5, rel=0.02))
    short = {size: time for size, time in slower(2).items() if size <= 32 * KIB}
    assert scales(H100, EIGHT, link_test(short))["all_reduce"].rate == 1
    assert scales(H100, EIGHT, link_test({512 * KIB: 40.0})) == {}


def test_two_tests_may_tell_one_figure_each() -> None:
    """One of short and one of long messages together move both."""
    short, long = link_test({512: 31.6}), link_test({512 * MIB: 2 * 2075.4}, name="b")
    assert scales(H100, EIGHT, short, long)["all_reduce"] == Scale(about(2**0.6), about(0.5))


def test_each_doubling_halves_what_is_believed() -> None:
    """Four times as slow on four GPUs is twice as slow on eight; the group itself, where measured, counts alone."""
    four = link_test({512 * MIB: 4 * 2305.4}, ranks=4)
    assert scales(H100, EIGHT, four)["all_reduce"].rate == pytest.approx(0.5)
    own = link_test({512 * MIB: 2075.4 / 0.9}, name="b")
    assert scales(H100, EIGHT, four, own)["all_reduce"].rate == pytest.approx(0.9)


def test_pairs_and_larger_groups_tell_nothing_of_each_other() -> None:
    """A pair reaches each other directly; eight cards meet at the root of the host."""
    assert scales(L40S, Layout(2), link_test(L40S_8)) == {}
    assert scales(L40S, EIGHT, link_test({512: 60.0}, ranks=2)) == {}


def test_of_several_the_middle_one_counts() -> None:
    """Three machines of one kind."""
    tests = [link_test({512 * MIB: 2075.4 * times}, name=name) for name, times in (("a", 3), ("b", 1), ("c", 2))]
    assert scales(H100, EIGHT, *tests)["all_reduce"].rate == pytest.approx(0.5)


def test_another_link_or_the_network_tells_nothing_of_a_node() -> None:
    """PCIe, two nodes, and a rate that no NVLink of the card has."""
    for other in (
        link_test(slower(3), link=Link.PCIE),
        link_test(slower(3), nodes=2),
        link_test({512 * MIB: 2075.4 / 5}),
        link_test(slower(3), operation="alltoall"),
    ):
        assert scales(H100, EIGHT, other) == {}
    assert scales(H100, Layout(1), link_test(slower(3))) == {}


def test_between_nodes_the_test_replaces_the_assumed_network() -> None:
    """28 GB/s are assumed for a message of sixteen GPUs on two nodes; 140 were measured, and 80 us to start."""
    network = link_test({512: 80.0, 512 * MIB: 40.0 + 512 * MIB / 140e3}, ranks=16, nodes=2)
    scale = scales(H100, Layout(16), network)["all_reduce"]
    assert scale == Scale(about(2.0), about(5.0, rel=0.02))


def test_a_rack_is_not_a_network() -> None:
    """Sixteen GB300 in four trays are joined by NVLink."""
    rack = replace(H100, slug="gb300", link_bandwidth_bytes_per_s=900e9, gpus_per_domain=72, gpus_per_node=4)
    test = link_test({512 * MIB: 2 * 1617.8}, ranks=16, nodes=4)
    assert scales(rack, Layout(16), test, gpus_per_node=4)["all_reduce"].rate == pytest.approx(0.5)


def test_expert_ranks_exchange_by_gathering() -> None:
    """An all-gather of 512 MiB moves half the bytes of an all-reduce: 1,037.7 us are usual; other operations half."""
    layout = Layout(1, 1, 8, expert_parallel=True)
    gather = link_test({1024 * MIB: 2 * 2075.4}, operation="all_gather")
    assert scales(H100, layout, gather) == {"exchange": Scale(1.0, about(0.5))}
    sums = link_test({512 * MIB: 4 * 2075.4}, name="b")
    assert scales(H100, layout, sums) == {"exchange": Scale(1.0, about(0.5))}
    assert scales(H100, layout, gather, link_test(slower(9), name="b"))["exchange"].rate == pytest.approx(0.5)


def test_stages_hand_on_as_fast_as_was_measured() -> None:
    """Usual inside a node are 8 us and 230 GB/s, between nodes 18 us and 34 GB/s."""
    inside = link_test({1024: 12.0, 512 * MIB: 8.0 + 512 * MIB / 115e3}, ranks=4, operation="sendrecv")
    across = link_test({1024: 18.0, 512 * MIB: 18.0 + 512 * MIB / 17e3}, ranks=2, nodes=2, operation="sendrecv")
    assert scales(H100, Layout(1, 4), inside, across) == {"handoff": Scale(about(1.5), about(0.5, rel=0.01))}
    assert scales(H100, Layout(8, 2), inside, across) == {
        "handoff_between_nodes": Scale(about(1.0), about(0.5, rel=0.01))
    }
    assert set(scales(H100, Layout(4, 4), inside, across)) == {"handoff", "handoff_between_nodes"}


def linked(*tests: LinkTest, layout: Layout = EIGHT, **changes: Any) -> Plan:
    """Llama 70B on H100 whose links were tested."""
    return served(layout, link_tests={"h100": tests}, **changes)


def test_a_plan_takes_the_measured_links() -> None:
    """One conversation: 160 all-reduces of 16 KiB, each 2^0.6 times 4.78 us x 2.95 to start, at half of 264.4 GB/s."""
    test = link_test({512: 31.6, 512 * MIB: 2 * 2075.4})
    alone = {"layout": EIGHT, "sequences": 1, "memory_gib": None, "space_gib": None}
    plain, plan = (recommended(ask(**alone, link_tests=tests)) for tests in ({}, {"h100": (test,)}))
    start = 160 * 4.78e-6 * 2.95 * (2**0.6 - 1)
    rate = 160 * 16384 * (2 - 1) / 264.4e9
    assert tpot(plan) - tpot(plain) == pytest.approx((start + rate) * 1000, rel=1e-6)
    assert plain.links_calibration is None
    assert plan.links_calibration is not None
    (used,) = plan.links_calibration.tests
    assert (used.collective, used.id, used.operation, used.world_size, used.distance) == (
        "all_reduce",
        "a",
        "all_reduce",
        8,
        0,
    )
    assert (used.measured_start, used.measured_rate) == (pytest.approx(2.0), pytest.approx(0.5))
    assert (used.start_factor, used.rate_factor) == (pytest.approx(2**0.6), pytest.approx(0.5))
    assert plan.links_calibration.prediction_without.tpot_ms == pytest.approx(tpot(plain))
    assert plan.basis["latency.tpot_ms"].basis == plan.basis["throughput"].basis == "measured"
    assert "measured links: a" in plan.basis["latency.tpot_ms"].source
    assert any("1.52 times as long to start and moves 0.50 times" in reason for reason in plan.reasons)


def test_links_that_a_layout_does_not_use_are_not_named() -> None:
    """Tests of another card, and of a copy on one card."""
    assert served(link_tests={"l40s": (link_test(L40S_8),)}).links_calibration is None
    other = recommended(ask(gpu=L40S, layout=EIGHT, sequences=1, link_tests={"h100": (link_test(slower(3)),)}))
    assert other.links_calibration is None


def test_what_a_load_test_and_a_link_test_found_is_counted_once() -> None:
    """A load measured over the tested links is answered as measured; it is not stretched by the links again."""
    slow = link_test(slower(4))
    plain, moved = served(), linked(slow)
    times = tpot(moved) / tpot(plain)
    assert times > 1.2
    both = linked(slow, servings=(measured(times),))
    assert tpot(both) == pytest.approx(tpot(moved), rel=1e-6)
    assert both.times_calibration is not None
    assert both.times_calibration.prediction_without.tpot_ms == pytest.approx(tpot(moved))
    assert both.links_calibration is not None
    # Without the link test the load test alone explains all of it.
    assert both.links_calibration.prediction_without.tpot_ms == pytest.approx(tpot(both), rel=1e-6)


def test_a_load_test_of_the_package_ran_over_usual_links() -> None:
    """It took what is predicted over them, so it corrects nothing, and the tested links count in full."""
    slow, elsewhere = link_test(slower(4)), replace(measured(1.0), is_shipped=True)
    assert tpot(linked(slow, servings=(elsewhere,))) == pytest.approx(tpot(linked(slow)), rel=1e-6)


def test_another_layout_is_corrected_by_what_the_links_leave() -> None:
    """Four cards took what the tested links explain: nothing is left for eight."""
    slow = link_test(slower(4)), link_test(slower(4, {512: 9.4, 512 * MIB: 2305.4}), ranks=4, name="b")
    times = tpot(linked(*slow, layout=Layout(4))) / tpot(served(Layout(4)))
    sibling = measured(times, Layout(4))
    assert tpot(linked(*slow, servings=(sibling,))) == pytest.approx(tpot(linked(*slow)), rel=1e-6)


def test_a_measured_network_is_no_default() -> None:
    """The warning that the network is an InfiniBand default goes, and so does the note on hosts without peer access."""
    across = {"layout": Layout(8, 2), "sequences": 1}
    network = link_test({1024: 18.0, 512 * MIB: 15000.0}, ranks=2, nodes=2, operation="sendrecv")
    plain, plan = (recommended(ask(**across, link_tests=tests)) for tests in ({}, {"h100": (network,)}))
    assert any("InfiniBand default" in warning for warning in plain.warnings)
    assert not any("InfiniBand default" in warning for warning in plan.warnings)
    cards = {"gpu": L40S, "layout": Layout(8), "sequences": 1}
    plain, plan = (recommended(ask(**cards, link_tests=tests)) for tests in ({}, {"l40s": (link_test(L40S_8),)}))
    assert any("without peer" in note for note in plain.latency.notes)
    assert not any("without peer" in note for note in plan.latency.notes)


def test_scaling_by_one_is_the_same() -> None:
    """The usual link."""
    line = all_reduce(8, H100, Link.NVLINK, 8, start_factor=1)
    assert line.scaled(AS_USUAL) == line
