"""InternViT, in its own shape and in transformers'.

Source: vLLM 0.33 `model_executor/models/intern_vit.py`, `interns1_vit.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.towers.parts import (
    TOWER,
    even_head_size,
    layer_norm,
    left_out,
    tower_linear,
    tower_query_key_value,
)

INTERN_VIT: Mapping[str, Any] = {
    "hidden_size": 3200,
    "intermediate_size": 12800,
    "num_hidden_layers": 48,
    "num_attention_heads": 25,
    "image_size": 224,
    "patch_size": 14,
    "qkv_bias": False,
    "qk_normalization": True,
    "norm_type": "rms_norm",
}
INTERN_S1_VIT: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": [448, 448],
    "patch_size": [14, 14],
    "attention_bias": False,
    "use_qk_norm": False,
    "norm_type": "layer_norm",
    "use_absolute_position_embeddings": True,
    "use_mask_token": False,
    "use_mean_pooling": True,
}


def norm_bias(vision: Fields) -> bool:
    """Whether norms have a bias."""
    kind = vision.text("norm_type")
    if kind not in ("rms_norm", "layer_norm"):
        field = vision.named("norm_type")
        raise InvalidConfig(field, f'{field} must be "rms_norm" or "layer_norm", not {kind!r}')
    return kind == "layer_norm"


def intern_vit_tower(
    quantization: Quantization,
    vision: Fields,
    *,
    layers: int,
    path: str = "vision_model",
    dummy_heads: int = 0,
) -> tuple[Module, ...]:
    """InternViT up to `layers`, its heads made up to an even number with `dummy_heads`.

    Ranks that do not divide the heads hold attention whole; the MLPs are always split.
    """
    vision = vision.completed(INTERN_VIT)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, patch = vision.integer("intermediate_size"), vision.integer("patch_size")
    size, depth = even_head_size(vision, hidden, heads), vision.layers("num_hidden_layers")
    all_heads, bias, qkv_bias = heads + dummy_heads, norm_bias(vision), vision.flag("qkv_bias", default=False)
    positions = (vision.integer("image_size") // patch) ** 2 + 1
    head_norms = 2 * all_heads * size if vision.flag("qk_normalization", default=True) else 0

    def block(name: str) -> tuple[Module, ...]:
        return (
            tower_query_key_value(
                quantization,
                f"{name}.attn",
                "qkv",
                hidden,
                all_heads,
                size,
                bias=qkv_bias,
                split_units=all_heads,
            ),
            tower_linear(
                quantization,
                f"{name}.attn",
                "proj",
                Units(all_heads, size),
                hidden,
                Split.ROW,
                bias=True,
                split_units=all_heads,
            ),
            tower_linear(quantization, f"{name}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{name}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
            layer_norm("norms", 2 * hidden, bias=bias),
            Tensor("head_norms_and_scales", TOWER, (Units(head_norms + 2 * hidden),)),
        )

    modules: list[Module] = [
        Tensor("patch_embedding", TOWER, (Units(hidden),), columns=3 * patch * patch + 1),
        Tensor("class_and_position_embedding", TOWER, (Units(positions + 1),), columns=hidden),
    ]
    for number in range(layers):
        modules += block(f"{path}.encoder.layers.{number}")
    return (*modules, *left_out(block("") * (depth - layers)))


def pair(vision: Fields, name: str) -> list[int]:
    """A height and a width, which may be given as one number."""
    if isinstance(vision.values.get(name), list | tuple):
        sizes = vision.integers(name, minimum=1) or []
        if len(sizes) != 2:
            raise InvalidConfig(vision.named(name), f"{vision.named(name)} must have two entries, not {len(sizes)}")
        return sizes
    return [vision.integer(name)] * 2


def intern_s1_tower(vision: Fields) -> tuple[Module, ...]:
    """InternViT in transformers' shape: attention held whole, the MLPs split, nothing quantised."""
    vision = vision.completed(INTERN_S1_VIT)
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, size = vision.integer("intermediate_size"), even_head_size(vision, hidden, heads)
    image, patch = pair(vision, "image_size"), pair(vision, "patch_size")
    patches = (image[0] // patch[0]) * (image[1] // patch[1])
    bias, plain = vision.flag("attention_bias", default=False), NotQuantised()
    head_norms = 2 * heads * size if vision.flag("use_qk_norm", default=False) else 0
    rows = (
        1
        + vision.flag("use_mask_token", default=False)
        + (patches + 1 if vision.flag("use_absolute_position_embeddings", default=True) else 0)
    )
    layer = (
        *(
            Linear(name, TOWER, Units(hidden), (Units(heads * size),), Split.REPLICATED, bias)
            for name in ("q_proj", "k_proj", "v_proj")
        ),
        Linear("projection_layer", TOWER, Units(heads * size), (Units(hidden),), Split.REPLICATED, True),
        tower_linear(plain, "", "fc1", hidden, width, Split.COLUMN, bias=True),
        tower_linear(plain, "", "fc2", width, hidden, Split.ROW, bias=True),
        layer_norm("norms", 2 * hidden, bias=norm_bias(vision)),
        Tensor("head_norms_and_scales", TOWER, (Units(head_norms + 2 * hidden),)),
    )
    channels = vision.integer("num_channels")
    final = () if vision.flag("use_mean_pooling", default=True) else (layer_norm("layernorm", hidden),)
    return (
        Tensor("projection", TOWER, (Units(hidden),), columns=channels * patch[0] * patch[1] + 1),
        Tensor("tokens_and_positions", TOWER, (Units(rows),), columns=hidden),
        *(layer * vision.layers("num_hidden_layers")),
        *final,
    )
