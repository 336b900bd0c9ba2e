"""Decoders of equal layers, attention and MLP: each architecture is a short recipe, read by one function.

Source: vLLM 0.33 `model_executor/models/llama.py`; `dense.py` and `mixture.py` name the classes of their recipes. What
vLLM runs through its Transformers backend is built as transformers 5.20 builds it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Protocol

from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers, ends
from service.sizing.model.defaults import CLASS_DEFAULTS
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Embedding, Module, Tensor, TensorClass, Units
from service.sizing.model.rope import inverse_frequencies, rotary_table
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source

Bias = bool | tuple[str, ...]
"""Whether layers have a bias: never, always, or where one of the named fields is true."""

LayerParts = tuple[tuple[AttentionCache, ...], tuple[Module, ...]]
"""What one layer's attention keeps, and its weights."""

FLOAT32_BYTES = 4


class HeadNorms(StrEnum):
    """Norms on queries and keys, replicated: none, one weight for each element of a head, or of all heads together."""

    NONE = "none"
    HEAD = "head"
    ALL_HEADS = "all_heads"


class Part(StrEnum):
    """What stands outside the layers."""

    EMBEDDING = "embedding"
    NORM = "norm"
    HEAD = "head"


class ExpertLayers(Protocol):
    """The expert layers of one model."""

    @property
    def count(self) -> int:
        """Routed experts of a layer."""
        ...

    def at(self, index: int) -> bool:
        """Whether the layer at `index` has experts instead of a dense MLP."""
        ...

    def modules(self, source: Source, path: str, hidden: int) -> tuple[Module, ...]:
        """Router, routed and shared experts of the layer at `path`."""
        ...


@dataclass(frozen=True, slots=True)
class Spelling:
    """Fields that hold the sizes."""

    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    head_size: tuple[str, ...] = ("head_dim",)
    intermediate: tuple[str, ...] = ("intermediate_size",)
    vocabulary: tuple[str, ...] = ("vocab_size",)
    positions: tuple[str, ...] = ("max_position_embeddings",)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of modules in the checkpoint: the first four from the root, the others from the layer.

    `mlp` lists gate, up and down projections; without a gate, up and down.
    """

    layers: str = "model.layers"
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    attention: str = "self_attn"
    queries: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    feed_forward: str = "mlp"
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How one architecture differs from the plainest Llama.

    Attributes
    ----------
    spelling, names
        Where sizes stand in the configuration and what modules are called in the checkpoint.
    query_bias, output_bias, mlp_bias : Bias
        Biases of the fused query-key-value projection, of the output projection and of the MLP.
    query_bias_field : str, optional
        A field that, where present, decides `query_bias` alone.
    down_bias : Bias, optional
        Bias of the MLP's last projection, where it differs from `mlp_bias`.
    head_norms, head_norms_field
        Norms on queries and keys; only where the field, if named, is true.
    norms : tuple of str
        Norms of the residual stream in each layer; `norm_bias` and `has_final_norm` describe them.
    head_bias, loaded_head_bias : Bias, bool
        Whether the head has a bias; whether it has one that the class adds only while loading.
    published_head : bool
        Whether the checkpoint has the head that the class builds.
    tied, reads_tied : bool
        Whether the head is the embedding by default, and whether the class looks at the configuration for it.
    everywhere : frozenset of Part
        What the class builds on every pipeline stage.
    quantised_embedding, quantised_head : bool
        Whether the class hands the checkpoint's quantisation to the embedding and the head.
    rotary, partial : bool, float or None
        Whether positions are rotary, and the share of a head that is rotated where the class fixes it.
    section_factor : int
        Positions that the rotary table covers for each of the context where the rope has sections, as vision needs.
    windows, mixed_windows : bool
        Whether the class looks at sliding windows at all, and at `layer_types`.
    may_encode : bool
        Whether `is_causal: false` turns the decoder into an encoder, which keeps no cache.
    transformers : bool
        Whether vLLM runs transformers' own class.
    prepare : callable, optional
        Changes to the configuration that its class makes.
    extra : callable, optional
        Further weights of a layer.
    buffers : tuple of Tensor
        Further buffers, on every stage.
    attention : callable, optional
        Builds the attention of a layer, given its path and window, where it is not grouped-query attention.
    experts : callable, optional
        Reads the expert layers.
    refused : tuple of str
        Fields which the class does not support when they are true or given.
    """

    spelling: Spelling = Spelling()
    names: Names = Names()
    query_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    query_bias_field: str | None = None
    down_bias: Bias | None = None
    head_norms: HeadNorms = HeadNorms.NONE
    head_norms_field: str | None = None
    head_norm_bias: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: Bias = False
    has_final_norm: Bias = True
    head_bias: Bias = False
    loaded_head_bias: bool = False
    published_head: bool = True
    tied: bool = False
    reads_tied: bool = True
    everywhere: frozenset[Part] = frozenset()
    quantised_embedding: bool = True
    quantised_head: bool = True
    rotary: bool = True
    partial: float | None = None
    positions: int = 8192
    section_factor: int = 4
    windows: bool = True
    mixed_windows: bool = False
    may_encode: bool = False
    transformers: bool = False
    handoff_tensors: int = 2
    prepare: Callable[[Source], Source] | None = None
    extra: Callable[[Source, str], tuple[Module, ...]] | None = None
    buffers: tuple[Tensor, ...] = ()
    attention: Callable[[Source, str, int | None], LayerParts] | None = None
    experts: Callable[[Source], ExpertLayers] | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of grouped-query attention."""

    heads: int
    kv_heads: int
    head_size: int


def has_bias(text: Fields, bias: Bias) -> bool:
    """Whether a bias is there under the configuration."""
    if isinstance(bias, bool):
        return bias
    flags = [text.flag(name, default=False) for name in bias]
    return any(flags)


def read_attention(source: Source, spelling: Spelling = Spelling()) -> Attention:
    """Head counts and size; the head's own size, where given, wins over hidden size by heads."""
    text = source.text
    heads = text.integer(*spelling.heads)
    kv_heads = text.integer(*spelling.kv_heads, default=heads) if spelling.kv_heads else heads
    if heads % kv_heads:
        names = text.named(spelling.heads[0]), text.named(spelling.kv_heads[0])
        raise source.invalid(names[1], f"{names[1]} ({kv_heads}) must divide {names[0]} ({heads})")
    head_size = text.optional_integer(*spelling.head_size) if spelling.head_size else None
    return Attention(heads, kv_heads, head_size or even_head_size(source, heads, spelling.heads[0]))


