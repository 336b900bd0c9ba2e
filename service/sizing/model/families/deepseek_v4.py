"""DeepSeek V4: attention to a sliding window and to compressed states, residual streams that mix, hashed experts.

Source: vLLM 0.33 `models/deepseek_v4/nvidia/model.py`, `attention.py`, `compressor.py`, `common/rope.py`,
`common/vl_model.py`, `common/vision.py`,
`v1/attention/backends/mla/sparse_swa.py`; transformers 5.20 `configuration_deepseek_v4.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, with_defaults
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.rope import original_positions, stretched
from service.sizing.model.shape import LayerShape, ModelShape, PackedCache, PackedRole, RopeTable
from service.sizing.model.source import Source, rope_kind
from service.sizing.model.towers.parts import (
    PROJECTOR,
    layer_norm,
    tower_linear,
    tower_query_key_value,
    whole_linear,
)

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "num_experts_per_tok": 6,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "max_position_embeddings": 1048576,
    "hc_mult": 4,
    "sliding_window": 128,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
}

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
KINDS = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""Kinds of layers by the tokens that one compressed state stands for, as older configurations list them."""

INDEXED, WIDEST = 4, 128
"""Ratios of compression that exist: with an indexer over overlapping states, and without."""

PARTIAL_BLOCK = {INDEXED: 4, WIDEST: 8}
"""Tokens of a block of partial sums."""

WINDOW_BLOCK = 64
"""Tokens of a block of the sliding window."""

STATE_BYTES = 584
"""Bytes of a state of 512 elements: 448 in FP8, 64 rotated in 16 bits, 8 of scales."""

STATE_SIZE = 512
INDEX_SIZE = 128
FLOAT32_BYTES = 4

SINK_HEADS = 64
"""Query heads that the kernels pad a rank's own to a multiple of."""

ROTARY_SHARE = 64 / 512
HASHED_LAYERS = 3

IMAGE_PADDING = 3
"""Tokens that may stand before an image, so that compressed states begin with it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the attention; `streams` is the number of residual streams."""

    hidden: int
    heads: int
    size: int
    query_rank: int
    groups: int
    group_rank: int
    window: int
    index_heads: int
    index_size: int
    streams: int


def read_sizes(text: Fields) -> Sizes:
    """Sizes of the attention."""
    return Sizes(
        hidden=text.integer("hidden_size"),
        heads=text.integer("num_attention_heads"),
        size=text.integer("head_dim"),
        query_rank=text.integer("q_lora_rank"),
        groups=text.integer("o_groups"),
        group_rank=text.integer("o_lora_rank"),
        window=text.integer("sliding_window"),
        index_heads=text.integer("index_n_heads"),
        index_size=text.integer("index_head_dim"),
        streams=text.integer("hc_mult"),
    )


def read_kinds(source: Source, layers: int) -> list[str]:
    """The kind of every layer: listed by name, by ratio of compression, or by the default pattern."""
    text = source.text
    kinds = text.texts("layer_types")
    ratios = text.integers("compress_ratios")
    if kinds is None and ratios is not None:
        strange = sorted(set(ratios) - set(KINDS))
        if strange:
            raise source.refuse(text.named("compress_ratios"), because=f"compression by {strange} is not known")
        kinds = [KINDS[ratio] for ratio in ratios]
    if kinds is None:
        kinds = [HEAVY if index < 2 or index % 2 == 0 else SPARSE for index in range(layers)]
    if len(kinds) < layers:
        named = text.named("layer_types")
        raise source.invalid(named, f"{named} lists {len(kinds)} layers, but num_hidden_layers is {layers}")
    strange = sorted(set(kinds[:layers]) - set(KINDS.values()))
    if strange:
        raise source.refuse(text.named("layer_types"), because=f"layers of kind {', '.join(strange)} are not known")
    return kinds[:layers]


def read_ratios(source: Source, layers: int) -> list[int]:
    """Tokens that one compressed state stands for in every layer; 1: the window alone."""
    text = source.text
    rates = text.child("compress_rates")
    by_kind = {SPARSE: INDEXED, HEAVY: WIDEST}
    if rates is not None:
        by_kind = {kind: rates.integer(kind, default=0, minimum=0) for kind in KINDS.values()}
    for kind, field in ((SPARSE, "compress_rate_csa"), (HEAVY, "compress_rate_hca")):
        by_kind[kind] = text.optional_integer(field, minimum=0) or by_kind[kind]
    ratios = [max(1, by_kind.get(kind, 0)) for kind in read_kinds(source, layers)]
    strange = sorted(set(ratios) - {1, INDEXED, WIDEST})
    if strange:
        raise source.refuse(text.named("compress_rates"), because=f"compression by {strange} is not known")
    return ratios


