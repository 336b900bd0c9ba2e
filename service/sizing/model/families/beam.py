"""Beam: sliding layers with rotary positions, full ones without, gated attention, four norms a layer, dense or experts.

Source: vLLM 0.33 `models/beam/nvidia/model.py`, `attention.py`, `moe.py`; `transformers_utils/configs/beam.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds
from service.sizing.model.families.llama import FLOAT32_BYTES, read_attention
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import SLIDING_ATTENTION, Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
}
NORMS = (
    "input_layernorm",
    "pre_feedforward_layernorm",
    "post_attention_layernorm",
    "post_feedforward_layernorm",
)


def rotary(source: Source, size: int, sliding: list[bool]) -> tuple[RopeTable, ...]:
    """The float32 table of sliding layers, whose settings may stand under the one kind of layer that has any."""
    rope = source.rope() or Fields({}, "rope_parameters")
    if rope.values and set(rope.values) <= {"full_attention", SLIDING_ATTENTION}:
        given = [settings for kind in rope.values if (settings := rope.child(kind))]
        if len(given) != 1:
            raise source.invalid(rope.path, f"{rope.path} must give the settings of exactly one kind of layer")
        rope = given[0]
    table = rotary_table(source, size, settings=rope)
    if table is None:
        raise source.refuse(rope.path, because="its rotary scaling is not understood")
    layers = frozenset(index for index, slides in enumerate(sliding) if slides)
    return (replace(table, element_bytes=FLOAT32_BYTES, layers=layers),)


def read_beam(source: Source) -> ModelShape:
    """Beam."""
    source = source.with_defaults(DEFAULTS)
    text, quantization = source.text, source.quantization
    layers = text.layers("num_hidden_layers")
    kinds = layer_kinds(source, "layer_types", known=frozenset({"full_attention", SLIDING_ATTENTION}))
    kinds = counted_kinds(source, kinds or [SLIDING_ATTENTION] * layers)
    feeds = layer_kinds(source, "mlp_layer_types", known=frozenset({"dense", "sparse"}))
    feeds = counted_kinds(source, feeds or ["sparse"] * layers, "mlp_layer_types")
    hidden, vocabulary, experts = text.integer("hidden_size"), text.integer("vocab_size"), text.integer("num_experts")
    sizes, window = read_attention(source), text.integer("sliding_window")
    heads, size = sizes.heads, sizes.head_size

    def feed_forward(path: str, kind: str) -> tuple[Module, ...]:
        if kind == "dense":
            return blocks.gated_mlp(quantization, path, hidden, text.integer("intermediate_size"))
        return (
            blocks.plain_router(hidden, experts, element_bytes=FLOAT32_BYTES),
            blocks.routing_bias(experts),
            blocks.routed_experts(
                quantization,
                path,
                count=experts,
                active=text.integer("num_experts_per_tok"),
                hidden=hidden,
                intermediate=text.integer("moe_intermediate_size"),
            ),
        )

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        attention = f"{path}.self_attn"
        slides = kinds[index] == SLIDING_ATTENTION
        return LayerShape(
            (AttentionCache(heads, sizes.kv_heads, size, size, window if slides else None),),
            (
                blocks.query_key_value(quantization, attention, hidden, heads, sizes.kv_heads, size),
                blocks.column(quantization, attention, "gate_proj", hidden, heads * size),
                blocks.row(quantization, attention, "o_proj", Units(heads, size), hidden),
                Tensor("gate_bias", TensorClass.ATTENTION, (Units(heads),), split=True),
                blocks.norm("q_norm", size),
                blocks.norm("k_norm", size),
                *(blocks.norm(name, hidden) for name in NORMS),
                *feed_forward(f"{path}.mlp", feeds[index]),
            ),
        )

    model = assemble(
        source,
        build_layers(source, list(zip(kinds, feeds, strict=True)), layer),
        ends(source, hidden, vocabulary, tied=False),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=sizes.kv_heads,
        experts=experts,
        rope_tables=rotary(source, size, [kind == SLIDING_ATTENTION for kind in kinds]),
        handoff_tensors=1,
    )
    tied = source.tied(default=False)
    return replace(model, build_refusal="Beam requires tie_word_embeddings=False." if tied else None)


READERS = {"BeamForCausalLM": read_beam}
