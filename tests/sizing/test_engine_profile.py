"""What each release of vLLM prints and fills in, against public startup logs and vLLM 0.33's own argument defaults."""

from typing import Any

import pytest

from service.sizing.engine.defaults import cuda_graph_sizes
from service.sizing.engine.profile import PROFILES, TokenLine, profile_for, release
from service.sizing.kv_cache.planner import plan_cache
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from service.sizing.quantities import GIB
from tests.sizing.cache_models import (
    DEVICES,
    attempt,
    delta_net,
    full,
    laid_out,
    latent,
    model,
    planned,
    refusal,
    window,
)

LLAMA_70B = model(*[(full(8, 128),)] * 80)
QWEN2_7B = model(*[(full(4, 128),)] * 28)
QWEN3_VL_30B = model(*[(full(4, 128),)] * 48)
QWEN35_35B = model(*[*[(delta_net(state_bytes=4),)] * 3, (full(2, 256),)] * 10)
GEMMA2_27B = model(*[(window(4096, 16, 128),), (full(16, 128),)] * 23, logit_softcap=True)
DEEPSEEK_R1 = model(*[(latent(),)] * 61)


@pytest.mark.parametrize(
    ("version", "shape", "gpu", "tensor", "options", "gib", "tokens", "concurrency"),
    [
        ("0.11.2rc1+rhai0.cuda", LLAMA_70B, "H200", 4, {"max_model_len": 8192}, 106.17, 1391552, 169.87),
        ("0.19.0", QWEN2_7B, "H100", 1, {"max_model_len": 8192}, 58.53, 1096000, 133.79),
        ("0.19.0", QWEN2_7B, "H100", 4, {"max_model_len": 8192}, 67.34, 5043280, 615.63),
        ("0.19.0", QWEN2_7B, "H100", 1, {"max_model_len": 8192, "kv_cache_dtype": "fp8"}, 58.53, 2192000, 267.58),
        ("0.19.0", GEMMA2_27B, "H100", 1, {"max_model_len": 8192}, 20.59, 58672, 7.16),
        ("0.18.0", QWEN35_35B, "H200", 1, {"max_model_len": 8192}, 89.92, 1178496, 405.82),
        ("0.18.0", QWEN35_35B, "H200", 1, {"max_model_len": 10000}, 89.92, 1178496, 343.38),
        ("0.20.0", LLAMA_70B, "H200", 4, {"max_model_len": 131072, "kv_cache_dtype": "fp8"}, 106.62, 2794992, 21.32),
        ("0.20.2", QWEN3_VL_30B, "H200", 1, {"max_model_len": 8192}, 66.76, 729136, 89.01),
    ],
)
def test_prints_what_startup_logs_show(
    version: str,
    shape: ModelShape,
    gpu: str,
    tensor: int,
    options: dict[str, Any],
    gib: float,
    tokens: int,
    concurrency: float,
) -> None:
    """Tokens and concurrency lie between those of the printed memory, which is rounded to a hundredth of a GiB.

    Sources: ashishkamra/vllm-memory-estimator (0.11.2, 0.18, 0.20) and jgchn/llm-d-planner (0.19).
    """
    layout = Layout(tensor_parallel_size=tensor)
    cache = laid_out(shape, gpu, layout, version=version, enable_prefix_caching=False, **options)
    low, high = (planned(cache, int((gib + error) * GIB)) for error in (-0.005, 0.005))
    assert low.tokens <= tokens <= high.tokens
    assert low.max_concurrency - 0.005 <= concurrency <= high.max_concurrency + 0.005


def test_hopper_read_latents_in_larger_blocks_until_0_16() -> None:
    """DeepSeek R1 on 8 H200, 10,000 tokens: 157 blocks of 64 at 0.16.0 (63.29 at once), 625 of 16 at 0.18.0."""
    eight = Layout(tensor_parallel_size=8)
    older, newer = (
        laid_out(DEEPSEEK_R1, "H200", eight, version=version, max_model_len=10000) for version in ("0.16.0", "0.18.0")
    )
    assert (older.block_size, newer.block_size) == (64, 16)
    assert (older.blocks_reserved(10000), newer.blocks_reserved(10000)) == (157, 625)


def test_the_first_v1_releases_keep_every_token_of_every_layer() -> None:
    """0.8.5: one group whatever the windows, blocks x 16 tokens, and the concurrency is tokens / context."""
    cache = laid_out(GEMMA2_27B, version="0.8.5", max_model_len=8192)
    plan = planned(cache, 20 * GIB)
    assert len(cache.groups) == 1
    assert plan.tokens == plan.num_blocks * 16
    assert plan.max_concurrency == plan.tokens / 8192


