"""Towers of MiMo V2 Omni: vision with fewer key than query heads, and sounds by codes of several channels.

Source: vLLM 0.33 `model_executor/models/mimo_v2_omni.py`, `mimo_audio.py`; transformers 5.20 `models/qwen2`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.blocks import gated_mlp
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.towers.parts import (
    PROJECTOR,
    TOWER,
    even_head_size,
    layer_norm,
    tower_linear,
    whole_linear,
)
from service.sizing.model.towers.qwen import TOWER_POSITIONS, TOWER_ROTARY_SHARE

VISION: Mapping[str, Any] = {
    "depth": 28,
    "hidden_size": 1280,
    "intermediate_size": 4608,
    "num_heads": 32,
    "num_key_value_heads": 8,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 2048,
    "kv_channels": 64,
    "qk_channels": 64,
}
FULL_BLOCKS = (7, 15, 23, 31)
"""Blocks that attend to whole images where a configuration lists none."""

AUDIO: Mapping[str, Any] = {
    "group_size": 4,
    "audio_channels": 8,
    "input_local_layers": 6,
    "input_local_dim": 1024,
    "input_local_attn_heads": 64,
    "input_local_intermediate_size": 4096,
    "out_hidden_size": 4096,
    "projection_layers": 1,
}
CODES = "1025-1025-129-129-129-129-129-129"
"""Codes of each channel where a configuration names none."""

LOCAL_VOCABULARY = 151936
"""Rows of the embedding that the small Qwen 2 inside the audio tower is built with and never reads."""


def mimo_vision(given: Fields) -> tuple[Module, ...]:
    """The vision tower; blocks that attend in windows may have a sink logit a head."""
    vision, plain = given.completed(VISION), NotQuantised()
    hidden, heads, kv_heads = (vision.integer(name) for name in ("hidden_size", "num_heads", "num_key_value_heads"))
    keys, values, patch = (vision.integer(name) for name in ("qk_channels", "kv_channels", "patch_size"))
    pixels = vision.integer("in_channels") * vision.integer("temporal_patch_size") * patch**2
    merged, output = hidden * vision.integer("spatial_merge_size") ** 2, vision.integer("out_hidden_size")
    sinks = vision.flag("use_sink", default=False)
    listed = vision.integers("fullatt_block_indexes")
    full = frozenset(FULL_BLOCKS if listed is None else listed)
    modules: list[Module] = [
        Tensor("patch_embed.proj", TOWER, (Units(hidden),), columns=pixels),
        Tensor("rotary", TOWER, (Units(TOWER_POSITIONS),), columns=keys // TOWER_ROTARY_SHARE, buffer=True),
        layer_norm("ln_q", hidden, bias=False, tensor_class=PROJECTOR),
        tower_linear(plain, "", "0", merged, merged, Split.COLUMN, bias=False, tensor_class=PROJECTOR),
        tower_linear(plain, "", "2", merged, output, Split.ROW, bias=False, tensor_class=PROJECTOR),
    ]
    queries, grouped = Units(heads, keys), (Units(kv_heads, keys), Units(kv_heads, values))
    for number in range(vision.layers("depth")):
        modules += (
            layer_norm("norms", 2 * hidden, bias=False),
            fused(hidden, queries, *grouped),
            tower_linear(plain, "", "proj", Units(heads, values), hidden, Split.ROW, bias=True),
            *((Tensor("sinks", TOWER, (Units(heads),)),) if sinks and number not in full else ()),
            *gated_mlp(plain, "", hidden, vision.integer("intermediate_size"), bias=True, tensor_class=TOWER),
        )
    return tuple(modules)


def fused(hidden: int, *outputs: Units) -> Linear:
    """Queries, keys and values of a block, split by heads."""
    return Linear("qkv", TOWER, Units(hidden), outputs, Split.COLUMN, bias=True)


def channel_codes(audio: Fields, channels: int) -> list[int]:
    """Codes of each channel: a number for all, or one for each between dashes.

    Raises
    ------
    InvalidConfig
        Another spelling.
    """
    given = audio.text("speech_vocab_size", default=CODES)
    parts = given.split("-")
    if not all(part.isdigit() for part in parts) or len(parts) not in (1, channels):
        field = audio.named("speech_vocab_size")
        raise InvalidConfig(field, f"{field} must be a number, or {channels} numbers between dashes")
    codes = [int(part) for part in parts]
    return codes * channels if len(codes) == 1 else codes


def mimo_audio(given: Fields) -> tuple[Module, ...]:
    """The audio tower without its tokeniser, which the engine loads from a local directory only."""
    audio = given.completed(AUDIO)
    width, heads = audio.integer("input_local_dim"), audio.integer("input_local_attn_heads")
    inner, output = audio.integer("input_local_intermediate_size"), audio.integer("out_hidden_size")
    size, grouped = even_head_size(audio, width, heads), width * audio.integer("group_size")
    layer = (
        whole_linear("qkv_proj", width, 3 * width),
        whole_linear("o_proj", width, width, bias=False),
        whole_linear("gate_up_proj", width, 2 * inner, bias=False),
        whole_linear("down_proj", inner, width, bias=False),
        layer_norm("norms", 2 * width, bias=False),
    )
    projections = audio.integer("projection_layers")
    if projections not in (1, 2):
        field = audio.named("projection_layers")
        raise InvalidConfig(field, f"{field} must be 1 or 2, not {projections}")
    deep = ((grouped, 4 * grouped), (4 * grouped, output)) if projections == 2 else ((grouped, output),)
    return (
        Tensor("input_local_transformer.embed_tokens", TOWER, (Units(LOCAL_VOCABULARY),), columns=width, counted=False),
        *layer * audio.layers("input_local_layers"),
        *((layer_norm("norm", width, bias=False),) if audio.flag("add_post_norm", default=False) else ()),
        Tensor("rotary_emb", TOWER, (Units(size),), element_bytes=4, buffer=True),
        *(
            Tensor("speech_embeddings", TOWER, (Units(codes),), columns=width)
            for codes in channel_codes(audio, audio.integer("audio_channels"))
        ),
        *(whole_linear("projection", inputs, outputs, bias=False, tensor_class=PROJECTOR) for inputs, outputs in deep),
    )
