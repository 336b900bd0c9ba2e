"""How a checkpoint's quantisation is read: methods, lists of exceptions, refusals.

Rules are those of vLLM 0.33 (`model_executor/layers/quantization/`, `config/model.py: _verify_quantization`).
"""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import Quantization, read_quantization
from service.sizing.model.schemes import UNQUANTISED, Compute

LAYER = "model.layers.1.self_attn"
QKV = (f"{LAYER}.q_proj", f"{LAYER}.k_proj", f"{LAYER}.v_proj")
EXPERTS = "model.layers.1.mlp.experts"

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
W4A16 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}


def read(quantization: dict[str, Any] | None, **config: Any) -> Quantization:
    """Read a `quantization_config` at the root of a configuration."""
    root = Fields({"quantization_config": quantization, **config})
    return read_quantization(root, root.child("text_config") or root, config.get("hf_quant_config"))


def compressed(ignore: list[str], targets: tuple[str, ...] = ("Linear",), **more: Any) -> dict[str, Any]:
    """Compressed-tensors with one group of four-bit integers."""
    group = {"targets": list(targets), "weights": W4A16, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        **more,
    }


@pytest.mark.parametrize(
    ("quantization", "model_type", "method"),
    [
        (None, "llama", None),
        ({}, "llama", None),
        (FP8, "qwen3", "fp8"),
        ({**FP8, "weight_block_size": [128, 128]}, "deepseek_v4", "deepseek_v4_fp8"),
        (GPTQ, "qwen2", "auto_gptq"),
        (AWQ, "qwen2", "auto_awq"),
        ({**AWQ, "quant_method": "awq_marlin"}, "qwen2", "awq_marlin"),
        (compressed([]), "llama", "compressed-tensors"),
        ({**compressed([]), "quant_method": "compressed_tensors"}, "llama", "compressed-tensors"),
        ({"quant_method": "mxfp4"}, "gpt_oss", "gpt_oss_mxfp4"),
        ({"quant_method": "mxfp4"}, "qwen3_moe", "mxfp4"),
        ({**NVFP4, "quant_algo": "FP8"}, "llama", "modelopt"),
        ({**NVFP4, "quant_algo": "fp8_pb_wo"}, "llama", "modelopt"),
        (NVFP4, "llama", "modelopt_fp4"),
        ({**NVFP4, "quant_algo": "MXFP8"}, "llama", "modelopt_mxfp8"),
        ({"quant_method": "mxfp8"}, "llama", "mxfp8"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "llama", "inc"),
        ({"quant_method": "experts_int8"}, "jamba", "experts_int8"),
    ],
)
def test_method(quantization: dict[str, Any] | None, model_type: str, method: str | None) -> None:
    """The method has the engine's name, whatever the checkpoint calls it."""
    assert read(quantization, model_type=model_type).method == method


def test_places_where_it_is_looked_for() -> None:
    """The root's `quantization_config` counts first, then `hf_quant_config.json`, then the text configuration's."""
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": []}}
    assert read(FP8, hf_quant_config=beside).method == "fp8"
    assert read(None, hf_quant_config=beside, text_config={"quantization_config": GPTQ}).method == "modelopt"
    assert read(None, text_config={"quantization_config": GPTQ}).method == "auto_gptq"
    assert read(None, compression_config=compressed([])).method == "compressed-tensors"


def test_a_file_without_producer_is_ignored() -> None:
    """vLLM takes `hf_quant_config.json` for ModelOpt's only by its producer; without, the weights are as they are."""
    quantization = read(None, hf_quant_config={"quantization": {"quant_algo": "FP8"}})
    assert quantization.method is None
    assert "producer" in quantization.notes[0]


def test_exact_names() -> None:
    """FP8 leaves alone the layers it lists by name, and none whose name only contains an entry."""
    quantization = read({**FP8, "modules_to_not_convert": ["lm_head", f"{LAYER}.o_proj", "gate"]})
    assert quantization.linear(f"{LAYER}.o_proj") is UNQUANTISED
    assert quantization.linear("model.layers.10.self_attn.o_proj") is not UNQUANTISED
    assert quantization.linear("model.layers.1.mlp.gate") is not UNQUANTISED
    assert quantization.linear(*QKV) is not UNQUANTISED


def test_fused_layers() -> None:
    """A fused layer is left alone when all its parts are listed, or its own name is."""
    assert read({**FP8, "ignored_layers": list(QKV)}).linear(*QKV) is UNQUANTISED
    assert read({**FP8, "ignored_layers": [f"{LAYER}.qkv_proj"]}).linear(*QKV) is UNQUANTISED


