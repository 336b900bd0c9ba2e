"""Afmoe (Arcee Trinity): rotary positions in sliding layers only, gated attention, experts behind a few dense layers.

Source: vLLM 0.33 `model_executor/models/afmoe.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.families.llama import read, read_attention
from service.sizing.model.families.mixture import Mixture
from service.sizing.model.families.recipe import HeadNorms, Recipe
from service.sizing.model.families.windows import periodic_layers
from service.sizing.model.modules import Module
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 200192,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 32,
    "num_dense_layers": 1,
    "num_attention_heads": 16,
    "head_dim": 128,
    "max_position_embeddings": 16384,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "global_attn_every_n_layers": 4,
    "sliding_window": 1024,
}

ROUTER_BYTES = 4


def layers(source: Source) -> Source:
    """The layers: a full one closes every group."""
    source = source.with_defaults(DEFAULTS)
    every = source.text.integer("global_attn_every_n_layers")
    return periodic_layers(every, every - 1)(source)


def experts(source: Source) -> Mixture:
    """Experts from a layer up: a float32 router with a bias, shared experts as one."""
    text = source.text
    count, width = text.integer("num_experts"), text.integer("moe_intermediate_size")
    dense = text.integer("num_dense_layers", minimum=0)
    return Mixture(
        places=tuple(index >= dense for index in range(text.layers("num_hidden_layers"))),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        router="router.gate",
        router_bytes=ROUTER_BYTES,
        correction=replace(blocks.routing_bias(count), counted=True),
        shared_width=width * text.integer("num_shared_experts", minimum=0),
    )


def gate(source: Source, path: str) -> tuple[Module, ...]:
    """The projection that gates attention."""
    sizes, hidden = read_attention(source), source.text.integer("hidden_size")
    outputs = sizes.heads * sizes.head_size
    return (blocks.column(source.quantization, f"{path}.self_attn", "gate_proj", hidden, outputs),)


AFMOE = Recipe(
    head_norms=HeadNorms.HEAD,
    norms=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
    reads_tied=False,
    quantised_embedding=False,
    quantised_head=True,
    mixed_windows=True,
    prepare=layers,
    extra=gate,
    experts=experts,
)


def read_afmoe(source: Source) -> ModelShape:
    """Afmoe; full layers have no rotary table."""
    prepared = layers(source)
    windows = prepared.windows(prepared.text.layers("num_hidden_layers"))
    sliding = frozenset(index for index, window in enumerate(windows) if window)
    model = read(source, AFMOE)
    return replace(model, rope_tables=tuple(replace(table, layers=sliding) for table in model.rope_tables))


READERS = {"AfmoeForCausalLM": read_afmoe}
