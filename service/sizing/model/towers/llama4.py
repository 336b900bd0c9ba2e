"""The vision tower of Llama 4, which is never quantised.

Source: vLLM 0.33 `model_executor/models/mllama4.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.towers.parts import PROJECTOR, TOWER, layer_norm, tower_linear, tower_query_key_value

VISION: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "num_channels": 3,
    "intermediate_size": 5632,
    "vision_output_dim": 7680,
    "image_size": 448,
    "patch_size": 14,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}

COMPLEX64_BYTES = 8


def llama4_tower(vision: Fields, text_hidden: int) -> tuple[Module, ...]:
    """The tower, its adapter, which shuffles pixels into channels, and the projector."""
    vision = vision.completed(VISION)
    plain = NotQuantised()
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    size, width, patch = hidden // heads, vision.integer("intermediate_size"), vision.integer("patch_size")
    patches = (vision.integer("image_size") // patch) ** 2
    middle, output = vision.integer("projector_input_dim"), vision.integer("projector_output_dim")
    adapter_bias = vision.flag("multi_modal_projector_bias", default=False)
    layer = (
        tower_query_key_value(plain, "", "qkv_proj", hidden, heads, size, bias=True),
        tower_linear(plain, "", "o_proj", Units(heads, size), hidden, Split.ROW, bias=True),
        tower_linear(plain, "", "fc1", hidden, width, Split.COLUMN, bias=True),
        tower_linear(plain, "", "fc2", width, hidden, Split.ROW, bias=True),
        layer_norm("norms", 2 * hidden),
    )
    return (
        tower_linear(
            plain,
            "",
            "patch_embedding",
            vision.integer("num_channels") * patch * patch,
            hidden,
            Split.COLUMN,
            bias=False,
        ),
        Tensor("class_and_positions", TOWER, (Units(patches + 2),), columns=hidden),
        Tensor(
            "rotary_emb", TOWER, (Units(patches + 1),), columns=size // 2, element_bytes=COMPLEX64_BYTES, buffer=True
        ),
        layer_norm("layernorm_pre_and_post", 2 * hidden),
        *(layer * vision.layers("num_hidden_layers")),
        tower_linear(plain, "", "fc1", width, middle, Split.COLUMN, bias=adapter_bias, tensor_class=PROJECTOR),
        tower_linear(plain, "", "fc2", middle, output, Split.ROW, bias=adapter_bias, tensor_class=PROJECTOR),
        tower_linear(
            plain,
            "",
            "linear_1",
            vision.integer("vision_output_dim"),
            text_hidden,
            Split.COLUMN,
            bias=False,
            tensor_class=PROJECTOR,
        ),
    )
