"""What readers of newer families refuse: fields that change memory in ways that no rule covers."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.reader import read_model

BUILT: dict[str, dict[str, Any]] = {
    model["name"]: model["config"]
    for model in map(json.loads, (Path(__file__).parents[2] / "data/models/built.jsonl").read_text().splitlines())
}
RNJ = {
    "architectures": ["Rnj1ForCausalLM"],
    "model_type": "gemma3_text",
    "dtype": "bfloat16",
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "full_attention"],
}
PUZZLE = {"architectures": ["NemotronHPuzzleForCausalLM"], "model_type": "nemotron_h_puzzle", "dtype": "bfloat16"}
BUILT |= {"rnj": RNJ, "puzzle": PUZZLE}
IS1P = BUILT["is1p"]["text_config"]
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


@pytest.mark.parametrize(
    ("name", "changed", "field"),
    [
        ("aria", {"quantization_config": FP8}, "quantization_config"),
        ("aria", {"vision_config": {"model_type": "siglip_vision_model"}}, "vision_config.model_type"),
        ("domyn", {"per_layer_config": {"2": {"num_key_value_heads": 2}}}, "per_layer_config.2.num_key_value_heads"),
        ("plamo3u", {"vocab_size": 1001}, "vocab_size"),
        ("plamo3", {"interleaved_sliding_window": [512, 256, 512, None]}, "interleaved_sliding_window"),
        ("qianfan2", {"quantization_config": AWQ}, "quantization_config"),
        ("nvembed", {"quantization_config": FP8}, "quantization_config"),
        ("nvembed", {"llm_config": {"architectures": ["LlamaForCausalLM"]}}, "llm_config.architectures"),
        ("inktext", {"gate_activation": "softmax"}, "gate_activation"),
        ("inktext", {"shared_expert_sink": False}, "shared_expert_sink"),
        ("inktext", {"local_layer_ids": None, "layer_types": ["hybrid", *["hybrid_sliding"] * 6]}, "layer_types"),
        ("k2mova", {"quantization_config": FP8}, "mova_num_experts"),
        ("mimo", {"quantization_config": AWQ}, "attention_projection_layout"),
        (
            "is1p",
            {"text_config": IS1P | {"rope_scaling": {"fope_init_factor": 0.5}}},
            "text_config.rope_scaling.fope_sep_head",
        ),
        ("is1p", {"text_config": IS1P | {"rope_scaling": {"rope_type": "default"}}}, "rope_scaling"),
        ("rnj", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ("isaac", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type"),
        ("uv", {"text_model_id": "meta-llama/Llama-3.2-1B-Instruct"}, "text_model_id"),
        ("uv", {"audio_model_id": "openai/whisper-large-v3-turbo"}, "audio_model_id"),
        ("uv", {"audio_config": {"model_type": "wav2vec2"}}, "audio_config.model_type"),
        ("puzzle", {"block_configs": [{"block_type": "conv"}]}, "block_configs.0.block_type"),
        (
            "puzzle",
            {"block_configs": [{"block_type": "mamba", "mamba_num_heads": 8}]},
            "block_configs.0.mamba_num_heads",
        ),
    ],
)
def test_what_no_rule_covers_is_refused_by_name(name: str, changed: dict[str, Any], field: str) -> None:
    """A refusal that names the field."""
    with pytest.raises(NotUnderstood) as refused:
        read_model("tiny", BUILT[name] | changed)
    assert field in refused.value.fields


@pytest.mark.parametrize(
    ("name", "changed", "field"),
    [
        ("domyn", {"window_sizes": [[511, 0]] * 3}, "window_sizes"),
        ("domyn", {"position_layers": ["rope"] * 3}, "position_layers"),
        ("domyn", {"per_layer_config": {"4": {"head_dim": 64}}}, "per_layer_config.4"),
        ("plamo3", {"layer_types": ["full_attention"] * 4}, "layer_types"),
        ("hrm_text_real", {"num_layers_per_stack": 15}, "num_layers_per_stack"),
        ("hrm", {"H_cycles": 1000}, "H_cycles"),
        ("beam2", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("isaactext", {"vocab_size": 9000}, "vocab_size"),
    ],
)
def test_what_contradicts_itself_is_invalid(name: str, changed: dict[str, Any], field: str) -> None:
    """A fault that names the field."""
    with pytest.raises(InvalidConfig) as refused:
        read_model("tiny", BUILT[name] | changed)
    assert refused.value.field == field


def test_rnj1_meets_kernels_that_do_not_take_it() -> None:
    """The words are those of vLLM 0.33 on a simulated H100 and B200, which chooses FlashAttention for it."""
    refusal = read_model("tiny", RNJ).build_refusal
    assert refusal == "FlashAttentionImpl.__init__() got an unexpected keyword argument 'chunk_lookback'"


def test_beam_has_a_head_of_its_own() -> None:
    """The words are those of vLLM 0.33 `models/beam/nvidia/model.py`."""
    tied = read_model("tiny", BUILT["beam2"] | {"tie_word_embeddings": True})
    assert tied.build_refusal == "Beam requires tie_word_embeddings=False."
    assert read_model("tiny", BUILT["beam2"]).build_refusal is None


STEP5 = json.loads((Path(__file__).parents[2] / "data/models/step5.json").read_text())["models"][0]["config"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"rope_scaling": None}, "rope_scaling"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate"),
        ({"layer_types": None}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"need_fp32_gate": False}, "need_fp32_gate"),
        ({"quantization_config": FP8}, "quantization_config"),
        ({"sparse_config": {**STEP5["sparse_config"], "enabled": False}}, "sparse_config.enabled"),
        ({"sparse_config": {**STEP5["sparse_config"], "proxy_dim": 128}}, "sparse_config.proxy_dim"),
    ],
)
def test_step5_refuses_what_its_class_does_not_serve(changed: dict[str, Any], field: str) -> None:
    """Sparse layers know one kind of indexer, one gate and no quantised projections."""
    with pytest.raises(NotUnderstood) as refusal:
        read_model("step5", {**STEP5, **changed})
    assert field in refusal.value.fields
