"""Kimi K2 to K3: towers, delta attention, compressed queries."""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token, state_bytes
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.model.shape import LatentCache, StateCache
from service.sizing.weights import stage_weights
from tests.sizing.models.engine_facts import config, shape

K25, LINEAR = "three layers of Kimi K2.5, unquantised", "eight layers of Kimi Linear"


def test_a_tower_is_held_whole_where_ranks_do_not_divide_its_heads() -> None:
    """Sixteen heads: a sixteenth on each of 16 ranks, all of them on each of 32."""
    model = shape("kimi", K25)
    shares = [stage_weights(model, Layout(ranks))[0].parameter_bytes for ranks in (16, 32)]
    text = [stage_weights(read_model("text", config("kimi", K25)["text_config"]), Layout(r))[0] for r in (16, 32)]
    towers = [share - part.parameter_bytes for share, part in zip(shares, text, strict=True)]
    assert towers[1] > towers[0]


def test_delta_layers_count_from_one() -> None:
    """`kda_layers` 1, 2, 3, 5, 6, 7 of eight: every fourth layer has latent attention."""
    kept = [type(layer.caches[0]) for layer in shape("kimi", LINEAR).layers]
    assert kept == [StateCache, StateCache, StateCache, LatentCache] * 2


def test_a_delta_layer_keeps_a_float32_state_a_head() -> None:
    """32 heads of 128 by 128 in four bytes; three tokens of queries, keys and values in two."""
    state = next(c for layer in shape("kimi", LINEAR).layers for c in layer.caches if isinstance(c, StateCache))
    assert state_bytes(state, 1) == 32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2


def test_only_latent_layers_grow_with_tokens() -> None:
    """Two layers of 512 + 64 elements of two bytes."""
    assert kv_bytes_per_token(shape("kimi", LINEAR), "auto") == 2 * (512 + 64) * 2


def test_a_tower_of_another_size_is_refused() -> None:
    """The engine does not read the published sizes and builds its own."""
    whole = config("kimi", K25)
    vision = {**whole["vision_config"], "vt_hidden_size": 1408}
    with pytest.raises(NotUnderstood) as refusal:
        read_model("strange", {**whole, "vision_config": vision})
    assert "vision_config.vt_hidden_size" in refusal.value.fields


@pytest.mark.parametrize(
    ("changed", "kind", "named"),
    [
        ({"mla_use_nope": False}, NotUnderstood, "mla_use_nope"),
        ({"linear_attn_config": {"num_heads": 32, "head_dim": 128}}, InvalidConfig, "kda_layers"),
    ],
)
def test_what_is_missing_or_unknown_is_named(changed: dict[str, Any], kind: type[Exception], named: str) -> None:
    """Rotation in this class, and delta attention without its layers."""
    with pytest.raises(kind, match=named):
        read_model("strange", {**config("kimi", LINEAR), **changed})
