"""Qwen3-Next and Qwen3.5: gated delta nets with attention every few layers."""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.kv_cache.page_bytes import state_bytes
from service.sizing.model.modules import TensorClass
from service.sizing.model.reader import read_model
from service.sizing.model.shape import AttentionCache, StateCache
from service.sizing.model.summary import has_tower
from tests.sizing.models.engine_facts import config, shape

NEXT, SMALL = "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3.5-4B"


def attends(changed: dict[str, Any]) -> list[bool]:
    """Which layers of Qwen3-Next attend."""
    model = read_model("next", {**config("qwen3_next", NEXT, layer_types=None), **changed})
    return [isinstance(layer.caches[0], AttentionCache) for layer in model.layers]


def test_attention_closes_every_interval() -> None:
    """Every fourth layer unless the configuration says otherwise, or lists the kinds."""
    assert attends({"num_hidden_layers": 8}) == [False, False, False, True] * 2
    assert attends({"num_hidden_layers": 6, "full_attention_interval": 3}) == [False, False, True] * 2
    kinds = ["full_attention", "linear_attention"]
    assert attends({"num_hidden_layers": 2, "layer_types": kinds}) == [True, False]


def test_a_delta_net_of_qwen3_next_keeps_a_square_state_a_value_head() -> None:
    """32 heads of 128 by 128 in two bytes; three tokens of 2 x 16 x 128 + 32 x 128 channels."""
    state = next(c for layer in shape("qwen3_next", NEXT).layers for c in layer.caches if isinstance(c, StateCache))
    assert state_bytes(state, 1) == (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)) * 2


def test_a_delta_net_of_qwen3_5_keeps_its_state_in_float32() -> None:
    """The type its configuration names, `mamba_ssm_dtype`; the convolution stays in two bytes."""
    state = next(c for layer in shape("qwen3_next", SMALL).layers for c in layer.caches if isinstance(c, StateCache))
    assert config("qwen3_next", SMALL)["text_config"]["mamba_ssm_dtype"] == "float32"
    assert state_bytes(state, 1) == 32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2


def test_the_tower_sits_on_the_first_stage() -> None:
    """The language model alone has none."""
    model = shape("qwen3_next", SMALL)
    assert has_tower(model)
    assert not any(module.tensor_class is TensorClass.TOWER for module in model.last_stage)
    assert not has_tower(shape("qwen3_next", "Qwen3.5 without its tower"))


def test_the_text_part_decides_whether_the_head_is_tied() -> None:
    """The root of a multimodal configuration has no say."""
    assert not shape("qwen3_next", "Qwen3.5 tied by the root alone").tied_head
    assert shape("qwen3_next", "Qwen3.5 tied by the text part alone").tied_head


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"layer_types": ["full_attention", "rwkv"], "num_hidden_layers": 2}, "layer_types"),
        ({"dual_chunk_attention_config": {"chunk_size": 8192}}, "dual_chunk_attention_config"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    """Kinds of layers and attention that the engine's class does not know, or that no rule covers."""
    with pytest.raises(NotUnderstood) as refusal:
        read_model("strange", {**config("qwen3_next", NEXT), **changed})
    assert field in refusal.value.fields


def test_a_vision_model_needs_its_towers_configuration() -> None:
    """Without `vision_config` the size of the tower is unknown."""
    with pytest.raises(InvalidConfig, match="vision_config"):
        read_model("blind", config("qwen3_next", SMALL, vision_config=None))
