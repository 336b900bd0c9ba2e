"""Towers of GLM.

Source: vLLM 0.33 `model_executor/models/glm4_1v.py`, `glm_ocr.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.blocks import gated_mlp
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import (
    LONG_BYTES,
    PROJECTOR,
    TOWER,
    convolution,
    even_head_size,
    layer_norm,
    tower_linear,
    tower_query_key_value,
)
from service.sizing.model.towers.qwen import TOWER_POSITIONS, TOWER_ROTARY_SHARE

GLM_VISION: Mapping[str, Any] = {
    "depth": 24,
    "hidden_size": 1536,
    "num_heads": 12,
    "in_channels": 3,
    "image_size": 336,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 4096,
    "intermediate_size": 13696,
}


def glm_tower(quantization: Quantization, vision: Fields, *, path: str = "visual") -> tuple[Module, ...]:
    """The tower: its MLPs have the width that the configuration calls the output's, the merger the MLP's."""
    vision = vision.completed(GLM_VISION)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_heads")
    output, width = vision.integer("out_hidden_size"), vision.integer("intermediate_size")
    size, patch = even_head_size(vision, hidden, heads), vision.integer("patch_size")
    pixels = vision.integer("in_channels") * vision.integer("temporal_patch_size") * patch * patch
    positions, merge = (vision.integer("image_size") // patch) ** 2, vision.integer("spatial_merge_size")
    modules: list[Module] = [
        Tensor("patch_embed.proj", TOWER, (Units(hidden),), columns=pixels + 1),
        Tensor("position_embedding", TOWER, (Units(positions),), columns=hidden),
        Tensor("position_ids", TOWER, (Units(positions),), element_bytes=LONG_BYTES, buffer=True),
        Tensor("rotary", TOWER, (Units(TOWER_POSITIONS),), columns=size // TOWER_ROTARY_SHARE, buffer=True),
        layer_norm("conv_and_final_norms", 2 * hidden, bias=False),
    ]
    for number in range(vision.layers("depth")):
        block = f"{path}.blocks.{number}"
        modules += (
            tower_query_key_value(quantization, f"{block}.attn", "qkv", hidden, heads, size, bias=False),
            tower_linear(quantization, f"{block}.attn", "proj", Units(heads, size), hidden, Split.ROW, bias=False),
            *gated_mlp(quantization, f"{block}.mlp", hidden, output, tensor_class=TOWER),
            layer_norm("norms", 2 * hidden, bias=False),
        )
    return (*modules, *merger(quantization, path, hidden, output, width, merge))


def merger(
    quantization: Quantization, path: str, hidden: int, output: int, width: int, merge: int
) -> tuple[Module, ...]:
    """The convolution that merges patches, and a gated MLP of `width`."""
    return (
        convolution("downsample", hidden, output, merge * merge, tensor_class=PROJECTOR),
        tower_linear(
            quantization, f"{path}.merger", "proj", output, output, Split.COLUMN, bias=False, tensor_class=PROJECTOR
        ),
        layer_norm("post_projection_norm", output, tensor_class=PROJECTOR),
        *gated_mlp(quantization, f"{path}.merger", output, width, tensor_class=PROJECTOR),
    )


GLM_OCR_VISION: Mapping[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 1536,
    "intermediate_size": 4096,
}


def glm_ocr_tower(
    quantization: Quantization, vision: Fields, text_width: int, *, path: str = "visual"
) -> tuple[Module, ...]:
    """The tower of GLM-OCR: norms on queries and keys, and a merger as wide as the language model's MLPs."""
    vision = vision.completed(GLM_OCR_VISION)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    size = even_head_size(vision, hidden, heads)
    modules: list[Module] = [
        convolution(
            "patch_embed.proj",
            vision.integer("in_channels") * vision.integer("temporal_patch_size"),
            hidden,
            patch * patch,
        ),
        Tensor("rotary", TOWER, (Units(TOWER_POSITIONS),), columns=size // TOWER_ROTARY_SHARE, buffer=True),
        layer_norm("post_layernorm", hidden, bias=False),
    ]
    for number in range(vision.layers("depth")):
        block = f"{path}.blocks.{number}"
        modules += (
            tower_query_key_value(quantization, f"{block}.attn", "qkv", hidden, heads, size, bias=True),
            tower_linear(quantization, f"{block}.attn", "proj", Units(heads, size), hidden, Split.ROW, bias=True),
            *gated_mlp(quantization, f"{block}.mlp", hidden, width, bias=True, tensor_class=TOWER),
            layer_norm("norms", 2 * hidden + 2 * size, bias=False),
        )
    output, merge = vision.integer("out_hidden_size"), vision.integer("spatial_merge_size")
    return (*modules, *merger(quantization, path, hidden, output, text_width, merge))
