"""Step 5: sliding layers and full ones that pick regions by summaries of them, gated heads, experts.

Source: vLLM 0.33 `models/step5/nvidia/model.py`, `config.py`, `sparse_summary_cache.py`, `csa_tail_ring.py`, `vl.py`,
`transformers_utils/configs/step5.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, with_defaults
from service.sizing.model.families.step3p5 import read_kinds, sparse_layers
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table, settings_key, used_by
from service.sizing.model.schemes import UNQUANTISED
from service.sizing.model.shape import AttentionCache, IndexerCache, LayerShape, ModelShape, RingCache, RopeTable
from service.sizing.model.source import SLIDING_ATTENTION, Source

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 65536,
    "hidden_size": 5120,
    "intermediate_size": 13312,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_attention_groups": 8,
    "moe_num_experts": 16,
    "moe_top_k": 4,
    "moe_intermediate_size": 10240,
    "rope_theta": 500000,
    "max_seq_len": 4096,
}
SPARSE: Mapping[str, Any] = {
    "proxy_dim": 256,
    "sparse_indexer_rope_dim": 32,
    "sparse_indexer_num_heads": 16,
    "sparse_indexer_num_k_heads": 1,
    "region_block_size": 8,
}
PROVIDERS = 4
"""Groups of index heads where a configuration gives no number."""

NORM_BYTES = {"bf16": 2, "bfloat16": 2, "fp32": 4, "float32": 4, "float": 4}
FLOAT32_BYTES = 4

DENSE_LAYERS = 1
"""Layers before the first with experts where a configuration lists none."""

NEEDED = ("use_moe_router_bias", "need_fp32_gate")
"""Flags that the class needs of a model with experts."""

PROJECTED = ("q_proj", "k_proj", "v_proj", "sparse_indexer_q", "sparse_indexer_k", "sparse_indexer_z", "g_proj")
"""What the projection of a sparse layer fuses."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of one kind of layer; a `window` where it slides."""

    heads: int
    kv_heads: int
    size: int
    window: int | None


@dataclass(frozen=True, slots=True)
class Index:
    """Sizes of the indexer: `heads` in `groups`, one key of `size` for each `region` of tokens."""

    heads: int
    groups: int
    size: int
    rotated: int
    region: int


def read_index(source: Source) -> Index:
    """Sizes of the indexer, of which the kernels know few."""
    given = source.text.child("sparse_config")
    if given is None:
        field = source.text.named("sparse_config")
        raise source.invalid(field, f"{field} is missing: give an object")
    sparse = given.completed(SPARSE)
    if not sparse.flag("enabled", default=True):
        raise source.refuse(sparse.named("enabled"), because="layers that do not use their indexer are not known")
    for field in ("proxy_dim", "sparse_indexer_num_k_heads", "region_block_size"):
        if sparse.integer(field) != SPARSE[field]:
            raise source.refuse(sparse.named(field), because=f"{sparse.named(field)} must be {SPARSE[field]}")
    return Index(
        heads=sparse.integer("sparse_indexer_num_heads"),
        groups=sparse.integer("index_tp_size", "num_provider_groups", default=PROVIDERS),
        size=sparse.integer("proxy_dim"),
        rotated=sparse.integer("sparse_indexer_rope_dim"),
        region=sparse.integer("region_block_size"),
    )