def even_head_size(source: Source, heads: int, field_name: str = "num_attention_heads") -> int:
    """Hidden size by heads."""
    text = source.text
    hidden = text.integer("hidden_size")
    if hidden % heads:
        names = text.named(field_name), text.named("hidden_size")
        message = f"{names[0]} ({heads}) must divide {names[1]} ({hidden}), or head_dim must be given"
        raise source.invalid(names[0], message)
    return hidden // heads


def attention_modules(source: Source, recipe: Recipe, sizes: Attention, path: str, hidden: int) -> tuple[Module, ...]:
    """Fused query, key and value projections, output projection, norms on queries and keys."""
    text, quantization, names = source.text, source.quantization, recipe.names
    query_bias = has_bias(text, recipe.query_bias)
    if recipe.query_bias_field and recipe.query_bias_field in text.values:
        query_bias = text.flag(recipe.query_bias_field, default=False)
    modules: list[Module] = [
        blocks.query_key_value(
            quantization,
            path,
            hidden,
            sizes.heads,
            sizes.kv_heads,
            sizes.head_size,
            bias=query_bias,
            names=names.queries,
        ),
        blocks.row(
            quantization,
            path,
            names.output,
            Units(sizes.heads, sizes.head_size),
            hidden,
            bias=has_bias(text, recipe.output_bias),
        ),
    ]
    wanted = recipe.head_norms_field is None or text.flag(recipe.head_norms_field, default=False)
    if wanted and recipe.head_norms is not HeadNorms.NONE:
        wide = recipe.head_norms is HeadNorms.ALL_HEADS
        for name, heads in (("q_norm", sizes.heads), ("k_norm", sizes.kv_heads)):
            width = heads * sizes.head_size if wide else sizes.head_size
            modules.append(blocks.norm(name, width, bias=recipe.head_norm_bias))
    return tuple(modules)


def mlp_modules(source: Source, recipe: Recipe, path: str, hidden: int, intermediate: int) -> tuple[Module, ...]:
    """The dense MLP, with or without a gate."""
    quantization, names = source.quantization, recipe.names.mlp
    bias = has_bias(source.text, recipe.mlp_bias)
    down_bias = bias if recipe.down_bias is None else has_bias(source.text, recipe.down_bias)
    *ups, down = names
    if len(ups) > 1:
        first = blocks.gated_up(quantization, path, hidden, intermediate, bias=bias, names=(ups[0], ups[1]))
    else:
        first = blocks.column(quantization, path, ups[0], hidden, intermediate, bias=bias, tensor_class=TensorClass.MLP)
    last = blocks.row(quantization, path, down, intermediate, hidden, bias=down_bias, tensor_class=TensorClass.MLP)
    return first, last


def attention_buffers() -> Tensor:
    """The four float32 scales of an attention operator that keeps no cache."""
    return Tensor("attn", TensorClass.OTHER, (Units(4),), element_bytes=FLOAT32_BYTES, buffer=True)


def table_buffer(table: RopeTable) -> Tensor:
    """A rotary table as a buffer, for models that keep no cache."""
    rows = (Units(table.positions),)
    return Tensor(
        "rotary_emb", TensorClass.OTHER, rows, table.rotary_size, element_bytes=table.element_bytes, buffer=True
    )


