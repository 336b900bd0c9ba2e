"""Working space, loaded weights and what is left outside: hand arithmetic, and figures that startups printed."""

from dataclasses import replace
from typing import Any

import pytest

from service.sizing.engine.options import EngineOptions
from service.sizing.evidence import Known, evidence_of
from service.sizing.fit import Fitted, fit
from service.sizing.hardware import Gpu, Link, Vendor
from service.sizing.layouts import Layout
from service.sizing.loaded_weights import absorbed, deep_features, padded_experts, quantises_unlisted
from service.sizing.model.reader import read_model
from service.sizing.model.shape import ModelShape
from service.sizing.outside import little_room_outside, no_room_outside
from service.sizing.quantities import GIB
from service.sizing.working_space import (
    ERAS,
    FROM_0_21,
    Band,
    collectives,
    era_of,
    graphs,
    peak,
    rocm,
    sampling,
    working_space,
)
from tests.sizing.test_plan import H100, L40S, MODEL, SMALL

H200 = replace(H100, slug="h200", name="H200", memory_total_bytes=round(139.80 * GIB))
MI300X = replace(
    H100,
    slug="mi300x",
    name="AMD Instinct MI300X",
    vendor=Vendor.AMD,
    compute_capability=None,
    memory_total_bytes=round(191.98 * GIB),
    link=Link.XGMI,
)

# Published config.json of deepseek-ai/DeepSeek-V2-Lite-Chat, the fields that decide its size.
V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 27,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "tie_word_embeddings": False,
}
LATENT = read_model("deepseek-ai/DeepSeek-V2-Lite-Chat", V2_LITE)


def fitted(model: ModelShape, gpu: Gpu, layout: Layout, **options: Any) -> Fitted:
    """What a layout takes, where the engine accepts it."""
    found = fit(model, layout, gpu, gpu.link, EngineOptions(**options))
    assert isinstance(found, Fitted), found
    return found


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ((0, 6, 6), "up to 0.7"),
        ((0, 8, 5), "0.8 to 0.13"),
        ((0, 13, 9), "0.8 to 0.13"),
        ((0, 14, 0), "0.14 to 0.16"),
        ((0, 16, 9), "0.14 to 0.16"),
        ((0, 17, 0), "0.17 to 0.19"),
        ((0, 20, 2), "0.20"),
        ((0, 21, 0), "0.21 and later"),
        ((0, 33, 0), "0.21 and later"),
    ],
)
def test_every_release_has_an_era(release: tuple[int, ...], name: str) -> None:
    """The steps between them are in docs/memory.md."""
    assert era_of(release).name == name


def test_logits_are_counted_by_sequence_and_padded_vocabulary() -> None:
    """1,024 sequences x 128,256 entries x 14 bytes = 1.712 GiB; the state of the newest runner 4.125 bytes more."""
    transient, state = sampling(FROM_0_21, 1024, 128_256)
    assert transient.value == 1024 * 128_256 * 14
    assert state.value == 1024 * 128_256 * 4.125
    padded, _ = sampling(FROM_0_21, 1, 65)
    assert padded.value == 128 * 14


def test_a_stage_that_does_not_sample_pays_for_one_layer() -> None:
    """2 x 8,192 tokens x (3 x 28,672 / 4 + 4 x 8,192) bytes."""
    space = peak(FROM_0_21, MODEL, Layout(4, 2), tokens=8192, sequences=1024, samples=False)
    assert space == Band(*[2 * 8192 * (3 * 28_672 / 4 + 4 * 8192)] * 3)


# Llama-3.3-70B has the shape of MODEL: FP8 on four H200 with vLLM 0.18 and 0.11.2, 16-bit on four B200, overheads of
# public startups (validation database of vllm-memory-estimator); H100 rows from a public benchmark of 0.19.
@pytest.mark.parametrize(
    ("model", "gpu", "layout", "release", "overhead_gib"),
    [
        (MODEL, H200, Layout(4), (0, 11, 2), 5.50),
        (SMALL, H100, Layout(1), (0, 19, 0), 2.14),
        (MODEL, H200, Layout(4), (0, 18, 0), 4.13),
    ],
)
def test_startups_are_met(
    model: ModelShape, gpu: Gpu, layout: Layout, release: tuple[int, ...], overhead_gib: float
) -> None:
    """Within 0.15 GiB of utilisation x total - weights - available cache as printed."""
    space = working_space(
        model,
        layout,
        gpu,
        gpu.link,
        release=release,
        stage=0,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        graph_sizes=51,
    )
    assert space.value / GIB == pytest.approx(overhead_gib, abs=0.15)
    assert space.low <= overhead_gib * GIB <= space.high


