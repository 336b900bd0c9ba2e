"""SigLIP and SigLIP 2.

Source: vLLM 0.33 `model_executor/models/siglip.py`, `lfm2_siglip2.py`, `siglip2navit.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.towers.parts import (
    LONG_BYTES,
    TOWER,
    convolution,
    even_head_size,
    layer_norm,
    left_out,
    tower_linear,
    tower_query_key_value,
)

SIGLIP: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
}
"""SigLIP (transformers 5.20)."""

FLOAT32_BYTES = 4

QUANTISED_MULTIPLE = 64
"""What a SigLIP's widths must be multiples of for its MLP to be quantised."""

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


def siglip2_tower(
    quantization: Quantization, vision: Fields, *, path: str, layers: int | None = None
) -> tuple[Module, ...]:
    """SigLIP 2 over packed patches of any number; with `layers` only those, and no norm after them."""
    vision = Fields({**SIGLIP2, **vision.values}, vision.path)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch, size = (
        vision.integer("intermediate_size"),
        vision.integer("patch_size"),
        even_head_size(vision, hidden, heads),
    )
    depth = vision.layers("num_hidden_layers")
    built = depth if layers is None else layers

    def block(name: str) -> tuple[Module, ...]:
        return (
            layer_norm("norms", 2 * hidden),
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
            *siglip_mlp(quantization, f"{name}.mlp", hidden, width),
        )

    modules: list[Module] = [
        convolution("patch_embedding", vision.integer("num_channels"), hidden, patch * patch),
        Tensor("position_embedding", TOWER, (Units(vision.integer("num_patches")),), columns=hidden),
    ]
    for number in range(built):
        modules += block(f"{path}.encoder.layers.{number}")
    norm = layer_norm("post_layernorm", hidden)
    if layers is None:
        return (*modules, norm)
    return (*modules, *left_out((*block("") * (depth - built), norm)))


def siglip_tower(
    quantization: Quantization,
    vision: Fields,
    *,
    path: str = "vision_tower.vision_model",
    layers: int | None = None,
    final_norm: bool | None = None,
    pooling_head: bool = False,
    numbered: bool = True,
    any_width: bool = False,
) -> tuple[Module, ...]:
    """SigLIP over images of one size, and towers built like it.

    Parameters
    ----------
    path : str
        Name in the checkpoint.
    layers : int, optional
        Layers built, where they are fewer than the configuration's.
    final_norm : bool, optional
        Whether the norm after the last layer is built; by default only with all layers.
    pooling_head : bool
        Whether the attention that pools an image into one vector is built.
    numbered : bool
        Whether the numbers of the positions are kept.
    any_width : bool
        Whether an MLP of any width is quantised.
    """
    vision = vision.completed(SIGLIP)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    size, depth = even_head_size(vision, hidden, heads), vision.layers("num_hidden_layers")
    built = depth if layers is None else layers
    positions = (vision.integer("image_size") // patch) ** 2
    narrow = hidden % QUANTISED_MULTIPLE or width % QUANTISED_MULTIPLE
    mlp = NotQuantised() if narrow and not any_width else quantization

    def block(name: str) -> tuple[Module, ...]:
        return (
            layer_norm("layer_norm1", hidden),
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
            layer_norm("layer_norm2", hidden),
            *siglip_mlp(mlp, f"{name}.mlp", hidden, width),
        )

    modules: list[Module] = [
        Tensor("patch_embedding", TOWER, (Units(hidden),), columns=vision.integer("num_channels") * patch * patch + 1),
        Tensor("position_embedding", TOWER, (Units(positions),), columns=hidden),
    ]
    if numbered:
        modules.append(Tensor("position_ids", TOWER, (Units(positions),), element_bytes=LONG_BYTES, buffer=True))
    for number in range(built):
        modules += block(f"{path}.encoder.layers.{number}")
    norm = layer_norm("post_layernorm", hidden)
    wanted = built == depth if final_norm is None else final_norm
    modules += (norm,) if wanted else ()
    rest = block("") * (depth - built)
    if pooling_head:
        modules += pooling(mlp, f"{path}.head", hidden, width)
    return (*modules, *left_out(rest if wanted else (*rest, norm)))


NAVIT: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_patches": -1,
    "image_size": 512,
    "patch_size": 16,
    "hidden_stride": 2,
}
"""The tower of Ovis 2.5."""


def siglip_navit_tower(quantization: Quantization, vision: Fields, *, path: str) -> tuple[Module, ...]:
    """SigLIP 2 with rotary positions and, unless told otherwise, its learned ones."""
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    size = even_head_size(vision, hidden, heads)
    given = vision.integer("num_patches", minimum=-1)
    positions = given if given > 0 else (vision.integer("image_size") // patch) ** 2
    modules: list[Module] = [
        convolution("patch_embedding", vision.integer("num_channels"), hidden, patch * patch),
        Tensor("inv_freq", TOWER, (Units(size // 4),), element_bytes=FLOAT32_BYTES, buffer=True),
    ]
    if vision.flag("preserve_original_pe", default=True):
        modules.append(Tensor("position_embedding", TOWER, (Units(positions),), columns=hidden))
    for number in range(vision.layers("num_hidden_layers")):
        block = f"{path}.encoder.layers.{number}"
        modules += (
            layer_norm("norms", 2 * hidden),
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
            *siglip_mlp(quantization, f"{block}.mlp", hidden, width),
        )
    return (*modules, layer_norm("post_layernorm", hidden))


def siglip_mlp(quantization: Quantization, path: str, hidden: int, width: int) -> tuple[Module, ...]:
    """The MLP of a SigLIP layer."""
    return (
        tower_linear(quantization, path, "fc1", hidden, width, Split.COLUMN, bias=True),
        tower_linear(quantization, path, "fc2", width, hidden, Split.ROW, bias=True),
    )


def pooling(quantization: Quantization, path: str, hidden: int, width: int) -> tuple[Module, ...]:
    """The attention of one learned query that pools an image into one vector."""
    return (
        Tensor("head.probe", TOWER, (Units(hidden),)),
        Tensor("head.attention", TOWER, (Units(4 * hidden),), columns=hidden + 1),
        layer_norm("head.layernorm", hidden),
        *siglip_mlp(quantization, f"{path}.mlp", hidden, width),
    )
