"""LFM2, LFM2 MoE and LFM2-VL: short convolutions with attention in between.

Source: vLLM 0.33 `model_executor/models/lfm2.py`, `lfm2_moe.py`, `lfm2_vl.py`, `lfm2_siglip2.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds, with_defaults
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import short_convolution, short_convolution_cache
from service.sizing.model.towers import SIGLIP2, layer_norm, siglip2_tower
from service.sizing.quantities import round_up

DENSE: Mapping[str, Any] = {
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}
SPARSE: Mapping[str, Any] = {
    "vocab_size": 65536,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "conv_L_cache": 3,
    "num_dense_layers": 2,
    "num_experts_per_tok": 4,
    "num_experts": 32,
    "use_expert_bias": True,
}
KINDS = frozenset({"full_attention", "conv"})
MLP_NAMES = ("w1", "w3", "w2")


def read_kinds(source: Source) -> list[str]:
    """The kind of every layer; without a list, `full_attn_idxs` names the attention layers (all by default)."""
    kinds = layer_kinds(source, "layer_types", known=KINDS)
    if kinds is None:
        layers = source.text.layers("num_hidden_layers")
        full = source.text.integers("full_attn_idxs")
        kinds = ["full_attention" if full is None or index in full else "conv" for index in range(layers)]
    return counted_kinds(source, kinds)


def dense_width(source: Source) -> int:
    """Width of the MLP: two thirds of the configured one, scaled and rounded up, unless adjusting is off."""
    text = source.text
    width = text.integer("block_ff_dim", "intermediate_size")
    if not text.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    if "block_ffn_dim_multiplier" in text:
        width = int(text.number("block_ffn_dim_multiplier") * width)
    return round_up(width, text.integer("block_multiple_of"))


def decoder(source: Source, *, sparse: bool, prefix: str = "model", tower: tuple[Module, ...] = ()) -> ModelShape:
    """The decoder; every stage builds the embedding, which is also the head."""
    source = with_defaults(source, SPARSE if sparse else DENSE)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    size, kernel = even_head_size(source, heads), text.integer("conv_L_cache")
    for name in () if sparse else ("conv_dim", "block_dim"):
        if text.integer(name, default=hidden) != hidden:
            raise source.refuse(name, because=f"a {name} other than hidden_size ({hidden}) is not known")
    bias, experts = text.flag("conv_bias", default=False), text.integer("num_experts") if sparse else 0
    dense_layers = text.integer("num_dense_layers", minimum=0) if sparse else None
    width = text.integer("intermediate_size") if sparse else dense_width(source)
    kinds = read_kinds(source)

    def is_dense(index: int) -> bool:
        return dense_layers is None or index < dense_layers

    def layer(index: int) -> LayerShape:
        path = f"{prefix}.layers.{index}"
        cache: Cache
        mixing: tuple[Module, ...]
        if kinds[index] == "full_attention":
            cache = AttentionCache(heads, kv_heads, size, size)
            mixing = (
                blocks.query_key_value(quantization, f"{path}.self_attn", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.self_attn", "out_proj", Units(heads, size), hidden),
                blocks.norm("q_layernorm", size),
                blocks.norm("k_layernorm", size),
            )
        else:
            cache = short_convolution_cache(hidden, kernel)
            mixing = short_convolution(quantization, f"{path}.conv", hidden, kernel, bias=bias)
        path = f"{path}.feed_forward"
        mlp: list[Module] = []
        if is_dense(index):
            mlp += blocks.gated_mlp(quantization, path, hidden, width, names=MLP_NAMES)
        else:
            mlp.append(blocks.router(quantization, path, hidden, experts))
            if text.flag("use_expert_bias", default=True):
                mlp.append(blocks.routing_bias(experts))
            mlp.append(
                blocks.routed_experts(
                    quantization,
                    path,
                    count=experts,
                    active=text.integer("num_experts_per_tok"),
                    hidden=hidden,
                    intermediate=text.integer("moe_intermediate_size"),
                )
            )
        norms = (blocks.norm("operator_norm", hidden), blocks.norm("ffn_norm", hidden))
        return LayerShape((cache,), (*mixing, *mlp, *norms))

    table = rotary_table(source, size)
    return assemble(
        source,
        build_layers(source, [(kind, is_dense(index)) for index, kind in enumerate(kinds)], layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=True,
            embedding=f"{prefix}.embed_tokens",
            norm=f"{prefix}.embedding_norm",
            embedding_everywhere=True,
            quantised=False,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=experts,
        rope_tables=(table,) if table else (),
        tower=tower,
    )


def read_lfm2(source: Source) -> ModelShape:
    """LFM2."""
    return decoder(source, sparse=False)


def read_lfm2_moe(source: Source) -> ModelShape:
    """LFM2 with experts."""
    return decoder(source, sparse=True)


def projector(source: Source, vision_hidden: int) -> tuple[Module, ...]:
    """From merged patches to the language model; never quantised."""
    root = source.root
    merged = vision_hidden * root.integer("downsample_factor", default=2) ** 2
    width, hidden = root.integer("projector_hidden_size", default=2560), source.text.integer("hidden_size")
    bias = root.flag("projector_bias", default=True)
    norm = (
        (layer_norm("layer_norm", merged, tensor_class=TensorClass.PROJECTOR),)
        if root.flag("projector_use_layernorm", default=True)
        else ()
    )
    sizes = (("linear_1", merged, width), ("linear_2", width, hidden))
    return (
        *norm,
        *(
            Linear(name, TensorClass.PROJECTOR, Units(inputs), (Units(outputs),), Split.REPLICATED, bias)
            for name, inputs, outputs in sizes
        ),
    )


def read_lfm2_vision(source: Source) -> ModelShape:
    """LFM2-VL: SigLIP 2 in front of either decoder."""
    vision = source.root.child("vision_config") or Fields({}, "vision_config")
    kind = vision.text("model_type", default="siglip2_vision_model")
    if kind != "siglip2_vision_model":
        raise source.refuse("vision_config.model_type", because=f"a vision tower of type {kind!r} is not known")
    sparse = source.model_type == "lfm2_moe"
    source = with_defaults(source, SPARSE if sparse else DENSE)
    tower = siglip2_tower(source.quantization, vision, path="model.vision_tower.vision_model")
    projected = projector(source, vision.integer("hidden_size", default=SIGLIP2["hidden_size"]))
    return decoder(source, sparse=sparse, prefix="model.language_model", tower=tower + projected)


READERS = {
    "Lfm2ForCausalLM": read_lfm2,
    "Lfm2MoeForCausalLM": read_lfm2_moe,
    "Lfm2VlForConditionalGeneration": read_lfm2_vision,
}
