"""The encoder of Whisper and its kin, alone or in front of a language model.

Source: vLLM 0.33 `model_executor/models/whisper.py`, `qwen3_omni_moe_thinker.py`; transformers 5.20
`models/qwen2_audio`, `models/qwen2_5_omni` for encoders that the engine runs as they are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.towers.parts import (
    TOWER,
    layer_norm,
    tower_linear,
    tower_query_key_value,
    whole_linear,
)

WHISPER: Mapping[str, Any] = {
    "d_model": 384,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "max_source_positions": 1500,
}


def self_attention(
    quantization: Quantization, path: str, hidden: int, heads: int, tensor_class: TensorClass = TOWER
) -> tuple[Module, ...]:
    """Attention of a layer; keys have a bias that the checkpoint has not."""
    units = Units(heads, hidden // heads)
    fused = tower_query_key_value(
        quantization,
        path,
        "qkv_proj",
        hidden,
        heads,
        hidden // heads,
        bias=True,
        parts=("q_proj", "k_proj", "v_proj"),
    )
    output = tower_linear(
        quantization, path, "out_proj", units, hidden, Split.ROW, bias=True, tensor_class=tensor_class
    )
    return replace(fused, tensor_class=tensor_class, unpublished=hidden), output


def encoder_layer(quantization: Quantization, audio: Fields, path: str) -> tuple[Module, ...]:
    """One layer of the encoder."""
    hidden, heads = audio.integer("d_model", "hidden_size"), audio.integer("encoder_attention_heads")
    width = audio.integer("encoder_ffn_dim")
    return (
        *self_attention(quantization, f"{path}.self_attn", hidden, heads),
        tower_linear(quantization, path, "fc1", hidden, width, Split.COLUMN, bias=True),
        tower_linear(quantization, path, "fc2", width, hidden, Split.ROW, bias=True),
        layer_norm("norms", 2 * hidden),
    )


def whisper_encoder(
    quantization: Quantization, audio: Fields, *, path: str, positions_bytes: int | None = None
) -> tuple[Module, ...]:
    """Two convolutions, fixed positions and the layers; `positions_bytes` where positions have a type of their own."""
    audio = audio.completed(WHISPER)
    hidden, heads = audio.integer("d_model", "hidden_size"), audio.integer("encoder_attention_heads")
    mels = audio.integer("num_mel_bins")
    if hidden % heads:
        field = audio.named("encoder_attention_heads")
        raise InvalidConfig(field, f"{field} ({heads}) must divide d_model ({hidden})")
    modules: list[Module] = [
        Tensor("conv1", TOWER, (Units(hidden),), columns=3 * mels + 1),
        Tensor("conv2", TOWER, (Units(hidden),), columns=3 * hidden + 1),
        Tensor(
            "embed_positions",
            TOWER,
            (Units(audio.integer("max_source_positions")),),
            columns=hidden,
            element_bytes=positions_bytes,
        ),
    ]
    for number in range(audio.layers("encoder_layers")):
        modules += encoder_layer(quantization, audio, f"{path}.layers.{number}")
    return (*modules, layer_norm("layer_norm", hidden))


LARGE: Mapping[str, Any] = {
    "d_model": 1280,
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "output_dim": 3584,
    "downsample_hidden_size": 480,
}
"""What Qwen's classes fill in."""

FLOAT32_BYTES = 4


def whole_encoder(audio: Fields, *, fixed_positions: bool) -> tuple[Module, ...]:
    """Convolutions, positions, layers and final norm of a Whisper encoder that every rank holds whole.

    With `fixed_positions` the positions are computed instead of stored.
    """
    audio = audio.completed(LARGE)
    hidden, width, mels = audio.integer("d_model"), audio.integer("encoder_ffn_dim"), audio.integer("num_mel_bins")
    layer = (
        whole_linear("q_proj", hidden, hidden),
        whole_linear("k_proj", hidden, hidden, bias=False),
        whole_linear("v_proj", hidden, hidden),
        whole_linear("out_proj", hidden, hidden),
        whole_linear("fc1", hidden, width),
        whole_linear("fc2", width, hidden),
        layer_norm("norms", 2 * hidden),
    )
    return (
        Tensor("conv1", TOWER, (Units(hidden),), columns=3 * mels + 1),
        Tensor("conv2", TOWER, (Units(hidden),), columns=3 * hidden + 1),
        Tensor(
            "embed_positions",
            TOWER,
            (Units(audio.integer("max_source_positions")),),
            columns=hidden,
            element_bytes=FLOAT32_BYTES if fixed_positions else None,
            buffer=fixed_positions,
        ),
        *(layer * audio.layers("encoder_layers")),
        layer_norm("layer_norm", hidden),
    )


def qwen3_audio_encoder(audio: Fields) -> tuple[Module, ...]:
    """Qwen3's encoder: three convolutions in two dimensions; held whole where the ranks do not divide its heads."""
    audio = audio.completed(LARGE)
    hidden, heads = audio.integer("d_model"), audio.integer("encoder_attention_heads")
    width, channels = audio.integer("encoder_ffn_dim"), audio.integer("downsample_hidden_size")
    frequencies = audio.integer("num_mel_bins")
    for _ in range(3):
        frequencies = (frequencies + 1) // 2
    plain, size = NotQuantised(), hidden // heads
    layer = (
        tower_query_key_value(plain, "", "qkv_proj", hidden, heads, size, bias=True, split_units=heads),
        tower_linear(plain, "", "out_proj", Units(heads, size), hidden, Split.ROW, bias=True, split_units=heads),
        tower_linear(plain, "", "fc1", hidden, width, Split.COLUMN, bias=True, split_units=heads),
        tower_linear(plain, "", "fc2", width, hidden, Split.ROW, bias=True, split_units=heads),
        layer_norm("norms", 2 * hidden),
    )
    return (
        Tensor(
            "positional_embedding",
            TOWER,
            (Units(audio.integer("max_source_positions")),),
            columns=hidden,
            element_bytes=FLOAT32_BYTES,
            buffer=True,
        ),
        Tensor("conv2d1", TOWER, (Units(channels),), columns=9 + 1),
        Tensor("conv2d2_and_3", TOWER, (Units(2 * channels),), columns=9 * channels + 1),
        whole_linear("conv_out", channels * frequencies, hidden, bias=False),
        *(layer * audio.layers("encoder_layers")),
        layer_norm("ln_post", hidden),
        whole_linear("proj1", hidden, hidden),
        whole_linear("proj2", hidden, audio.integer("output_dim")),
    )
