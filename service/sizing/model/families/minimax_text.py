"""MiniMax-Text-01 and M1: linear attention with softmax attention every few layers, over experts. Served until 0.23.

Source: vLLM 0.23 `model_executor/models/minimax_text_01.py`; transformers 5.20 `configuration_minimax.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds, with_defaults
from service.sizing.model.families.bamba import OLDER_ENGINE
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import (
    AttentionCache,
    Cache,
    LayerShape,
    ModelShape,
    StateCache,
    StateKind,
    StateTensor,
    Status,
)
from service.sizing.model.source import Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
"""What the configuration class of model type `minimax` fills in."""

KINDS = frozenset({"linear_attention", "full_attention"})
EXPERT_MATRICES = ("w1", "w3", "w2")
STATE = TensorClass.STATE


def read_kinds(source: Source) -> list[str]:
    """The kind of every layer: listed as zeros (linear) and ones, or by name; else by turns, full attention first."""
    text = source.text
    marks = text.integers("attn_type_list", "decoder_attention_types")
    if marks is not None:
        strange = sorted(set(marks) - {0, 1})
        if strange:
            raise source.refuse("attn_type_list", because=f"attention of type {strange} is not known")
        return counted_kinds(
            source, ["full_attention" if mark else "linear_attention" for mark in marks], "attn_type_list"
        )
    kinds = layer_kinds(source, "layer_types", known=KINDS)
    if kinds is None:
        layers = text.layers("num_hidden_layers")
        kinds = ["linear_attention" if index % 2 else "full_attention" for index in range(layers)]
    return counted_kinds(source, kinds)


def per_layer(source: Source, field: str, layers: int, default: int) -> list[int]:
    """A number for every layer, given once or as a list."""
    if not isinstance(source.text.values.get(field), list):
        return [source.text.integer(field, default=default, minimum=0)] * layers
    numbers = source.text.integers(field) or []
    if len(numbers) < layers:
        named = source.text.named(field)
        raise source.invalid(named, f"{named} lists {len(numbers)} layers, but num_hidden_layers is {layers}")
    return numbers[:layers]


def linear_attention(
    quantization: Quantization, path: str, hidden: int, heads: int, size: int
) -> tuple[StateCache, tuple[Module, ...]]:
    """Linear attention with an output gate; its state is a square a head."""
    inner = Units(heads, size)
    state = StateCache(StateKind.LINEAR_ATTENTION, (StateTensor((inner,), size, 2),), exports_checkpoints=False)
    return state, (
        Linear(
            "qkv_proj",
            STATE,
            Units(hidden),
            (inner, inner, inner),
            Split.COLUMN,
            scheme=quantization.linear(f"{path}.qkv_proj"),
        ),
        blocks.column(quantization, path, "output_gate", hidden, inner, tensor_class=STATE),
        blocks.row(quantization, path, "out_proj", inner, hidden, tensor_class=STATE),
        Tensor("norm", TensorClass.NORM, (inner,), split=True),
    )


def read_minimax_text(source: Source) -> ModelShape:
    """MiniMax-Text-01, M1 and their transformers spelling."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    size = text.optional_integer("head_dim") or even_head_size(source, heads)
    width = text.integer("intermediate_size")
    kinds = read_kinds(source)
    experts = per_layer(source, "num_local_experts", len(kinds), 1)
    shared = per_layer(source, "shared_intermediate_size", len(kinds), 0)

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        cache: Cache
        mixing: tuple[Module, ...]
        if kinds[index] == "linear_attention":
            cache, mixing = linear_attention(quantization, f"{path}.self_attn", hidden, heads, size)
        else:
            cache = AttentionCache(heads, kv_heads, size, size)
            mixing = (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
            )
        modules = list(mixing)
        if experts[index] > 1:
            modules += (
                blocks.plain_router(hidden, experts[index], element_bytes=4),
                blocks.routed_experts(
                    quantization,
                    f"{path}.block_sparse_moe",
                    count=experts[index],
                    active=text.integer("num_experts_per_tok"),
                    hidden=hidden,
                    intermediate=width,
                    projections=EXPERT_MATRICES,
                ),
            )
        else:
            modules += blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width)
        if shared[index]:
            modules += blocks.gated_mlp(
                quantization, f"{path}.shared_mlp", hidden, shared[index], tensor_class=TensorClass.SHARED_EXPERTS
            )
            modules.append(blocks.plain_router(hidden, 1, name="coefficient", element_bytes=4))
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        return LayerShape((cache,), (*modules, *norms))

    table = rotary_table(source, size, partial=text.integer("rotary_dim", default=size) / size)
    model = assemble(
        source,
        build_layers(source, list(zip(kinds, experts, shared, strict=True)), layer),
        ends(source, hidden, vocabulary, tied=False, quantised=False),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=max(experts),
        rope_tables=(table,) if table else (),
    )
    return replace(model, status=Status.ESTIMATED, notes=(OLDER_ENGINE,))


READERS = dict.fromkeys(("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxForCausalLM"), read_minimax_text)