@pytest.mark.parametrize(
    "quantization",
    [{**FP8, "ignored_layers": [QKV[0]]}, compressed([QKV[0]]), {**AWQ, "modules_to_not_convert": ["q_proj"]}],
)
def test_half_a_fused_layer(quantization: dict[str, Any]) -> None:
    """A list that names some parts of a fused layer only is refused, as the engine refuses it."""
    with pytest.raises(InvalidConfig, match="only some of the parts"):
        read(quantization).linear(*QKV)


def test_experts_of_a_listed_layer() -> None:
    """FP8 leaves experts alone when their name is part of an entry about experts."""
    quantization = read({**FP8, "ignored_layers": [f"{EXPERTS}.0.down_proj"]})
    assert quantization.experts(EXPERTS) is UNQUANTISED
    assert quantization.experts("model.layers.2.mlp.experts") is not UNQUANTISED


@pytest.mark.parametrize(
    ("ignore", "alone"),
    [
        (["re:.*self_attn.*"], True),
        (["re:.*[qkv]_proj$"], True),
        (["re:.*qkv_proj.*"], True),
        (["re:self_attn.*"], False),
        (["self_attn"], False),
        (["re:model\\.layers\\.0\\..*"], False),
    ],
)
def test_regular_expressions_match_from_the_start(ignore: list[str], alone: bool) -> None:
    """Compressed-tensors matches "re:" entries from the start of the fused name, or of each part's."""
    assert (read(compressed(ignore)).linear(*QKV) is UNQUANTISED) is alone


def test_targets() -> None:
    """A group covers the layers its targets name or match; "Linear" covers experts, but neither head nor embedding."""
    everything = read(compressed([]))
    assert everything.experts(EXPERTS).bits == 4
    assert everything.head("lm_head") is UNQUANTISED
    assert everything.embedding("model.embed_tokens") is UNQUANTISED
    some = read(compressed([], ("re:.*mlp.*", "lm_head")))
    assert some.linear(*QKV) is UNQUANTISED
    assert some.experts(EXPERTS).bits == 4
    assert some.head("lm_head").bits == 4


def test_wildcards() -> None:
    """ModelOpt lists hold wildcards and parts of names; towers are left alone whatever the list says."""
    quantization = read({**NVFP4, "ignore": ["model.layers.1.self_attn*", "*.mlp.gate", "mtp"]})
    assert quantization.linear(*QKV) is UNQUANTISED
    assert quantization.linear("model.layers.0.mlp.gate") is UNQUANTISED
    assert quantization.linear("model.mtp.fc") is UNQUANTISED
    assert quantization.linear("vision_tower.blocks.0.fc1") is UNQUANTISED
    assert quantization.linear("model.layers.0.self_attn.o_proj") is not UNQUANTISED
    assert quantization.head("lm_head") is not UNQUANTISED


def test_other_spellings_of_the_language_model() -> None:
    """Lists may place the language model elsewhere than the weights do."""
    quantization = read({**NVFP4, "ignore": ["model.language_model.layers.1.self_attn*"]})
    assert quantization.linear(*(f"language_model.{name}" for name in QKV)) is UNQUANTISED


def test_names_containing_an_entry() -> None:
    """AWQ leaves alone every layer whose name contains an entry."""
    quantization = read({**AWQ, "modules_to_not_convert": ["visual", "layers.1."]})
    assert quantization.linear("visual.blocks.0.attn.qkv") is UNQUANTISED
    assert quantization.linear(*QKV) is UNQUANTISED
    assert quantization.linear("model.layers.11.self_attn.o_proj") is not UNQUANTISED


@pytest.mark.parametrize("quantization", [AWQ, {**AWQ, "modules_to_not_convert": None}, GPTQ])
def test_without_a_list_towers_and_routers_stay(quantization: dict[str, Any]) -> None:
    """AWQ and GPTQ files without a list quantise the decoder's layers; the engine reads that off the tensors."""
    read_back = read(quantization)
    assert read_back.linear("visual.blocks.0.attn.qkv") is UNQUANTISED
    assert read_back.linear("model.layers.0.mlp.gate") is UNQUANTISED
    assert read_back.linear(*QKV) is not UNQUANTISED
    assert read_back.experts(EXPERTS) is not UNQUANTISED


def test_gptq_rules() -> None:
    """GPTQ rules leave layers alone or change bits and groups; the first that matches the fused name decides."""
    dynamic = {r"-:.*layers\.1\..*qkv_proj": {}, r"+:.*down_proj.*": {"bits": 8, "group_size": -1}, r".*": {"bits": 4}}
    quantization = read({**GPTQ, "dynamic": dynamic})
    assert quantization.linear(*QKV) is UNQUANTISED
    down = quantization.linear("model.layers.1.mlp.down_proj")
    assert (down.bits, down.group_size) == (8, None)
    assert quantization.linear("model.layers.1.self_attn.o_proj").bits == 4


