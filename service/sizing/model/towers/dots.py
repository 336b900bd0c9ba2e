"""The tower of dots.ocr.

Source: vLLM 0.33 `model_executor/models/dots_ocr.py`, `transformers_utils/configs/dotsocr.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.blocks import gated_mlp
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.towers.parts import (
    PROJECTOR,
    TOWER,
    convolution,
    layer_norm,
    tower_linear,
    tower_query_key_value,
)

DOTS: Mapping[str, Any] = {
    "embed_dim": 1536,
    "hidden_size": 1536,
    "intermediate_size": 4224,
    "num_hidden_layers": 42,
    "num_attention_heads": 12,
    "num_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
}

FLOAT32_BYTES = 4


def dots_tower(quantization: Quantization, vision: Fields, *, path: str = "vision_tower") -> tuple[Module, ...]:
    """The tower and its merger, which is never quantised."""
    vision = vision.completed(DOTS)
    hidden, heads = vision.integer("embed_dim"), vision.integer("num_attention_heads")
    if hidden % heads:
        field = vision.named("num_attention_heads")
        raise InvalidConfig(field, f"{field} ({heads}) must divide embed_dim ({hidden})")
    width, size = vision.integer("intermediate_size"), hidden // heads
    bias, merged = vision.flag("use_bias", default=False), hidden * vision.integer("spatial_merge_size") ** 2
    modules: list[Module] = [
        convolution("patchifier.proj", vision.integer("num_channels"), hidden, vision.integer("patch_size") ** 2),
        layer_norm("patchifier.norm", hidden, bias=False),
        Tensor("inv_freq", TOWER, (Units(size // 4),), element_bytes=FLOAT32_BYTES, buffer=True),
    ]
    for number in range(vision.layers("num_hidden_layers")):
        block = f"{path}.blocks.{number}"
        modules += (
            tower_query_key_value(quantization, f"{block}.attn", "qkv", hidden, heads, size, bias=bias),
            tower_linear(quantization, f"{block}.attn", "proj", Units(heads, size), hidden, Split.ROW, bias=bias),
            *gated_mlp(quantization, f"{block}.mlp", hidden, width, bias=bias, tensor_class=TOWER),
            layer_norm("norms", 2 * hidden, bias=False),
        )
    if vision.flag("post_norm", default=True):
        modules.append(layer_norm("post_trunk_norm", hidden, bias=False))
    return (
        *modules,
        layer_norm("merger.ln_q", hidden, tensor_class=PROJECTOR),
        tower_linear(NotQuantised(), "merger", "0", merged, merged, Split.COLUMN, bias=True, tensor_class=PROJECTOR),
        tower_linear(
            NotQuantised(),
            "merger",
            "2",
            merged,
            vision.integer("hidden_size"),
            Split.ROW,
            bias=True,
            tensor_class=PROJECTOR,
        ),
    )
