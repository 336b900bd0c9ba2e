"""Seconds of the parts of a step, against arithmetic on round numbers."""

from math import hypot

import pytest

from service.sizing.hardware import Link
from service.sizing.layouts import Layout
from service.sizing.model.schemes import Compute
from service.sizing.performance.collectives import WORST_PCIE, all_reduce, handoff
from service.sizing.performance.costs import ExpertCost, StageCost, stage_costs
from service.sizing.performance.parameters import FITTED, VLLM, Parameters, vllm
from tests.sizing.performance_cases import GPUS, gpu, model

BARE = Parameters(weight_read=0.8, expert_read=0.5, cache_read=0.4)


def cost(name: str, card: str, layout: Layout | None = None, parameters: Parameters = FITTED) -> StageCost:
    """The only stage of a layout without a pipeline."""
    card_ = GPUS[card]
    (stage,) = stage_costs(model(name), layout or Layout(), card_, card_.link, 8, "auto", VLLM, None, parameters)
    return stage


def test_weights_are_read_at_a_share_of_the_rated_bandwidth() -> None:
    """Two bytes for each weight of 80 layers over 3.35 TB/s x 0.8."""
    weights = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672)
    assert cost("llama-70b-bf16", "h100-sxm", parameters=BARE).dense_read_s == pytest.approx(
        2 * weights / (3350e9 * 0.8)
    )


def test_a_card_without_fp8_widens_and_multiplies_in_16_bits() -> None:
    """An A100 does 312 TFLOP/s on FP8 weights; an H100 1979 at the share of FP8."""
    weights = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672)
    sixteen, eight = (FITTED.dense_flops[compute] for compute in (Compute.SIXTEEN_BIT, Compute.FP8))
    assert cost("llama-70b", "a100-sxm4-80gb").dense_token_s == pytest.approx(2 * weights / (312e12 * sixteen))
    assert cost("llama-70b", "h100-sxm").dense_token_s == pytest.approx(2 * weights / (1979e12 * eight))


def test_integers_that_are_widened_have_a_ceiling() -> None:
    """Reading INT4 takes both the memory's time and that of 3.24 TB/s of widening."""
    stage = cost("llama-70b-int4", "h200-sxm")
    weights = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672)
    # Half a byte a weight, a 16-bit scale for 128, and the shape before packing: two int64 for each of 4 matrices.
    stored = weights / 2 + weights / 128 * 2 + 80 * 4 * 16
    expected = hypot(stored / (4800e9 * FITTED.weight_read), stored / 3.24e12)
    assert stage.dense_read_s == pytest.approx(expected)


def test_experts_are_read_as_they_are_visited() -> None:
    """One token reads 4 of 128; 128 tokens 98 %, as 1 - (124/128)^128; a second copy counts like more tokens."""
    experts = ExpertCost(read_s=1.0, token_s=0.0, passed_by=-0.031748698314580301, copies=1)  # log(124 / 128)
    assert experts.seconds(1) == pytest.approx(4 / 128)
    assert experts.seconds(128) == pytest.approx(1 - (124 / 128) ** 128)
    twice = ExpertCost(1.0, 0.0, experts.passed_by, copies=2)
    assert twice.seconds(64) == pytest.approx(experts.seconds(128))


def test_a_kernel_waits_for_memory_or_multipliers_and_a_little_for_both() -> None:
    """3 s of reading and 4 s of multiplying take 5 s."""
    experts = ExpertCost(read_s=3.0, token_s=4.0, passed_by=-50.0, copies=1)
    assert experts.seconds(1) == pytest.approx(5.0)


def test_launches_are_counted_by_blocks() -> None:
    """80 attentions and MLPs with quantised activations, on Hopper as fitted, on Blackwell a share of it."""
    hopper = 80 * (FITTED.mixer_s + FITTED.mlp_s + FITTED.quantised_s)
    assert cost("llama-70b", "h100-sxm").fixed_s == pytest.approx(hopper + VLLM.step_s)
    assert cost("llama-70b", "b200-sxm").fixed_s == pytest.approx(hopper * VLLM.blackwell + VLLM.step_s)