def read(source: Source, recipe: Recipe) -> ModelShape:
    """The decoder that a recipe describes."""
    source = source.with_defaults(CLASS_DEFAULTS.get(source.model_type, {}))
    source = recipe.prepare(source) if recipe.prepare else source
    text, names, spelling = source.text, recipe.names, recipe.spelling
    refused = [name for name in recipe.refused if text.raw(name)[1]]
    if refused:
        raise source.refuse(*refused, because=f"{', '.join(refused)} is not supported by the engine's class")
    hidden, vocabulary = text.integer("hidden_size"), text.integer(*spelling.vocabulary)
    layers = text.layers(*spelling.layers)
    sizes = read_attention(source, spelling)
    experts = recipe.experts(source) if recipe.experts else None
    dense = [experts is None or not experts.at(index) for index in range(layers)]
    intermediate = text.integer(*spelling.intermediate) if any(dense) else 0
    windows = source.windows(layers, mixed=recipe.mixed_windows) if recipe.windows else (None,) * layers
    causal = text.flag("is_causal", default=True) if recipe.may_encode else True
    norm_bias = has_bias(text, recipe.norm_bias)

    def layer(index: int) -> LayerShape:
        path = f"{names.layers}.{index}"
        attention_path = f"{path}.{names.attention}"
        if recipe.attention:
            caches, attention = recipe.attention(source, attention_path, windows[index])
        else:
            caches = (AttentionCache(sizes.heads, sizes.kv_heads, sizes.head_size, sizes.head_size, windows[index]),)
            attention = attention_modules(source, recipe, sizes, attention_path, hidden)
        mlp_path = f"{path}.{names.feed_forward}" if names.feed_forward else path
        return LayerShape(
            caches if causal else (),
            (
                *attention,
                *(
                    mlp_modules(source, recipe, mlp_path, hidden, intermediate)
                    if experts is None or dense[index]
                    else experts.modules(source, path, hidden)
                ),
                *(blocks.norm(name, hidden, bias=norm_bias) for name in recipe.norms),
                *(recipe.extra(source, path) if recipe.extra else ()),
                *(() if causal else (attention_buffers(),)),
            ),
        )

    around, tables = surroundings(source, recipe, hidden, vocabulary, sizes.head_size, causal=causal)
    return assemble(
        source,
        build_layers(source, list(zip(windows, dense, strict=True)), layer),
        around,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        experts=experts.count if experts else 0,
        rope_tables=tables,
        handoff_tensors=1 if recipe.transformers else recipe.handoff_tensors,
    )


def surroundings(
    source: Source, recipe: Recipe, hidden: int, vocabulary: int, head_size: int, *, causal: bool
) -> tuple[Ends, tuple[RopeTable, ...]]:
    """What stands outside the layers, and the rotary tables."""
    names = recipe.names
    around = ends(
        source,
        hidden,
        vocabulary,
        tied=source.tied(recipe.tied) if recipe.reads_tied else recipe.tied,
        embedding=names.embedding,
        norm=names.norm if has_bias(source.text, recipe.has_final_norm) else None,
        norm_bias=has_bias(source.text, recipe.norm_bias),
        head=names.head,
        head_bias=has_bias(source.text, recipe.head_bias),
        embedding_everywhere=Part.EMBEDDING in recipe.everywhere,
        norm_everywhere=Part.NORM in recipe.everywhere,
        head_everywhere=Part.HEAD in recipe.everywhere,
        quantised=recipe.quantised_embedding,
        quantised_head=recipe.quantised_head,
    )
    if recipe.loaded_head_bias:
        bias = Tensor("lm_head_bias", TensorClass.HEAD, (Units(vocabulary),), built=False)
        around = Ends(around.first, (*around.last, bias), around.every, around.tied)
    if not recipe.published_head:
        around = Ends(around.first, uncounted_head(around.last), uncounted_head(around.every), around.tied)
    around = with_buffers(around, *recipe.buffers)
    if not recipe.rotary:
        return around, ()
    if recipe.transformers:
        return with_buffers(around, inverse_frequencies(source, head_size)), ()
    table = rotary_table(
        source,
        head_size,
        partial=recipe.partial,
        positions=recipe.positions,
        position_fields=recipe.spelling.positions,
        section_factor=recipe.section_factor,
    )
    if table is None:
        raise source.unknown_rope()
    if causal:
        return around, (table,)
    return with_buffers(around, table_buffer(table)), ()


def uncounted_head(modules: tuple[Module, ...]) -> tuple[Module, ...]:
    """The same with the head left out of parameter counts."""
    return tuple(
        replace(module, counted=False)
        if isinstance(module, Embedding) and module.tensor_class is TensorClass.HEAD
        else module
        for module in modules
    )


def with_buffers(around: Ends, *buffers: Tensor) -> Ends:
    """The same with buffers on every stage."""
    return Ends(around.first, around.last, (*around.every, *buffers), around.tied)


def reader(recipe: Recipe) -> Callable[[Source], ModelShape]:
    """A reader of one architecture."""
    return partial(read, recipe=recipe)
