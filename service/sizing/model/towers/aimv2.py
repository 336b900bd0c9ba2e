"""AIMv2, the tower of Ovis 2.

Source: vLLM 0.33 `model_executor/models/aimv2.py`.
"""

from service.sizing.model.blocks import gated_mlp
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import (
    TOWER,
    convolution,
    even_head_size,
    layer_norm,
    left_out,
    tower_linear,
    tower_query_key_value,
)


def aimv2_tower(quantization: Quantization, vision: Fields, *, path: str) -> tuple[Module, ...]:
    """The tower without its final norm."""
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    size = even_head_size(vision, hidden, heads)
    bias, query_bias = (vision.flag(name, default=False) for name in ("mlp_bias", "qkv_bias"))
    modules: list[Module] = [
        convolution("patchifier.proj", vision.integer("num_channels", default=3), hidden, patch * patch),
        layer_norm("patchifier.norm", hidden, bias=False),
        Tensor("pos_embed", TOWER, (Units((vision.integer("image_size") // patch) ** 2),), columns=hidden),
    ]
    for number in range(vision.layers("num_hidden_layers")):
        block = f"{path}.trunk.blocks.{number}"
        modules += (
            tower_query_key_value(quantization, f"{block}.attn", "qkv", hidden, heads, size, bias=query_bias),
            tower_linear(quantization, f"{block}.attn", "proj", Units(heads, size), hidden, Split.ROW, bias=bias),
            *gated_mlp(quantization, f"{block}.mlp", hidden, width, bias=bias, tensor_class=TOWER),
            layer_norm("norms", 2 * hidden, bias=False),
        )
    return (*modules, *left_out((layer_norm("post_trunk_norm", hidden, bias=False),)))