def test_weights_alone_quantise_no_activations() -> None:
    """gpt-oss multiplies in 16 bits, and FP8 weights do on a card without FP8."""
    blocks = 36 * (FITTED.mixer_s + FITTED.experts_s)
    assert cost("gpt-oss-120b", "h100-sxm").fixed_s == pytest.approx(blocks + VLLM.step_s)
    dense = 80 * (FITTED.mixer_s + FITTED.mlp_s)
    assert cost("llama-70b", "a100-sxm4-80gb").fixed_s == pytest.approx(dense + VLLM.step_s)


def test_steps_with_prompts_launch_again() -> None:
    """One and a half times in piecewise graphs; the first engine had none of these."""
    stage = cost("llama-70b", "h100-sxm")
    assert stage.prompt_fixed_s == pytest.approx(1.5 * stage.fixed_s)
    assert vllm("0.7.3").prompt_step == 2.62
    assert vllm("0.7.3").sequence_s > vllm("0.8.5").sequence_s == VLLM.sequence_s


def test_the_first_engine_took_longer() -> None:
    """vLLM 0.7 pays 2.5 ms a step; releases since 0.8, unknown ones and none given do not."""
    assert vllm("0.7.3").step_s == pytest.approx(VLLM.step_s + 2.5e-3)
    assert vllm("0.8.5") is vllm("0.33.0") is vllm("main") is vllm(None) is VLLM


@pytest.mark.parametrize(
    ("card", "ranks", "megabytes", "measured_us"),
    [
        ("a100-sxm4-80gb", 8, 512, 4223.0),
        ("h200-sxm", 2, 512, 1686.9),
        ("h200-sxm", 8, 512, 2035.0),
        ("b200-sxm", 4, 512, 1291.2),
    ],
)
def test_large_all_reduces_take_what_was_measured(card: str, ranks: int, megabytes: int, measured_us: float) -> None:
    """vLLM's all-reduce of half a GiB on each class of NVLink (aiconfigurator-core 0.12.0)."""
    line = all_reduce(ranks, GPUS[card], Link.NVLINK, 8, start_factor=1)
    assert line.seconds(megabytes * 2**20) * 1e6 == pytest.approx(measured_us, rel=0.01)


@pytest.mark.parametrize(
    ("card", "ranks", "measured_us"), [("a100-sxm4-80gb", 4, 5.3), ("h200-sxm", 8, 4.8), ("b200-sxm", 8, 7.8)]
)
def test_small_all_reduces_take_their_start(card: str, ranks: int, measured_us: float) -> None:
    """The same of 4 KiB."""
    line = all_reduce(ranks, GPUS[card], Link.NVLINK, 8, start_factor=1)
    assert line.seconds(4096) * 1e6 == pytest.approx(measured_us, rel=0.05)


def test_a_slower_link_scales_the_bandwidth_of_the_nearest() -> None:
    """An NVLink of 200 GB/s is two thirds of an A100's, PCIe 4 half of PCIe 5."""
    h800 = gpu("h800-sxm", (9, 0), 3350, Link.NVLINK, 200, bf16=989)
    full, cut = (
        all_reduce(4, GPUS["a100-sxm4-80gb"], Link.NVLINK, 8, start_factor=1),
        all_reduce(4, h800, Link.NVLINK, 8, start_factor=1),
    )
    assert cut.bytes_per_s == pytest.approx(full.bytes_per_s * 2 / 3)
    assert all_reduce(2, GPUS["l40s"], Link.PCIE, 8, start_factor=1).bytes_per_s == pytest.approx(19.4e9)


def test_across_nodes_the_network_decides() -> None:
    """16 ranks of two nodes are slower than 8 of one, and a handoff between nodes than inside one."""
    card = GPUS["h100-sxm"]
    inside, across = (all_reduce(ranks, card, Link.NVLINK, 8, start_factor=1) for ranks in (8, 16))
    assert across.bytes_per_s < inside.bytes_per_s
    assert across.start_s > inside.start_s
    near, far = (handoff(Link.NVLINK, between_nodes=between) for between in (False, True))
    assert near.seconds(65536) < far.seconds(65536)


def test_the_worst_host_is_what_eight_l40s_measured_against_the_line() -> None:
    """512 MiB took four L40S 216 ms and eight 481 ms, without peer access between sockets."""
    four, eight = (all_reduce(ranks, GPUS["l40s"], Link.PCIE, 8, start_factor=1) for ranks in (4, 8))
    worst = max(216.162e-3 / four.seconds(2**29), 480.823e-3 / eight.seconds(2**29))
    assert worst == pytest.approx(WORST_PCIE, rel=0.05)
