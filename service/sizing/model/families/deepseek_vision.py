"""DeepSeek-VL2 and DeepSeek-OCR: DeepSeek decoders behind SigLIP, or behind SAM and a second encoder.

Source: vLLM 0.33 `model_executor/models/deepseek_vl2.py`, `deepseek_ocr.py`, `deepseek_ocr2.py`, `deepencoder2.py`,
`unlimited_ocr.py`,
`transformers_utils/configs/deepseek_vl2.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from service.sizing.model.families.deepseek import read_deepseek
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.clip import clip_tower
from service.sizing.model.towers.parts import (
    PROJECTOR,
    TOWER,
    convolution,
    layer_norm,
    tower_linear,
    whole_linear,
)
from service.sizing.model.towers.sam import sam_tower
from service.sizing.model.towers.siglip import pooling

CLIP_LARGE: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 14,
}
"""The second encoder of DeepSeek-OCR."""

PROJECTOR_DEFAULTS: Mapping[str, Any] = {
    "projector_type": "downsample_mlp_gelu",
    "input_dim": 1152,
    "n_embed": 2048,
    "depth": 2,
    "mlp_ratio": 1,
    "downsample_ratio": 2,
}
TILE_TAG = "2D"

HIDDEN, KV_SIZE, WIDTH, DEPTH, QUERIES = 896, 128, 4864, 24, 144 + 256
"""Sizes of the Qwen 2 that DeepSeek-OCR 2 encodes with, and its learned queries for both sizes of images."""

FREQUENCIES, FLOAT32_BYTES = 32, 4

EYES: Mapping[str, int] = {"hidden": 1152, "width": 4304, "depth": 27, "patch": 14, "positions": 27 * 27}
"""The SigLIP of DeepSeek-VL2."""


def projector(source: Source) -> tuple[Module, ...]:
    """The projector."""
    fields = (source.root.child("projector_config") or Fields({}, "projector_config")).completed(PROJECTOR_DEFAULTS)
    inputs, outputs = fields.integer("input_dim"), fields.integer("n_embed")
    tag = source.root.text(
        "tile_tag", default=TILE_TAG if source.architecture == "UnlimitedOCRForCausalLM" else "tile_tag"
    )
    if tag != TILE_TAG:
        raise source.refuse("tile_tag", because=f"only tile_tag {TILE_TAG!r} is supported, not {tag!r}")
    match kind := fields.text("projector_type"):
        case "linear":
            sizes = [inputs, outputs]
        case "downsample_mlp_gelu":
            inner = outputs * fields.integer("mlp_ratio")
            merged = inputs * fields.integer("downsample_ratio") ** 2
            sizes = [merged, *[inner] * (fields.integer("depth", minimum=2) - 1), outputs]
        case _:
            field = fields.named("projector_type")
            raise source.refuse(field, because=f"a projector of type {kind!r} is not known")
    return tuple(
        whole_linear(f"projector.layers.{2 * number}", *pair, tensor_class=PROJECTOR)
        for number, pair in enumerate(pairwise(sizes))
    )


def separators(source: Source) -> Tensor:
    """The learned ends of lines and views; the second DeepSeek-OCR has no lines."""
    fields = (source.root.child("projector_config") or Fields({}, "projector_config")).completed(PROJECTOR_DEFAULTS)
    ends = 1 if source.architecture == "DeepseekOCR2ForCausalLM" else 2
    return Tensor("separators", PROJECTOR, (Units(ends * fields.integer("n_embed")),))


def split_mlp_tower(source: Source) -> tuple[Module, ...]:
    """SigLIP, of which only the MLPs are split over ranks."""
    if source.quantization.method is not None:
        raise source.refuse("quantization_config", because="its tower is quantised only where it is split")
    hidden, width, plain = EYES["hidden"], EYES["width"], NotQuantised()
    layer = (
        whole_linear("attn.qkv", hidden, 3 * hidden),
        whole_linear("attn.proj", hidden, hidden),
        tower_linear(plain, "", "fc1", hidden, width, Split.COLUMN, bias=True),
        tower_linear(plain, "", "fc2", width, hidden, Split.ROW, bias=True),
        layer_norm("norms", 2 * hidden),
    )
    return (
        convolution("patch_embed", 3, hidden, EYES["patch"] ** 2),
        Tensor("pos_embed", TOWER, (Units(EYES["positions"]),), columns=hidden),
        *layer * EYES["depth"],
        layer_norm("norm", hidden),
        *pooling(plain, "attn_pool", hidden, width),
    )


def page_tower(source: Source) -> tuple[Module, ...]:
    """SAM and CLIP, of which the checkpoint has no final norm."""
    vision = Fields(CLIP_LARGE, "vision_config")
    clip = clip_tower(source.quantization, vision, path="vision_model", final_norm=False)
    return (*sam_tower(1024), *clip[:-1])


def decoder_tower(source: Source) -> tuple[Module, ...]:
    """SAM and a Qwen 2 that reads patches, which every rank holds whole."""
    layer = (
        whole_linear("q_proj", HIDDEN, HIDDEN),
        whole_linear("k/v_proj", HIDDEN, 2 * KV_SIZE),
        whole_linear("o_proj", HIDDEN, HIDDEN, bias=False),
        whole_linear("gate/up_proj", HIDDEN, 2 * WIDTH, bias=False),
        whole_linear("down_proj", WIDTH, HIDDEN, bias=False),
        layer_norm("norms", 2 * HIDDEN, bias=False),
    )
    return (
        *sam_tower(HIDDEN),
        *layer * DEPTH,
        layer_norm("norm", HIDDEN, bias=False),
        Tensor("query", TOWER, (Units(QUERIES),), columns=HIDDEN),
        Tensor("inv_freq", TOWER, (Units(2 * FREQUENCIES),), element_bytes=FLOAT32_BYTES, buffer=True),
    )


def read(source: Source, tower: Callable[[Source], tuple[Module, ...]]) -> ModelShape:
    """The decoder, which has plain attention where heads have neither part of latent attention's."""
    text = source.text
    parts = [
        text.integer(name, default=size, minimum=0)
        for name, size in (("qk_nope_head_dim", 128), ("qk_rope_head_dim", 64))
    ]
    decoder = replace(source, model_type="deepseek_v2" if any(parts) else "deepseek")
    model = read_deepseek(
        decoder,
        prefix="language_model.model",
        head="language_model.lm_head",
        tower=(*tower(source), *projector(source)),
    )
    return replace(model, every_stage=(*model.every_stage, separators(source)))


READERS = {
    "DeepseekVLV2ForCausalLM": partial(read, tower=split_mlp_tower),
    **dict.fromkeys(("DeepseekOCRForCausalLM", "UnlimitedOCRForCausalLM"), partial(read, tower=page_tower)),
    "DeepseekOCR2ForCausalLM": partial(read, tower=decoder_tower),
}