def test_gptq_modules() -> None:
    """`modules_in_block_to_quantize` names all that is quantised; the head only with `lm_head`."""
    modules = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"]]
    quantization = read({**GPTQ, "modules_in_block_to_quantize": modules})
    assert quantization.linear(*QKV).bits == 4
    assert quantization.linear("model.layers.1.mlp.down_proj") is UNQUANTISED
    assert quantization.head("lm_head") is UNQUANTISED
    assert read({**GPTQ, "lm_head": True}).head("lm_head").bits == 4


def test_mixture_by_layer() -> None:
    """ModelOpt mixtures give each layer its algorithm; experts take that of the first matrix below them."""
    layers = {
        f"{LAYER}.q_proj": "FP8",
        f"{LAYER}.k_proj": "FP8",
        f"{LAYER}.v_proj": "FP8",
        f"{EXPERTS}.0.w1": "NVFP4",
    }
    quantization = read(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {name: {"quant_algo": algorithm} for name, algorithm in layers.items()},
        }
    )
    assert (quantization.method, quantization.linear(*QKV).compute) == ("modelopt_mixed", Compute.FP8)
    assert quantization.experts(EXPERTS).compute is Compute.FP4
    assert quantization.linear("model.layers.1.self_attn.o_proj") is UNQUANTISED


def test_weights_only_by_config_groups() -> None:
    """NVFP4 whose groups quantise no activations multiplies in 16 bits."""
    groups = {"group_0": {"weights": {"num_bits": 4}, "input_activations": None}}
    scheme = read({**NVFP4, "config_groups": groups}).linear(*QKV)
    assert scheme.compute is Compute.SIXTEEN_BIT