def hashed_layers(source: Source, layers: int) -> int:
    """How many layers, from the first, choose experts by a table over the vocabulary."""
    kinds = source.text.texts("mlp_layer_types")
    if kinds is None:
        return min(layers, source.text.integer("num_hash_layers", default=HASHED_LAYERS, minimum=0))
    strange = sorted(set(kinds[:layers]) - {"hash_moe", "moe"})
    if strange:
        named = source.text.named("mlp_layer_types")
        raise source.refuse(named, because=f"expert layers of kind {', '.join(strange)} are not known")
    return kinds[:layers].count("hash_moe")


def compressor(name: str, hidden: int, size: int, ratio: int) -> tuple[Module, ...]:
    """A compressor: never quantised, held whole; states overlap where the ratio is the indexed one."""
    width = size * overlap(ratio)
    return (
        Tensor(f"{name}.ape", TensorClass.ATTENTION, (Units(ratio),), columns=width, element_bytes=FLOAT32_BYTES),
        Linear(
            f"{name}.fused_wkv_wgate",
            TensorClass.ATTENTION,
            Units(hidden),
            (Units(width), Units(width)),
            Split.REPLICATED,
        ),
        blocks.norm(f"{name}.norm", size),
    )


def overlap(ratio: int) -> int:
    """States that one token adds to."""
    return 2 if ratio == INDEXED else 1


