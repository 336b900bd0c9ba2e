"""Towers of the Qwen family.

Source: vLLM 0.33 `model_executor/models/qwen2_vl.py`, `qwen2_5_vl.py`, `qwen3_vl.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.blocks import gated_mlp
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import PROJECTOR, TOWER, layer_norm, tower_linear, tower_query_key_value

TOWER_POSITIONS = 8192
"""Positions of the rotary table of a Qwen tower."""

TOWER_ROTARY_SHARE = 2
"""One part in this many of a head of a Qwen tower is rotated."""

DEEPSTACK_NORM = "deepstack_norm"
"""Name of the norm of each merger that feeds a deep layer."""


def qwen3_vl_tower(
    quantization: Quantization,
    vision: Fields,
    defaults: Mapping[str, Any],
    *,
    path: str = "model.visual",
    projects: bool = True,
) -> tuple[Module, ...]:
    """The tower of Qwen3-VL and Qwen3.5, with the mergers that feed deep layers where the configuration lists them.

    Without `projects` one merger only puts patches beside each other, and none feeds deep layers.
    """
    vision = Fields({**defaults, **vision.values}, vision.path)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_heads", "num_attention_heads")
    width, output = vision.integer("intermediate_size"), vision.integer("out_hidden_size")
    size, patch = hidden // heads, vision.integer("patch_size")
    pixels = vision.integer("in_channels") * vision.integer("temporal_patch_size") * patch * patch
    merged = hidden * vision.integer("spatial_merge_size") ** 2
    deep = (vision.integers("deepstack_visual_indexes") or []) if projects else []

    def merger(name: str, norm: int, norm_name: str = "norm") -> tuple[Module, ...]:
        return (
            layer_norm(norm_name, norm, tensor_class=PROJECTOR),
            tower_linear(
                quantization,
                f"{path}.{name}",
                "linear_fc1",
                merged,
                merged,
                Split.COLUMN,
                bias=True,
                tensor_class=PROJECTOR,
            ),
            tower_linear(
                quantization,
                f"{path}.{name}",
                "linear_fc2",
                merged,
                output,
                Split.ROW,
                bias=True,
                tensor_class=PROJECTOR,
            ),
        )

    modules: list[Module] = [
        Tensor("patch_embed.proj", TOWER, (Units(hidden),), columns=pixels + 1),
        Tensor("pos_embed", TOWER, (Units(vision.integer("num_position_embeddings")),), columns=hidden),
        Tensor("rotary", TOWER, (Units(TOWER_POSITIONS),), columns=size // TOWER_ROTARY_SHARE, buffer=True),
        *(merger("merger", hidden) if projects else (layer_norm("norm", hidden, tensor_class=PROJECTOR),)),
    ]
    for number in range(len(deep)):
        modules += merger(f"deepstack_merger_list.{number}", merged, DEEPSTACK_NORM)
    for number in range(vision.layers("depth")):
        block = f"{path}.blocks.{number}"
        modules += (
            layer_norm("norm1", hidden),
            tower_query_key_value(quantization, f"{block}.attn", "qkv", hidden, heads, size, bias=True),
            tower_linear(quantization, f"{block}.attn", "proj", Units(heads, size), hidden, Split.ROW, bias=True),
            layer_norm("norm2", hidden),
            tower_linear(quantization, f"{block}.mlp", "linear_fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{block}.mlp", "linear_fc2", width, hidden, Split.ROW, bias=True),
        )
    return tuple(modules)


QWEN2_VL: Mapping[str, Any] = {
    "depth": 32,
    "embed_dim": 1280,
    "hidden_size": 3584,
    "mlp_ratio": 4,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
QWEN2_5_VL: Mapping[str, Any] = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
}


def around_blocks(
    quantization: Quantization, path: str, vision: Fields, hidden: int, output: int, *, norm_bias: bool
) -> tuple[Module, ...]:
    """What stands around the blocks of Qwen2-VL and Qwen2.5-VL: patches, rotary table, merger."""
    merged = hidden * vision.integer("spatial_merge_size") ** 2
    patch = vision.integer("patch_size")
    pixels = vision.integer("in_channels") * vision.integer("temporal_patch_size") * patch * patch
    size = hidden // vision.integer("num_heads")
    return (
        Tensor("patch_embed.proj", TOWER, (Units(hidden),), columns=pixels),
        Tensor("rotary", TOWER, (Units(TOWER_POSITIONS),), columns=size // TOWER_ROTARY_SHARE, buffer=True),
        layer_norm("ln_q", hidden, bias=norm_bias, tensor_class=PROJECTOR),
        *(
            tower_linear(
                quantization, f"{path}.merger.mlp", name, merged, outputs, split, bias=True, tensor_class=PROJECTOR
            )
            for name, outputs, split in (("0", merged, Split.COLUMN), ("2", output, Split.ROW))
        ),
    )


def attention(
    quantization: Quantization,
    path: str,
    hidden: int,
    heads: int,
    *,
    one_matrix: bool = False,
    kv_heads: int | None = None,
) -> tuple[Module, ...]:
    """Attention of a block; `one_matrix` where the engine does not fuse query, key and value but takes them as one."""
    size = hidden // heads
    return (
        tower_linear(quantization, f"{path}.attn", "qkv", hidden, Units(heads, 3 * size), Split.COLUMN, bias=True)
        if one_matrix
        else tower_query_key_value(
            quantization, f"{path}.attn", "qkv", hidden, heads, size, bias=True, kv_heads=kv_heads
        ),
        tower_linear(quantization, f"{path}.attn", "proj", Units(heads, size), hidden, Split.ROW, bias=True),
    )


def qwen2_vl_tower(quantization: Quantization, vision: Fields, *, path: str = "visual") -> tuple[Module, ...]:
    """The tower of Qwen2-VL."""
    vision = vision.completed(QWEN2_VL)
    hidden, heads = vision.integer("embed_dim"), vision.integer("num_heads")
    width = hidden * vision.integer("mlp_ratio")
    modules = list(around_blocks(quantization, path, vision, hidden, vision.integer("hidden_size"), norm_bias=True))
    for number in range(vision.layers("depth")):
        block = f"{path}.blocks.{number}"
        modules += (
            layer_norm("norms", 2 * hidden),
            *attention(quantization, block, hidden, heads, one_matrix=True),
            tower_linear(quantization, f"{block}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{block}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
        )
    return tuple(modules)


def qwen2_5_vl_tower(
    quantization: Quantization, vision: Fields, *, path: str = "visual", kv_heads: int | None = None
) -> tuple[Module, ...]:
    """The tower of Qwen2.5-VL: gated MLPs, norms without biases; `kv_heads` where fewer than query heads."""
    vision = vision.completed(QWEN2_5_VL)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_heads")
    width = vision.integer("intermediate_size")
    modules = list(
        around_blocks(quantization, path, vision, hidden, vision.integer("out_hidden_size"), norm_bias=False)
    )
    for number in range(vision.layers("depth")):
        block = f"{path}.blocks.{number}"
        modules += (
            layer_norm("norms", 2 * hidden, bias=False),
            *attention(quantization, block, hidden, heads, kv_heads=kv_heads),
            *gated_mlp(quantization, f"{block}.mlp", hidden, width, bias=True, tensor_class=TOWER),
        )
    return tuple(modules)
