"""GLM-5.3 Flash: Kimi delta attention with sparse latent attention every few layers, pooled index keys, experts.

Source: vLLM 0.33 `models/glm5next/common/model.py`, `attention.py`, `kda.py`, `multimodal.py`; transformers 5.20
`configuration_glm5_next.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, with_defaults
from service.sizing.model.families.deepseek import Experts, expert_layer
from service.sizing.model.fields import Fields
from service.sizing.model.latent import Indexer, Latent, indexer, latent_attention, latent_cache, nullable
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import (
    Cache,
    IndexerCache,
    LayerShape,
    ModelShape,
    RingCache,
    StateCache,
    StateKind,
    StateTensor,
)
from service.sizing.model.source import Source
from service.sizing.model.towers import layer_norm, tower_linear, tower_query_key_value

TEXT: Mapping[str, Any] = {
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 0,
    "v_head_dim": 256,
    "qk_nope_head_dim": 256,
    "max_position_embeddings": 1048576,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_kpool": 16,
    "linear_head_dim": 128,
    "linear_num_heads": 64,
    "linear_conv_kernel_dim": 4,
    "hc_mult": 4,
}
VISION: Mapping[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 1536,
    "intermediate_size": 4096,
    "projection_intermediate_size": 10240,
}
LINEAR, INDEXED = "linear_attention", "indexed_attention"
KINDS = {LINEAR: LINEAR, INDEXED: INDEXED, "full_attention": INDEXED}
INTERVAL = 4
"""Every layer in this many has latent attention, where a configuration lists no kinds."""

DENSE_LAYERS = 3
"""Leading layers without experts, where a configuration lists no kinds."""

LINEAR_FIELDS = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Fields of an older `linear_attn_config` and what replaces them."""

TAIL_ELEMENT_BYTES = 2
FLOAT32_BYTES = 4
STATE, TOWER, PROJECTOR = TensorClass.STATE, TensorClass.TOWER, TensorClass.PROJECTOR
UNQUANTISED_PART = NotQuantised()
"""Attention, delta nets and the tower are built without the checkpoint's quantisation."""


def with_older_fields(source: Source) -> Source:
    """The configuration with `linear_attn_config` spread out over the fields that replace it."""
    linear = source.text.child("linear_attn_config")
    if linear is None:
        return source
    return source.overridden(
        {newer: linear.integer(older) for older, newer in LINEAR_FIELDS.items() if older in linear}
    )


def needed_flag(source: Source, name: str) -> bool:
    """A flag that the engine reads without a default."""
    if name not in source.text:
        named = source.text.named(name)
        raise source.invalid(named, f"{named} is missing: the engine needs it")
    return source.text.flag(name, default=False)


def read_kinds(source: Source, layers: int) -> list[str]:
    """The kind of every layer: listed, or latent attention in every fourth."""
    kinds = source.text.texts("layer_types")
    if kinds is None:
        return [LINEAR if index % INTERVAL != INTERVAL - 1 else INDEXED for index in range(layers)]
    strange = sorted(set(kinds) - set(KINDS))
    if strange:
        named = source.text.named("layer_types")
        raise source.refuse(named, because=f"layers of kind {', '.join(strange)} are not known")
    return counted_kinds(source, [KINDS[kind] for kind in kinds])


def read_experts(source: Source, layers: int) -> Experts:
    """Expert layers: all but the first three unless listed."""
    text = source.text
    kinds = text.texts("mlp_layer_types")
    width = text.integer("moe_intermediate_size")
    method = text.raw("topk_method")[1]
    if method is None:
        named = text.named("topk_method")
        raise source.invalid(named, f"{named} is missing: the engine needs it")
    sparse = [index >= DENSE_LAYERS for index in range(layers)]
    if kinds is not None:
        sparse = [kind == "sparse" for kind in counted_kinds(source, kinds, "mlp_layer_types")]
    return Experts(
        count=text.integer("n_routed_experts"),
        active=text.integer("num_experts_per_tok"),
        width=width,
        shared_width=width * text.integer("n_shared_experts", minimum=0),
        corrected=method == "noaux_tc",
        layers=frozenset(index for index, has in enumerate(sparse) if has),
    )


