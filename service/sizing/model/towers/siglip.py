"""SigLIP and SigLIP 2.

Source: vLLM 0.33 `model_executor/models/lfm2_siglip2.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import TOWER, layer_norm, tower_linear, tower_query_key_value

SIGLIP2: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "patch_size": 16,
    "num_patches": 256,
}
"""SigLIP 2 for images of any shape."""


def siglip2_tower(quantization: Quantization, vision: Fields, *, path: str) -> tuple[Module, ...]:
    """SigLIP 2 over packed patches of any number."""
    vision = Fields({**SIGLIP2, **vision.values}, vision.path)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch, size = vision.integer("intermediate_size"), vision.integer("patch_size"), hidden // heads
    if heads * size != hidden:
        raise InvalidConfig(
            vision.named("num_attention_heads"),
            f"{vision.named('num_attention_heads')} ({heads}) must divide hidden_size ({hidden})",
        )
    modules: list[Module] = [
        Tensor("patch_embedding", TOWER, (Units(hidden),), columns=vision.integer("num_channels") * patch * patch + 1),
        Tensor("position_embedding", TOWER, (Units(vision.integer("num_patches")),), columns=hidden),
    ]
    for number in range(vision.layers("num_hidden_layers")):
        block = f"{path}.encoder.layers.{number}"
        modules += (
            layer_norm("layer_norm1", hidden),
            tower_query_key_value(
                quantization,
                f"{block}.self_attn",
                "qkv_proj",
                hidden,
                heads,
                size,
                bias=True,
                parts=("q_proj", "k_proj", "v_proj"),
            ),
            tower_linear(
                quantization, f"{block}.self_attn", "out_proj", Units(heads, size), hidden, Split.ROW, bias=True
            ),
            layer_norm("layer_norm2", hidden),
            tower_linear(quantization, f"{block}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{block}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
        )
    return (*modules, layer_norm("post_layernorm", hidden))
