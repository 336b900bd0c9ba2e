"""HRM-Text: two stacks of layers passed through in cycles, with a cache for each pass.

Source: vLLM 0.33 `model_executor/models/hrm_text.py`; transformers 5.20 `models/hrm_text`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, with_defaults
from service.sizing.model.modules import Linear, Split, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape
from service.sizing.model.source import Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151808,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "head_dim": 128,
    "H_cycles": 2,
    "L_cycles": 3,
}

MAX_PASSES = 64
"""Passes of a layer that answering stays quick for."""


def stack_layers(source: Source, cycles: int, passes: int) -> int:
    """Layers of one stack; `num_hidden_layers` counts every pass where `num_layers_per_stack` stands beside it."""
    text = source.text
    layers, own = text.layers("num_hidden_layers"), text.optional_integer("num_layers_per_stack")
    if own is None:
        return layers
    if own * cycles * (passes + 1) != layers:
        raise source.invalid(
            "num_layers_per_stack",
            f"num_layers_per_stack ({own}) by {cycles * (passes + 1)} passes must be num_hidden_layers ({layers})",
        )
    return own


def read_hrm_text(source: Source) -> ModelShape:
    """HRM-Text: every query head has its own key and value head, and norms have no weights."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary, width = (
        text.integer("hidden_size"),
        text.integer("vocab_size"),
        text.integer("intermediate_size"),
    )
    heads, size = text.integer("num_attention_heads"), text.integer("head_dim")
    bias, mlp_bias = text.flag("attention_bias", default=False), text.flag("mlp_bias", default=False)
    cycles, passes = text.integer("H_cycles"), text.integer("L_cycles")
    if cycles * (passes + 1) > MAX_PASSES:
        raise source.invalid("H_cycles", f"H_cycles by L_cycles + 1 must be at most {MAX_PASSES}")
    layers = stack_layers(source, cycles, passes)
    kinds = [("L_module", index) for index in range(layers)] + [("H_module", index) for index in range(layers)]
    cache, units = AttentionCache(heads, heads, size, size), Units(heads, size)
    kept = {"L_module": (cache,) * (cycles * passes), "H_module": (cache,) * cycles}

    def layer(index: int) -> LayerShape:
        stack, number = kinds[index]
        path = f"model.{stack}.layers.{number}"
        scheme = quantization.linear(f"{path}.self_attn.gqkv_proj")
        return LayerShape(
            kept[stack],
            (
                Linear("gqkv_proj", TensorClass.ATTENTION, Units(hidden), (units,) * 4, Split.COLUMN, bias, scheme),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", units, hidden, bias=bias),
                *blocks.gated_mlp(
                    quantization,
                    f"{path}.mlp",
                    hidden,
                    width,
                    bias=mlp_bias,
                    names=("gate_up_proj", "gate_up_proj", "down_proj"),
                ),
            ),
        )

    table = rotary_table(source, size)
    if table is None:
        raise source.unknown_rope()
    return assemble(
        source,
        build_layers(source, [stack for stack, _ in kinds], layer),
        ends(source, hidden, vocabulary, tied=source.tied(default=False), norm=None),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=heads,
        rope_tables=(table,),
        tower=(Tensor("z_L_init", TensorClass.OTHER, (Units(hidden),)),),
    )


READERS = {"HrmTextForCausalLM": read_hrm_text}
