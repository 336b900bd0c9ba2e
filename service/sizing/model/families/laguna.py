"""Laguna: sliding layers with more heads than full ones, gated attention, experts behind a dense first layer.

Source: vLLM 0.33 `model_executor/models/laguna.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table, settings_key, used_by
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import FULL_ATTENTION, SLIDING_ATTENTION, Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 100352,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}
ROPE: Mapping[str, Any] = {
    "full_attention": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}
"""Rotary settings where a configuration gives none."""


def gate_outputs(source: Source, heads: int, size: int) -> int:
    """Outputs of the projection that gates attention: one a head, one an element, or none."""
    gating = source.text.raw("gating")[1]
    match gating:
        case None | True | "per-head":
            return heads
        case False:
            return 0
        case "per-element":
            return heads * size
        case _:
            raise source.invalid(
                source.text.named("gating"), f'gating must be true, false, "per-head" or "per-element", not {gating!r}'
            )


def mlp(
    quantization: Quantization, path: str, hidden: int, width: int, tensor_class: TensorClass
) -> tuple[Module, ...]:
    """Gate, up and down projections, which the engine does not fuse."""
    return (
        blocks.column(quantization, path, "gate_proj", hidden, width, tensor_class=tensor_class),
        blocks.column(quantization, path, "up_proj", hidden, width, tensor_class=tensor_class),
        blocks.row(quantization, path, "down_proj", width, hidden, tensor_class=tensor_class),
    )


def expert_block(source: Source, path: str, hidden: int) -> tuple[Module, ...]:
    """Router, its correction, a shared expert and the routed ones."""
    text, quantization = source.text, source.quantization
    experts = text.integer("num_experts")
    shared = text.integer("shared_expert_intermediate_size", minimum=0)
    return (
        blocks.plain_router(hidden, experts),
        replace(blocks.routing_bias(experts), counted=True),
        *(mlp(quantization, f"{path}.shared_expert", hidden, shared, TensorClass.SHARED_EXPERTS) if shared else ()),
        blocks.routed_experts(
            quantization,
            path,
            count=experts,
            active=text.integer("num_experts_per_tok"),
            hidden=hidden,
            intermediate=text.integer("moe_intermediate_size"),
        ),
    )


def per_layer(source: Source, name: str, layers: int) -> None:
    """Check that a list has an entry a layer."""
    listed = source.text.items(name)
    if listed is not None and len(listed) != layers:
        field = source.text.named(name)
        raise source.invalid(field, f"{field} must have {layers} entries, not {len(listed)}")


def rotary_tables(source: Source, kinds: list[str], size: int) -> tuple[RopeTable, ...]:
    """The tables of full and sliding layers, which are one where their settings are the same."""
    text = source.text
    given = source.rope() or Fields(ROPE, "rope_parameters")
    nested = any(isinstance(value, Mapping) for value in given.values.values())
    tables = dict[str, tuple[object, RopeTable]]()
    for kind in dict.fromkeys(kinds):
        settings = text.child("swa_rope_parameters") if kind == SLIDING_ATTENTION else None
        if settings is None and nested:
            settings = given.child(kind) or given.child("full_attention") or Fields({}, given.path)
        settings = settings or given
        table = rotary_table(source, size, settings=settings)
        if table is None:
            raise source.refuse(settings.path, because="its rotary scaling is not understood")
        tables[kind] = settings_key(settings), table
    return used_by(kinds, tables)


def read_laguna(source: Source) -> ModelShape:
    """Laguna."""
    source = source.with_defaults(DEFAULTS)
    text, quantization = source.text, source.quantization
    kinds = layer_kinds(source, "layer_types", known=FULL_ATTENTION | {SLIDING_ATTENTION})
    kinds = counted_kinds(source, kinds or ["full_attention"] * text.layers("num_hidden_layers"))
    layers = len(kinds)
    for name in ("mlp_layer_types", "num_attention_heads_per_layer"):
        per_layer(source, name, layers)
    hidden, vocabulary, size = text.integer("hidden_size"), text.integer("vocab_size"), text.integer("head_dim")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    own_heads = text.integers("num_attention_heads_per_layer", minimum=1) or [heads] * layers
    blocks_listed = text.texts("mlp_layer_types") or ["dense", *["sparse"] * (layers - 1)]
    experts = text.integer("num_experts", minimum=0)
    sparse = [experts > 0 and kind == "sparse" for kind in blocks_listed]
    window, bias = text.optional_integer("sliding_window"), text.flag("attention_bias", default=False)
    sinks = text.flag("swa_attention_sink_enabled", default=False)

    def layer(index: int) -> LayerShape:
        path, count, sliding = f"model.layers.{index}", own_heads[index], kinds[index] == SLIDING_ATTENTION
        attention, gate = f"{path}.self_attn", gate_outputs(source, own_heads[index], size)
        return LayerShape(
            (AttentionCache(count, kv_heads, size, size, window if sliding else None),),
            (
                blocks.query_key_value(quantization, attention, hidden, count, kv_heads, size, bias=bias),
                blocks.row(quantization, attention, "o_proj", Units(count, size), hidden, bias=bias),
                *((blocks.column(quantization, attention, "g_proj", hidden, gate),) if gate else ()),
                *((Tensor("sink", TensorClass.ATTENTION, (Units(count),), split=True),) if sinks and sliding else ()),
                Tensor("norms", TensorClass.NORM, (Units(2 * size + 2 * hidden),)),
                *(
                    expert_block(source, f"{path}.mlp", hidden)
                    if sparse[index]
                    else mlp(quantization, f"{path}.mlp", hidden, text.integer("intermediate_size"), TensorClass.MLP)
                ),
            ),
        )

    model = assemble(
        source,
        build_layers(source, list(zip(kinds, own_heads, sparse, strict=True)), layer),
        ends(source, hidden, vocabulary, tied=source.tied(default=False)),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=experts,
        rope_tables=rotary_tables(source, kinds, size),
    )
    return replace(model, attention_sinks=sinks and SLIDING_ATTENTION in kinds)


READERS = {"LagunaForCausalLM": read_laguna}