def test_reductions_fused_into_the_norm_need_hopper_nvlink_and_a_late_release() -> None:
    """1.8 GiB for a pair of H100 from 0.17 on; 0.39 before, and on cards without it."""
    late, early = era_of((0, 17)), era_of((0, 16))
    assert collectives(late, Layout(2), H100, Link.NVLINK).value == pytest.approx(1.80 * GIB)
    assert collectives(early, Layout(2), H100, Link.NVLINK).value == pytest.approx(0.387 * GIB)
    assert collectives(late, Layout(2), L40S, Link.PCIE).value == pytest.approx(0.387 * GIB)
    assert collectives(late, Layout(2), L40S, Link.PCIE).low == 0
    assert collectives(late, Layout(), H100, Link.NVLINK) == Band(0, 0, 0)


def test_graphs_are_charged_from_0_20_and_not_when_eager() -> None:
    """0.76 GiB for 51 sizes."""
    assert graphs(era_of((0, 19)), SMALL, H100, (0, 19), 51) == Band(0, 0, 0)
    assert graphs(era_of((0, 20)), SMALL, H100, (0, 20), 51).value == pytest.approx(0.76 * GIB)
    assert graphs(era_of((0, 33)), SMALL, H100, (0, 33), 0) == Band(0, 0, 0)


def test_bands_hold_their_centre() -> None:
    """In every era, on cards of both makers, alone and together."""
    for release in ((0, 8), *(end for end, _ in ERAS), (0, 33)):
        for gpu in (H100, L40S, MI300X):
            for layout in (Layout(), Layout(2), Layout(8), Layout(2, 2)):
                for model in (SMALL, LATENT):
                    space = working_space(
                        model,
                        layout,
                        gpu,
                        gpu.link,
                        release=release,
                        stage=0,
                        max_num_seqs=256,
                        max_num_batched_tokens=2048,
                        graph_sizes=35,
                    )
                    assert space.low <= space.value <= space.high


def test_latent_attention_keeps_16_bit_copies() -> None:
    """27 layers x 512 x 16 heads x (128 + 128) x 2 bytes, split over the ranks."""
    whole = 27 * 512 * 16 * 256 * 2
    assert absorbed(LATENT, Layout(), 0, 27) == whole
    assert absorbed(LATENT, Layout(4), 0, 27) == whole // 4


@pytest.mark.parametrize(("tensor", "printed_gib"), [(1, 29.43), (2, 14.83), (4, 7.51)])
def test_loaded_weights_of_a_latent_model_are_met(tensor: int, printed_gib: float) -> None:
    """Within 0.11 GiB of "Model loading took" of DeepSeek-V2-Lite-Chat on H100 with vLLM 0.19."""
    found = fitted(LATENT, H100, Layout(tensor), version="0.19.0")
    assert found.loaded[0] / GIB == pytest.approx(printed_gib, abs=0.11)


def test_dense_weights_are_loaded_as_counted() -> None:
    """Nothing is added where kernels copy nothing."""
    found = fitted(SMALL, H100, Layout())
    assert found.loaded[0] == found.weights[0].total_bytes


def test_other_models_have_neither_deep_features_nor_padded_experts() -> None:
    """Only some towers and MXFP4 have them."""
    assert deep_features(SMALL, 8192) == 0
    assert padded_experts(LATENT, Layout(), 0, 27) == 0


