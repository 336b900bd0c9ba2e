"""MiniMax M3: attention to blocks of tokens that an indexer picks, over experts; optionally behind a vision tower.

Source: vLLM 0.33 `models/minimax_m3/nvidia/model.py`, `common/vision_tower.py`, `layers/linear.py:
MinimaxM3QKVParallelLinearWithIndexer`, `transformers_utils/configs/minimax_m3.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, with_defaults
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_size
from service.sizing.model.shape import AttentionCache, Cache, IndexerCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source
from service.sizing.model.towers import layer_norm, tower_linear, tower_query_key_value

DENSE_FIRST = [0] * 3 + [1] * 57
"""Layers with experts and sparse attention, where a configuration lists none."""

TEXT: Mapping[str, Any] = {
    "vocab_size": 200064,
    "hidden_size": 6144,
    "intermediate_size": 3072,
    "dense_intermediate_size": 12288,
    "num_hidden_layers": 60,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 524288,
    "partial_rotary_factor": 0.5,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "use_routing_bias": True,
    "moe_layer_freq": DENSE_FIRST,
    "sparse_attention_config": {
        "sparse_index_dim": 128,
        "sparse_num_index_heads": 4,
        "sparse_attention_freq": DENSE_FIRST,
    },
}
"""What the configuration class fills in."""

INDEX_KEY_BYTES = 2
"""Bytes of an element of the index keys: the engine keeps them in 16 bits unless told otherwise."""

EXPERT_MATRICES = ("w1", "w3", "w2")
PROJECTOR = TensorClass.PROJECTOR


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of the attention, and of the indexer of its sparse layers."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    index_size: int


def marked(source: Source, fields: Fields, name: str, layers: int, *, default: bool) -> list[bool]:
    """Whether each layer is marked in a list of zeros and ones; `default` for all where there is no list."""
    marks = fields.integers(name)
    if marks is None:
        return [default] * layers
    if len(marks) < layers:
        named = fields.named(name)
        raise source.invalid(named, f"{named} lists {len(marks)} layers, but num_hidden_layers is {layers}")
    return [mark != 0 for mark in marks[:layers]]


def attention(quantization: Quantization, path: str, sizes: Sizes, *, sparse: bool) -> tuple[Module, ...]:
    """Grouped-query attention with norms a head; sparse layers fuse the indexer's query and key into its projection."""
    hidden, heads, kv_heads, size = sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_size
    shared = Units(kv_heads, size, replicated=True)
    outputs, parts = (Units(heads, size), shared, shared), ("q_proj", "k_proj", "v_proj")
    norms = (blocks.norm("q_norm", size), blocks.norm("k_norm", size))
    if sparse:
        outputs += (Units(kv_heads, sizes.index_size, replicated=True), Units(1, sizes.index_size, replicated=True))
        parts += ("index_q_proj", "index_k_proj")
        norms += (blocks.norm("index_q_norm", sizes.index_size), blocks.norm("index_k_norm", sizes.index_size))
    scheme = quantization.linear(*(f"{path}.{part}" for part in parts))
    return (
        Linear("qkv_proj", TensorClass.ATTENTION, Units(hidden), outputs, Split.COLUMN, scheme=scheme),
        blocks.row(quantization, path, "o_proj", Units(heads, size), hidden),
        *norms,
    )


def expert_layer(quantization: Quantization, path: str, text: Fields) -> tuple[Module, ...]:
    """A float32 router with its routing bias, the shared expert and the routed experts."""
    hidden, width, count = (
        text.integer("hidden_size"),
        text.integer("intermediate_size"),
        text.integer("num_local_experts"),
    )
    shared = width * text.integer("n_shared_experts", default=0, minimum=0)
    return (
        blocks.plain_router(hidden, count, element_bytes=4),
        *((blocks.routing_bias(count),) if text.flag("use_routing_bias", default=False) else ()),
        *(
            blocks.gated_mlp(
                quantization, f"{path}.shared_experts", hidden, shared, tensor_class=TensorClass.SHARED_EXPERTS
            )
            if shared
            else ()
        ),
        blocks.routed_experts(
            quantization,
            path,
            count=count,
            active=text.integer("num_experts_per_tok"),
            hidden=hidden,
            intermediate=width,
            projections=EXPERT_MATRICES,
        ),
    )


