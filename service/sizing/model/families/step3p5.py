"""Step 3.5 and the language model of Step 3.7: sliding layers with more heads than full ones, experts.

Source: vLLM 0.33 `model_executor/models/step3p5.py`; transformers 5.20 `models/step3p7/configuration_step3p7.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table, settings_key, used_by
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import FULL_ATTENTION, SLIDING_ATTENTION, Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 128815,
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "head_dim": 128,
    "max_position_embeddings": 128000,
    "moe_num_experts": 288,
    "moe_top_k": 8,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
}
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_attention_groups": ("num_attention_groups", "num_key_value_heads"),
    "moe_num_experts": ("moe_num_experts", "n_routed_experts"),
    "moe_top_k": ("moe_top_k", "num_experts_per_tok"),
    "share_expert_dim": ("share_expert_dim", "share_expert_dims"),
}
"""Fields with two names."""

DENSE_LAYERS = 3
"""Layers before the first with experts where a configuration lists none."""

ROUTER_BYTES = 4


def size(source: Source, name: str) -> int:
    """A size under either of its names, or what the class fills in."""
    return source.text.integer(*SPELLINGS.get(name, (name,)), default=DEFAULTS[name])


def read_kinds(source: Source, layers: int) -> list[str]:
    """The kind of every layer; entries for next-token-prediction layers may follow."""
    kinds = source.text.texts("layer_types")
    if kinds is None:
        return ["full_attention"] * layers
    if len(kinds) < layers:
        field = source.text.named("layer_types")
        raise source.invalid(field, f"{field} must name {layers} layers, not {len(kinds)}")
    kinds = kinds[:layers]
    strange = sorted(set(kinds) - FULL_ATTENTION - {SLIDING_ATTENTION})
    if strange:
        raise source.refuse(source.text.named("layer_types"), because=f"layers of kind {strange[0]} are not known")
    return kinds


def sparse_layers(
    source: Source, layers: int, *, dense: int = DENSE_LAYERS, listed: tuple[str, ...] = ("moe_layers_enum",)
) -> list[bool]:
    """Which layers have experts: by kind, by number under one of the `listed` fields, or after the first `dense`."""
    text = source.text
    field, numbered = text.raw(*listed)
    kinds = text.texts("mlp_layer_types")
    if kinds is not None:
        if len(kinds) < layers:
            field = text.named("mlp_layer_types")
            raise source.invalid(field, f"{field} must name {layers} layers, not {len(kinds)}")
        return [kind == "sparse" for kind in kinds[:layers]]
    if isinstance(numbered, str):
        parts = [part.strip() for part in numbered.split(",") if part.strip()]
        if not all(part.isdigit() for part in parts):
            raise source.invalid(field, f"{field} must list layer numbers, separated by commas")
        chosen = {int(part) for part in parts}
    else:
        numbers = text.integers(field)
        chosen = set(range(dense, layers)) if numbers is None else set(numbers)
    return [index in chosen for index in range(layers)]


def sliding_heads(source: Source, heads: int) -> int:
    """Query heads of sliding layers."""
    other = source.text.child("attention_other_setting")
    own = other.integer("num_attention_heads", default=heads) if other else heads
    return source.text.integer("num_sliding_attention_heads", default=own)


def rotary_settings(source: Source, kinds: list[str], kind: str) -> Fields:
    """Rotary settings of one kind of layer: nested, or from lists with an entry a layer; scaling is for full layers."""
    text = source.text
    nested = text.child("rope_parameters")
    if nested and isinstance(nested.values.get(kind), Mapping):
        return nested.child(kind) or nested
    first, values = kinds.index(kind), dict[str, Any]()
    for listed, name in (("rope_theta", "rope_theta"), ("partial_rotary_factors", "partial_rotary_factor")):
        entries = text.items(listed) if isinstance(text.values.get(listed), list) else ()
        text.ignore(listed)
        if entries and first < len(entries):
            values[name] = entries[first]
    scaling = text.child("rope_scaling") if kind == "full_attention" else None
    return Fields({**values, **(scaling.values if scaling else {})}, text.named("rope_scaling"))


def rotary_tables(source: Source, kinds: list[str], head_size: int) -> tuple[RopeTable, ...]:
    """One table for each kind of layer, unless their settings are the same."""
    tables = dict[str, tuple[object, RopeTable]]()
    for kind in dict.fromkeys(kinds):
        settings = rotary_settings(source, kinds, kind)
        table = rotary_table(source, head_size, settings=settings)
        if table is None:
            raise source.refuse(settings.path, because="its rotary scaling is not understood")
        tables[kind] = settings_key(settings), table
    return used_by(kinds, tables)


def expert_block(source: Source, path: str, hidden: int) -> tuple[Module, ...]:
    """A float32 router and its bias, a shared expert and the routed ones."""
    quantization, experts = source.quantization, size(source, "moe_num_experts")
    return (
        blocks.plain_router(hidden, experts, element_bytes=ROUTER_BYTES),
        replace(blocks.routing_bias(experts), counted=True),
        *blocks.gated_mlp(
            quantization,
            f"{path}.share_expert",
            hidden,
            size(source, "share_expert_dim"),
            tensor_class=TensorClass.SHARED_EXPERTS,
        ),
        blocks.routed_experts(
            quantization,
            f"{path}.moe",
            count=experts,
            active=size(source, "moe_top_k"),
            hidden=hidden,
            intermediate=size(source, "moe_intermediate_size"),
        ),
    )


def read_step3p5(source: Source) -> ModelShape:
    """Step 3.5; the head is never the embedding, which a tied configuration puts on the last stage all the same."""
    text, quantization = source.text, source.quantization
    text.ignore("num_nextn_predict_layers", "per_layer_config")
    layers, hidden, vocabulary = (
        text.layers("num_hidden_layers"),
        size(source, "hidden_size"),
        size(source, "vocab_size"),
    )
    heads, kv_heads, head_size = (
        size(source, name) for name in ("num_attention_heads", "num_attention_groups", "head_dim")
    )
    kinds, sparse = read_kinds(source, layers), sparse_layers(source, layers)
    slid = sliding_heads(source, heads)
    window = text.optional_integer("sliding_window")
    bias = text.flag("attention_bias", default=False)
    gated = text.flag("use_head_wise_attn_gate", default=False)

    def layer(index: int) -> LayerShape:
        path, slides = f"model.layers.{index}", kinds[index] == SLIDING_ATTENTION
        attention, own = f"{path}.self_attn", slid if slides else heads
        return LayerShape(
            (AttentionCache(own, kv_heads, head_size, head_size, window if slides else None),),
            (
                blocks.query_key_value(quantization, attention, hidden, own, kv_heads, head_size, bias=bias),
                blocks.row(quantization, attention, "o_proj", Units(own, head_size), hidden),
                *((blocks.column(quantization, attention, "g_proj", hidden, own),) if gated else ()),
                Tensor("norms", TensorClass.NORM, (Units(2 * head_size + 2 * hidden),)),
                *(
                    expert_block(source, path, hidden)
                    if sparse[index]
                    else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, size(source, "intermediate_size"))
                ),
            ),
        )

    around = ends(source, hidden, vocabulary, tied=False, quantised=False, quantised_head=True)
    return assemble(
        source,
        build_layers(source, list(zip(kinds, sparse, strict=True)), layer),
        replace(around, tied=source.tied(default=False)),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=max(slid if kind == SLIDING_ATTENTION else heads for kind in kinds),
        kv_heads=kv_heads,
        experts=size(source, "moe_num_experts") if any(sparse) else 0,
        rope_tables=rotary_tables(source, kinds, head_size),
        handoff_tensors=1,
    )


READERS = {"Step3p5ForCausalLM": read_step3p5}
