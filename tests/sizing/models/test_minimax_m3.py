"""MiniMax M3, LongCat-Flash and Ling: sparse layers, shortcuts, what is refused."""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token
from service.sizing.model.reader import read_model
from service.sizing.model.shape import AttentionCache, IndexerCache, LatentCache
from tests.sizing.models.engine_facts import config, shape

M3, LONGCAT = "six layers of MiniMax M3, unquantised", "three layers of LongCat-Flash"


def m3(**changed: Any) -> dict[str, Any]:
    """MiniMax M3 with fields of its text part changed."""
    whole = config("latent_neighbours", M3)
    return {**whole, "text_config": {**whole["text_config"], **changed}}


def test_sparse_layers_keep_index_keys_in_sixteen_bits() -> None:
    """Four KV heads of 128 in every layer; a key of 128 in the three sparse ones."""
    model = shape("latent_neighbours", M3)
    keys = [[c for c in layer.caches if isinstance(c, IndexerCache)] for layer in model.layers]
    assert [len(each) for each in keys] == [0, 0, 0, 1, 1, 1]
    assert kv_bytes_per_token(model, "auto") == 6 * 2 * 4 * 128 * 2 + 3 * 128 * 2


def test_layers_are_sparse_and_have_experts_by_separate_lists() -> None:
    """One list says which layers attend sparsely, another which have experts."""
    sparse = {**m3()["text_config"]["sparse_attention_config"], "sparse_attention_freq": [1, 0, 0, 0, 0, 0]}
    model = read_model("m3", m3(sparse_attention_config=sparse, moe_layer_freq=[0, 0, 0, 0, 0, 1]))
    attends = [c.sparse for layer in model.layers for c in layer.caches if isinstance(c, AttentionCache)]
    experts = [any(module.name == "experts" for module in layer.modules) for layer in model.layers]
    assert attends == [True, False, False, False, False, False]
    assert experts == [False, False, False, False, False, True]


def test_index_heads_must_be_kv_heads() -> None:
    """The engine asserts the same."""
    sparse = {**m3()["text_config"]["sparse_attention_config"], "sparse_num_index_heads": 8}
    with pytest.raises(InvalidConfig, match="sparse_num_index_heads"):
        read_model("m3", m3(sparse_attention_config=sparse))


def test_lists_must_cover_every_layer() -> None:
    """A list shorter than the layers is a fault."""
    with pytest.raises(InvalidConfig, match="moe_layer_freq"):
        read_model("m3", m3(moe_layer_freq=[0, 1]))


def test_longcat_attends_twice_a_layer() -> None:
    """Two latent attentions in each of its shortcut layers."""
    model = shape("latent_neighbours", LONGCAT)
    assert [sum(isinstance(c, LatentCache) for c in layer.caches) for layer in model.layers] == [2, 2, 2]


def test_ling_with_low_rank_delta_attention_is_refused() -> None:
    """The engine's class of Ling 3 knows full-rank projections only in this reading."""
    with pytest.raises(NotUnderstood) as refusal:
        read_model("ling", {**config("latent_neighbours", "Ling 3"), "no_kda_lora": False})
    assert "no_kda_lora" in refusal.value.fields
