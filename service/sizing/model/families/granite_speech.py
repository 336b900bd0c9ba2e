"""Granite Speech: Granite behind a conformer and a Q-Former.

Source: vLLM 0.33 `model_executor/models/granite_speech.py`; transformers 5.20
`models/granite_speech/configuration_granite_speech.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.families.language import language, text_width
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import (
    LONG_BYTES,
    PROJECTOR,
    TOWER,
    convolution,
    layer_norm,
    tower_linear,
    whole_linear,
)
from service.sizing.model.towers.qformer import QFORMER, qformer

ENCODER: Mapping[str, Any] = {
    "input_dim": 160,
    "num_layers": 10,
    "hidden_dim": 1024,
    "feedforward_mult": 4,
    "num_heads": 8,
    "dim_head": 128,
    "output_dim": 42,
    "max_pos_emb": 512,
    "conv_kernel_size": 15,
    "conv_expansion_factor": 2,
}


def feed_forward(source: Source, path: str, hidden: int, width: int) -> tuple[Module, ...]:
    """An MLP behind its norm, split over ranks."""
    return (
        layer_norm("pre_norm", hidden),
        tower_linear(source.quantization, path, "up_proj", hidden, width, Split.COLUMN, bias=True),
        tower_linear(source.quantization, path, "down_proj", width, hidden, Split.ROW, bias=True),
    )


def attention(hidden: int, heads: int, size: int, distances: int) -> tuple[Module, ...]:
    """Attention with a vector for each distance, held whole."""
    return (
        layer_norm("pre_norm", hidden),
        whole_linear("to_q/to_kv", hidden, 3 * heads * size, bias=False),
        whole_linear("to_out", heads * size, hidden),
        Tensor("rel_pos_emb", TOWER, (Units(distances),), columns=size),
    )


def convolutions(hidden: int, inner: int, taps: int) -> tuple[Module, ...]:
    """A gate, a convolution of each channel and a norm over the batch, held whole."""
    return (
        layer_norm("norm", hidden),
        convolution("up_conv", hidden, 2 * inner, 1),
        convolution("depth_conv", 1, inner, taps, bias=False),
        layer_norm("batch_norm", inner),
        Tensor("batch_norm.running", TOWER, (Units(2 * inner),), buffer=True),
        Tensor("batch_norm.num_batches_tracked", TOWER, (Units(1),), element_bytes=LONG_BYTES, buffer=True),
        convolution("down_conv", inner, hidden, 1),
    )


def conformer(source: Source, encoder: Fields) -> tuple[Module, ...]:
    """The encoder, with a classifier of sounds halfway."""
    hidden, words = encoder.integer("hidden_dim"), encoder.integer("output_dim")
    width, inner = (hidden * encoder.integer(name) for name in ("feedforward_mult", "conv_expansion_factor"))
    modules: list[Module] = [whole_linear("input_linear", encoder.integer("input_dim"), hidden)]
    for number in range(encoder.layers("num_layers")):
        path = f"encoder.layers.{number}"
        modules += (
            *feed_forward(source, f"{path}.ff1", hidden, width),
            *attention(
                hidden,
                encoder.integer("num_heads"),
                encoder.integer("dim_head"),
                2 * encoder.integer("max_pos_emb") + 1,
            ),
            *convolutions(hidden, inner, encoder.integer("conv_kernel_size")),
            *feed_forward(source, f"{path}.ff2", hidden, width),
            layer_norm("post_norm", hidden),
        )
    return (
        *modules,
        tower_linear(source.quantization, "encoder", "out", hidden, words, Split.COLUMN, bias=True),
        tower_linear(source.quantization, "encoder", "out_mid", words, hidden, Split.ROW, bias=True),
    )


def tower(source: Source) -> tuple[Module, ...]:
    """The encoder, and learned queries that sum up each window of sound."""
    settings = tower_config(source, "projector_config").completed(QFORMER)
    hidden, root = settings.integer("hidden_size"), source.root
    queries = root.integer("window_size", default=15) // root.integer("downsample_rate", default=5)
    return (
        *conformer(source, tower_config(source, "encoder_config").completed(ENCODER)),
        Tensor("query", PROJECTOR, (Units(queries),), columns=hidden),
        *qformer(settings),
        whole_linear("linear", hidden, text_width(source, "granite"), tensor_class=PROJECTOR),
    )


READERS = {"GraniteSpeechForConditionalGeneration": behind(tower, language("granite"), tied=Tied.ROOT_ELSE_TIED)}
