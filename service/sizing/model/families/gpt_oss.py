"""gpt-oss: sliding windows in every other layer, attention sinks, experts with biases.

Source: vLLM 0.33 `model_executor/models/gpt_oss.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends
from service.sizing.model.modules import Tensor, TensorClass, Units
from service.sizing.model.rope import original_positions, stretched
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source

DEFAULTS: Mapping[str, Any] = {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 4,
    "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
}

ROTARY_BYTES = 4
"""Bytes of an element of the rotary table, which is kept in float32."""


def read_gpt_oss(source: Source) -> ModelShape:
    """gpt-oss: layers with even numbers have the window, whatever `layer_types` says; the head is never tied."""
    source = source.with_defaults(DEFAULTS)
    text, quantization = source.text, source.quantization
    text.ignore("layer_types")
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    size = text.integer("head_dim")
    experts, width = text.integer("num_local_experts", "num_experts"), text.integer("intermediate_size")
    window = text.optional_integer("sliding_window")
    windows = [None if index % 2 else window for index in range(text.layers("num_hidden_layers"))]

    def layer(index: int) -> LayerShape:
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        return LayerShape(
            (AttentionCache(heads, kv_heads, size, size, windows[index]),),
            (
                blocks.query_key_value(quantization, attention, hidden, heads, kv_heads, size, bias=True),
                Tensor("sinks", TensorClass.ATTENTION, (Units(heads),), split=True),
                blocks.row(quantization, attention, "o_proj", Units(heads, size), hidden, bias=True),
                blocks.plain_router(hidden, experts, name="router", bias=True),
                blocks.routed_experts(
                    quantization,
                    mlp,
                    count=experts,
                    active=text.integer("num_experts_per_tok"),
                    hidden=hidden,
                    intermediate=width,
                    bias=True,
                    projections=("gate_up_proj", "gate_up_proj", "down_proj"),
                ),
                blocks.norm("input_layernorm", hidden),
                blocks.norm("post_attention_layernorm", hidden),
            ),
        )

    model = assemble(
        source,
        build_layers(source, windows, layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=False,
            embedding_everywhere=True,
            norm_everywhere=True,
            head_everywhere=True,
            quantised=False,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=experts,
        rope_tables=(rotary(source, size),),
    )
    return replace(model, attention_sinks=True)


def rotary(source: Source, size: int) -> RopeTable:
    """The rotary table, always of the YaRN kind."""
    rope = source.rope()
    if rope is None or "factor" not in rope:
        raise source.invalid("rope_scaling", "rope_scaling is missing its factor: give the settings of YaRN")
    original = original_positions(source, rope, source.text.integer("max_position_embeddings"))
    return RopeTable(stretched(rope, original), size, ROTARY_BYTES)


READERS = {"GptOssForCausalLM": read_gpt_oss}