def delta_attention(text: Fields, hidden: int) -> tuple[StateCache, tuple[Module, ...]]:
    """Kimi delta attention: low-rank gates come out of the fused projection whole on every rank."""
    heads, size = text.integer("linear_num_heads"), text.integer("linear_head_dim")
    kernel, width = text.integer("linear_conv_kernel_dim"), Units(heads, size)
    low, path = Units(1, size, replicated=True), ""
    convolved = (Units(3 * heads, size),)
    state = StateCache(
        StateKind.KIMI_DELTA_ATTENTION,
        (StateTensor(convolved, kernel - 1, 2), StateTensor((width,), size, FLOAT32_BYTES)),
    )
    plain = UNQUANTISED_PART
    return state, (
        Linear("in_proj_qkvbfg_a", STATE, Units(hidden), (width, width, width, Units(heads), low, low), Split.COLUMN),
        blocks.column(plain, path, "f_b_proj", size, width, tensor_class=STATE),
        blocks.column(plain, path, "g_b_proj", size, width, tensor_class=STATE),
        Tensor("dt_bias", STATE, (width,), split=True, element_bytes=FLOAT32_BYTES),
        Tensor("conv1d", STATE, convolved, columns=kernel, split=True, element_bytes=FLOAT32_BYTES),
        Tensor("A_log", STATE, (Units(heads),), split=True, element_bytes=FLOAT32_BYTES),
        blocks.norm("o_norm", size),
        blocks.row(plain, path, "o_proj", width, hidden, tensor_class=STATE),
    )


def pooled_indexer(hidden: int, query_rank: int, sizes: Indexer, pool: int) -> tuple[Module, ...]:
    """The indexer and what compresses `pool` of its keys into one."""
    return (
        *indexer(UNQUANTISED_PART, "", hidden, query_rank, sizes),
        Tensor(
            "index_kpool_compress_ape",
            TensorClass.INDEXER,
            (Units(pool),),
            columns=sizes.head_size,
            element_bytes=FLOAT32_BYTES,
        ),
        Tensor("index_kpool_compress_gate", TensorClass.INDEXER, (Units(sizes.head_size),), columns=hidden),
    )


def mixers(streams: int, hidden: int) -> tuple[Module, ...]:
    """What mixes the residual streams around the attention and the MLP, in float32."""
    mixed = (2 + streams) * streams
    shapes = (("fn", mixed, streams * hidden), ("base", mixed, 1), ("scale", 3, 1))
    return tuple(
        Tensor(f"hc_{part}_{name}", TensorClass.OTHER, (Units(rows),), columns=columns, element_bytes=FLOAT32_BYTES)
        for part in ("attn", "ffn")
        for name, rows, columns in shapes
    )


