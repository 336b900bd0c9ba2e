"""Qwen decoders that hear: Qwen2-Audio, Qwen3-ASR, and the thinkers of Qwen2.5-Omni and Qwen3-Omni, which also see.

Source: vLLM 0.33 `model_executor/models/qwen2_audio.py`, `qwen2_5_omni_thinker.py`, `qwen3_omni_moe_thinker.py`,
`qwen3_asr.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model.families import dense, experts
from service.sizing.model.families.language import read_language, text_width
from service.sizing.model.families.llama import read
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.families.qwen3_next import VISION
from service.sizing.model.families.recipe import Names
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import TOWER, whole_linear
from service.sizing.model.towers.qwen import qwen2_5_vl_tower, qwen3_vl_tower
from service.sizing.model.towers.whisper import LARGE, qwen3_audio_encoder, whole_encoder

QWEN2_5: Mapping[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "sliding_window": 32768,
    "max_window_layers": 28,
}
QWEN3: Mapping[str, Any] = {
    "vocab_size": 3584,
    "hidden_size": 2048,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
THINKER = Names(
    layers="thinker.model.layers",
    embedding="thinker.model.embed_tokens",
    norm="thinker.model.norm",
    head="thinker.lm_head",
)

QWEN3_ASR: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 128000,
}

QWEN3_VISION: Mapping[str, Any] = {**VISION, "deepstack_visual_indexes": [8, 16, 24]}


def thinker_part(source: Source, name: str) -> Fields:
    """A tower's configuration inside the thinker's."""
    thinker = source.root.child("thinker_config")
    return (thinker.child(name) if thinker else None) or Fields({}, f"thinker_config.{name}")


def qwen2_audio_tower(source: Source) -> tuple[Module, ...]:
    """The encoder of sound and one linear layer."""
    audio = tower_config(source, "audio_config")
    width = text_width(source, "qwen2")
    return (
        *whole_encoder(audio, fixed_positions=False),
        whole_linear("multi_modal_projector", audio.integer("d_model", default=LARGE["d_model"]), width),
    )


def qwen2_5_omni_towers(source: Source) -> tuple[Module, ...]:
    """The encoder of sound, which every rank holds whole, and the tower of Qwen2.5-VL."""
    audio = thinker_part(source, "audio_config").completed(LARGE)
    hidden, output = audio.integer("d_model"), audio.integer("output_dim")
    return (
        *whole_encoder(audio, fixed_positions=True),
        Tensor("audio_bos_eos_token", TOWER, (Units(2),), columns=output),
        whole_linear("proj", hidden, output),
        *qwen2_5_vl_tower(source.quantization, thinker_part(source, "vision_config"), path="thinker.visual"),
    )


def qwen3_omni_towers(source: Source) -> tuple[Module, ...]:
    """The encoder of sound and the tower of Qwen3-VL, with positions for the patches of `image_size`."""
    vision = thinker_part(source, "vision_config").completed(QWEN3_VISION)
    side = vision.integer("image_size", default=768) // vision.integer("patch_size")
    vision = vision.overridden({"num_position_embeddings": side * side})
    return (
        *qwen3_audio_encoder(thinker_part(source, "audio_config")),
        *qwen3_vl_tower(source.quantization, vision, {}, path="thinker.visual"),
    )


def read_qwen2(source: Source) -> ModelShape:
    """The thinker of Qwen2.5-Omni."""
    return read(source.with_defaults(QWEN2_5), replace(dense.RECIPES["Qwen2ForCausalLM"], names=THINKER))


def read_qwen3(source: Source) -> ModelShape:
    """The thinker of Qwen3-Omni."""
    return read(source.with_defaults(QWEN3), replace(experts.MIXTURES["Qwen3MoeForCausalLM"], names=THINKER))


def qwen3_asr_tower(source: Source) -> tuple[Module, ...]:
    """The encoder of sound."""
    return qwen3_audio_encoder(thinker_part(source, "audio_config"))


def read_asr(source: Source) -> ModelShape:
    """The decoder of Qwen3-ASR."""
    return read(source.with_defaults(QWEN3_ASR), replace(dense.RECIPES["Qwen3ForCausalLM"], names=THINKER))


def read_audio(source: Source) -> ModelShape:
    """The language model of Qwen2-Audio."""
    return read_language(source, "qwen2")


READERS = {
    "Qwen2AudioForConditionalGeneration": behind(qwen2_audio_tower, read_audio, tied=Tied.ROOT_IF_NAMED),
    **dict.fromkeys(
        ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
        behind(qwen2_5_omni_towers, read_qwen2, tied=Tied.ROOT_IF_NAMED),
    ),
    **dict.fromkeys(
        ("Qwen3ASRForConditionalGeneration", "Qwen3ASRRealtimeGeneration"),
        behind(qwen3_asr_tower, read_asr, tied=Tied.TEXT),
    ),
    "Qwen3OmniMoeForConditionalGeneration": behind(qwen3_omni_towers, read_qwen3, tied=Tied.ROOT_IF_NAMED),
}
