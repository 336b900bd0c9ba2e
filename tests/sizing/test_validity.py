"""Refusals in the words and the order of vLLM 0.33.

The words expected are what vLLM 0.33.0's own configuration and model classes raise for such a configuration and layout
on a simulated H100 (`create_engine_config`, the model class on the meta device, `get_kv_cache_configs`), unless a test
names another card.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity import Setting, first_refusal
from service.sizing.hardware import Link
from service.sizing.kv_cache.planner import cache_layout, plan_cache
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.quantities import GIB
from tests.sizing.test_plan import card as gpu_card

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
BUILT: dict[str, dict[str, Any]] = {
    model["config"]["architectures"][0]: model["config"]
    for model in map(json.loads, (Path(__file__).parents[1] / "data/models/built.jsonl").read_text().splitlines())
}
NEMOTRON_H = {
    **LLAMA,
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "num_hidden_layers": 12,
    "head_dim": 64,
    "mamba_num_heads": 32,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": 512,
    "n_shared_experts": 1,
}
QWEN = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
ERNIE = {
    **LLAMA,
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_intermediate_size": 512,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 3,
    "moe_layer_interval": 1,
    "moe_num_shared_experts": 0,
    "use_bias": False,
}
GROK = {
    **LLAMA,
    "architectures": ["Grok1ForCausalLM"],
    "model_type": "git",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1024,
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
QUARK_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}
QUARK = {
    "quant_method": "quark",
    "exclude": ["lm_head"],
    "export": {"kv_cache_group": [], "pack_method": "reorder"},
    "global_quant_config": {"bias": None, "output_tensors": None, "input_tensors": QUARK_FP8, "weight": QUARK_FP8},
    "layer_quant_config": {},
    "layer_type_quant_config": {},
}
CUT = "Failed to find a kernel that can implement the WNA16 linear layer. Reasons: \n"


def refused(
    config: dict[str, Any],
    layout: Layout,
    options: EngineOptions | None = None,
    capability: tuple[int, int] = (9, 0),
) -> str | None:
    """The engine's words against a layout; None where it starts."""
    card = gpu_card("card", link=Link.NVLINK, memory_gib=79.2, bandwidth_gb_per_s=3350, capability=capability)
    model, options = read_model("any", config), options or EngineOptions(version="0.33.0")
    refusal = first_refusal(Setting(model, layout, card, options, (0, 33, 0)))
    if refusal is None:
        cache = cache_layout(model, layout, Device.of(card), options)
        assert not isinstance(cache, Refusal)
        plan = plan_cache(cache, [8 * GIB] * layout.pipeline_parallel_size)
        refusal = plan if isinstance(plan, Refusal) else None
    return refusal.engine_error if refusal else None


def test_a_class_that_was_dropped_is_refused_from_then_on() -> None:
    """Grok was served up to 0.24: 0.33 refuses it whatever else is wrong, 0.20.2 does not."""
    words = refused(GROK, Layout(3), EngineOptions(version="0.33.0"))
    assert words is not None
    assert words.startswith("Model architecture Grok1ForCausalLM was supported in vLLM until v0.24.0")
    assert refused(GROK, Layout(1), EngineOptions(version="0.20.2")) is None


@pytest.mark.parametrize(
    ("layout", "options", "words"),
    [
        (
            Layout(3, decode_context_parallel_size=2),
            {"max_num_seqs": 64, "max_num_batched_tokens": 32},
            "tp_size=3 must be divisible by dcp_size=2.",
        ),
        (
            Layout(3),
            {"max_num_seqs": 64, "max_num_batched_tokens": 32},
            "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64).",
        ),
        (Layout(3), {}, "Total number of attention heads (16) must be divisible by tensor parallel size (3)."),
    ],
)
def test_configuration_is_checked_before_heads(layout: Layout, options: dict[str, Any], words: str) -> None:
    """Parallel sizes, then the size of a step, then heads."""
    assert refused(LLAMA, layout, EngineOptions(version="0.33.0", **options)) == words


def test_heads_are_checked_before_the_card() -> None:
    """A card too old for a method is noticed once the layout is accepted."""
    mxfp4 = {**LLAMA, "quantization_config": {"quant_method": "mxfp4"}}
    old = (7, 5)
    words = refused(mxfp4, Layout(3), capability=old)
    assert words == "Total number of attention heads (16) must be divisible by tensor parallel size (3)."
    assert (refused(mxfp4, Layout(1), capability=old) or "").startswith(
        "The quantization method mxfp4 is not supported"
    )