def test_a_hybrid_prints_far_fewer_tokens_before_0_20_1() -> None:
    """gpt-oss with 10 GiB: blocks // 2 groups x 16 at 0.20.0; concurrency x context at 0.20.1."""
    shape = model(*[(window(128, 8, 64),), (full(8, 64),)] * 18, attention_sinks=True)
    before, after = (planned(laid_out(shape, version=version), 10 * GIB) for version in ("0.20.0", "0.20.1"))
    assert before.tokens == 18204 // 2 * 16
    assert after.tokens == int(after.max_concurrency * 131072)
    assert before.max_concurrency == after.max_concurrency


def test_one_step_is_reserved_before_0_33() -> None:
    """The window of 128 beside 8,192 tokens in flight at 0.20.2, beside 16,384 at 0.33."""
    shape = model(*[(window(128, 8, 64),), (full(8, 64),)] * 18)
    older, newer = (
        laid_out(shape, version=version).group_blocks_reserved(131072)[0] for version in ("0.20.2", "0.33.0")
    )
    assert (older, newer) == (521, 1033)


def test_no_block_is_held_back_before_0_33() -> None:
    """A request that takes the whole pool starts at 0.20.2 and is refused at 0.33, each in its own words."""
    older, newer = (laid_out(model((full(),)), version=version, max_model_len=1600) for version in ("0.20.2", "0.33.0"))
    memory = 100 * older.block_bytes[0]
    assert planned(older, memory).num_blocks == 100
    assert "the model's max seq len (1600)" in refusal(plan_cache(newer, [memory]))
    assert "the models's max seq len (1600)" in refusal(plan_cache(older, [memory - 1]))


@pytest.mark.parametrize(
    ("version", "named", "warned"),
    [
        (None, "0.33.0", False),
        ("0.33.0", "0.33.0", False),
        ("v0.33.1", "0.33.0", False),
        ("0.8.5.post1", "0.8.5", False),
        ("0.19.1.dev6+g6d4a8e6d2", "0.19.0", False),
        ("0.20.1rc1.dev16+g7a1eb8ac2", "0.20.0", False),
        ("0.20.2rc1.dev9", "0.20.2", False),
        ("0.10.1", "0.16.0", True),
        ("0.6.6", "0.8.5", True),
        ("0.21.0", "0.20.2", True),
        ("0.26.0", "0.20.2", True),
        ("0.28.0", "0.33.0", True),
        ("1.0.0", "0.33.0", True),
        ("latest", "0.33.0", True),
    ],
)
def test_a_release_takes_its_own_rules_or_the_nearest_and_says_so(
    version: str | None, named: str, warned: bool
) -> None:
    """Pre-releases count as the release before; releases that were not read are answered with a warning."""
    profile, warning = profile_for(version)
    assert (profile.version, warning is not None) == (named, warned)


def test_profiles_follow_each_other() -> None:
    """Ranges of releases are in order and apart."""
    bounds = [bound for profile in PROFILES for bound in (profile.first, profile.last)]
    assert bounds == sorted(bounds)
    assert [profile.token_line for profile in PROFILES][-1] is TokenLine.CONCURRENCY


def test_release_numbers() -> None:
    """Three numbers, missing ones zero; words are none."""
    assert release("0.20") == (0, 20, 0)
    assert release("nightly") is None


@pytest.mark.parametrize(
    ("version", "gpu", "sequences", "tokens"),
    [
        ("0.33.0", "H100", 1024, 8192),
        ("0.33.0", "A100", 256, 2048),
        ("0.33.0", "L40S", 256, 2048),
        ("0.33.0", "B200", 1024, 16384),
        ("0.33.0", "MI300X", 1024, 16384),
        ("0.33.0", "RTX PRO 6000", 1024, 8192),
        ("0.20.2", "B200", 1024, 8192),
        ("0.8.5", "A100", 1024, 8192),
    ],
)
def test_batch_sizes_by_release_and_card(version: str, gpu: str, sequences: int, tokens: int) -> None:
    """Tiers of memory; the A100 counts as small by its name since it was measured to lose by large batches."""
    defaults = laid_out(LLAMA_70B, gpu, version=version).defaults
    assert (defaults.max_num_seqs, defaults.max_num_batched_tokens) == (sequences, tokens)


