"""Vision towers that several families share. A tower and its projector sit on the first pipeline stage.

Source: vLLM 0.33 `model_executor/models/qwen3_vl.py`, `kimi_k25_vit.py`, `lfm2_siglip2.py`, `vision.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization

TOWER, PROJECTOR = TensorClass.TOWER, TensorClass.PROJECTOR

TOWER_POSITIONS = 8192
"""Positions of the rotary table of a Qwen tower."""

TOWER_ROTARY_SHARE = 2
"""One part in this many of a head of a Qwen tower is rotated."""


def tower_query_key_value(
    quantization: Quantization,
    path: str,
    name: str,
    hidden: int,
    heads: int,
    head_size: int,
    *,
    bias: bool,
    parts: tuple[str, ...] = (),
    split_units: int | None = None,
) -> Linear:
    """Fused query, key and value projection of a tower with as many key as query heads."""
    units = Units(heads, head_size)
    return Linear(
        name,
        TOWER,
        Units(hidden),
        (units, units, units),
        Split.COLUMN,
        bias,
        quantization.linear(*(f"{path}.{part}" for part in parts or (name,))),
        split_units=split_units,
    )


def tower_linear(
    quantization: Quantization,
    path: str,
    name: str,
    inputs: Units | int,
    outputs: int,
    split: Split,
    *,
    bias: bool,
    tensor_class: TensorClass = TOWER,
    split_units: int | None = None,
) -> Linear:
    """One linear layer of a tower or projector."""
    units = inputs if isinstance(inputs, Units) else Units(inputs)
    scheme = quantization.linear(f"{path}.{name}")
    return Linear(name, tensor_class, units, (Units(outputs),), split, bias, scheme, split_units=split_units)


def layer_norm(name: str, size: int, *, bias: bool = True, tensor_class: TensorClass = TOWER) -> Tensor:
    """A norm's weight and, for most towers, its bias."""
    return Tensor(name, tensor_class, (Units(size),), columns=2 if bias else 1)


def qwen3_vl_tower(
    quantization: Quantization, vision: Fields, defaults: Mapping[str, Any], *, path: str = "model.visual"
) -> tuple[Module, ...]:
    """The tower of Qwen3-VL and Qwen3.5, with the mergers that feed deep layers where the configuration lists them."""
    vision = Fields({**defaults, **vision.values}, vision.path)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_heads", "num_attention_heads")
    width, output = vision.integer("intermediate_size"), vision.integer("out_hidden_size")
    size, patch = hidden // heads, vision.integer("patch_size")
    pixels = vision.integer("in_channels") * vision.integer("temporal_patch_size") * patch * patch
    merged = hidden * vision.integer("spatial_merge_size") ** 2
    deep = vision.integers("deepstack_visual_indexes") or []

    def merger(name: str, norm: int) -> tuple[Module, ...]:
        return (
            layer_norm("norm", norm, tensor_class=PROJECTOR),
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
        *merger("merger", hidden),
    ]
    for number in range(len(deep)):
        modules += merger(f"deepstack_merger_list.{number}", merged)
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


MOON_VIT: Mapping[str, Any] = {
    "patch_size": 14,
    "pos_emb_height": 64,
    "pos_emb_width": 64,
    "pos_emb_time": 4,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "merge_kernel_size": [2, 2],
}
"""The 3-D MoonViT of Kimi K2.5."""


def moon_vit_tower(
    quantization: Quantization, vision: Fields, text_hidden: int, *, path: str = "vision_tower"
) -> tuple[Module, ...]:
    """The 3-D MoonViT and its projector; held whole where the ranks do not divide its heads.

    Norms, biases and the projector's shape follow the fields that Kimi K3 adds and K2.5 leaves out. A quantised tower
    is not cast to the model's type, so that what it computes for time positions stays in float32.
    """
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    inner = vision.integer("qkv_hidden_size", default=hidden)
    size = inner // heads
    grid = (
        vision.integer("init_pos_emb_height", "pos_emb_height"),
        vision.integer("init_pos_emb_width", "pos_emb_width"),
    )
    frames = vision.integer("init_pos_emb_time", "pos_emb_time")
    attention_bias, linear_bias = vision.flag("attn_bias", default=True), vision.flag("linear_bias", default=True)
    norm_bias = vision.text("norm_type", default="layernorm") == "layernorm"
    merge = vision.integers("merge_kernel_size", minimum=1) or [2, 2]
    modules: list[Module] = [
        Tensor(
            "patch_embed.proj",
            TOWER,
            (Units(hidden),),
            columns=3 * patch * patch + vision.flag("patch_embed_proj_bias", default=True),
        ),
        Tensor("patch_embed.pos_emb", TOWER, (Units(grid[0] * grid[1]),), columns=hidden),
        Tensor(
            "patch_embed.pos_emb.time_weight",
            TOWER,
            (Units(frames),),
            columns=hidden,
            element_bytes=None if quantization.method is None else 4,
            buffer=True,
        ),
    ]
    for number in range(vision.layers("num_hidden_layers")):
        block = f"{path}.encoder.blocks.{number}"
        modules += (
            layer_norm("norm0", hidden, bias=norm_bias),
            layer_norm("norm1", hidden, bias=norm_bias),
            tower_linear(
                quantization,
                f"{block}.mlp",
                "fc0",
                hidden,
                width,
                Split.COLUMN,
                bias=linear_bias,
                split_units=heads,
            ),
            tower_linear(
                quantization, f"{block}.mlp", "fc1", width, hidden, Split.ROW, bias=linear_bias, split_units=heads
            ),
            tower_query_key_value(
                quantization, block, "wqkv", hidden, heads, size, bias=attention_bias, split_units=heads
            ),
            tower_linear(
                quantization,
                block,
                "wo",
                Units(heads, size),
                hidden,
                Split.ROW,
                bias=attention_bias,
                split_units=heads,
            ),
        )
    modules.append(layer_norm("final_layernorm", hidden, bias=norm_bias))
    merged = hidden * merge[0] * merge[1]
    second = vision.text("mm_projector_type", default="patchmerger") == "patchmergerv2"
    norm = (
        layer_norm("post_norm", text_hidden, bias=False, tensor_class=PROJECTOR)
        if second
        else layer_norm("pre_norm", hidden, tensor_class=PROJECTOR)
    )
    return (
        *modules,
        norm,
        *(
            tower_linear(
                quantization,
                "mm_projector.proj",
                name,
                merged,
                outputs,
                Split.REPLICATED,
                bias=not second,
                tensor_class=PROJECTOR,
            )
            for name, outputs in (("0", merged), ("2", text_hidden))
        ),
    )


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
