"""Bamba: Mamba-2 with attention every few layers, each before an MLP. vLLM served it until 0.23.

Source: vLLM 0.23 `model_executor/models/bamba.py`; transformers 5.20 `configuration_bamba.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, auto_integer, build_layers, ends, with_defaults
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.modules import Module, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape, Status
from service.sizing.model.source import Source
from service.sizing.model.state import Mamba2

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}

ROTATED_SHARE = 0.5
"""Share of a head that is rotated, whatever the configuration says."""

OLDER_ENGINE = "Restated from vLLM 0.23, the last version that served this architecture, and not run against it."


def read_bamba(source: Source) -> ModelShape:
    """Bamba; every stage builds embedding, final norm and an untied head."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads = text.integer("num_attention_heads")
    kv_heads, size = text.integer("num_key_value_heads", default=heads), even_head_size(source, heads)
    width, bias = text.integer("intermediate_size"), text.flag("mlp_bias", default=False)
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
    attending = frozenset(text.integers("attn_layer_indices") or ())
    layers = text.layers("num_hidden_layers")

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        cache: Cache
        mixing: tuple[Module, ...]
        if index in attending:
            cache = AttentionCache(heads, kv_heads, size, size)
            mixing = (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
            )
        else:
            cache, mixing = mixer.cache(), mixer.modules(quantization, f"{path}.mamba", hidden)
        return LayerShape(
            (cache,),
            (
                *mixing,
                *blocks.gated_mlp(quantization, f"{path}.feed_forward", hidden, width, bias=bias),
                blocks.norm("input_layernorm", hidden),
                blocks.norm("pre_ff_layernorm", hidden),
            ),
        )

    rotated = text.integer("attn_rotary_emb", default=int(size * ROTATED_SHARE))
    table = rotary_table(source, size, partial=rotated / size)
    model = assemble(
        source,
        build_layers(source, [index in attending for index in range(layers)], layer),
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
        rope_tables=(table,) if table else (),
    )
    return replace(model, status=Status.ESTIMATED, notes=(OLDER_ENGINE,))


READERS = {"BambaForCausalLM": read_bamba}
