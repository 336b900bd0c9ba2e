"""MiniCPM-V and MiniCPM-o: Llama or Qwen behind a SigLIP of any grid, whose patches a resampler reads.

Source: vLLM 0.33 `model_executor/models/minicpmv.py`, `minicpmv4_6.py`, `minicpmv4_7.py`, `minicpmo.py`,
`minicpm_ocr.py`, `idefics2_vision_model.py`, `layers/resampler.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from service.sizing.model.families.dense import READERS as DENSE
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.families.qwen3_next import read_qwen3_5
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import (
    PROJECTOR,
    layer_norm,
    tower_linear,
    tower_query_key_value,
    whole_linear,
)
from service.sizing.model.towers.siglip import SIGLIP, siglip_tower
from service.sizing.model.towers.whisper import WHISPER, whole_encoder

VISION_LANGUAGE: Mapping[str, str] = {
    "2.5": "LlamaForCausalLM",
    "2.6": "Qwen2ForCausalLM",
    "4.0": "LlamaForCausalLM",
    "4.5": "Qwen3ForCausalLM",
}
"""The language model of each version that sees."""

OMNI_LANGUAGE: Mapping[str, str] = {"2.6": "Qwen2ForCausalLM", "4.5": "Qwen3ForCausalLM"}
"""The language model of each version that also hears; the first is that of a model without a version."""

WITH_TIME = "4.5"
"""The version whose resampler tells moments apart."""

GRID_SIDE = 70
MOMENTS = 36000
"""Positions that a resampler knows, in each direction and in time."""


def version(source: Source, known: Mapping[str, str], default: str) -> str:
    """The version of the architecture.

    Raises
    ------
    NotUnderstood
        For version 2.0, and for versions that the engine does not know.
    """
    root = source.root
    if "version" in root:
        value = root.values["version"]
        named = f"{float(value):.1f}" if isinstance(value, int | float) else root.text("version")
    else:
        old = root.integer("hidden_size") == 2304 and root.integer("query_num", default=64) == 64
        named = "2.0" if old and "2.5" in known else default
    if named not in known:
        raise source.refuse("version", because=f"version {named} is not one of {', '.join(known)}")
    return named


def resampler(source: Source, inputs: int, *, with_time: bool) -> tuple[Module, ...]:
    """Attention of learned queries to the patches of an image, and a projection."""
    hidden = source.root.integer("hidden_size")
    modules: list[Module] = [
        Tensor("query", PROJECTOR, (Units(source.root.integer("query_num", default=64)),), columns=hidden),
        Tensor("attn.in_proj", PROJECTOR, (Units(3 * hidden),), columns=hidden + 1),
        whole_linear("attn.out_proj", hidden, hidden, tensor_class=PROJECTOR),
        layer_norm("ln_q/ln_kv/ln_post", 3 * hidden, tensor_class=PROJECTOR),
        Tensor("proj", PROJECTOR, (Units(hidden),), columns=hidden),
        Tensor("pos_embed", PROJECTOR, (Units(GRID_SIDE * GRID_SIDE),), columns=hidden, buffer=True),
    ]
    if inputs != hidden:
        modules.append(
            tower_linear(
                source.quantization,
                "resampler",
                "kv_proj",
                inputs,
                hidden,
                Split.REPLICATED,
                bias=False,
                tensor_class=PROJECTOR,
            )
        )
    if with_time:
        modules.append(Tensor("temporal_pos_embed", PROJECTOR, (Units(MOMENTS),), columns=hidden, buffer=True))
    return tuple(modules)


def eyes(source: Source, version: str) -> tuple[Module, ...]:
    """The tower, without its last layer where the configuration drops it, and the resampler."""
    vision = tower_config(source)
    depth, hidden = vision.layers("num_hidden_layers", default=12), vision.integer("hidden_size", default=768)
    dropped = source.root.flag("drop_vision_last_layer", default=True)
    return (
        *siglip_tower(
            source.quantization,
            vision,
            path="vpm",
            layers=depth - dropped,
            final_norm=True,
            numbered=False,
            any_width=True,
        ),
        *resampler(source, hidden, with_time=version == WITH_TIME),
    )


def ears(source: Source) -> tuple[Module, ...]:
    """A Whisper encoder that every rank holds whole, and a projection of its pooled output."""
    audio = (source.root.child("audio_config") or Fields({}, "audio_config")).completed(WHISPER)
    hidden = source.root.integer("hidden_size")
    inner = audio.integer("encoder_ffn_dim") // 4
    return (
        *whole_encoder(audio, fixed_positions=False),
        whole_linear("audio_projection_layer.linear1", inner, hidden, tensor_class=PROJECTOR),
        whole_linear("audio_projection_layer.linear2", hidden, hidden, tensor_class=PROJECTOR),
    )


def read(source: Source, *, versions: Mapping[str, str], default: str, hears: bool) -> ModelShape:
    """One of either line, by version."""
    named = version(source, versions, default)

    def towers(source: Source) -> tuple[Module, ...]:
        return (*eyes(source, named), *(ears(source) if hears else ()))

    return behind(towers, DENSE[versions[named]], tied=Tied.TEXT)(source)


def merger_tower(source: Source, *, keeps_all: bool) -> tuple[Module, ...]:
    """The tower of versions 4.6, 4.7 and OCR: attention in windows merges patches on the way, an MLP merges them again.

    Versions 4.7 and OCR `keeps_all` layers, whatever the configuration says.
    """
    vision = tower_config(source).completed(SIGLIP)
    depth, hidden = vision.layers("num_hidden_layers"), vision.integer("hidden_size")
    heads, width = vision.integer("num_attention_heads"), vision.integer("intermediate_size")
    size, merged = hidden // heads, 4 * hidden
    rounds, quantization = source.root.integer("merger_times", default=1), source.quantization
    if rounds != 1:
        raise source.refuse("merger_times", because="a merger of several rounds is not known")
    dropped = not keeps_all and source.root.flag("drop_vision_last_layer", default=False)
    for fields, name in ((source.root, "merge_kernel_size"), (vision, "window_kernel_size")):
        if fields.integers(name) not in (None, [2, 2]):
            raise source.refuse(fields.named(name), because="a merger of other than two by two patches is not known")
    return (
        *siglip_tower(
            quantization,
            vision,
            path="vpm",
            layers=depth - dropped,
            final_norm=True,
            numbered=False,
            any_width=True,
        ),
        tower_query_key_value(quantization, "vit_merger.self_attn", "qkv_proj", hidden, heads, size, bias=True),
        tower_linear(
            quantization, "vit_merger.self_attn", "out_proj", Units(heads, size), hidden, Split.ROW, bias=True
        ),
        layer_norm("layer_norm1", hidden),
        layer_norm("pre_norm", merged),
        whole_linear("vit_merger.linear_1", merged, 4 * width),
        whole_linear("vit_merger.linear_2", 4 * width, hidden),
        layer_norm("merger.pre_norm", merged, tensor_class=PROJECTOR),
        whole_linear("merger.linear_1", merged, merged, tensor_class=PROJECTOR),
        whole_linear(
            "merger.linear_2", merged, source.text.integer("hidden_size", default=4096), tensor_class=PROJECTOR
        ),
    )


def read_with_merger(source: Source, *, keeps_all: bool) -> ModelShape:
    """Versions 4.6, 4.7 and OCR: Qwen 3.5 behind the tower."""
    text = replace(source, model_type="qwen3_5_text")
    return read_qwen3_5(text, prefix="model.language_model", tower=merger_tower(source, keeps_all=keeps_all))


READERS = {
    "MiniCPMOcrForConditionalGeneration": partial(read_with_merger, keeps_all=True),
    "MiniCPMV4_6ForConditionalGeneration": partial(read_with_merger, keeps_all=False),
    "MiniCPMV4_7ForConditionalGeneration": partial(read_with_merger, keeps_all=True),
    "MiniCPMV": partial(read, versions=VISION_LANGUAGE, default="2.5", hears=False),
    "MiniCPMO": partial(read, versions=OMNI_LANGUAGE, default="2.6", hears=True),
}