def attention(quantization: Quantization, path: str, sizes: Sizes, ratio: int) -> tuple[Module, ...]:
    """Attention with one key that is also the value, and an output projected by groups of heads."""
    heads = Units(sizes.heads, sizes.size)
    grouped = Units(sizes.groups, sizes.group_rank)
    modules: tuple[Module, ...] = (
        Tensor(
            "attn_sink",
            TensorClass.ATTENTION,
            (Units(sizes.heads),),
            split=True,
            element_bytes=FLOAT32_BYTES,
            row_multiple=SINK_HEADS,
        ),
        Linear(
            "fused_wqa_wkv",
            TensorClass.ATTENTION,
            Units(sizes.hidden),
            (Units(sizes.query_rank), Units(sizes.size)),
            Split.REPLICATED,
            scheme=quantization.linear(f"{path}.wq_a", f"{path}.wkv"),
        ),
        blocks.norm("q_norm", sizes.query_rank),
        blocks.norm("kv_norm", sizes.size),
        blocks.column(quantization, path, "wq_b", sizes.query_rank, heads),
        blocks.column(quantization, path, "wo_a", heads.total // sizes.groups, grouped),
        blocks.row(quantization, path, "wo_b", grouped, sizes.hidden),
    )
    if ratio > 1:
        modules += compressor("compressor", sizes.hidden, sizes.size, ratio)
    if ratio == INDEXED:
        modules += (
            blocks.replicated(
                quantization,
                f"{path}.indexer",
                "wq_b",
                sizes.query_rank,
                sizes.index_heads * sizes.index_size,
                tensor_class=TensorClass.INDEXER,
            ),
            Linear(
                "indexer.weights_proj",
                TensorClass.INDEXER,
                Units(sizes.hidden),
                (Units(sizes.index_heads),),
                Split.REPLICATED,
            ),
            *compressor("indexer.compressor", sizes.hidden, sizes.index_size, ratio),
        )
    return modules


def caches(sizes: Sizes, ratio: int) -> tuple[PackedCache, ...]:
    """The window, and with compression the states, their partial sums and those of the indexer."""
    window = PackedCache(PackedRole.LATENT, sizes.size, STATE_BYTES, window=sizes.window, block_size=WINDOW_BLOCK)
    if ratio == 1:
        return (window,)
    states = PackedCache(PackedRole.LATENT, sizes.size, STATE_BYTES, ratio)
    if ratio != INDEXED:
        return window, states, partial_sums(sizes.size, ratio)
    keys = PackedCache(PackedRole.INDEXER, sizes.index_size, sizes.index_size + FLOAT32_BYTES, ratio)
    return window, keys, partial_sums(sizes.index_size, ratio), states, partial_sums(sizes.size, ratio)


def partial_sums(size: int, ratio: int) -> PackedCache:
    """What a compressor keeps of the tokens of unfinished states: a sum and a score in float32."""
    width = 2 * overlap(ratio) * size
    return PackedCache(
        PackedRole.PARTIAL,
        width,
        width * FLOAT32_BYTES,
        window=overlap(ratio) * ratio,
        block_size=PARTIAL_BLOCK[ratio],
    )


def shared_expert(source: Source, path: str, hidden: int, intermediate: int) -> tuple[Module, ...]:
    """The shared expert; block-quantised ones are padded so that every rank holds whole blocks."""
    quantization = source.quantization
    settings = source.root.child("quantization_config")
    block = settings.integers("weight_block_size", minimum=1) if settings else None
    width = Units(intermediate)
    if block and quantization.method == "deepseek_v4_fp8":
        if intermediate % block[0]:
            raise source.refuse(
                "moe_intermediate_size",
                because=f"shared experts of {intermediate} in blocks of {block[0]} are not known",
            )
        width = Units(intermediate // block[0], block[0], padded=True)
    shared = TensorClass.SHARED_EXPERTS
    whole = Whole.TOKENS_SPLIT_ONE_STAGE
    return (
        Linear(
            "gate_up_proj",
            shared,
            Units(hidden),
            (width, width),
            Split.COLUMN,
            scheme=quantization.linear(f"{path}.w1", f"{path}.w3"),
            whole=whole,
        ),
        blocks.row(quantization, path, "w2", width, hidden, tensor_class=shared, whole=whole),
    )


def expert_layer(source: Source, path: str, *, hashed: bool, sees: bool) -> tuple[Module, ...]:
    """Router, shared and routed experts; `hashed` layers look the choice up by token instead of by a biased score.

    A model that `sees` has a bias for tokens of images in every layer, and the other one in hashed layers too.
    """
    text = source.text
    hidden, count, active = (
        text.integer("hidden_size"),
        text.integer("n_routed_experts"),
        text.integer("num_experts_per_tok"),
    )
    width, shared = text.integer("moe_intermediate_size"), text.integer("n_shared_experts", default=0, minimum=0)
    chosen: tuple[Module, ...] = ()
    if hashed:
        rows = (Units(text.integer("vocab_size")),)
        chosen = (Tensor("tid2eid", TensorClass.ROUTER, rows, columns=active, element_bytes=4, counted=False),)
    if (sees or not hashed) and text.text("topk_method", default="") == "noaux_tc":
        chosen += (blocks.routing_bias(count),)
    if sees:
        chosen += (blocks.routing_bias(count),)
    return (
        blocks.plain_router(hidden, count),
        *chosen,
        *(shared_expert(source, f"{path}.shared_experts", hidden, shared * width) if shared else ()),
        blocks.routed_experts(
            source.quantization,
            path,
            count=count,
            active=active,
            hidden=hidden,
            intermediate=width,
            projections=("w1", "w3", "w2"),
        ),
    )


def mixers(name: str, sizes: Sizes) -> tuple[Module, ...]:
    """What mixes the residual streams around one block, in float32."""
    mixed = (2 + sizes.streams) * sizes.streams
    return (
        float32(f"{name}_fn", mixed, sizes.streams * sizes.hidden),
        float32(f"{name}_base", mixed),
        float32(f"{name}_scale", 3),
    )


def float32(name: str, rows: int, columns: int = 1) -> Tensor:
    """A replicated tensor in float32."""
    return Tensor(name, TensorClass.OTHER, (Units(rows),), columns=columns, element_bytes=FLOAT32_BYTES)


def rotary_tables(source: Source, size: int, ratios: list[int]) -> tuple[RopeTable, ...]:
    """One table in float32 for layers with a window alone, one stretched by the scaling for layers that compress."""
    text = source.text
    positions = text.integer("max_position_embeddings")
    rope = source.rope()
    nested = rope.child("compress") if rope and "main" in rope else None
    compressed = nested or rope
    reach = positions
    if compressed is not None and rope_kind(compressed) != "default":
        if rope_kind(compressed) != "yarn":
            raise source.refuse(
                compressed.named("rope_type"), because=f"rotary scaling {rope_kind(compressed)!r} is not known"
            )
        reach = stretched(compressed, original_positions(source, compressed, positions))
    plain = frozenset(index for index, ratio in enumerate(ratios) if ratio == 1)
    scaled = frozenset(range(len(ratios))) - plain
    tables = ((positions, plain), (reach, scaled))
    return tuple(RopeTable(length, size, FLOAT32_BYTES, layers) for length, layers in tables if layers)


def rotary_size(text: Fields, size: int) -> int:
    """Elements of a head that are rotated."""
    rotated = text.integer("qk_rope_head_dim", default=0, minimum=0)
    return int(size * text.number("partial_rotary_factor", default=rotated / size if rotated else ROTARY_SHARE))


def read_deepseek_v4(source: Source) -> ModelShape:
    """DeepSeek V4 Flash and Pro."""
    if source.model_type != "deepseek_v4":
        raise source.refuse("model_type", because=f"attention of model_type {source.model_type!r} is not known")
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    sees = text.integer("vision_n_layers", default=0, minimum=0) > 0
    sizes = read_sizes(text)
    for field, value, known in (("head_dim", sizes.size, STATE_SIZE), ("index_head_dim", sizes.index_size, INDEX_SIZE)):
        if value != known:
            raise source.refuse(field, because=f"{field} {value} is not known: kernels exist for {known}")
    text.ignore("index_topk")
    layers, vocabulary = text.layers("num_hidden_layers"), text.integer("vocab_size")
    ratios, hashed = read_ratios(source, layers), hashed_layers(source, layers)

    def layer(index: int) -> LayerShape:
        path = f"layers.{index}"
        return LayerShape(
            caches(sizes, ratios[index]),
            (
                *mixers("hc_attn", sizes),
                *mixers("hc_ffn", sizes),
                *attention(quantization, f"{path}.attn", sizes, ratios[index]),
                *expert_layer(source, f"{path}.ffn", hashed=index < hashed, sees=sees),
                blocks.norm("attn_norm", sizes.hidden),
                blocks.norm("ffn_norm", sizes.hidden),
            ),
        )

    around = ends(
        source,
        sizes.hidden,
        vocabulary,
        tied=False,
        embedding="embed",
        norm="norm",
        head="head",
        quantised_head=False,
    )
    streams = sizes.streams
    merging = (
        float32("hc_head_fn", streams, streams * sizes.hidden),
        float32("hc_head_base", streams),
        float32("hc_head_scale", 1),
    )
    model = assemble(
        source,
        build_layers(source, [(ratio, index < hashed) for index, ratio in enumerate(ratios)], layer),
        replace(around, every=around.every + merging + ((image_marks(sizes.hidden),) if sees else ())),
        hidden=sizes.hidden,
        vocabulary=vocabulary,
        heads=sizes.heads,
        kv_heads=1,
        experts=text.integer("n_routed_experts"),
        rope_tables=rotary_tables(source, rotary_size(text, sizes.size), ratios),
        handoff_tensors=streams,
        tower=vision_tower(text) if sees else (),
    )
    if not sees:
        return model
    largest = text.integer("vision_max_n_token") + IMAGE_PADDING
    return replace(model, image_prefix=True, largest_item_tokens=largest)


def image_marks(hidden: int) -> Tensor:
    """Vectors for the begin, the end, the ends of rows and the padding of images, which every stage keeps."""
    return Tensor("image_marks", PROJECTOR, (Units(4 * hidden),), element_bytes=FLOAT32_BYTES)


def vision_tower(text: Fields) -> tuple[Module, ...]:
    """The tower, split by heads where they divide, and what merges its patches; never quantised."""
    hidden, width, heads = (text.integer(name) for name in ("hidden_size", "vision_dim", "vision_n_heads"))
    inner, patch = text.integer("vision_inter_dim"), text.integer("vision_patch_size")
    merged, size, plain = width * text.integer("vision_downsample_ratio") ** 2, width // heads, NotQuantised()
    split = partial(tower_linear, plain, "", split_units=heads)
    block = (
        layer_norm("norms", 2 * width, bias=False),
        tower_query_key_value(plain, "", "wqkv", width, heads, size, bias=True, split_units=heads),
        split("wo", width, width, Split.ROW, bias=True),
        split("w1", width, inner, Split.COLUMN, bias=False),
        split("w3", width, inner, Split.COLUMN, bias=False),
        split("w2", inner, width, Split.ROW, bias=False),
    )
    return (
        whole_linear("patch_embed.proj", 3 * patch**2, width),
        *block * text.layers("vision_n_layers"),
        layer_norm("norm", width, bias=False),
        split("aligner.w1", merged, hidden, Split.COLUMN, bias=True, tensor_class=PROJECTOR),
        split("aligner.w2", hidden, hidden, Split.ROW, bias=True, tensor_class=PROJECTOR),
    )


READERS = dict.fromkeys(("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"), read_deepseek_v4)
