"""Falcon-H1: attention and Mamba-2 side by side in every layer.

Source: vLLM 0.33 `model_executor/models/falcon_h1.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, auto_integer, build_layers, ends, with_defaults
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.latent import nullable
from service.sizing.model.modules import Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import Mamba2

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "mamba_d_ssm": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_rms_norm": False,
}


def read_falcon_h1(source: Source) -> ModelShape:
    """Falcon-H1: one tensor passes between stages; the residual stays inside a layer."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads, width = text.integer("num_attention_heads"), text.integer("intermediate_size")
    kv_heads = text.integer("num_key_value_heads", default=heads)
    size = text.optional_integer("head_dim") or even_head_size(source, heads)
    inner = nullable(text, "mamba_d_ssm", None) or text.integer("mamba_expand") * hidden
    state_heads = text.integer("mamba_n_heads")
    mixer = Mamba2(
        inner=inner,
        state=text.integer("mamba_d_state"),
        kernel=text.integer("mamba_d_conv"),
        heads=state_heads,
        head_size=auto_integer(text, "mamba_d_head", inner // state_heads),
        groups=text.integer("mamba_n_groups"),
        conv_bias=text.flag("mamba_conv_bias", default=True),
        bias=text.flag("mamba_proj_bias", default=False),
        norm=text.flag("mamba_rms_norm", default=False),
    )
    if mixer.heads * mixer.head_size != inner:
        raise source.invalid(
            "mamba_d_head", f"mamba_n_heads x mamba_d_head ({mixer.heads * mixer.head_size}) must be {inner}"
        )
    multipliers = Tensor(
        "mup_vector",
        TensorClass.STATE,
        (Units(inner), Units(inner), mixer.group_units, mixer.group_units, Units(state_heads)),
        split=True,
        buffer=True,
    )
    table = rotary_table(source, size, partial=text.integer("attn_rotary_emb", default=size) / size)

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        return LayerShape(
            (AttentionCache(heads, kv_heads, size, size), mixer.cache()),
            (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
                *mixer.modules(quantization, f"{path}.mamba", hidden),
                multipliers,
                *blocks.gated_mlp(quantization, f"{path}.feed_forward", hidden, width),
                blocks.norm("input_layernorm", hidden),
                blocks.norm("pre_ff_layernorm", hidden),
            ),
        )

    return assemble(
        source,
        build_layers(source, [0] * text.layers("num_hidden_layers"), layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=source.tied(default=False),
            norm="model.final_layernorm",
            quantised=False,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        rope_tables=(table,) if table else (),
        handoff_tensors=1,
    )


READERS = {"FalconH1ForCausalLM": read_falcon_h1}