def read_sizes(source: Source, kind: str) -> Sizes:
    """Heads of the layers of one kind, which may be set apart by `attention_other_setting`."""
    text = source.text
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_attention_groups")
    size, window = text.optional_integer("head_dim"), None
    other = text.child("attention_other_setting")
    if other and other.text("attention_type") == kind:
        heads, kv_heads = other.integer("num_attention_heads"), other.integer("num_attention_groups")
        size = other.integer("head_dim")
    if kind == SLIDING_ATTENTION:
        window = text.integer("sliding_window")
        heads = text.integer("swa_num_attention_heads", default=heads)
    return Sizes(heads, kv_heads, size or text.integer("hidden_size") // heads, window)


def per_layer(source: Source, name: str, index: int, default: float | None) -> float | None:
    """A number of one layer, from a list or one for all."""
    text = source.text
    if not isinstance(text.values.get(name), list):
        return text.number(name, default=default) if text.values.get(name) is not None else default
    values = text.items(name)
    if not values:
        return default
    listed = Fields({str(number): value for number, value in enumerate(values)}, text.named(name))
    return listed.number(str(index))


def rotary_settings(source: Source, kind: str, index: int) -> Fields:
    """Rotary settings of one layer; the scaling is for the kinds that `yarn_only_types` names, or for all."""
    text = source.text
    scaled, scaling = text.texts("yarn_only_types"), text.child("rope_scaling")
    values: dict[str, Any] = dict(scaling.values) if scaling and (not scaled or kind in scaled) else {}
    values["rope_theta"] = per_layer(source, "rope_theta", index, None)
    values["partial_rotary_factor"] = per_layer(source, "partial_rotary_factors", index, 1.0)
    return Fields(values, text.named("rope_scaling"))


def rotary_tables(source: Source, kinds: list[str], sizes: Mapping[str, Sizes], index: Index) -> tuple[RopeTable, ...]:
    """A table for each way of rotating heads, and for full layers one of the indexer."""
    heads = dict[object, tuple[object, RopeTable]]()
    indexers = dict[object, tuple[object, RopeTable]]()
    for number, kind in enumerate(kinds):
        settings = rotary_settings(source, kind, number)
        own = source.with_defaults({"max_position_embeddings": source.text.integer("max_seq_len")})
        table = rotary_table(own, sizes[kind].size, settings=settings)
        if table is None:
            raise source.refuse(settings.path, because="its rotary scaling is not understood")
        heads[number] = (sizes[kind].size, settings_key(settings)), table
        if kind != SLIDING_ATTENTION:
            whole = Fields({**settings.values, "partial_rotary_factor": index.rotated / index.size}, settings.path)
            rotated = rotary_table(own, index.size, settings=whole)
            indexers[number] = settings_key(whole), rotated or table
    numbers = list(range(len(kinds)))
    full = [number for number in numbers if number in indexers]
    placed = used_by(full, indexers)
    return (
        *used_by(numbers, heads),
        *(replace(table, layers=frozenset(full[place] for place in table.layers or ())) for table in placed),
    )


def sparse_attention(source: Source, path: str, hidden: int, own: Sizes, index: Index) -> tuple[Module, ...]:
    """Projections of queries, keys, values, the indexer and the gate as one, and what the indexer adds."""
    quantization, gate = source.quantization, "use_head_wise_attn_gate"
    if not source.text.flag(gate, default=False):
        raise source.refuse(source.text.named(gate), because=f"sparse layers need {source.text.named(gate)} to be true")
    if quantization.linear(*(f"{path}.{name}" for name in PROJECTED)) is not UNQUANTISED:
        raise source.refuse("quantization_config", because="quantised projections of sparse layers are not known")
    keys = Units(own.kv_heads, own.size, replicated=True)
    shared = index.heads // index.groups
    one = Units(1, index.size, replicated=True)
    indexer = TensorClass.INDEXER
    return (
        Linear(
            "qkv_indexer_proj",
            TensorClass.ATTENTION,
            Units(hidden),
            (
                Units(own.heads, own.size),
                keys,
                keys,
                Units(index.groups, shared * index.size, replicated=True),
                one,
                one,
                Units(own.heads),
            ),
            Split.COLUMN,
        ),
        Linear(
            "sparse_indexer_w",
            indexer,
            Units(hidden),
            (Units(index.groups, shared, replicated=True),),
            Split.COLUMN,
        ),
        Tensor("ssmax_s", indexer, (Units(own.heads),), element_bytes=FLOAT32_BYTES),
        blocks.norm("sparse_indexer_q_norm", index.size),
        blocks.norm("sparse_indexer_k_norm", index.size, bias=True),
    )


def plain_attention(source: Source, path: str, hidden: int, own: Sizes) -> tuple[Module, ...]:
    """Projections, and a gate for each head where the configuration asks for it."""
    quantization = source.quantization
    gated = source.text.flag("use_head_wise_attn_gate", default=False)
    return (
        blocks.query_key_value(quantization, path, hidden, own.heads, own.kv_heads, own.size),
        *((blocks.column(quantization, path, "g_proj", hidden, own.heads),) if gated else ()),
    )


def expert_block(source: Source, path: str, hidden: int) -> tuple[Module, ...]:
    """A float32 router and its bias, a shared expert and the routed ones."""
    text, quantization = source.text, source.quantization
    for name in NEEDED:
        if not text.flag(name, default=False):
            raise source.refuse(text.named(name), because=f"experts need {text.named(name)} to be true")
    experts, active = text.integer("moe_num_experts"), text.integer("moe_top_k")
    width = text.integer("moe_intermediate_size")
    return (
        blocks.plain_router(hidden, experts, element_bytes=FLOAT32_BYTES),
        replace(blocks.routing_bias(experts), counted=True),
        *blocks.gated_mlp(
            quantization,
            f"{path}.share_expert",
            hidden,
            text.integer("share_expert_dim", default=width * active),
            tensor_class=TensorClass.SHARED_EXPERTS,
        ),
        blocks.routed_experts(
            quantization, f"{path}.moe", count=experts, active=active, hidden=hidden, intermediate=width
        ),
    )


def read_step5(source: Source) -> ModelShape:
    """Step 5; norms are in the type that the configuration names."""
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    for field in ("attention_bias", "step5_sparse_config", "step3p5_sparse_config"):
        if text.raw(field)[1]:
            raise source.refuse(
                text.named(field), because=f"{text.named(field)} is not supported by the engine's class"
            )
    text.ignore("num_nextn_predict_layers", "layer_types_with_mtp")
    layers, hidden, vocabulary = (
        text.layers("num_hidden_layers"),
        text.integer("hidden_size"),
        text.integer("vocab_size"),
    )
    if text.raw("rope_scaling")[1] is None:
        raise source.refuse(text.named("rope_scaling"), because="rotary tables without a scaling are not known")
    norm_type = text.text("norm_dtype", default="bf16").lower()
    if norm_type not in NORM_BYTES:
        raise source.invalid(text.named("norm_dtype"), f"norm_dtype must be one of {', '.join(NORM_BYTES)}")
    if "layer_types" not in text:
        raise source.refuse(text.named("layer_types"), because="layers of unnamed kinds are not known")
    kinds, index = read_kinds(source, layers), read_index(source)
    sparse = sparse_layers(source, layers, dense=DENSE_LAYERS, listed=("moe_layers_enum", "moe_layer_list"))
    sizes = {kind: read_sizes(source, kind) for kind in dict.fromkeys(kinds)}
    for kind, own in sizes.items():
        if kind != SLIDING_ATTENTION and own.kv_heads != index.groups:
            field = text.named("sparse_config.index_tp_size")
            raise source.invalid(
                field, f"{field} ({index.groups}) must be the KV heads of full layers ({own.kv_heads})"
            )

    def norms(*widths: int) -> Tensor:
        return Tensor("norms", TensorClass.NORM, (Units(sum(widths)),), element_bytes=NORM_BYTES[norm_type])

    def layer(number: int) -> LayerShape:
        path, own = f"model.layers.{number}", sizes[kinds[number]]
        attention, full = f"{path}.self_attn", own.window is None
        cache = AttentionCache(own.heads, own.kv_heads, own.size, own.size, own.window, summarised=full)
        summary = IndexerCache(index.size, tokens_per_key=index.region, scaled=False)
        return LayerShape(
            (cache, summary, RingCache(0, 4 * index.size)) if full else (cache,),
            (
                *(
                    sparse_attention(source, attention, hidden, own, index)
                    if full
                    else plain_attention(source, attention, hidden, own)
                ),
                blocks.row(quantization, attention, "o_proj", Units(own.heads, own.size), hidden),
                norms(own.size, own.size, hidden, hidden),
                *(
                    expert_block(source, path, hidden)
                    if sparse[number]
                    else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, text.integer("intermediate_size"))
                ),
            ),
        )

    around = ends(
        source, hidden, vocabulary, tied=source.tied(default=False), norm=None, quantised=False, quantised_head=True
    )
    first = sizes[kinds[0]]
    return assemble(
        source,
        build_layers(source, list(zip(kinds, sparse, strict=True)), layer),
        replace(around, last=(*around.last, norms(hidden))),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=max(own.heads for own in sizes.values()),
        kv_heads=first.kv_heads,
        experts=text.integer("moe_num_experts") if any(sparse) else 0,
        rope_tables=rotary_tables(source, kinds, sizes, index),
        handoff_tensors=1,
    )


READERS = {"Step5ForCausalLM": read_step5}
