"""Audio Flamingo 3: Qwen2 behind an encoder of sound.

Source: vLLM 0.33 `model_executor/models/audioflamingo3.py`; transformers 5.20
`models/audioflamingo3/configuration_audioflamingo3.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from service.sizing.model.families import dense
from service.sizing.model.families.language import SIZES, described
from service.sizing.model.families.llama import read
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, whole_linear
from service.sizing.model.towers.whisper import LARGE, whole_encoder

TEXT: Mapping[str, Any] = {**SIZES["qwen2"], "max_position_embeddings": 32768}

NAMES: Sequence[tuple[str, str]] = (
    ("d_model", "hidden_size"),
    ("encoder_layers", "num_hidden_layers"),
    ("encoder_attention_heads", "num_attention_heads"),
    ("encoder_ffn_dim", "intermediate_size"),
)
"""Sizes of the encoder by their names in Whisper and here."""


def tower(source: Source) -> tuple[Module, ...]:
    """The encoder and two linear layers, which every rank holds whole and which are never quantised."""
    audio = tower_config(source, "audio_config")
    audio = audio.overridden(
        {old: audio.integer(old, new, default=LARGE[old]) for old, new in NAMES},
        {old: new for old, new in NAMES if new in audio},
    )
    width = source.text.integer("hidden_size", default=TEXT["hidden_size"])
    bias = source.root.flag("projector_bias", default=True)
    return (
        *whole_encoder(audio, fixed_positions=False),
        whole_linear("linear_1", audio.integer("d_model"), width, bias=bias, tensor_class=PROJECTOR),
        whole_linear("linear_2", width, width, bias=bias, tensor_class=PROJECTOR),
    )


def read_audio_flamingo(source: Source) -> ModelShape:
    """Audio Flamingo 3."""
    source = described(source, "qwen2").with_defaults(TEXT)
    return behind(tower, lambda inner: read(inner, dense.RECIPES["Qwen2ForCausalLM"]), tied=Tied.ROOT_IF_NAMED)(source)


READERS = {"AudioFlamingo3ForConditionalGeneration": read_audio_flamingo}