def test_more_stages_than_layers() -> None:
    """A stage without layers has blocks of no size; with several groups the layout of pages is at fault."""
    assert refused(LLAMA, Layout(1, 8)) == "integer division or modulo by zero"
    mixed = {
        **LLAMA,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "head_dim": 128,
        "sliding_window": 1024,
    }
    words = "KV cache layout LBNHC cannot express this model's mixed page sizes ([])"
    assert (refused(mixed, Layout(1, 8)) or "").startswith(words)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_on_a_stage_without_one(tied: bool) -> None:
    """ERNIE's class ties its head on every stage."""
    words = "'PPMissingLayer' object has no attribute 'tie_weights'" if tied else None
    assert refused({**ERNIE, "tie_word_embeddings": tied}, Layout(1, 2)) == words
    assert refused({**ERNIE, "tie_word_embeddings": tied}, Layout(2)) is None


@pytest.mark.parametrize(
    ("architecture", "dense", "words"),
    [
        ("Glm4MoeForCausalLM", {"first_k_dense_replace": 2}, "No Glm4MoE layer found in model.layers."),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0, 1]}, "No Qwen3MoE layer found in the model.layers."),
        ("Dots1ForCausalLM", {"first_k_dense_replace": 2}, None),
    ],
)
def test_a_stage_without_experts(architecture: str, dense: dict[str, Any], words: str | None) -> None:
    """The words are those of vLLM 0.33 on a simulated H100, whose other classes build such a stage."""
    model = BUILT[architecture] | {"num_hidden_layers": 4} | dense
    assert refused(model, Layout(1, 2)) == words
    assert refused(model, Layout()) is None


def test_a_stage_of_nemotron_without_experts() -> None:
    """Its class raises a bare `AssertionError` (vLLM 0.33 `nemotron_h.py`); without any experts it builds."""
    nemotron = {**NEMOTRON_H, "hybrid_override_pattern": "ME*-ME*-M-*-"}
    assert refused(nemotron, Layout()) is None
    assert refused(nemotron, Layout(1, 2)) == "AssertionError"
    assert refused(nemotron, Layout(1, 3)) == "AssertionError"
    assert refused({**nemotron, "hybrid_override_pattern": "M-*-M-*-M-*-"}, Layout(1, 3)) is None


def test_attention_in_dual_chunks() -> None:
    """The kernels of 0.33 do not take what the class hands them."""
    chunks = {**QWEN, "dual_chunk_attention_config": {"chunk_size": 2048, "local_size": 512}}
    assert refused(chunks, Layout()) == "FlashAttentionImpl.__init__() got an unexpected keyword argument 'layer_idx'"


def test_a_window_in_some_layers_of_qwen() -> None:
    """Qwen's class refuses windows that start at a layer within the model."""
    windows = {**QWEN, "use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 2}
    assert (refused(windows, Layout()) or "").startswith("Sliding window for some but all layers is not supported.")
    assert refused({**windows, "max_window_layers": 4}, Layout()) is None


def test_one_expert_counts_as_experts() -> None:
    """A Jamba with one expert is dense, and yet takes expert parallelism."""
    jamba = {
        **LLAMA,
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "num_experts": 1,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 128,
    }
    options = EngineOptions(version="0.33.0", max_num_seqs=8)
    assert refused(jamba, Layout(1, 1, 2, expert_parallel=True), options) is None


@pytest.mark.parametrize(
    ("width", "capability", "words"),
    [
        (8192, (8, 0), None),
        (3920 * 2, (8, 0), CUT),
        (3920 * 2, (9, 0), CUT),
        (1088 * 2, (8, 0), CUT),
    ],
)
def test_cut_groups_of_packed_integers(width: int, capability: tuple[int, int], words: str | None) -> None:
    """No kernel takes a split of the inputs that cuts a group of 128."""
    found = refused(
        {**LLAMA, "intermediate_size": width, "quantization_config": GPTQ}, Layout(2), capability=capability
    )
    assert found is None if words is None else (found or "").startswith(words)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (3, "Tensor parallel world size must divide num heads."),
        (8, "If tensor parallel world size does not divide num_groups, then num_groups must equal 1."),
        (4, None),
    ],
)
def test_states_of_mamba_2(ranks: int, words: str | None) -> None:
    """Its heads are looked at before its groups."""
    mamba = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hidden_size": 1536,
        "num_hidden_layers": 3,
        "hybrid_override_pattern": "M*-",
        "intermediate_size": 3072,
        "num_attention_heads": 24,
        "num_key_value_heads": 4 if ranks != 3 else 3,
        "attention_head_dim": 64,
        "head_dim": 64,
        "mamba_num_heads": 32,
        "mamba_head_dim": 64,
        "n_groups": 4,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "vocab_size": 24 * 64 * 8,
        "max_position_embeddings": 4096,
        "mlp_hidden_act": "relu2",
    }
    assert refused(mamba, Layout(ranks), EngineOptions(version="0.33.0", max_num_seqs=8)) == words


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
}


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_four_bits_meet_fp8_on_hopper_alone(capability: tuple[int, int]) -> None:
    """vLLM 0.33 `compressed_tensors.py: _is_fp8_w4a8_sm90` takes the scheme on compute capability 9.0 only."""
    config = {**LLAMA, "quantization_config": COMPRESSED}
    words = "No compressed-tensors compatible scheme was found for layer_name="
    assert refused(config, Layout()) is None
    assert (refused(config, Layout(), capability=capability) or "").startswith(words)