def read_minimax_m3(
    source: Source, *, prefix: str = "model", head: str = "lm_head", tower: tuple[Module, ...] = ()
) -> ModelShape:
    """The language model; `prefix` and `head` are the checkpoint's names of the decoder and of the output head."""
    source = with_defaults(source, TEXT)
    text, quantization = source.text, source.quantization
    hidden, vocabulary, layers = (
        text.integer("hidden_size"),
        text.integer("vocab_size"),
        text.layers("num_hidden_layers"),
    )
    indexing = text.child("sparse_attention_config") or Fields({}, "sparse_attention_config")
    sparse = marked(source, indexing, "sparse_attention_freq", layers, default=False)
    expert = marked(source, text, "moe_layer_freq", layers, default=True)
    sizes = Sizes(
        hidden=hidden,
        heads=text.integer("num_attention_heads"),
        kv_heads=text.integer("num_key_value_heads"),
        head_size=text.integer("head_dim"),
        index_size=indexing.integer("sparse_index_dim") if any(sparse) else 0,
    )
    if any(sparse) and indexing.integer("sparse_num_index_heads") != sizes.kv_heads:
        raise source.invalid(
            indexing.named("sparse_num_index_heads"),
            f"{indexing.named('sparse_num_index_heads')} must be num_key_value_heads ({sizes.kv_heads})",
        )

    def layer(index: int) -> LayerShape:
        path = f"{prefix}.layers.{index}"
        caches: tuple[Cache, ...] = (
            AttentionCache(sizes.heads, sizes.kv_heads, sizes.head_size, sizes.head_size, sparse=sparse[index]),
        )
        if sparse[index]:
            caches = (IndexerCache(sizes.index_size, INDEX_KEY_BYTES), *caches)
        mlp = (
            expert_layer(quantization, f"{path}.block_sparse_moe", text)
            if expert[index]
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, text.integer("dense_intermediate_size"))
        )
        return LayerShape(
            caches,
            (
                *attention(quantization, f"{path}.self_attn", sizes, sparse=sparse[index]),
                *mlp,
                blocks.norm("input_layernorm", hidden),
                blocks.norm("post_attention_layernorm", hidden),
            ),
        )

    rotated = rotary_size(source, sizes.head_size, text.number("partial_rotary_factor"))
    return assemble(
        source,
        build_layers(source, list(zip(sparse, expert, strict=True)), layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=False,
            embedding=f"{prefix}.embed_tokens",
            norm=f"{prefix}.norm",
            head=head,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        experts=text.integer("num_local_experts") if any(expert) else 0,
        rope_tables=(RopeTable(text.integer("max_position_embeddings"), rotated, 2),),
        tower=tower,
    )


def vision_tower(quantization: Quantization, vision: Fields, text_hidden: int, middle: int) -> tuple[Module, ...]:
    """A CLIP-like tower with rotary positions in three axes and no final norm; projector and patch merger."""
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, size, patch = vision.integer("intermediate_size"), hidden // heads, vision.integer("patch_size")
    compression = vision.child("img_token_compression_config")
    if compression is None:
        named = vision.named("img_token_compression_config")
        raise InvalidConfig(named, f"{named} is missing: give an object with spatial_merge_size")
    merge, frames = (compression.integer(name, default=2) for name in ("spatial_merge_size", "temporal_patch_size"))
    frequencies = 3 * (2 * (size // 2) // 3 // 2)
    modules: list[Module] = [
        Tensor(
            "patch_embedding",
            TensorClass.TOWER,
            (Units(hidden),),
            columns=vision.integer("num_channels") * frames * patch * patch,
        ),
        Tensor("inv_freq", TensorClass.TOWER, (Units(frequencies),), element_bytes=4, buffer=True),
        layer_norm("pre_layrnorm", hidden),
    ]
    for number in range(vision.layers("num_hidden_layers")):
        block = f"vision_tower.vision_model.encoder.layers.{number}"
        heads_out = Units(heads, size)
        modules += (
            layer_norm("layer_norm1", hidden),
            layer_norm("layer_norm2", hidden),
            tower_query_key_value(
                quantization,
                f"{block}.self_attn",
                "qkv_proj",
                hidden,
                heads,
                size,
                bias=True,
                parts=("q_proj", "k_proj", "v_proj"),
            ),
            tower_linear(quantization, f"{block}.self_attn", "out_proj", heads_out, hidden, Split.ROW, bias=True),
            tower_linear(quantization, f"{block}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{block}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
        )
    for path, inputs, field in (
        ("multi_modal_projector", hidden, "multimodal_projector_bias"),
        ("patch_merge_mlp", text_hidden * merge * merge, "patch_merge_bias"),
    ):
        bias = vision.flag(field, default=True)
        for name, entering, leaving, split in (
            ("linear_1", inputs, middle, Split.COLUMN),
            ("linear_2", middle, text_hidden, Split.ROW),
        ):
            modules.append(
                tower_linear(quantization, path, name, entering, leaving, split, bias=bias, tensor_class=PROJECTOR)
            )
    return tuple(modules)


def read_minimax_m3_vision(source: Source) -> ModelShape:
    """The language model behind its vision tower."""
    vision = source.root.child("vision_config")
    if vision is None:
        raise source.invalid("vision_config", "vision_config is missing: give the vision tower's configuration")
    hidden = source.text.integer("hidden_size", default=TEXT["hidden_size"])
    middle = source.root.integer("projector_hidden_size", default=0, minimum=0) or hidden
    tower = vision_tower(source.quantization, vision, hidden, middle)
    return read_minimax_m3(source, prefix="language_model.model", head="language_model.lm_head", tower=tower)


READERS = {
    "MiniMaxM3SparseForCausalLM": read_minimax_m3,
    "MiniMaxM3SparseForConditionalGeneration": read_minimax_m3_vision,
}
