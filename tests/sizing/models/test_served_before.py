"""Architectures that vLLM has dropped: read as the last version served them, and said to be refused."""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.reader import read_model
from service.sizing.model.shape import AttentionCache, StateCache, Status
from tests.sizing.models.engine_facts import config, shape

BAMBA, MINIMAX = "Bamba 9B", "eight layers of MiniMax-Text-01, transformers' spelling"
TEXT_01 = {"architectures": ["MiniMaxText01ForCausalLM"], "model_type": "minimax_text_01"}


@pytest.mark.parametrize(("model", "version"), [(BAMBA, "0.23.0"), (MINIMAX, "0.23.0")])
def test_the_last_version_is_named(model: str, version: str) -> None:
    """In the engine's words; sizes are estimates."""
    read = shape("served_before", model)
    assert f"was supported in vLLM until v{version}" in (read.architecture_refusal or "")
    assert read.status is Status.ESTIMATED


def test_bamba_attends_where_its_list_says() -> None:
    """Layers 9, 18 and 27 of 32."""
    attends = [isinstance(layer.caches[0], AttentionCache) for layer in shape("served_before", BAMBA).layers]
    assert [index for index, attending in enumerate(attends) if attending] == [9, 18, 27]


def test_both_spellings_of_minimax_layers_are_read() -> None:
    """Zeros are linear attention and ones softmax; transformers names the kinds, softmax first by default."""
    listed = {**config("served_before", MINIMAX), **TEXT_01, "attn_type_list": [1, 0] * 4}
    assert read_model("listed", listed).layers == shape("served_before", MINIMAX).layers


def test_minimax_keeps_a_square_state_a_head() -> None:
    """64 heads of 128 by 128."""
    (state,) = {
        c for layer in shape("served_before", MINIMAX).layers for c in layer.caches if isinstance(c, StateCache)
    }
    (tensor,) = state.tensors
    assert (sum(units.total for units in tensor.rows), tensor.columns) == (64 * 128, 128)


@pytest.mark.parametrize(
    ("changed", "kind", "named"),
    [
        ({"attn_type_list": [0, 2] * 4}, NotUnderstood, "attention of type"),
        ({"attn_type_list": [0, 1]}, InvalidConfig, "attn_type_list lists 2 layers"),
        ({"num_local_experts": [32, 32]}, InvalidConfig, "num_local_experts lists 2 layers"),
    ],
)
def test_lists_must_be_known_and_whole(changed: dict[str, Any], kind: type[Exception], named: str) -> None:
    """Other marks than zero and one, and lists shorter than the layers."""
    with pytest.raises(kind, match=named):
        read_model("strange", {**config("served_before", MINIMAX), **TEXT_01, **changed})