def test_quark_fp8_needs_fp8() -> None:
    """Quark's FP8 does not fall back to 16-bit kernels."""
    quark = {**LLAMA, "quantization_config": QUARK}
    words = "Quantization scheme is not supported for the current GPU. Min capability: 89. Current capability: 80."
    assert refused(quark, Layout(), capability=(8, 0)) == words
    assert refused(quark, Layout(), capability=(8, 9)) is None


BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


@pytest.mark.parametrize("config", [BERT, {**QWEN, "architectures": ["Qwen2ForProcessRewardModel"]}])
def test_prompts_seen_whole_fit_in_one_step(config: dict[str, Any]) -> None:
    """Encoders and rewards given step by step do not cut prompts."""
    options = EngineOptions(version="0.33.0", max_num_batched_tokens=500, max_num_seqs=8)
    words = f"max_num_batched_tokens (500) is smaller than max_model_len ({config['max_position_embeddings']})."
    assert (refused(config, Layout(), options) or "").startswith(words)


@pytest.mark.parametrize(
    ("ranks", "changed", "words"),
    [
        (16, {}, "sconv SWA cache supports tp_size <= num_kv_heads (8), got 16"),
        (1, {"o_bias": True}, "When not reduce the results, adding bias to the results can lead to incorrect results"),
        (1, {"dtype": "float16"}, "sconv SWA cache supports bfloat16 only, got torch.float16"),
        (8, {}, None),
    ],
)
def test_inputs_of_convolutions(ranks: int, changed: dict[str, Any], words: str | None) -> None:
    """Inkling keeps the inputs of its convolutions by whole KV heads, in bfloat16."""
    inkling = {
        "architectures": ["InklingForCausalLM"],
        "model_type": "inkling_model",
        "dtype": "bfloat16",
        "hidden_size": 2048,
        "num_hidden_layers": 3,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "local_layer_ids": [0, 1],
        "dense_mlp_idx": 3,
        "intermediate_size": 2048,
        "vocab_size": 32000,
        "model_max_length": 4096,
        **changed,
    }
    assert refused(inkling, Layout(ranks)) == words


@pytest.mark.parametrize(
    ("layout", "changed", "words"),
    [
        (Layout(32), {}, "Step5 DSA kernels require 4, 8, or 16 local query heads per KV group, got 2"),
        (Layout(), {"head_dim": 128}, "Step5 DSA kernels require head_size 192, got 128."),
        (Layout(), {"head_dim": 64}, "Step5 DSA supports attention head dimensions 128 or 192, got 64."),
        (Layout(1, 3), {}, "Workers disagree on supported KV cache layouts: "),
    ],
)
def test_attention_by_summaries_has_kernels_for_few_shapes(layout: Layout, changed: dict[str, Any], words: str) -> None:
    """Step 5; the words on 32 ranks and on heads of 64 are read in the source, the others were raised."""
    path = Path(__file__).parents[1] / "data/models/step5.json"
    config = json.loads(path.read_text())["models"][0]["config"]
    assert (refused({**config, **changed}, layout) or "").startswith(words)
