"""Hunyuan V4 and GLM-5.3 Flash: kinds of layers, indexers, what is refused."""

from typing import Any

import pytest

from service.sizing.engine.options import EngineOptions
from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token
from service.sizing.kv_cache.planner import CacheLayout, cache_layout
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.model.shape import IndexerCache, LatentCache, ModelShape, RingCache, StateCache
from tests.sizing.cache_models import DEVICES
from tests.sizing.models.engine_facts import config, shape

HUNYUAN, FLASH = "six layers of Hunyuan V4", "GLM-5.3 Flash without its tower"


def kept(model: ModelShape, kind: type[object]) -> list[bool]:
    """Which layers keep a cache of a kind."""
    return [any(isinstance(cache, kind) for cache in layer.caches) for layer in model.layers]


def test_hunyuan_runs_an_indexer_in_the_first_layer_and_every_fourth_after_it() -> None:
    """Of six layers the first attends fully: layers 1 and 5 have an indexer; the others share."""
    model = shape("hy_v4", HUNYUAN)
    sparse = [c.sparse for layer in model.layers for c in layer.caches if isinstance(c, LatentCache)]
    assert sparse == [False, True, True, True, True, True]
    assert kept(model, IndexerCache) == [False, True, False, False, False, True]


def test_hunyuan_without_kinds_attends_fully() -> None:
    """Only layers whose kind says so are sparse."""
    model = read_model("dense", config("hy_v4", HUNYUAN, layer_types=None))
    assert not any(kept(model, IndexerCache))


def test_hunyuan_hands_over_every_residual_stream() -> None:
    """Four streams of the hidden size; hidden state and residual where there is one."""
    assert shape("hy_v4", HUNYUAN).handoff_tensors == 4
    assert read_model("one", config("hy_v4", HUNYUAN, enable_ihc=False)).handoff_tensors == 2


def test_flash_has_latent_attention_in_every_fourth_layer() -> None:
    """Three layers of delta attention, then one that keeps a latent, pooled keys and a ring."""
    model = shape("glm5_next", FLASH)
    assert kept(model, StateCache) == [index % 4 != 3 for index in range(45)]
    assert kept(model, LatentCache) == kept(model, RingCache) == [index % 4 == 3 for index in range(45)]


def test_a_token_of_flash_adds_a_sixteenth_of_an_index_key() -> None:
    """Eleven layers of 512 elements in two bytes, and 132 bytes a 16 tokens, rounded up to 9."""
    assert kv_bytes_per_token(shape("glm5_next", FLASH), "auto") == 11 * (512 * 2 + 9)


def test_blackwell_keeps_the_latents_of_flash_in_fp8() -> None:
    """The engine's own choice for "auto" there; elsewhere the model's type."""
    for gpu, dtype in (("B200", "fp8"), ("H100", "auto")):
        planned = cache_layout(shape("glm5_next", FLASH), Layout(4), DEVICES[gpu], EngineOptions(version="0.33.0"))
        assert isinstance(planned, CacheLayout)
        assert planned.dtype == dtype


def test_older_fields_of_delta_attention_count_before_newer_ones() -> None:
    """`linear_attn_config` as its class spreads it out."""
    older = {"linear_attn_config": {"head_dim": 64, "num_heads": 32, "short_conv_kernel_size": 4}}
    newer = {"linear_head_dim": 64, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
    whole = config("glm5_next", FLASH)
    assert read_model("older", {**whole, **older}).layers == read_model("newer", {**whole, **newer}).layers


@pytest.mark.parametrize(
    ("family", "model", "changed", "kind", "named"),
    [
        ("hy_v4", HUNYUAN, {"gating_type": "rowwise"}, NotUnderstood, "rowwise"),
        ("hy_v4", HUNYUAN, {"indexer_types": ["full", "half"] * 3}, InvalidConfig, "indexer_types"),
        ("hy_v4", HUNYUAN, {"mlp_layer_types": ["dense"]}, InvalidConfig, "mlp_layer_types"),
        ("glm5_next", FLASH, {"qk_rope_head_dim": 64}, NotUnderstood, "rotation"),
        ("glm5_next", FLASH, {"layer_types": ["sliding_attention"] * 45}, NotUnderstood, "sliding_attention"),
        ("glm5_next", FLASH, {"mhc": None}, InvalidConfig, "mhc is missing"),
        ("glm5_next", FLASH, {"topk_method": None}, InvalidConfig, "topk_method is missing"),
    ],
)
def test_what_is_missing_or_unknown_is_named(
    family: str, model: str, changed: dict[str, Any], kind: type[Exception], named: str
) -> None:
    """Kinds, gates and rotations that the engine's class does not know; fields it reads without a default."""
    with pytest.raises(kind, match=named):
        read_model("strange", config(family, model, **changed))
