"""K2 Horizon: gated grouped-query attention, whose values may come from experts of their own, and routed experts.

Source: vLLM 0.33 `model_executor/models/k2_horizon.py`.
"""

from dataclasses import replace

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends
from service.sizing.model.families.llama import Attention, read_attention
from service.sizing.model.families.mixture import Mixture
from service.sizing.model.families.windows import dual_chunk_refusal
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.schemes import UNQUANTISED
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape
from service.sizing.model.source import Source

FLOAT32_BYTES = 4


def read_experts(source: Source) -> Mixture:
    """Every `decoder_sparse_step`-th layer but those of `mlp_only_layers`; routers may have a float32 bias."""
    text = source.text
    count, every = text.integer("num_experts", minimum=0), text.integer("decoder_sparse_step", default=1)
    dense = set(text.integers("mlp_only_layers") or ())
    layers = range(text.layers("num_hidden_layers"))
    places = tuple(count > 0 and index not in dense and (index + 1) % every == 0 for index in layers)
    if not any(places):
        return Mixture(places, count, active=0, width=0)
    width = text.integer("moe_intermediate_size")
    return Mixture(
        places,
        count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        quantised_router=True,
        correction=float32_bias("gate.bias", count) if text.flag("moe_gate_bias", default=False) else None,
        shared_width=width * text.integer("num_shared_experts", minimum=0),
    )


def float32_bias(name: str, experts: int) -> Tensor:
    """The bias of a router, which the class turns into float32."""
    return Tensor(name, TensorClass.ROUTER, (Units(experts),), element_bytes=FLOAT32_BYTES)


def value_experts(source: Source, path: str, hidden: int, sizes: Attention, count: int) -> tuple[Module, ...]:
    """Projections of queries and keys, and a router over `count` projections of values."""
    quantization, bias = source.quantization, source.text.flag("attention_bias", default=False)
    if quantization.linear(f"{path}.v_experts.0") is not UNQUANTISED:
        raise source.refuse("mova_num_experts", because="quantised value experts are not known")
    keys = Units(sizes.kv_heads, sizes.head_size, replicated=True)
    biased = source.text.flag("moe_gate_bias", default=False)
    return (
        Linear(
            "qk_proj",
            TensorClass.ATTENTION,
            Units(hidden),
            (Units(sizes.heads, sizes.head_size), keys),
            Split.COLUMN,
            bias,
            quantization.linear(f"{path}.q_proj", f"{path}.k_proj"),
        ),
        blocks.router(quantization, path, hidden, count, name="v_router"),
        *((float32_bias("v_router.bias", count),) if biased else ()),
        Linear("v_experts", TensorClass.ATTENTION, Units(hidden), (keys,) * count, Split.COLUMN),
    )


def attention(source: Source, path: str, hidden: int, sizes: Attention, value_count: int) -> tuple[Module, ...]:
    """Projections, values of `value_count` experts (0: plain ones), norms on queries and keys, an output gate."""
    text, quantization = source.text, source.quantization
    bias, heads = text.flag("attention_bias", default=False), Units(sizes.heads, sizes.head_size)
    modules = (
        value_experts(source, path, hidden, sizes, value_count)
        if value_count
        else (
            blocks.query_key_value(quantization, path, hidden, sizes.heads, sizes.kv_heads, sizes.head_size, bias=bias),
        )
    )
    modules += (blocks.row(quantization, path, "o_proj", heads, hidden, bias=bias),)
    if text.flag("query_key_norm", default=False):
        keys = Units(sizes.kv_heads, sizes.head_size, replicated=True)
        modules += (
            Tensor("q_norm", TensorClass.NORM, (heads,), split=True),
            Tensor("k_norm", TensorClass.NORM, (keys,), split=True),
        )
    if text.text("attention_gate_func", default=""):
        modules += (blocks.column(quantization, path, "gate_proj", hidden, heads),)
    return modules


def read_k2_horizon(source: Source) -> ModelShape:
    """K2 Horizon, dense or with experts; every stage builds embedding, final norm and head."""
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    layers, sizes, experts = text.layers("num_hidden_layers"), read_attention(source), read_experts(source)
    windows = source.windows(layers, mixed=False)
    value_count = text.integer("mova_num_experts", default=0, minimum=0)

    def layer(index: int) -> LayerShape:
        path, sparse = f"model.layers.{index}", experts.at(index)
        cache = AttentionCache(sizes.heads, sizes.kv_heads, sizes.head_size, sizes.head_size, windows[index])
        return LayerShape(
            (cache,),
            (
                *attention(source, f"{path}.self_attn", hidden, sizes, value_count if sparse else 0),
                *(
                    experts.modules(source, path, hidden)
                    if sparse
                    else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, text.integer("intermediate_size"))
                ),
                blocks.norm("input_layernorm", hidden),
                blocks.norm("post_attention_layernorm", hidden),
            ),
        )

    rotated = text.optional_integer("rope_head_dim") or sizes.head_size
    table = rotary_table(source, rotated, partial=1.0)
    if table is None:
        raise source.unknown_rope()
    model = assemble(
        source,
        build_layers(source, experts.places, layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=source.tied(default=False),
            embedding_everywhere=True,
            norm_everywhere=True,
            head_everywhere=True,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        experts=experts.count,
        rope_tables=(table,),
    )
    return replace(model, build_refusal=dual_chunk_refusal(source))


READERS = {"K2HorizonForCausalLM": read_k2_horizon}
