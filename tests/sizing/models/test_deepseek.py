"""DeepSeek V2 to V3.2 and their kin: latent caches, indexers, experts."""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token
from service.sizing.model.reader import read_model
from service.sizing.model.shape import IndexerCache, LatentCache
from tests.sizing.models.engine_facts import config, shape

V3 = "six layers of DeepSeek V3, unquantised"
V32 = "six layers of DeepSeek V3.2, unquantised"


def indexers(**changed: Any) -> list[bool]:
    """Which layers of a sparse model have an indexer of their own."""
    model = read_model("sparse", config("deepseek", V32, **changed))
    return [any(isinstance(cache, IndexerCache) for cache in layer.caches) for layer in model.layers]


def test_a_token_of_deepseek_v3_takes_one_latent_a_layer() -> None:
    """512 latent and 64 rotated elements of two bytes, in 61 layers, whatever the number of heads."""
    assert kv_bytes_per_token(shape("deepseek", "deepseek-ai/DeepSeek-V3"), "auto") == 61 * (512 + 64) * 2


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [True] * 6),
        ({"index_topk_freq": 2}, [True, True, False, True, False, True]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 3}, [True, True, True, False, True, False]),
        ({"index_topk_pattern": "FSSFSF"}, [True, False, False, True, False, True]),
        ({"index_topk_pattern": ["F", "S", "F"]}, [True, False, True, True, True, True]),
    ],
)
def test_sparse_layers_share_indexers_by_frequency_or_pattern(changed: dict[str, Any], expected: list[bool]) -> None:
    """A pattern counts before a frequency; layers beyond the pattern have their own."""
    assert indexers(**changed) == expected


def test_every_layer_of_a_sparse_model_is_sparse() -> None:
    """Layers that reuse another's choice attend sparsely too."""
    model = read_model("sparse", config("deepseek", V32, index_topk_freq=3))
    assert all(cache.sparse for layer in model.layers for cache in layer.caches if isinstance(cache, LatentCache))


def test_absent_fields_are_what_the_configuration_class_fills_in() -> None:
    """DeepSeek V3's own sizes are the defaults of its class."""
    named = config("deepseek", V3)
    fields = ("vocab_size", "kv_lora_rank", "q_lora_rank", "moe_intermediate_size", "qk_nope_head_dim", "v_head_dim")
    bare = {name: value for name, value in named.items() if name not in fields}
    assert read_model("bare", bare).layers == read_model("named", named).layers


def test_null_is_not_absence_for_compressed_queries() -> None:
    """A null `q_lora_rank` leaves queries uncompressed; an absent one means the class's 1536."""
    plain = config("deepseek", V3) | {"q_lora_rank": None}
    names = {module.name for module in read_model("plain", plain).layers[0].modules}
    assert "q_proj" in names
    assert "q_a_layernorm" not in names


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model_type": "deepseek_v9"}, "model_type"),
        ({"architectures": ["DeepseekV32ForCausalLM"], "index_topk": 2048, "q_lora_rank": None}, "q_lora_rank"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    """Other attentions than those known are never approximated."""
    whole = {**config("deepseek", V3), "index_n_heads": 64, "index_head_dim": 128, **changed}
    with pytest.raises(NotUnderstood) as refusal:
        read_model("strange", whole)
    assert field in refusal.value.fields


def test_sparse_attention_needs_its_number_of_tokens() -> None:
    """The sparse class without `index_topk` is a fault of the configuration."""
    with pytest.raises(InvalidConfig, match="index_topk"):
        read_model("faulty", config("deepseek", V32, index_topk=None))
