"""Hunyuan V4: gated latent attention with sinks, sparse where its kinds say so, residual streams, experts.

Source: vLLM 0.33 `models/hy_v4/nvidia/model.py`, `attention.py`, `moe.py`, `hc.py`,
`transformers_utils/configs/hy_v4.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, with_defaults
from service.sizing.model.families.deepseek import Experts, expert_layer, read_latent
from service.sizing.model.latent import Indexer, indexer, latent_attention, latent_cache
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import Cache, IndexerCache, LayerShape, ModelShape
from service.sizing.model.source import Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 120832,
    "hidden_size": 2816,
    "intermediate_size": 6912,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "max_position_embeddings": 262144,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "enable_ihc": True,
    "hc_mult": 4,
    "gated_mla": True,
    "gating_type": "elementwise",
    "learnable_sink": True,
}
SPARSE = frozenset({"deepseek_sparse_attention", "indexed_attention", "sparse_attention", "sparse"})
"""Layer kinds whose attention an indexer guides; all others attend fully."""

FULL_INDEXER, SHARED_INDEXER = "full", "shared"
FLOAT32_BYTES = 4


def read_sparse(source: Source, layers: int) -> list[bool]:
    """Which layers attend sparsely: those their kind says so of; none where no kinds are listed."""
    kinds = source.text.texts("layer_types") or []
    return [index < len(kinds) and kinds[index] in SPARSE for index in range(layers)]


def read_indexers(source: Source, layers: int) -> list[bool]:
    """Which layers would run an indexer of their own: by list, else in the first layer and every fourth after it."""
    kinds = source.text.texts("indexer_types")
    if kinds is None:
        return [index == 0 or (index - 1) % 4 == 0 for index in range(layers)]
    strange = sorted(set(kinds) - {FULL_INDEXER, SHARED_INDEXER})
    if strange or len(kinds) != layers:
        named = source.text.named("indexer_types")
        given = ", ".join(strange) or f"{len(kinds)} layers"
        raise source.invalid(named, f"{named} must call {layers} layers full or shared, not {given}")
    return [kind == FULL_INDEXER for kind in kinds]


def read_experts(source: Source, layers: int) -> Experts:
    """Expert layers: all but the first unless listed."""
    text = source.text
    kinds = text.texts("mlp_layer_types")
    if kinds is not None and len(kinds) < layers:
        named = text.named("mlp_layer_types")
        raise source.invalid(named, f"{named} lists {len(kinds)} layers, but num_hidden_layers is {layers}")
    width = text.integer("moe_intermediate_size")
    return Experts(
        count=text.integer("n_routed_experts"),
        active=text.integer("num_experts_per_tok"),
        width=width,
        shared_width=width * text.integer("n_shared_experts", minimum=0),
        corrected=True,
        layers=frozenset(
            index for index in range(layers) if (kinds[index] != "dense" if kinds is not None else index > 0)
        ),
    )


def mixer(name: str, streams: int, hidden: int) -> tuple[Module, ...]:
    """What reduces the residual streams before a block and spreads its result over them, in float32."""
    return (
        Linear(
            f"{name}.hc_fn",
            TensorClass.OTHER,
            Units(streams * hidden),
            (Units(2 * streams),),
            Split.REPLICATED,
            element_bytes=FLOAT32_BYTES,
        ),
        Tensor(f"{name}.hc_scale", TensorClass.OTHER, (Units(2),), element_bytes=FLOAT32_BYTES),
        Tensor(f"{name}.hc_base", TensorClass.OTHER, (Units(2 * streams),), element_bytes=FLOAT32_BYTES),
    )


def read_hy_v4(source: Source) -> ModelShape:
    """Hunyuan V4."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    width, layers = text.integer("intermediate_size"), text.layers("num_hidden_layers")
    latent, experts = read_latent(text), read_experts(source, layers)
    streams = text.integer("hc_mult") if text.flag("enable_ihc", default=False) else 0
    text.ignore("hc_mult", "index_topk")
    sparse = read_sparse(source, layers)
    own = [is_sparse and runs for is_sparse, runs in zip(sparse, read_indexers(source, layers), strict=True)]
    index = Indexer(text.integer("index_n_heads"), text.integer("index_head_dim"))
    if any(own) and latent.query_rank is None:
        raise source.refuse("q_lora_rank", "layer_types", because="sparse attention needs compressed queries")
    gated, sinks = text.flag("gated_mla", default=False), text.flag("learnable_sink", default=False)
    gate_sizes = {"elementwise": latent.value_size, "headwise": 1}
    gating = text.text("gating_type", default="elementwise")
    if gated and gating not in gate_sizes:
        raise source.refuse("gating_type", because=f"an output gate of type {gating!r} is not known")

    def layer(number: int) -> LayerShape:
        path = f"model.layers.{number}"
        caches: tuple[Cache, ...] = (latent_cache(latent, sparse=sparse[number]),)
        modules = list(latent_attention(quantization, f"{path}.self_attn", hidden, latent))
        if own[number] and latent.query_rank is not None:
            caches = (IndexerCache(index.head_size), *caches)
            modules += indexer(quantization, f"{path}.self_attn.indexer", hidden, latent.query_rank, index)
        if gated:
            gate = Units(latent.heads, gate_sizes[gating])
            modules.append(blocks.column(quantization, f"{path}.self_attn", "linear_gate", hidden, gate))
        if sinks:
            heads = (Units(latent.heads),)
            size = FLOAT32_BYTES if sparse[number] else None
            modules.append(Tensor("sinks", TensorClass.ATTENTION, heads, split=True, element_bytes=size))
        modules += (
            expert_layer(
                quantization,
                f"{path}.mlp",
                hidden,
                experts,
                router_bytes=FLOAT32_BYTES,
                shared_whole=Whole.NEVER,
            )
            if experts.at(number)
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width)
        )
        modules += (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        if streams:
            modules += (*mixer("hc_attn_layer", streams, hidden), *mixer("hc_mlp_layer", streams, hidden))
        return LayerShape(caches, tuple(modules))

    around = ends(source, hidden, vocabulary, tied=source.tied(default=False), quantised=False, quantised_head=True)
    if streams:
        merging = (
            Linear(
                "hc_head_fn",
                TensorClass.OTHER,
                Units(streams * hidden),
                (Units(streams),),
                Split.REPLICATED,
                element_bytes=FLOAT32_BYTES,
            ),
            Tensor("hc_head_base", TensorClass.OTHER, (Units(streams),), element_bytes=FLOAT32_BYTES),
            Tensor("hc_head_scale", TensorClass.OTHER, (Units(1),), element_bytes=FLOAT32_BYTES),
        )
        around = replace(around, last=around.last + merging)
    table = rotary_table(source, latent.rope_size)
    return assemble(
        source,
        build_layers(source, [(sparse[i], own[i], experts.at(i)) for i in range(layers)], layer),
        around,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=latent.heads,
        kv_heads=1,
        experts=experts.count,
        rope_tables=(table,) if table else (),
        handoff_tensors=streams or 2,
    )


READERS = {"HYV4ForCausalLM": read_hy_v4}
