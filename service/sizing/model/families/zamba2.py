"""Zamba2: Mamba-2 layers, some of which also run one of a few transformer blocks shared by all of them.

Source: vLLM 0.33 `model_executor/models/zamba2.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, layer_kinds, with_defaults
from service.sizing.model.modules import Module, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import Mamba2

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "hidden_size": 2560,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
    "num_attention_heads": 32,
    "num_mem_blocks": 1,
    "adapter_rank": 128,
}
LONG_CONTEXT = 16384
"""Context length that `use_long_context` sets."""

RECURRENT, HYBRID = "linear_attention", "hybrid"
UNNAMED = [
    RECURRENT,
    *([RECURRENT] * 5 + [HYBRID]) * 7,
    *[RECURRENT] * 4,
    HYBRID,
    *[RECURRENT] * 3,
    HYBRID,
    *[RECURRENT] * 2,
]
"""The layers of a configuration that names none."""


def adapter(
    quantization: Quantization, path: str, name: str, inputs: int, rank: int, outputs: tuple[int, ...]
) -> tuple[Module, ...]:
    """A low-rank correction of one layer to a shared matrix."""
    up = blocks.column(quantization, path, f"{name}.1", rank, sum(outputs))
    return (
        blocks.column(quantization, path, f"{name}.0", inputs, rank),
        replace(up, outputs=tuple(Units(size) for size in outputs)),
    )


def read_zamba2(source: Source) -> ModelShape:
    """Zamba2; the head is the embedding, and attention works on twice the hidden size."""
    source = with_defaults(source, DEFAULTS)
    if source.text.flag("use_long_context", default=False):
        source = source.overridden({"max_position_embeddings": LONG_CONTEXT})
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    width = text.integer("intermediate_size", default=4 * hidden)
    heads, shared_blocks = text.integer("num_attention_heads"), text.integer("num_mem_blocks")
    attention, size, rank = 2 * hidden, 2 * hidden // heads, text.integer("adapter_rank")
    bias = text.flag("add_bias_linear", default=False)
    inner, state_heads = text.integer("mamba_expand") * hidden, text.integer("n_mamba_heads")
    mixer = Mamba2(
        inner=inner,
        state=text.integer("mamba_d_state"),
        kernel=text.integer("mamba_d_conv"),
        heads=state_heads,
        head_size=inner // state_heads,
        groups=text.integer("mamba_ngroups"),
        conv_bias=text.flag("use_conv_bias", default=True),
        bias=bias,
    )
    kinds = layer_kinds(source, "layers_block_type", "layer_types", known=frozenset({RECURRENT, HYBRID})) or UNNAMED
    adapts_attention = text.flag("use_shared_attention_adapter", default=False)

    def shared_block(number: int) -> tuple[Module, ...]:
        path = f"model.blocks.{number}"
        return (
            blocks.query_key_value(quantization, f"{path}.self_attn", attention, heads, heads, size),
            blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
            *blocks.gated_mlp(
                quantization,
                f"{path}.feed_forward",
                hidden,
                width,
                bias=bias,
                names=("gate_up_proj", "gate_up_proj", "down_proj"),
            ),
            blocks.norm("input_layernorm", attention),
            blocks.norm("pre_ff_layernorm", hidden),
        )

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        recurrent = (*mixer.modules(quantization, f"{path}.mamba", hidden), blocks.norm("input_layernorm", hidden))
        if kinds[index] == RECURRENT:
            return LayerShape((mixer.cache(),), recurrent)
        shared = f"{path}.shared_transformer"
        adapters = adapter(quantization, shared, "gate_up_proj_adapter", hidden, rank, (width, width))
        if adapts_attention:
            for name in ("linear_q_adapter", "linear_k_adapter", "linear_v_adapter"):
                adapters += adapter(quantization, shared, name, attention, rank, (attention,))
        caches: tuple[Cache, ...] = (AttentionCache(heads, heads, size, size), mixer.cache())
        linear = blocks.replicated(quantization, path, "linear", hidden, hidden, tensor_class=TensorClass.OTHER)
        return LayerShape(caches, (*adapters, linear, *recurrent))

    table = rotary_table(source, size) if text.flag("use_mem_rope", default=False) else None
    return assemble(
        source,
        build_layers(source, kinds, layer),
        ends(source, hidden, vocabulary, tied=True, norm="model.final_layernorm", quantised=False),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=heads,
        rope_tables=(table,) if table else (),
        tower=tuple(module for number in range(shared_blocks) for module in shared_block(number)),
    )


READERS = {"Zamba2ForCausalLM": read_zamba2}
