"""CLIP.

Source: vLLM 0.33 `model_executor/models/clip.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import (
    LONG_BYTES,
    TOWER,
    even_head_size,
    layer_norm,
    left_out,
    tower_linear,
    tower_query_key_value,
)

CLIP: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
}


def clip_tower(
    quantization: Quantization,
    vision: Fields,
    *,
    path: str = "vision_tower.vision_model",
    layers: int | None = None,
    final_norm: bool | None = None,
) -> tuple[Module, ...]:
    """CLIP's vision model; layers beyond `layers` and, by default with them, the final norm are not built."""
    vision = vision.completed(CLIP)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    size, depth = even_head_size(vision, hidden, heads), vision.layers("num_hidden_layers")
    built = depth if layers is None else layers
    positions = (vision.integer("image_size") // patch) ** 2 + 1

    def block(name: str) -> tuple[Module, ...]:
        return (
            tower_query_key_value(
                quantization,
                f"{name}.self_attn",
                "qkv_proj",
                hidden,
                heads,
                size,
                bias=True,
                parts=("q_proj", "k_proj", "v_proj"),
            ),
            tower_linear(
                quantization, f"{name}.self_attn", "out_proj", Units(heads, size), hidden, Split.ROW, bias=True
            ),
            layer_norm("norms", 2 * hidden),
            tower_linear(quantization, f"{name}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{name}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
        )

    modules: list[Module] = [
        Tensor(
            "class_and_patch_embedding", TOWER, (Units(hidden),), columns=vision.integer("num_channels") * patch**2 + 1
        ),
        Tensor("position_embedding", TOWER, (Units(positions),), columns=hidden),
        Tensor("position_ids", TOWER, (Units(positions),), element_bytes=LONG_BYTES, buffer=True),
        layer_norm("pre_layrnorm", hidden),
    ]
    for number in range(built):
        modules += block(f"{path}.encoder.layers.{number}")
    norm = layer_norm("post_layernorm", hidden)
    wanted = built == depth if final_norm is None else final_norm
    rest = block("") * (depth - built)
    return (*modules, *((norm,) if wanted else ()), *left_out(rest if wanted else (*rest, norm)))
