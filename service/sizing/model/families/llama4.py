"""Llama 4: attention in chunks where positions are rotary, full attention where there are none, experts in turns.

Source: vLLM 0.33 `model_executor/models/llama4.py`, `mllama4.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module, TensorClass, Units, Whole
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.llama4 import llama4_tower

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
}


def rotated_layers(source: Source) -> list[bool]:
    """Which layers have rotary positions; without a list, or with an empty one, all but every fourth or so."""
    text = source.text
    layers, every = text.layers("num_hidden_layers"), text.integer("no_rope_layer_interval")
    listed = text.integers("no_rope_layers")
    if not listed:
        return [(index + 1) % every != 0 for index in range(layers)]
    if len(listed) < layers:
        field = text.named("no_rope_layers")
        raise source.invalid(field, f"{field} must have {layers} entries, not {len(listed)}")
    return [entry != 0 for entry in listed[:layers]]


def expert_block(source: Source, path: str, hidden: int) -> tuple[Module, ...]:
    """Router, one shared expert and the routed ones, all of the width that the configuration calls the MLP's."""
    text, quantization = source.text, source.quantization
    experts, width = text.integer("num_local_experts", "num_experts"), text.integer("intermediate_size")
    return (
        blocks.plain_router(hidden, experts, name="router"),
        *blocks.gated_mlp(
            quantization,
            f"{path}.shared_expert",
            hidden,
            width,
            tensor_class=TensorClass.SHARED_EXPERTS,
            whole=Whole.TOKENS_SPLIT,
        ),
        blocks.routed_experts(
            quantization,
            path,
            count=experts,
            active=text.integer("num_experts_per_tok"),
            hidden=hidden,
            intermediate=width,
        ),
    )


def read_llama4(source: Source) -> ModelShape:
    """Llama 4, text only."""
    source = source.with_defaults(DEFAULTS)
    text, quantization = source.text, source.quantization
    text.ignore("layer_types", "moe_layers")
    hidden, vocabulary, size = text.integer("hidden_size"), text.integer("vocab_size"), text.integer("head_dim")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    chunk = text.optional_integer("attention_chunk_size")
    every = text.integer("interleave_moe_layer_step", minimum=0)
    rotated = rotated_layers(source)
    sparse = [every > 0 and (index + 1) % every == 0 for index in range(len(rotated))]

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        cache = AttentionCache(heads, kv_heads, size, size, chunk=chunk if rotated[index] else None)
        dense = text.integer("intermediate_size_mlp")
        return LayerShape(
            (cache,),
            (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
                *(
                    expert_block(source, f"{path}.feed_forward", hidden)
                    if sparse[index]
                    else blocks.gated_mlp(quantization, f"{path}.feed_forward", hidden, dense)
                ),
                blocks.norm("input_layernorm", hidden),
                blocks.norm("post_attention_layernorm", hidden),
            ),
        )

    table = rotary_table(source, size) if any(rotated) else None
    turned = frozenset(index for index, turns in enumerate(rotated) if turns)
    if any(rotated) and table is None:
        raise source.refuse("rope_scaling", because=f"rotary scaling {source.rope_type()!r} is not understood")
    return assemble(
        source,
        build_layers(source, list(zip(rotated, sparse, strict=True)), layer),
        ends(source, hidden, vocabulary, tied=source.tied(default=False)),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=text.integer("num_local_experts", "num_experts"),
        rope_tables=(replace(table, layers=turned),) if table else (),
    )


def tower(source: Source) -> tuple[Module, ...]:
    """The vision tower."""
    return llama4_tower(tower_config(source), source.text.integer("hidden_size", default=DEFAULTS["hidden_size"]))


READERS = {
    "Llama4ForCausalLM": read_llama4,
    "Llama4ForConditionalGeneration": behind(tower, read_llama4, tied=Tied.ROOT_ELSE_SEPARATE),
}