def test_utilisation_defaults() -> None:
    """0.90 up to 0.19, 0.92 from 0.20 on, or as given."""
    shape = model((full(),))
    assert laid_out(shape, version="0.19.0").defaults.gpu_memory_utilization == 0.90
    assert laid_out(shape, version="0.20.0").defaults.gpu_memory_utilization == 0.92
    assert laid_out(shape, gpu_memory_utilization=0.5).defaults.gpu_memory_utilization == 0.5


@pytest.mark.parametrize(("stages", "expected"), [(1, 2 * 8192), (2, 3 * 8192), (4, 5 * 8192)])
def test_steps_in_flight_grow_with_stages(stages: int, expected: int) -> None:
    """One step a stage and one more."""
    cache = laid_out(LLAMA_70B, layout=Layout(pipeline_parallel_size=stages))
    assert cache.defaults.in_flight_tokens == expected


def test_classifiers_have_one_step_in_flight() -> None:
    """Models served for classes schedule one step after the other."""
    shape = model((full(),), architecture="LlamaForSequenceClassification")
    assert laid_out(shape).defaults.in_flight_tokens == 8192


def test_steps_hold_the_largest_image_and_never_more_than_there_is() -> None:
    """Gemma 4 takes 2,496 tokens an image; encoder-decoder prompts are not cut; few short sequences need little."""
    images = model((full(),), image_prefix=True, largest_item_tokens=2496)
    assert laid_out(images, "A100").defaults.max_num_batched_tokens == 2496
    translator = model((full(),), is_encoder_decoder=True, context_tokens=4096)
    assert laid_out(translator, "A100").defaults.max_num_batched_tokens == 4096
    assert not laid_out(translator).defaults.chunked_prefill
    few = laid_out(model((full(),)), max_num_seqs=4, max_model_len=100).defaults
    assert (few.max_num_seqs, few.max_num_batched_tokens) == (4, 400)
    assert laid_out(model((full(),)), max_num_batched_tokens=64).defaults.max_num_seqs == 64


def test_contradicting_batch_sizes_are_refused_in_the_engines_words() -> None:
    """Fewer tokens than sequences, or than an uncut prompt."""
    words = refusal(attempt(model((full(),)), max_num_batched_tokens=64, max_num_seqs=128))
    assert words == "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128)."
    translator = model((full(),), is_encoder_decoder=True)
    words = refusal(attempt(translator, max_num_batched_tokens=64))
    assert words.startswith("max_num_batched_tokens (64) is smaller than max_model_len (131072). This effectively")


def test_prefixes_are_cached_where_the_engine_can() -> None:
    """By default: text models yes, hybrids since 0.33, recurrent and encoder-decoder models no; or as asked."""
    hybrid, recurrent = model((delta_net(),), (full(2, 256),)), model((delta_net(),))
    assert laid_out(model((full(),))).defaults.prefix_caching
    assert laid_out(hybrid).defaults.prefix_caching
    assert not laid_out(hybrid, version="0.20.2").defaults.prefix_caching
    assert not laid_out(recurrent).defaults.prefix_caching
    assert laid_out(recurrent, enable_prefix_caching=True).defaults.prefix_caching
    assert not laid_out(model((full(),), is_encoder_decoder=True)).defaults.prefix_caching


@pytest.mark.parametrize(
    ("architecture", "gpu", "sequences", "tokens", "count", "largest"),
    [
        ("LlamaForCausalLM", "H100", 1024, 8192, 51, 512),
        ("LlamaForCausalLM", "B200", 1024, 16384, 83, 1024),
        ("GptOssForCausalLM", "H100", 1024, 8192, 83, 1024),
        ("LlamaForCausalLM", "H100", 1, 8192, 2, 2),
        ("LlamaForCausalLM", "H100", 100, 8192, 29, 200),
        ("LlamaForCausalLM", "H100", 32, 64, 11, 64),
    ],
)
def test_captured_batch_sizes(
    architecture: str, gpu: str, sequences: int, tokens: int, count: int, largest: int
) -> None:
    """1, 2, 4, steps of 8 below 256, then of 16, up to twice the sequences; and the sequences themselves.

    100 sequences: 3 + 25 (8 to 200) + 100 itself; 32 sequences and 64 tokens: 3 + 8.
    """
    sizes = cuda_graph_sizes(
        model((full(),), architecture=architecture),
        DEVICES[gpu],
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
    )
    assert (len(sizes), max(sizes)) == (count, largest)


def test_nothing_is_captured_when_eager() -> None:
    """`--enforce-eager` leaves no graph."""
    assert laid_out(model((full(),)), enforce_eager=True).defaults.cuda_graph_sizes == ()
