"""Nemotron Nano VL: the RADIO tower and what is refused of it."""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.modules import Tensor
from service.sizing.model.reader import read_model
from tests.sizing.models.engine_facts import config, shape

FAMILY, NANO = "latent_hybrid_towers", "Nemotron Nano VL, ten layers"


def tower_rows(name: str, **changed: Any) -> int:
    """Rows of one tensor of the tower, with arguments of the tower changed."""
    whole = config(FAMILY, NANO)
    vision = whole["vision_config"]
    whole["vision_config"] = {**vision, "args": {**vision["args"], **changed}}
    model = read_model("nano", whole)
    (tensor,) = (module for module in model.first_stage if isinstance(module, Tensor) and module.name == name)
    return sum(units.total for units in tensor.rows)


@pytest.mark.parametrize(
    ("changed", "tokens"),
    [
        ({}, 10),
        ({"register_multiple": None}, 3),
        ({"cls_token_per_teacher": False, "register_multiple": None}, 1),
        ({"register_multiple": 3}, 6),
    ],
)
def test_class_tokens_are_made_up_with_registers(changed: dict[str, Any], tokens: int) -> None:
    """Three teachers of different names; a whole multiple of registers even where nothing is missing."""
    assert tower_rows("cls_token", **changed) == tokens


def test_positions_cover_the_largest_image() -> None:
    """2048 pixels in patches of 16: 128 by 128."""
    assert tower_rows("pos_embed") == 128 * 128


def test_the_class_is_not_split_into_stages() -> None:
    """Named so in the engine's registry."""
    assert not shape(FAMILY, NANO).supports_pipeline


@pytest.mark.parametrize(
    ("changed", "kind", "named"),
    [
        ({"sound_config": {"hidden_size": 512}}, NotUnderstood, "sound encoder"),
        ({"vision_config": None}, InvalidConfig, "vision_config is missing"),
        ({"vision_config": {"args": {"model": "vit_giant"}}}, NotUnderstood, "vit_giant"),
        ({"vision_config": {"patch_size": 16}}, InvalidConfig, "vision_config.args is missing"),
    ],
)
def test_what_is_missing_or_unknown_is_named(changed: dict[str, Any], kind: type[Exception], named: str) -> None:
    """Towers by other names, sound, and configurations without a tower."""
    with pytest.raises(kind, match=named):
        read_model("strange", config(FAMILY, NANO, **changed))
