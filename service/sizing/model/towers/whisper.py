"""The encoder of Whisper, alone or in front of a language model.

Source: vLLM 0.33 `model_executor/models/whisper.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.towers.parts import TOWER, layer_norm, tower_linear, tower_query_key_value

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


def whisper_encoder(
    quantization: Quantization, audio: Fields, *, path: str, positions_bytes: int | None = None
) -> tuple[Module, ...]:
    """Two convolutions, fixed positions and the layers; `positions_bytes` where positions have a type of their own."""
    audio = audio.completed(WHISPER)
    hidden, heads = audio.integer("d_model", "hidden_size"), audio.integer("encoder_attention_heads")
    width, mels = audio.integer("encoder_ffn_dim"), audio.integer("num_mel_bins")
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
        block = f"{path}.layers.{number}"
        modules += (
            *self_attention(quantization, f"{block}.self_attn", hidden, heads),
            tower_linear(quantization, block, "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, block, "fc2", width, hidden, Split.ROW, bias=True),
            layer_norm("norms", 2 * hidden),
        )
    return (*modules, layer_norm("layer_norm", hidden))