def test_what_no_startup_showed_is_called_extrapolated() -> None:
    """Releases from 0.21 on, and pipelines; AMD is of low confidence."""
    assert evidence_of(SMALL, Layout(), H100, (0, 19, 0)).known is Known.FITTED
    assert evidence_of(SMALL, Layout(), H100, (0, 33, 0)).known is Known.EXTRAPOLATED
    assert evidence_of(SMALL, Layout(1, 2), H100, (0, 19, 0)).known is Known.EXTRAPOLATED
    assert evidence_of(SMALL, Layout(1, 1, 2), H100, (0, 19, 0)).known is Known.FITTED
    assert evidence_of(SMALL, Layout(), MI300X, (0, 19, 0)).known is Known.LOW_CONFIDENCE


def test_the_process_itself_needs_room_outside_the_share() -> None:
    """A utilisation of 1 is refused in the engine's words; 0.92 of 8 GiB leaves 0.64 GiB, little for two cards."""
    total = 8 * GIB
    refusal = no_room_outside(total, total, 1.0)
    assert refusal is not None
    assert refusal.engine_error is not None
    assert refusal.engine_error.startswith("Free memory on device cuda:0 (7.9/8.0 GiB) on startup is less than desired")
    assert no_room_outside(total, round(0.92 * total), 0.92) is None
    assert little_room_outside(Layout(), total, round(0.92 * total)) is None
    assert little_room_outside(Layout(2), total, round(0.92 * total)) is not None


EXPERTS = read_model(
    "example/experts",
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
)


@pytest.mark.parametrize(("version", "share"), [("0.14.1+rhai4", 0.36), ("0.13.1.dev8+g284", 0.027), ("0.14.1", 0.027)])
def test_builds_with_a_second_layout_of_experts_load_a_third_more_on_amd(version: str, share: float) -> None:
    """Qwen3-VL 30B took 79.29 GiB in four builds of one vendor and 59.84 in one of upstream's: 57.9 are parameters."""
    found = fitted(EXPERTS, MI300X, Layout(), version=version, max_model_len=8192)
    assert found.loaded[0] / found.weights[0].total_bytes == pytest.approx(1 + share, rel=1e-6)


def test_eight_amd_cards_leave_the_tightest_less() -> None:
    """1.462 GiB beyond four, and 0.42 more: tokens of startups over eight MI300X were short by that of the printed GiB.

    DeepSeek-R1: 0.483 % of 87.09 GiB; Qwen3 235B: 0.304 % of 139.50 GiB.
    """
    assert pytest.approx(0.42, abs=0.01) == 0.00483 * 87.09
    assert pytest.approx(0.42, abs=0.01) == 0.00304 * 139.50
    more = rocm(Layout(8), MI300X).value - rocm(Layout(4), MI300X).value
    assert more / GIB == pytest.approx(1.462 + 0.42)


def hybrid(kept: list[str]) -> ModelShape:
    """Qwen3-Next in FP8 with a list of what is left in 16 bits."""
    return read_model(
        "example/hybrid",
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "torch_dtype": "bfloat16",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_hidden_layers": 4,
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "decoder_sparse_step": 1,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$", *kept],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                        "input_activations": {
                            "num_bits": 8,
                            "type": "float",
                            "strategy": "token",
                            "dynamic": True,
                            "symmetric": True,
                        },
                    }
                },
            },
        },
    )


def test_a_list_that_no_checkpoint_has_adds_three_per_cent() -> None:
    """Published checkpoints keep the gates of gated delta nets in 16 bits; 1.4 to 5.3 % more were measured."""
    listed, unlisted = hybrid(["re:.*linear_attn.in_proj_ba$", "re:.*linear_attn.in_proj_[ab]$"]), hybrid([])
    assert quantises_unlisted(unlisted)
    assert not quantises_unlisted(listed)
    found = fitted(unlisted, H100, Layout(), version="0.19.0", max_model_len=8192)
    assert found.loaded[0] / found.weights[0].total_bytes == pytest.approx(1.03, rel=1e-6)
    exact = fitted(listed, H100, Layout(), version="0.19.0", max_model_len=8192)
    assert exact.loaded[0] == exact.weights[0].total_bytes


