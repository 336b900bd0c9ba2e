"""Jamba: Mamba layers with attention every few layers, experts every few others.

Source: vLLM 0.33 `model_executor/models/jamba.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, auto_integer, build_layers, ends, with_defaults
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.modules import Module, Units
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import Mamba1
from service.sizing.quantities import ceil_div

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 65536,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
    "num_experts_per_tok": 2,
    "num_experts": 16,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


def read_jamba(source: Source) -> ModelShape:
    """Jamba; no rotary table, and every stage builds embedding, final norm and an untied head."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads = text.integer("num_attention_heads")
    kv_heads, size = text.integer("num_key_value_heads", default=heads), even_head_size(source, heads)
    experts, active = text.integer("num_experts"), text.integer("num_experts_per_tok")
    width = text.integer("intermediate_size")
    expert_period, expert_offset = text.integer("expert_layer_period"), text.integer("expert_layer_offset", minimum=0)
    attention_period = text.integer("attn_layer_period")
    attention_offset = text.integer("attn_layer_offset", minimum=0)
    mixer = Mamba1(
        inner=text.integer("mamba_expand") * hidden,
        state=text.integer("mamba_d_state"),
        kernel=text.integer("mamba_d_conv"),
        step_rank=auto_integer(text, "mamba_dt_rank", ceil_div(hidden, 16)),
        conv_bias=text.flag("mamba_conv_bias", default=True),
        bias=text.flag("mamba_proj_bias", default=False),
        norms=True,
    )
    kinds = [
        (index % attention_period == attention_offset, experts > 1 and index % expert_period == expert_offset)
        for index in range(text.layers("num_hidden_layers"))
    ]

    def layer(index: int) -> LayerShape:
        attends, sparse = kinds[index]
        path = f"model.layers.{index}"
        cache: Cache
        mixing: tuple[Module, ...]
        if attends:
            cache = AttentionCache(heads, kv_heads, size, size)
            mixing = (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
            )
        else:
            cache, mixing = mixer.cache(), mixer.modules(hidden)
        path = f"{path}.feed_forward"
        mlp = (
            (
                blocks.plain_router(hidden, experts, name="router"),
                blocks.routed_experts(
                    quantization, path, count=experts, active=active, hidden=hidden, intermediate=width
                ),
            )
            if sparse
            else blocks.gated_mlp(quantization, path, hidden, width)
        )
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("pre_ff_layernorm", hidden))
        return LayerShape((cache,), (*mixing, *mlp, *norms))

    return assemble(
        source,
        build_layers(source, kinds, layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=False,
            norm="model.final_layernorm",
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
    )


READERS = {"JambaForCausalLM": read_jamba}
