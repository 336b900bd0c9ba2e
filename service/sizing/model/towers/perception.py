"""Towers of Step: the perception encoder of Step 3.7 and Step3-VL, and that of the first Step 3.

Source: vLLM 0.33 `model_executor/models/step_vl.py`, `step3_vl.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised, Quantization
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

FLOAT32_BYTES = 4

STEP3: Mapping[str, Any] = {
    "hidden_size": 1792,
    "intermediate_size": 3072,
    "output_hidden_size": 4096,
    "num_hidden_layers": 63,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 728,
    "patch_size": 14,
}
"""The tower of Step 3."""


def block(
    quantization: Quantization, path: str, hidden: int, heads: int, width: int, *, attention: str
) -> tuple[Module, ...]:
    """Attention, MLP and norms of a layer."""
    size = hidden // heads
    return (
        tower_query_key_value(quantization, f"{path}.{attention}", "qkv_proj", hidden, heads, size, bias=True),
        tower_linear(quantization, f"{path}.{attention}", "out_proj", Units(heads, size), hidden, Split.ROW, bias=True),
        tower_linear(quantization, f"{path}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
        tower_linear(quantization, f"{path}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
        layer_norm("norms", 2 * hidden),
    )


def perception_tower(quantization: Quantization, vision: Fields, *, path: str = "vision_model") -> tuple[Module, ...]:
    """The perception encoder, every layer of which has a table of rotary frequencies for the whole grid."""
    hidden, heads = vision.integer("width"), vision.integer("heads")
    if not vision.flag("use_rope2d", default=True):
        field = vision.named("use_rope2d")
        raise InvalidConfig(field, f"{field} must be true")
    if hidden % heads:
        field = vision.named("heads")
        raise InvalidConfig(field, f"{field} ({heads}) must divide width ({hidden})")
    patch, extra = vision.integer("patch_size"), vision.flag("use_cls_token", default=False)
    patches = (vision.integer("image_size") // patch) ** 2 + extra
    scaled = vision.raw("ls_init_value")[1] is not None
    modules: list[Module] = [convolution("conv1", 3, hidden, patch * patch, bias=False)]
    modules += [
        layer_norm(name, hidden)
        for name, default in (("ln_pre", True), ("ln_post", True))
        if vision.flag(f"use_{name}", default=default)
    ]
    if extra:
        modules.append(Tensor("class_embedding", TOWER, (Units(hidden),)))
    if vision.flag("use_abs_posemb", default=True):
        modules.append(Tensor("positional_embedding", TOWER, (Units(patches),), columns=hidden))
    for number in range(vision.layers("layers")):
        modules += (
            *block(
                quantization,
                f"{path}.transformer.resblocks.{number}",
                hidden,
                heads,
                int(hidden * vision.number("mlp_ratio")),
                attention="attn",
            ),
            *((Tensor("layer_scales", TOWER, (Units(2 * hidden),)),) if scaled else ()),
            Tensor(
                "freqs_cache",
                TOWER,
                (Units(patches),),
                columns=hidden // heads,
                element_bytes=FLOAT32_BYTES,
                buffer=True,
            ),
        )
    return (
        *modules,
        convolution("vit_downsampler1", hidden, 2 * hidden, 9),
        convolution("vit_downsampler2", 2 * hidden, 4 * hidden, 9),
    )


def step3_tower(vision: Fields) -> tuple[Module, ...]:
    """The tower of Step 3, which is never quantised, and two convolutions that merge patches."""
    vision = vision.completed(STEP3)
    hidden, heads, output = (
        vision.integer(name) for name in ("hidden_size", "num_attention_heads", "output_hidden_size")
    )
    even_head_size(vision, hidden, heads)
    patch = vision.integer("patch_size")
    positions = (vision.integer("image_size") // patch) ** 2 + 1
    layer = block(NotQuantised(), "", hidden, heads, vision.integer("intermediate_size"), attention="self_attn")
    return (
        Tensor("class_embedding", TOWER, (Units(hidden),)),
        convolution("patch_embedding", vision.integer("num_channels"), hidden, patch * patch),
        Tensor("position_embedding", TOWER, (Units(positions),), columns=hidden),
        Tensor("position_ids", TOWER, (Units(positions),), element_bytes=LONG_BYTES, buffer=True),
        *layer * vision.layers("num_hidden_layers"),
        convolution("vit_downsampler", hidden, output, 4, tensor_class=PROJECTOR),
        convolution("vit_downsampler2", output, 2 * output, 9, tensor_class=PROJECTOR),
    )