@pytest.mark.parametrize(("version", "bytes_each"), [("0.11.0", 14), ("0.11.0+rhai5", 38), ("0.11.2", 38)])
def test_the_release_image_of_0_11_0_sampled_without_sorting(version: str, bytes_each: int) -> None:
    """Llama 3.3 70B on an H200, four cards: it took 2.56 GiB where builds of others took 5.78 of the same release.

    (38 - 14) bytes x 1,024 sequences x 128,256 entries are 2.94 GiB.
    """
    found = fitted(SMALL, H200, Layout(), version=version, max_model_len=8192).bands[0]
    rest = 2 * 8192 * SMALL.hidden_size + 0.222 * GIB
    assert found.value == pytest.approx(1024 * 128_256 * bytes_each + rest, rel=1e-6)
    assert found.high >= 1024 * 128_256 * 38


T4 = replace(H100, slug="t4", name="Tesla T4", compute_capability=(7, 5), link=Link.PCIE, memory_total_bytes=14 * GIB)
V100 = replace(T4, slug="v100", name="Tesla V100-SXM2-32GB", compute_capability=(7, 0), memory_total_bytes=32 * GIB)
A10G = replace(T4, slug="a10g", name="NVIDIA A10G", compute_capability=(8, 6), memory_total_bytes=22 * GIB)


def qwen2(hidden: int, intermediate: int, layers: int, heads: int, groups: int) -> ModelShape:
    """A model of the Qwen2.5 family by its published sizes."""
    return read_model(
        "Qwen/Qwen2.5",
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "torch_dtype": "float16",
            "vocab_size": 151936,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    )


@pytest.mark.parametrize(
    ("model", "gpu", "version", "length", "measured"),
    [
        # Startups in public issues and notebooks: activation peak and memory outside PyTorch as the first engine prints
        # them, in GiB. A prompt of the longest context is profiled whole; above 32,768 tokens prompts are cut.
        (qwen2(3584, 18944, 28, 28, 4), V100, "0.8.5", 32768, 4.35 + 0.09),
        (qwen2(1536, 8960, 28, 12, 2), T4, "0.7.3", 32768, 2.02 + 0.01),
        (qwen2(896, 4864, 24, 14, 2), T4, "0.7.3", 32768, 1.44 + 0.11),
        (qwen2(1536, 8960, 28, 12, 2), A10G, "0.7.3", 4096, 1.40 + 0.05),
    ],
)
def test_the_first_engine_takes_what_it_printed(
    model: ModelShape, gpu: Gpu, version: str, length: int, measured: float
) -> None:
    """Before 0.8 everywhere, and up to 0.10 on cards older than Ampere; within a tenth of a GiB."""
    found = fitted(model, gpu, Layout(), version=version, max_model_len=length)
    assert found.cache.defaults.first_engine
    assert found.cache.defaults.max_num_batched_tokens == length
    assert found.cache.defaults.max_num_seqs == 256
    assert found.bands[0].value / GIB == pytest.approx(measured, abs=0.1)
    assert found.bands[0].low / GIB <= measured <= found.bands[0].high / GIB


def test_the_first_engine_cuts_long_prompts_and_then_profiles_no_sampling() -> None:
    """Llama 3.1 8B, 131,072 tokens, A10G: an activation peak of 0.22 GiB and 0.05 outside PyTorch were printed.

    2 x 2,048 x (3 x 14,336 + 4 x 4,096) = 0.227 GiB is one layer over 2,048 tokens.
    """
    found = fitted(SMALL, A10G, Layout(), version="0.7.3", max_model_len=131072)
    assert found.cache.defaults.chunked_prefill
    assert found.cache.defaults.max_num_batched_tokens == 2048
    assert found.bands[0].value / GIB == pytest.approx(0.22 + 0.05, abs=0.05)


@pytest.mark.parametrize(
    ("gpu", "version", "first"),
    [
        (T4, "0.6.6", True),
        (T4, "0.10.2", True),
        (T4, "0.11.0", False),
        (A10G, "0.7.3", True),
        (A10G, "0.8.5", False),
        (MI300X, "0.8.5", False),
        (H100, "0.33.0", False),
    ],
)
def test_which_engine_runs(gpu: Gpu, version: str, first: bool) -> None:
    """The second engine came with 0.8 for Ampere and later; the first went with 0.11."""
    assert fitted(SMALL, gpu, Layout(), version=version, max_model_len=4096).cache.defaults.first_engine is first
