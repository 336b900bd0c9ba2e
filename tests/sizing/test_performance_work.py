"""What a step reads, multiplies and sends, against arithmetic on published shapes."""

import pytest

from service.sizing.layouts import Layout
from service.sizing.model.schemes import Compute
from service.sizing.performance.work import AttentionWork, StageWork, stage_work
from tests.sizing.performance_cases import model

LLAMA_LAYER = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
"""Weights of one layer of Llama 70B: query, key and value; output; gate, up and down."""


def work(name: str, layout: Layout | None = None, dtype: str = "auto") -> StageWork:
    """The only stage of a layout without a pipeline."""
    (stage,) = stage_work(model(name), layout or Layout(), dtype, True)
    return stage


def test_tensor_ranks_share_the_weights_of_a_dense_model() -> None:
    """Each of two ranks reads and multiplies half of 80 layers, and half of the head."""
    stage = work("llama-70b-bf16", Layout(2))
    (dense,) = stage.dense
    assert dense.read_bytes == 80 * LLAMA_LAYER // 2 * 2
    assert dense.flops_per_token == 80 * LLAMA_LAYER // 2 * 2
    assert (stage.head_bytes, stage.head_flops) == (128256 * 8192, 128256 * 8192)


def test_fp8_halves_the_bytes_and_names_the_type_it_multiplies_in() -> None:
    """One byte a weight and a float32 scale an output, computed in FP8."""
    (dense,) = work("llama-70b").dense
    outputs = 8192 + 2 * 1024 + 8192 + 2 * 28672 + 8192
    assert dense.read_bytes == 80 * (LLAMA_LAYER + 4 * outputs)
    assert dense.format.compute is Compute.FP8


def test_two_all_reduces_a_layer() -> None:
    """After attention and after the MLP, where tensors are split; none on a single rank."""
    assert work("llama-70b", Layout(4)).all_reduces == 160
    assert work("deepseek-v3", Layout(8)).all_reduces == 122
    assert work("llama-70b").all_reduces == 0


def test_a_cached_token_of_grouped_attention() -> None:
    """Keys and values of 8 heads of 128 in 80 layers at 16 bits; four ranks keep two heads each; FP8 halves them."""
    (attention,) = work("llama-70b", Layout(4)).attention
    assert attention.token_bytes == 80 * 2 * 2 * 128 * 2
    assert attention.decode_flops == 80 * 4 * 16 * 128
    (halved,) = work("llama-70b", Layout(4), "fp8").attention
    assert halved.token_bytes == attention.token_bytes / 2


def test_a_latent_cache_is_read_whole_by_every_rank() -> None:
    """512 + 64 elements in 61 layers; each of 16 heads scores with all and sums up 512 of them."""
    (attention,) = work("deepseek-v3", Layout(8)).attention
    assert attention.token_bytes == 61 * 576 * 2
    assert attention.decode_flops == 61 * 2 * 16 * (2 * 512 + 64)


def test_ranks_that_share_a_latent_cache_by_tokens_read_less() -> None:
    """Decode context parallelism divides what a rank reads."""
    (attention,) = work("deepseek-v3", Layout(8, decode_context_parallel_size=8)).attention
    assert attention.token_bytes == 61 * 576 * 2 / 8


def test_windows_are_counted_apart() -> None:
    """Half of gpt-oss's 36 layers see 128 tokens, the other half all."""
    spans = {each.span: each.token_bytes for each in work("gpt-oss-120b").attention}
    assert spans == {128: 18 * 2 * 8 * 64 * 2, None: 18 * 2 * 8 * 64 * 2}


def test_experts_are_kept_apart_from_what_every_token_reads() -> None:
    """58 layers of 256 experts of three 7168 x 2048 matrices, of which a token visits 8; spread over 8 ranks."""
    (experts,) = work("deepseek-v3", Layout(8, expert_parallel=True)).experts
    one = 3 * 7168 * 2048
    assert experts.read_bytes == 58 * 32 * one * 2
    assert experts.flops_per_token == 58 * 8 * one * 2 / 8
    assert (experts.count, experts.active, experts.visits) == (256, 8, 58 * 8)


def test_copies_that_share_experts_exchange_tokens_instead_of_reducing() -> None:
    """With two copies, 58 expert layers exchange; 61 attentions and 3 dense MLPs still reduce over tensor ranks."""
    stage = work("deepseek-v3", Layout(4, data_parallel_size=2))
    assert (stage.exchanges, stage.all_reduces) == (58, 64)


def test_stages_share_the_layers_and_the_last_has_the_head() -> None:
    """Two stages of 40 layers."""
    first, last = stage_work(model("llama-70b"), Layout(1, 2), "auto", True)
    assert first.blocks.layers == last.blocks.layers == 40
    assert (first.head_bytes, last.head_bytes) == (0, 128256 * 8192 * 2)


@pytest.mark.parametrize(
    ("span", "tokens", "pairs"),
    [(None, 1000, 500_000), (128, 1000, 128 * 128 / 2 + 872 * 128), (128, 100, 5000)],
)
def test_pairs_of_a_prompt(span: int | None, tokens: int, pairs: float) -> None:
    """Half the square of a prompt; with a window, each token beyond it sees the window alone."""
    assert AttentionWork(1, span, 1, 1).prompt_pairs(tokens) == pairs
