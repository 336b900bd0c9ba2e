"""OLMo Hybrid: gated delta nets with full attention every few layers.

Source: vLLM 0.33 `model_executor/models/olmo_hybrid.py`, `layers/mamba/gdn/olmo_gdn_linear_attn.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds, with_defaults
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import DeltaNet

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 100352,
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 30,
    "max_position_embeddings": 65536,
    "linear_conv_kernel_dim": 4,
}
KINDS = frozenset({"linear_attention", "full_attention"})
STATE = TensorClass.STATE


def read_net(source: Source) -> DeltaNet:
    """Sizes of the delta net; key heads fill three quarters of the hidden size unless given."""
    text = source.text
    heads = text.integer("num_attention_heads")
    key_heads = text.integer("linear_num_key_heads", default=heads)
    key_size = text.integer("linear_key_head_dim", default=int(0.75 * text.integer("hidden_size") / key_heads))
    return DeltaNet(
        key_heads=key_heads,
        value_heads=text.integer("linear_num_value_heads", default=heads),
        key_size=key_size,
        value_size=text.integer("linear_value_head_dim", default=2 * key_size),
        kernel=text.integer("linear_conv_kernel_dim"),
        exports=False,
    )


def delta_net(quantization: Quantization, path: str, hidden: int, net: DeltaNet) -> tuple[Module, ...]:
    """Queries, keys, values and gate in one projection, step and decay in two more."""
    keys, values, heads = Units(net.keys), Units(net.values), Units(net.value_heads)
    return (
        Linear(
            "in_proj_qkvg",
            STATE,
            Units(hidden),
            (keys, keys, values, values),
            Split.COLUMN,
            scheme=quantization.linear(*(f"{path}.{name}_proj" for name in "qkvg")),
        ),
        blocks.column(quantization, path, "b_proj", hidden, heads, tensor_class=STATE),
        blocks.column(quantization, path, "a_proj", hidden, heads, tensor_class=STATE),
        Tensor("conv1d", STATE, (net.convolved,), columns=net.kernel, split=True),
        Tensor("dt_bias", STATE, (heads,), split=True),
        Tensor("A_log", STATE, (heads,), split=True),
        blocks.norm("o_norm", net.value_size),
        blocks.row(quantization, path, "o_proj", values, hidden, tensor_class=STATE),
    )


def read_olmo_hybrid(source: Source) -> ModelShape:
    """OLMo Hybrid; norms on whole queries and keys are replicated, and every stage builds embedding, norm and head."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads, width = text.integer("num_attention_heads"), text.integer("intermediate_size")
    kv_heads, size = text.integer("num_key_value_heads", default=heads), even_head_size(source, heads)
    net, layers = read_net(source), text.layers("num_hidden_layers")
    kinds = layer_kinds(source, "layer_types", known=KINDS)
    if kinds is None:
        kinds = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(layers)]
        if layers < 4:
            kinds[-1] = "full_attention"
    kinds = counted_kinds(source, kinds)
    rope = source.rope()
    rotates = "rope_theta" in text or (rope is not None and "rope_theta" in rope)

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        cache: Cache
        if kinds[index] == "full_attention":
            cache = AttentionCache(heads, kv_heads, size, size)
            mixing: tuple[Module, ...] = (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
                blocks.norm("q_norm", hidden),
                blocks.norm("k_norm", kv_heads * size),
            )
        else:
            cache, mixing = net.cache(), delta_net(quantization, f"{path}.linear_attn", hidden, net)
        return LayerShape(
            (cache,),
            (
                *mixing,
                *blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width),
                blocks.norm("first_layernorm", hidden),
                blocks.norm("second_layernorm", hidden),
            ),
        )

    table = rotary_table(source, size) if rotates else None
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
        rope_tables=(table,) if table else (),
        handoff_tensors=1,
    )


READERS = {"OlmoHybridForCausalLM": read_olmo_hybrid}
