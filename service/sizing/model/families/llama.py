"""Decoders of equal layers, attention and MLP: each architecture is a short recipe, read by one function.

Source: vLLM 0.33 `model_executor/models/llama.py`; `dense.py` and `mixture.py` name the classes of their recipes. What
vLLM runs through its Transformers backend is built as transformers 5.20 builds it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers, ends
from service.sizing.model.defaults import CLASS_DEFAULTS
from service.sizing.model.families.recipe import Bias, HeadNorms, Part, Recipe, Spelling
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Embedding, Module, Tensor, TensorClass, Units
from service.sizing.model.rope import inverse_frequencies, rotary_table
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source

FLOAT32_BYTES = 4

PLAIN = Spelling()
"""The spelling of most configurations."""


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


def read_attention(source: Source, spelling: Spelling = PLAIN) -> Attention:
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
    if recipe.windows:
        windows = source.windows(layers, mixed=recipe.mixed_windows)
    else:
        text.ignore("sliding_window")
        windows = (None,) * layers
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

    refusal = recipe.refusal(source) if recipe.refusal else None
    around, tables = surroundings(source, recipe, hidden, vocabulary, sizes.head_size, causal=causal)
    model = assemble(
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
    return replace(model, build_refusal=refusal)


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
