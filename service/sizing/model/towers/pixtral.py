"""Pixtral's tower.

Source: vLLM 0.33 `model_executor/models/pixtral.py`; transformers 5.20 `models/pixtral/modeling_pixtral.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.blocks import gated_mlp
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import (
    TOWER,
    even_head_size,
    layer_norm,
    left_out,
    tower_linear,
    tower_query_key_value,
)

PIXTRAL: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
}

FLOAT32_BYTES = 4


def pixtral_tower(
    quantization: Quantization, vision: Fields, *, path: str = "vision_tower", layers: int | None = None
) -> tuple[Module, ...]:
    """The tower up to `layers`, and the rotary frequencies of every patch of its largest image."""
    vision = vision.completed(PIXTRAL)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    size, depth = even_head_size(vision, hidden, heads), vision.layers("num_hidden_layers")
    built = depth if layers is None else layers

    def block(name: str) -> tuple[Module, ...]:
        return (
            tower_query_key_value(
                quantization,
                f"{name}.attention",
                "qkv_proj",
                hidden,
                heads,
                size,
                bias=False,
                parts=("q_proj", "k_proj", "v_proj"),
            ),
            tower_linear(
                quantization, f"{name}.attention", "o_proj", Units(heads, size), hidden, Split.ROW, bias=False
            ),
            *gated_mlp(quantization, f"{name}.feed_forward", hidden, width, tensor_class=TOWER),
            layer_norm("norms", 2 * hidden, bias=False),
        )

    modules: list[Module] = [
        Tensor("patch_conv", TOWER, (Units(hidden),), columns=vision.integer("num_channels") * patch**2),
        layer_norm("ln_pre", hidden, bias=False),
        Tensor(
            "patch_positional_embedding", TOWER, (Units(2 * (size // 2)),), element_bytes=FLOAT32_BYTES, buffer=True
        ),
    ]
    for number in range(built):
        modules += block(f"{path}.transformer.layers.{number}")
    return (*modules, *left_out(block("") * (depth - built)))
