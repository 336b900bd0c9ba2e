"""DeepSeek V4: compressed attention, its caches and what does not serve it."""

from typing import Any

import pytest

from service.sizing.engine.options import EngineOptions
from service.sizing.engine.refusal import Refusal
from service.sizing.errors import Indivisible, NotUnderstood
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token
from service.sizing.kv_cache.planner import CacheLayout, cache_layout
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.weights import stage_weights
from tests.sizing.cache_models import DEVICES
from tests.sizing.models.engine_facts import config, shape

FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-ai/DeepSeek-V4-Pro"
SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"


def small() -> dict[str, Any]:
    """Four layers of the Flash model, their kinds unsaid."""
    unsaid = dict.fromkeys(("mlp_layer_types", "layer_types", "compress_rates"))
    return config("deepseek_v4", FLASH, num_hidden_layers=4, **unsaid)


def layout(gpu: str = "H200", tensor: int = 4, **options: Any) -> CacheLayout | Refusal:
    """The cache of the Flash model."""
    asked = EngineOptions(version="0.33.0", **options)
    return cache_layout(shape("deepseek_v4", FLASH), Layout(tensor), DEVICES[gpu], asked)


def test_a_token_of_flash_adds_its_share_of_compressed_states() -> None:
    """21 layers with a state of 584 bytes and an index key of 132 a 4 tokens, 20 with a state a 128 tokens."""
    share_of_128, rounded_up = 584 / 128, 5
    assert share_of_128 < rounded_up
    expected = 21 * (584 // 4 + 132 // 4) + 20 * rounded_up
    assert kv_bytes_per_token(shape("deepseek_v4", FLASH), "auto") == expected


def test_pages_are_the_engines() -> None:
    """Bytes of the engine's pages, by tokens of a block (vLLM 0.33's own specs)."""
    planned = layout()
    assert isinstance(planned, CacheLayout)
    pages = {(spec.block_size, spec.page_bytes) for group in planned.groups for spec, _ in group.members}
    assert pages == {(64, 37440), (256, 8640), (256, 37440), (256, 1728), (4, 8640), (4, 32832), (8, 32832)}


@pytest.mark.parametrize(
    "spelled",
    [
        {"layer_types": [SLIDING, SPARSE, HEAVY, SPARSE]},
        {"compress_ratios": [0, 4, 128, 4, 0]},
        {"layer_types": [SLIDING, SPARSE, HEAVY, SPARSE], "compress_rates": {SPARSE: 4, HEAVY: 128}},
        {"layer_types": [SLIDING, SPARSE, HEAVY, SPARSE], "compress_ratios": [128] * 4},
        {"layer_types": [SLIDING, SPARSE, HEAVY, SPARSE], "compress_rate_csa": 4, "compress_rate_hca": 128},
    ],
)
def test_kinds_of_layers_are_read_in_every_spelling(spelled: dict[str, Any]) -> None:
    """Names of kinds, ratios that a draft layer follows, and rates of their own; names count first."""
    model = read_model("small", {**small(), **spelled})
    assert [len(layer.caches) for layer in model.layers] == [1, 5, 3, 5]


def test_unlisted_layers_follow_the_default_pattern() -> None:
    """Two heavily compressed layers, then the two kinds in turn (transformers 5.20)."""
    assert [len(layer.caches) for layer in read_model("small", small()).layers] == [3, 3, 3, 5]


def test_the_first_layers_choose_experts_by_token() -> None:
    """Hashed layers have a table over the vocabulary instead of a bias; three unless told otherwise."""
    for told, hashed in ((None, 3), (1, 1)):
        model = read_model("small", {**small(), **({} if told is None else {"num_hash_layers": told})})
        tables = ["tid2eid" in {module.name for module in layer.modules} for layer in model.layers]
        assert tables == [index < hashed for index in range(4)]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model_type": "deepseek_ref"}, "model_type"),
        ({"compress_ratios": [0, 16, 0, 0]}, "compress_ratios"),
        ({"layer_types": [SLIDING, "full_attention", SLIDING, SLIDING]}, "layer_types"),
        ({"layer_types": [SPARSE] * 4, "compress_rates": {SPARSE: 8}}, "compress_rates"),
        ({"mlp_layer_types": ["dense", "moe", "moe", "moe"]}, "mlp_layer_types"),
        ({"head_dim": 256}, "head_dim"),
        ({"index_head_dim": 64}, "index_head_dim"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    """Kinds of layers, ratios and sizes that no kernel exists for."""
    with pytest.raises(NotUnderstood) as refusal:
        read_model("strange", {**small(), **changed})
    assert field in refusal.value.fields


def test_groups_of_heads_must_divide() -> None:
    """The output projection has eight groups of heads."""
    with pytest.raises(Indivisible):
        stage_weights(shape("deepseek_v4", FLASH), Layout(16))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kv_cache_dtype": "bfloat16"}, "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16."),
        ({"gpu": "A100"}, "Sparse Attention Indexer CUDA op requires DeepGEMM support"),
        ({"disable_hybrid_kv_cache_manager": True}, "unexpected keyword argument 'bounded_replay'"),
        ({"block_size": 128}, "No common block size for 128"),
    ],
)
def test_the_engine_refuses_other_caches_and_cards(asked: dict[str, Any], words: str) -> None:
    """In vLLM 0.33's words."""
    refused = layout(**asked)
    assert isinstance(refused, Refusal)
    assert words in (refused.engine_error or "")


def test_a_cache_of_windows_is_not_split_by_tokens() -> None:
    """Decode context parallelism, in vLLM 0.33's words."""
    split = Layout(4, decode_context_parallel_size=2)
    refused = cache_layout(shape("deepseek_v4", FLASH), split, DEVICES["H200"], EngineOptions(version="0.33.0"))
    assert isinstance(refused, Refusal)
    assert refused.engine_error == "DCP not support sliding window."


def test_stages_hand_over_every_residual_stream() -> None:
    """Four streams of the hidden size pass between pipeline stages."""
    assert shape("deepseek_v4", PRO).handoff_tensors == 4
