"""MoonViT, the tower of Kimi.

Source: vLLM 0.33 `model_executor/models/kimi_k25_vit.py`, `moonvit.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import PROJECTOR, TOWER, layer_norm, tower_linear, tower_query_key_value

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
    quantization: Quantization, vision: Fields, text_hidden: int, *, path: str = "vision_tower", flat: bool = False
) -> tuple[Module, ...]:
    """The 3-D MoonViT and its projector, held whole where the ranks do not divide its heads; or the `flat` one.

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
    units = None if flat else heads
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
    ]
    if not flat:
        frames = vision.integer("init_pos_emb_time", "pos_emb_time")
        modules.append(
            Tensor(
                "patch_embed.pos_emb.time_weight",
                TOWER,
                (Units(frames),),
                columns=hidden,
                element_bytes=None if quantization.method is None else 4,
                buffer=True,
            )
        )
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
                split_units=units,
            ),
            tower_linear(
                quantization, f"{block}.mlp", "fc1", width, hidden, Split.ROW, bias=linear_bias, split_units=units
            ),
            tower_query_key_value(
                quantization, block, "wqkv", hidden, heads, size, bias=attention_bias, split_units=units
            ),
            tower_linear(
                quantization,
                block,
                "wo",
                Units(heads, size),
                hidden,
                Split.ROW,
                bias=attention_bias,
                split_units=units,
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
