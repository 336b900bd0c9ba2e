"""Granite 4 hybrids: Mamba-2 or attention, then experts, a shared MLP, or both.

Source: vLLM 0.33 `model_executor/models/granitemoehybrid.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import (
    assemble,
    auto_integer,
    build_layers,
    counted_kinds,
    ends,
    layer_kinds,
    with_defaults,
)
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.modules import Module, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import Mamba2

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
KINDS = frozenset({"linear_attention", "full_attention"})


def read_granite_hybrid(source: Source) -> ModelShape:
    """Granite 4 hybrids; every stage builds embedding, final norm and head."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads = text.integer("num_attention_heads")
    kv_heads, size = text.integer("num_key_value_heads", default=heads), even_head_size(source, heads)
    bias = text.flag("attention_bias", default=False)
    experts = text.integer("num_local_experts", default=0, minimum=0)
    shared = text.integer("shared_intermediate_size", default=0, minimum=0)
    inner, state_heads = text.integer("mamba_expand") * hidden, text.integer("mamba_n_heads")
    mixer = Mamba2(
        inner=inner,
        state=text.integer("mamba_d_state"),
        kernel=text.integer("mamba_d_conv"),
        heads=state_heads,
        head_size=auto_integer(text, "mamba_d_head", inner // state_heads),
        groups=text.integer("mamba_n_groups"),
        conv_bias=text.flag("mamba_conv_bias", default=True),
        bias=text.flag("mamba_proj_bias", default=False),
    )
    listed = layer_kinds(source, "layer_types", "layers_block_type", known=KINDS)
    kinds = counted_kinds(source, listed or ["linear_attention"] * text.layers("num_hidden_layers"))
    table = rotary_table(source, size) if text.text("position_embedding_type", default="") == "rope" else None

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        cache: Cache
        mixing: tuple[Module, ...]
        if kinds[index] == "full_attention":
            cache = AttentionCache(heads, kv_heads, size, size)
            mixing = (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size, bias=bias),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden, bias=bias),
            )
        else:
            cache, mixing = mixer.cache(), mixer.modules(quantization, f"{path}.mamba", hidden)
        mlp: list[Module] = []
        if experts:
            mlp += (
                blocks.plain_router(hidden, experts),
                blocks.routed_experts(
                    quantization,
                    f"{path}.block_sparse_moe",
                    count=experts,
                    active=text.integer("num_experts_per_tok"),
                    hidden=hidden,
                    intermediate=text.integer("intermediate_size"),
                ),
            )
        if shared:
            mlp += blocks.gated_mlp(
                quantization,
                f"{path}.shared_mlp",
                hidden,
                shared,
                tensor_class=TensorClass.SHARED_EXPERTS if experts else TensorClass.MLP,
                names=("input_linear", "input_linear", "output_linear"),
            )
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        return LayerShape((cache,), (*mixing, *mlp, *norms))

    return assemble(
        source,
        build_layers(source, kinds, layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=source.tied(default=False),
            embedding_everywhere=True,
            norm_everywhere=True,
            head_everywhere=True,
            quantised=False,
            quantised_head=True,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=experts,
        rope_tables=(table,) if table else (),
    )


READERS = {"GraniteMoeHybridForCausalLM": read_granite_hybrid}