@pytest.mark.parametrize(
    ("quantization", "kv_cache_dtype"),
    [
        ({**NVFP4, "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, "fp8_e4m3"),
        ({**NVFP4, "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({**NVFP4, "kv_cache_scheme": {"dynamic": True, "num_bits": 8, "type": "float"}}, None),
        (compressed([], kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor"}), "fp8"),
        (compressed([]), None),
        (FP8, None),
    ],
)
def test_cache_type(quantization: dict[str, Any], kv_cache_dtype: str | None) -> None:
    """The cache's type is the checkpoint's where it says one."""
    assert read(quantization).kv_cache_dtype == kv_cache_dtype


@pytest.mark.parametrize(
    ("quantization", "attention_bytes", "latent_bytes"),
    [
        (None, 0, 0),
        (FP8, 4 * 2, 0),
        (NVFP4, 4 * 2, 4 * 2),
        (compressed([]), 3 * 4 + 3 * 2, 0),
        (AWQ, 0, 0),
        ({"quant_method": "mxfp4"}, 0, 0),
    ],
)
def test_scales_of_attention(quantization: dict[str, Any] | None, attention_bytes: int, latent_bytes: int) -> None:
    """Four 16-bit scales for FP8 and ModelOpt; three float32 scales and 16-bit zero points for compressed-tensors."""
    scales = read(quantization).attention
    assert (scales.attention_bytes, scales.latent_bytes) == (attention_bytes, latent_bytes)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({**GPTQ, "desc_act": True}, "GPTQ group activation ordering (desc_act=True) is no longer supported."),
        ({**GPTQ, "bits": 3}, "Unsupported quantization config: bits=3, sym=True"),
        ({**AWQ, "bits": 8}, "Unsupported num_bits = 8. Supported: 4."),
        (
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": []},
            "The quantization method fbgemm_fp8 is deprecated",
        ),
        ({**GPTQ, "quant_method": "intel/auto-round"}, "Unknown quantization method: intel/auto-round."),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "Unknown quantization method: bitsandbytes."),
        ({"quant_method": "gguf", "quant_type": "Q4_K_M"}, "Unknown quantization method: gguf."),
    ],
)
def test_what_the_engine_no_longer_loads(quantization: dict[str, Any], words: str) -> None:
    """Such checkpoints are sized, with the engine's refusal beside."""
    read_back = read(quantization)
    assert (read_back.refusal or "").startswith(words)
    assert read_back.linear(*QKV).bits < 16


def test_channel_order_is_no_order() -> None:
    """With one scale an output the order of activations changes nothing, and is accepted."""
    assert read({**GPTQ, "desc_act": True, "group_size": -1}).refusal is None


@pytest.mark.parametrize("pattern", ["(a+)+b", "((a*))*", ".*.*.*.*.*x", "(?:.*,)+", "x" * 2001])
def test_patterns_that_could_take_forever(pattern: str) -> None:
    """A regular expression that repeats repetitions, or too often, is refused instead of matched."""
    with pytest.raises(NotUnderstood, match="too complex"):
        read(compressed([f"re:{pattern}"]))


@pytest.mark.parametrize(
    "pattern", ["", ".*", r".*\.layers\.\d+\.mlp\.experts\.\d+\..*", r"(?!.*mlp)[.*]+x", r"\(a\+\)\+", "(a|b)c*"]
)
def test_patterns_of_published_kind(pattern: str) -> None:
    """Regular expressions like those of published lists are matched."""
    assert read(compressed([f"re:{pattern}"])).method == "compressed-tensors"


@pytest.mark.parametrize(
    ("experts", "more", "layer", "bits", "group"),
    [
        ("fp4", {}, 3, 4, 32),
        ("fp4", {"moe_quant_algo": "NVFP4"}, 3, 4, 16),
        ("fp4", {"moe_quant_algo": "NVFP4", "ignore": ["layers.3.*"]}, 3, 4, 32),
        ("fp8", {}, 3, 8, None),
    ],
)
def test_deepseek_v4(experts: str, more: dict[str, Any], layer: int, bits: int, group: int | None) -> None:
    """DeepSeek-V4 keeps experts in MXFP4, NVFP4 or FP8, and everything else in FP8 blocks.

    With four-bit experts the scales of the blocks are exponents: 1536 x 4096 weights have 12 x 32 bytes of them.
    """
    quantization = read(
        {**FP8, "weight_block_size": [128, 128], **more}, model_type="deepseek_v4", expert_dtype=experts
    )
    scheme = quantization.experts(f"layers.{layer}.ffn.experts")
    assert (scheme.bits, scheme.group_size) == (bits, group)
    scales = 12 * 32 * (1 if experts == "fp4" else 4)
    assert quantization.linear("layers.3.attn.wq_b").linear_bytes(4096, (1536,), 2) == 1536 * 4096 + scales


@pytest.mark.parametrize(
    ("quantization", "field"),
    [
        ({"quant_method": "aqlm"}, "quantization_config.quant_method"),
        ({**NVFP4, "quant_algo": "W4A8_AWQ"}, "quantization_config.quant_algo"),
        ({"quant_method": "gguf"}, "quantization_config.quant_type"),
        (compressed([], sparsity_config={"format": "sparse-24-bitmask"}), "quantization_config.sparsity_config"),
        (
            compressed([], transform_config={"config_groups": {"R4": {"apply": [{"location": "input"}]}}}),
            "quantization_config.transform_config.config_groups.R4.apply.0.location",
        ),
        (
            compressed([], kv_cache_scheme={"num_bits": 4, "type": "int", "strategy": "tensor"}),
            "quantization_config.kv_cache_scheme",
        ),
    ],
)
def test_not_understood(quantization: dict[str, Any], field: str) -> None:
    """What no rule covers is refused by name."""
    with pytest.raises(NotUnderstood) as refused:
        read(quantization).linear(*QKV)
    assert refused.value.fields == (field,)
    assert field in str(refused.value)


def test_transforms_merged_into_the_weights() -> None:
    """A transform merged into the weights when they were written adds nothing."""
    scheme = {"apply": [{"location": "weight_output"}, {"location": "weight_input"}], "head_dim": 128}
    plain, rotated = compressed([]), compressed([], transform_config={"config_groups": {"R1": scheme}})
    assert read(rotated).linear(*QKV) == read(plain).linear(*QKV)


def test_a_format_without_rule() -> None:
    """A group of a kind that has no rule is refused by its name."""
    group = {"targets": ["Linear"], "weights": {**W4A16, "type": "float", "num_bits": 6}}
    quantization = {"quant_method": "compressed-tensors", "format": "odd", "config_groups": {"odd": group}}
    with pytest.raises(NotUnderstood) as refused:
        read(quantization).linear(*QKV)
    assert refused.value.fields == ("quantization_config.config_groups.odd",)


@pytest.mark.parametrize(
    ("quantization", "field"),
    [
        ({"quant_method": "fp8"}, "quantization_config.activation_scheme"),
        ({**FP8, "activation_scheme": "sometimes"}, "quantization_config.activation_scheme"),
        (
            {**FP8, "activation_scheme": "static", "weight_block_size": [128, 128]},
            "quantization_config.activation_scheme",
        ),
        ({**FP8, "weight_block_size": [128]}, "quantization_config.weight_block_size"),
        ({**FP8, "ignored_layers": "lm_head"}, "quantization_config.ignored_layers"),
        ({**AWQ, "group_size": 0}, "quantization_config.group_size"),
        ({**AWQ, "zero_point": None}, "quantization_config.zero_point"),
        ({**GPTQ, "bits": "four"}, "quantization_config.bits"),
        (compressed(["re:("]), "quantization_config.ignore"),
    ],
)
def test_invalid(quantization: dict[str, Any], field: str) -> None:
    """A missing or contradictory field is named."""
    with pytest.raises(InvalidConfig) as invalid:
        read(quantization)
    assert invalid.value.field == field