def read_glm5_next(source: Source, *, prefix: str = "model", tower: tuple[Module, ...] = ()) -> ModelShape:
    """The language model; without rotation, and not split into pipeline stages."""
    source = with_defaults(with_older_fields(source), TEXT)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    width, layers = text.integer("intermediate_size"), text.layers("num_hidden_layers")
    if text.integer("qk_rope_head_dim", minimum=0):
        raise source.refuse("qk_rope_head_dim", because="latent attention with rotation is not known in this class")
    if text.optional_integer("index_topk") is None:
        raise source.refuse("index_topk", because="latent attention without an indexer is not known in this class")
    query_rank = nullable(text, "q_lora_rank", None)
    if query_rank is None:
        raise source.refuse("q_lora_rank", because="sparse attention needs compressed queries")
    latent = Latent(
        heads=text.integer("num_attention_heads"),
        query_rank=query_rank,
        latent_size=text.integer("kv_lora_rank"),
        rope_size=0,
        plain_size=text.integer("qk_nope_head_dim"),
        value_size=text.integer("v_head_dim"),
    )
    kinds, experts = read_kinds(source, layers), read_experts(source, layers)
    streams = text.integer("hc_mult") if needed_flag(source, "mhc") else 0
    sizes = Indexer(text.integer("index_n_heads"), text.integer("index_head_dim"))
    pool = text.integer("index_kpool", minimum=2)

    def layer(index: int) -> LayerShape:
        path = f"{prefix}.layers.{index}"
        caches: tuple[Cache, ...]
        if kinds[index] == LINEAR:
            state, mixing = delta_attention(text, hidden)
            caches = (state,)
        else:
            caches = (
                IndexerCache(sizes.head_size, tokens_per_key=pool),
                RingCache(pool, 2 * sizes.head_size * TAIL_ELEMENT_BYTES),
                latent_cache(latent, sparse=True),
            )
            mixing = (
                *latent_attention(UNQUANTISED_PART, "", hidden, latent),
                *pooled_indexer(hidden, query_rank, sizes, pool),
            )
        mlp = (
            expert_layer(quantization, f"{path}.mlp", hidden, experts)
            if experts.at(index)
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width, whole=Whole.TOKENS_SPLIT)
        )
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        return LayerShape(caches, (*mixing, *mlp, *norms, *(mixers(streams, hidden) if streams else ())))

    model = assemble(
        source,
        build_layers(source, [(kinds[index], experts.at(index)) for index in range(layers)], layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=False,
            embedding=f"{prefix}.embed_tokens",
            norm=f"{prefix}.norm",
            quantised=False,
            quantised_head=True,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=latent.heads,
        kv_heads=1,
        experts=experts.count,
        tower=tower,
    )
    return replace(model, supports_pipeline=False)


def vision_tower(vision: Fields, positions: int) -> tuple[Module, ...]:
    """A tower with norms of queries and keys, a convolution that merges patches, and a gated merger."""
    plain, path = UNQUANTISED_PART, ""
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_heads")
    width, output, size = vision.integer("intermediate_size"), vision.integer("out_hidden_size"), hidden // heads
    patch, merge = vision.integer("patch_size"), vision.integer("spatial_merge_size")
    pixels = vision.integer("in_channels") * vision.integer("temporal_patch_size") * patch * patch
    inner = vision.integer("projection_intermediate_size")
    modules: list[Module] = [
        Tensor("patch_embed.proj", TOWER, (Units(hidden),), columns=pixels + 1),
        Tensor("rotary", TOWER, (Units(positions),), columns=size // 2, buffer=True),
        layer_norm("post_layernorm", hidden, bias=False),
        Tensor("downsample", PROJECTOR, (Units(output),), columns=hidden * merge * merge + 1),
        tower_linear(plain, path, "proj", output, output, Split.COLUMN, bias=False, tensor_class=PROJECTOR),
        layer_norm("post_projection_norm", output, tensor_class=PROJECTOR),
        blocks.gated_up(plain, path, output, inner, tensor_class=PROJECTOR),
        tower_linear(plain, path, "down_proj", inner, output, Split.ROW, bias=False, tensor_class=PROJECTOR),
    ]
    for _ in range(vision.layers("depth")):
        modules += (
            layer_norm("norm1", hidden, bias=False),
            layer_norm("norm2", hidden, bias=False),
            layer_norm("q_norm", size, bias=False),
            layer_norm("k_norm", size, bias=False),
            tower_query_key_value(plain, path, "qkv", hidden, heads, size, bias=True),
            tower_linear(plain, path, "proj", Units(heads, size), hidden, Split.ROW, bias=True),
            blocks.gated_up(plain, path, hidden, width, bias=True, tensor_class=TOWER),
            tower_linear(plain, path, "down_proj", width, hidden, Split.ROW, bias=True),
        )
    return tuple(modules)


def read_glm5_next_vision(source: Source) -> ModelShape:
    """The language model behind its tower."""
    given = source.root.child("vision_config")
    vision = Fields({**VISION, **(given.values if given else {})}, "vision_config")
    positions = source.text.integer("max_position_embeddings", default=TEXT["max_position_embeddings"])
    return read_glm5_next(source, prefix="model.language_model", tower=vision_tower(vision, positions))


READERS = {
    "Glm5NextForCausalLM": read_glm5_next,
    "Glm5NextForConditionalGeneration": read_glm5_next_vision,
}
