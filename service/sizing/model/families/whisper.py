"""Whisper: an encoder of sound, and a decoder that attends to itself and to the encoder.

Source: vLLM 0.33 `model_executor/models/whisper.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import AttentionCache, CrossCache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.whisper import WHISPER, self_attention, whisper_encoder

DECODER: Mapping[str, Any] = {
    **WHISPER,
    "vocab_size": 51865,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "max_target_positions": 448,
}


def cross_attention(quantization: Quantization, path: str, hidden: int, heads: int, size: int) -> tuple[Module, ...]:
    """Queries from the decoder, keys and values from the encoder; keys have a bias that the checkpoint has not."""
    units = Units(heads, size)
    return (
        blocks.column(quantization, path, "q_proj", hidden, units, bias=True),
        Linear(
            "kv_proj",
            TensorClass.ATTENTION,
            Units(hidden),
            (units, units),
            Split.COLUMN,
            True,
            quantization.linear(f"{path}.k_proj", f"{path}.v_proj"),
            unpublished=heads * size,
        ),
        blocks.row(quantization, path, "out_proj", units, hidden, bias=True),
    )


def read_whisper(source: Source) -> ModelShape:
    """Whisper; the head is the embedding, which every rank holds whole."""
    source = source.with_defaults(DECODER)
    text, quantization = source.text, source.quantization
    text.ignore("is_encoder_decoder")
    hidden, vocabulary = text.integer("d_model"), text.integer("vocab_size")
    heads, width = text.integer("decoder_attention_heads"), text.integer("decoder_ffn_dim")
    if hidden % heads:
        raise source.invalid(
            "decoder_attention_heads", f"decoder_attention_heads ({heads}) must divide d_model ({hidden})"
        )
    size, spoken = hidden // heads, text.integer("max_source_positions")
    layers = text.layers("decoder_layers")

    def layer(index: int) -> LayerShape:
        path = f"model.decoder.layers.{index}"
        return LayerShape(
            (AttentionCache(heads, heads, size, size), CrossCache(heads, heads, size, spoken)),
            (
                *self_attention(quantization, f"{path}.self_attn", hidden, heads, TensorClass.ATTENTION),
                *cross_attention(quantization, f"{path}.encoder_attn", hidden, heads, size),
                *blocks.plain_mlp(quantization, path, hidden, width, bias=True),
                Tensor("norms", TensorClass.NORM, (Units(3 * hidden),), columns=2),
            ),
        )

    around = Ends(
        first=(
            *whisper_encoder(quantization, text, path="model.encoder"),
            Tensor("model.decoder.embed_tokens", TensorClass.EMBEDDING, (Units(vocabulary),), columns=hidden),
            Tensor(
                "model.decoder.embed_positions",
                TensorClass.POSITIONS,
                (Units(text.integer("max_target_positions")),),
                columns=hidden,
            ),
        ),
        last=(blocks.norm("model.decoder.layer_norm", hidden, bias=True),),
        tied=True,
    )
    model = assemble(
        source,
        build_layers(source, [None] * layers, layer),
        around,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=heads,
    )
    return replace(model, is_encoder_decoder=True, largest_item_tokens=spoken)


READERS = {"WhisperForConditionalGeneration": read_whisper}
