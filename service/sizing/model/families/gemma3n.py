"""Gemma 3n: alternating updates of several residual streams, inputs for every layer, shared caches at the end.

Source: vLLM 0.33 `model_executor/models/gemma3n.py`, `gemma3n_mm.py`; transformers 5.20 `models/gemma3n` for the audio
tower, timm 1.0 for the vision tower.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers, counted_kinds, ends, layer_kinds
from service.sizing.model.families.gemma import rotary_tables
from service.sizing.model.families.gemma4 import SHARED_SCALES, layer_input_modules, per_layer_inputs
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape
from service.sizing.model.source import FULL_ATTENTION, SLIDING_ATTENTION, Source
from service.sizing.model.towers.gemma3n import audio_tower, vision_tower

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "altup_num_inputs": 4,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}

PATTERN = 5
"""Every how many layers a full one stands where a configuration names no kinds."""

FLOAT32_BYTES = 4


def read_widths(source: Source, layers: int) -> list[int]:
    """The MLP width of every layer: one for all, or a list."""
    text = source.text
    if not isinstance(text.values["intermediate_size"], list):
        return [text.integer("intermediate_size")] * layers
    widths = text.integers("intermediate_size", minimum=1) or []
    if len(widths) != layers:
        field = text.named("intermediate_size")
        raise source.invalid(field, f"{field} must list {layers} widths, not {len(widths)}")
    return widths


def alternating_update(quantization: Quantization, path: str, hidden: int, streams: int) -> tuple[Module, ...]:
    """What predicts and corrects the residual streams of a layer."""

    def coefficients(name: str, inputs: int, outputs: int) -> Module:
        return blocks.replicated(quantization, path, name, inputs, outputs, tensor_class=TensorClass.OTHER)

    return (
        coefficients("correction_coefs", streams, streams),
        coefficients("prediction_coefs", streams, streams**2),
        coefficients("modality_router", hidden, streams),
        Tensor("router_norm", TensorClass.NORM, (Units(hidden),)),
        Tensor("correct_output_scale", TensorClass.OTHER, (Units(hidden),), element_bytes=FLOAT32_BYTES),
        Tensor("router_input_scale", TensorClass.OTHER, (Units(1),), buffer=True),
    )


def low_rank_block(quantization: Quantization, path: str, hidden: int, rank: int) -> tuple[Module, ...]:
    """The learned low-rank residual beside attention."""
    return (
        blocks.column(quantization, path, "linear_left", hidden, rank, tensor_class=TensorClass.MLP),
        blocks.row(quantization, path, "linear_right", rank, hidden, tensor_class=TensorClass.MLP),
        blocks.norm("post_laurel_norm", hidden),
    )


def stream_projections(quantization: Quantization, hidden: int, streams: int) -> tuple[Module, ...]:
    """The projections that open the further residual streams and close them again."""
    return tuple(
        blocks.column(quantization, f"model.{name}", str(number), hidden, hidden, tensor_class=TensorClass.OTHER)
        for name in ("altup_projections", "altup_unembed_projections")
        for number in range(streams - 1)
    )


def read_gemma3n(source: Source) -> ModelShape:
    """Gemma 3n, text only: the head is always the embedding."""
    source = source.with_defaults(DEFAULTS)
    text, quantization = source.text, source.quantization
    kinds = layer_kinds(source, "layer_types", known=FULL_ATTENTION | {SLIDING_ATTENTION})
    if kinds is None:
        layers = range(text.layers("num_hidden_layers"))
        kinds = [SLIDING_ATTENTION if (index + 1) % PATTERN else "full_attention" for index in layers]
    kinds = counted_kinds(source, kinds)
    hidden, vocabulary, size = text.integer("hidden_size"), text.integer("vocab_size"), text.integer("head_dim")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    window, bias = text.integer("sliding_window"), text.flag("attention_bias", default=False)
    width, streams = text.integer("hidden_size_per_layer_input"), text.integer("altup_num_inputs")
    widths, rank = read_widths(source, len(kinds)), text.integer("laurel_rank")
    shared_from = len(kinds) - text.integer("num_kv_shared_layers", minimum=0)

    def layer(index: int) -> LayerShape:
        path, shared = f"model.layers.{index}", index >= shared_from
        attention = f"{path}.self_attn"
        sliding = kinds[index] == SLIDING_ATTENTION
        unused = Tensor(
            "k_and_v_proj", TensorClass.ATTENTION, (Units(2 * kv_heads * size),), hidden + bias, built=False
        )
        unused_norm = Tensor("k_norm", TensorClass.NORM, (Units(size),), built=False)
        return LayerShape(
            () if shared else (AttentionCache(heads, kv_heads, size, size, window if sliding else None),),
            (
                *alternating_update(quantization, f"{path}.altup", hidden, streams),
                *(
                    (
                        blocks.column(quantization, attention, "q_proj", hidden, Units(heads, size), bias=bias),
                        unused,
                        unused_norm,
                        SHARED_SCALES,
                    )
                    if shared
                    else (
                        blocks.query_key_value(quantization, attention, hidden, heads, kv_heads, size, bias=bias),
                        blocks.norm("k_norm", size),
                    )
                ),
                blocks.row(quantization, attention, "o_proj", Units(heads, size), hidden, bias=bias),
                blocks.norm("q_norm", size),
                *blocks.gated_mlp(quantization, f"{path}.mlp", hidden, widths[index]),
                *low_rank_block(quantization, f"{path}.laurel", hidden, rank),
                *layer_input_modules(quantization, path, hidden, width),
                Tensor("norms", TensorClass.NORM, (Units(4 * hidden),)),
            ),
        )

    around = ends(source, hidden, vocabulary, tied=True)
    inputs = per_layer_inputs(source, hidden, width, len(kinds), text.integer("vocab_size_per_layer_input"))
    streams_ends = stream_projections(quantization, hidden, streams)
    scale = Tensor("embed_scale", TensorClass.OTHER, (Units(1),), buffer=True)
    return assemble(
        source,
        build_layers(source, [(kind, widths[index], index >= shared_from) for index, kind in enumerate(kinds)], layer),
        Ends((*around.first, *inputs, *streams_ends, scale), around.last, tied=True),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        rope_tables=rotary_tables(source, size, kinds),
    )


def towers(source: Source) -> tuple[Module, ...]:
    """Vision and audio towers, which are never quantised, and their ways into the language model."""
    hidden = source.text.integer("hidden_size", default=DEFAULTS["hidden_size"])
    return (
        *vision_tower(tower_config(source), hidden),
        *audio_tower(tower_config(source, "audio_config"), hidden),
    )


READERS = {
    "Gemma3nForCausalLM": read_gemma3n,
    "Gemma3nForConditionalGeneration": behind(towers, read_gemma3n, tied=Tied.ROOT_ELSE_TIED),
}
