"""Voxtral: Mistral behind a Whisper encoder.

Source: vLLM 0.33 `model_executor/models/voxtral.py`, `transformers_utils/configs/mistral.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.sizing.model.families.language import language
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, TOWER, whole_linear
from service.sizing.model.towers.whisper import whisper_encoder

FRAMES = 4
"""Frames of sound that become one token (`downsample_factor`)."""

FREQUENCIES = 1 + 400 // 2
"""Frequency bins of a window of sound."""

FLOAT32_BYTES = 4

ENCODER: Sequence[tuple[str, tuple[str, ...], int]] = (
    ("d_model", ("hidden_size",), 1280),
    ("encoder_layers", ("num_hidden_layers",), 32),
    ("encoder_attention_heads", ("num_attention_heads",), 20),
    ("encoder_ffn_dim", ("intermediate_size",), 5120),
    ("num_mel_bins", (), 128),
    ("max_source_positions", (), 1500),
)
"""Sizes of the encoder, their other names, and what its class fills in (transformers 5.20)."""


def tower(source: Source) -> tuple[Module, ...]:
    """The encoder with positions in float32, two linear layers, and the filters of the spectrogram."""
    if source.quantization.method is not None:
        raise source.refuse("quantization_config", because="which parts of its encoder are quantised is not known")
    audio = tower_config(source, "audio_config")
    audio = audio.overridden(
        {name: audio.integer(name, *spellings, default=size) for name, spellings, size in ENCODER},
        {name: spelling for name, spellings, _ in ENCODER for spelling in spellings if spelling in audio},
    )
    width = source.text.integer("hidden_size")
    merged = audio.integer("d_model") * audio.integer("downsample_factor", default=FRAMES)
    return (
        *whisper_encoder(source.quantization, audio, path="audio_tower", positions_bytes=FLOAT32_BYTES),
        whole_linear("w_in", merged, width, bias=False, tensor_class=PROJECTOR),
        whole_linear("w_out", width, width, bias=False, tensor_class=PROJECTOR),
        Tensor(
            "mel_filters",
            TOWER,
            (Units(FREQUENCIES),),
            columns=audio.integer("num_mel_bins"),
            element_bytes=FLOAT32_BYTES,
            buffer=True,
        ),
    )


def read_voxtral(source: Source) -> ModelShape:
    """Voxtral, in one stage: in several, the engine would leave the encoder's last layers out."""
    model = behind(tower, language("llama"), tied=Tied.ROOT_IF_NAMED)(source)
    return replace(model, supports_pipeline=False)


READERS = {"VoxtralForConditionalGeneration": read_voxtral}
