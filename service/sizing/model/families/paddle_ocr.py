"""PaddleOCR-VL and Keye: ERNIE 4.5 and Qwen 3 behind a SigLIP with rotary positions besides its learned ones.

Source: vLLM 0.33 `model_executor/models/paddleocr_vl.py`, `keye.py`, `keye_vl1_5.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from service.sizing.model.families.dense import READERS as DENSE
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Embedding, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, TOWER, layer_norm, left_out, tower_linear
from service.sizing.model.towers.siglip import pooling, siglip_tower

SIGLIP_384: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 384,
    "patch_size": 14,
}
"""What PaddleOCR-VL fills in for its tower."""

PADDLE_TEXT: Mapping[str, Any] = {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
}
PACKED_POSITIONS = 32768
MERGED_PATCHES = 4
FLOAT32_BYTES = 4


def rotary_siglip(source: Source, vision: Fields) -> tuple[Module, ...]:
    """SigLIP and its rotary frequencies."""
    heads = vision.integer("num_attention_heads")
    size = vision.integer("hidden_size") // heads
    return (
        *siglip_tower(source.quantization, vision, path="visual.vision_model"),
        Tensor("inv_freq", TOWER, (Units(size // 4),), element_bytes=FLOAT32_BYTES, buffer=True),
    )


def packed_positions(hidden: int) -> Tensor:
    """A second set of positions."""
    return Tensor("packing_position_embedding", TOWER, (Units(PACKED_POSITIONS),), columns=hidden)


def projector(source: Source, hidden: int, width: int, *, split: bool, merged_norm: bool) -> tuple[Module, ...]:
    """A norm and two linear layers over merged patches; the norm is over one patch or over those merged."""
    merged = hidden * MERGED_PATCHES
    first, second = (Split.COLUMN, Split.ROW) if split else (Split.REPLICATED, Split.REPLICATED)
    linear = partial(
        tower_linear, source.quantization if split else NotQuantised(), "mlp_AR", bias=True, tensor_class=PROJECTOR
    )
    return (
        layer_norm("pre_norm", merged if merged_norm else hidden, tensor_class=PROJECTOR),
        linear("linear_1", merged, merged, first),
        linear("linear_2", merged, width, second),
    )


def paddle_tower(source: Source) -> tuple[Module, ...]:
    """SigLIP without the checkpoint's second positions and pooling head, and a projector held whole."""
    vision = tower_config(source).completed(SIGLIP_384)
    hidden, width = (
        vision.integer("hidden_size"),
        source.text.integer("hidden_size", default=PADDLE_TEXT["hidden_size"]),
    )
    return (
        *rotary_siglip(source, vision),
        *left_out(
            (
                packed_positions(hidden),
                *pooling(NotQuantised(), "head", hidden, vision.integer("intermediate_size")),
            )
        ),
        *projector(source, hidden, width, split=False, merged_norm=False),
    )


def keye_tower(source: Source, *, merged_norm: bool) -> tuple[Module, ...]:
    """SigLIP with a second set of positions, and a projector split over ranks."""
    vision = tower_config(source)
    hidden = vision.integer("hidden_size")
    return (
        *rotary_siglip(source, vision),
        packed_positions(hidden),
        *projector(source, hidden, source.root.integer("hidden_size"), split=True, merged_norm=merged_norm),
    )


def read_ernie(source: Source) -> ModelShape:
    """The decoder of PaddleOCR-VL."""
    return DENSE["Ernie4_5ForCausalLM"](replace(source.with_defaults(PADDLE_TEXT), model_type="ernie4_5"))


def read_paddle(source: Source) -> ModelShape:
    """PaddleOCR-VL: the head is the embedding unless both parts of the configuration say no; one part alone never does.

    A configuration of one part that says no comes with a checkpoint that has a head.
    """
    root, text = source.root, source.text
    named = root.flag("tie_word_embeddings", default=True)
    tied = text is root or named or text.flag("tie_word_embeddings", default=True)
    whole = source.overridden({"tie_word_embeddings": tied})
    model = behind(paddle_tower, read_ernie, tied=Tied.TEXT)(whole)
    if named or not tied:
        return model
    head = Embedding("lm_head", TensorClass.HEAD, model.vocab_size, model.hidden_size)
    return replace(model, first_stage=(*model.first_stage, *left_out((head,))))


READERS = {
    "PaddleOCRVLForConditionalGeneration": read_paddle,
    "KeyeForConditionalGeneration": behind(
        partial(keye_tower, merged_norm=False), DENSE["Qwen3ForCausalLM"], tied=Tied.TEXT
    ),
    "KeyeVL1_5ForConditionalGeneration": behind(
        partial(keye_tower, merged_norm=True), DENSE["Qwen3ForCausalLM"], tied=Tied.TEXT
    ),
}
