"""From layers and the weights around them to a whole model.

Engines differ in what each pipeline stage holds outside the layers: some classes build the embedding, the final norm or
the head on every stage, whether the stage uses them or not.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Embedding, Module, TensorClass
from service.sizing.model.shape import LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source


def with_defaults(source: Source, defaults: Mapping[str, Any]) -> Source:
    """The configuration with what its class (transformers 5.20) fills in for absent fields of the language model."""
    return source.with_defaults(defaults)


@dataclass(frozen=True, slots=True)
class Ends:
    """Weights outside the layers, by the pipeline stages that hold them, and whether the head is the embedding."""

    first: tuple[Module, ...] = ()
    last: tuple[Module, ...] = ()
    every: tuple[Module, ...] = ()
    tied: bool = False


def ends(
    source: Source,
    hidden: int,
    vocabulary: int,
    *,
    tied: bool,
    embedding: str = "model.embed_tokens",
    norm: str | None = "model.norm",
    norm_bias: bool = False,
    head: str = "lm_head",
    head_bias: bool = False,
    embedding_everywhere: bool = False,
    norm_everywhere: bool = False,
    head_everywhere: bool = False,
    quantised: bool = True,
    quantised_head: bool | None = None,
) -> Ends:
    """The embedding on the first stage, final norm and head on the last, unless they are built everywhere.

    Parameters
    ----------
    tied : bool
        Whether the head is the embedding.
    embedding, norm, head : str
        Dotted names in the checkpoint; `norm` is None where the final norm has no weights.
    norm_bias, head_bias : bool
        Whether they have a bias.
    embedding_everywhere, norm_everywhere, head_everywhere : bool
        What the engine builds on every stage.
    quantised, quantised_head : bool
        Whether the engine gives the embedding and the head (by default the same) the checkpoint's quantisation.
    """
    quantization = source.quantization
    table = (
        blocks.embedding(quantization, embedding, vocabulary, hidden)
        if quantised
        else Embedding(embedding, TensorClass.EMBEDDING, vocabulary, hidden)
    )
    heads: tuple[Module, ...] = ()
    if not tied:
        quantise_head = quantised if quantised_head is None else quantised_head
        heads = (
            blocks.head(quantization, vocabulary, hidden, name=head, bias=head_bias)
            if quantise_head
            else Embedding(head, TensorClass.HEAD, vocabulary, hidden, head_bias),
        )
    final = (blocks.norm(norm, hidden, bias=norm_bias),) if norm else ()
    return Ends(
        first=() if embedding_everywhere else (table,),
        last=(() if norm_everywhere else final) + (() if head_everywhere else heads),
        every=((table,) if embedding_everywhere else ())
        + (final if norm_everywhere else ())
        + (heads if head_everywhere else ()),
        tied=tied,
    )


def build_layers(
    source: Source, kinds: Sequence[Hashable], build: Callable[[int], LayerShape]
) -> tuple[LayerShape, ...]:
    """One layer for each entry of `kinds`; layers of one kind differ only in what ignore lists name.

    Without quantisation each kind is built once.
    """
    if source.quantization.method is not None:
        return tuple(build(index) for index in range(len(kinds)))
    built: dict[Hashable, LayerShape] = {}
    for index, kind in enumerate(kinds):
        if kind not in built:
            built[kind] = build(index)
    return tuple(built[kind] for kind in kinds)


def assemble(
    source: Source,
    layers: tuple[LayerShape, ...],
    around: Ends,
    *,
    hidden: int,
    vocabulary: int,
    heads: int,
    kv_heads: int,
    experts: int = 0,
    rope_tables: tuple[RopeTable, ...] = (),
    tower: tuple[Module, ...] = (),
    handoff_tensors: int = 2,
) -> ModelShape:
    """The model; a vision or audio `tower` is held by the first stage."""
    context = source.context()
    return ModelShape(
        name=source.name,
        architecture=source.architecture,
        model_type=source.model_type,
        dtype=source.dtype,
        hidden_size=hidden,
        vocab_size=vocabulary,
        attention_heads=heads,
        kv_heads=kv_heads,
        layers=layers,
        first_stage=around.first + tower,
        last_stage=around.last,
        every_stage=around.every,
        tied_head=around.tied,
        rope_tables=rope_tables,
        max_context_tokens=context.limit,
        default_context_tokens=context.default,
        context_field=context.field,
        experts=experts,
        quantization=source.quantization.method,
        kv_cache_dtype=source.quantization.kv_cache_dtype,
        handoff_tensors=handoff_tensors,
    )


LEGACY_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
"""Layer kinds under the names they had before transformers 5.14."""


def layer_kinds(source: Source, *names: str, known: frozenset[str]) -> list[str] | None:
    """The kind of every layer, in today's names; None where the configuration lists none.

    Raises
    ------
    NotUnderstood
        When a kind is not one of `known`.
    """
    name, _ = source.text.raw(*names)
    kinds = source.text.texts(*names)
    if kinds is None:
        return None
    kinds = [LEGACY_KINDS.get(kind, kind) for kind in kinds]
    strange = sorted(set(kinds) - known)
    if strange:
        raise source.refuse(source.text.named(name), because=f"layers of kind {', '.join(strange)} are not known")
    return kinds


def counted_kinds(source: Source, kinds: list[str], field: str = "layer_types") -> list[str]:
    """The kinds, checked to be as many as `num_hidden_layers`."""
    layers = source.text.layers("num_hidden_layers")
    if len(kinds) != layers:
        named = source.text.named(field)
        raise source.invalid(named, f"{named} lists {len(kinds)} layers, but num_hidden_layers is {layers}")
    return kinds


def auto_integer(text: Fields, name: str, automatic: int) -> int:
    """A whole number that may be spelled "auto"."""
    return automatic if text.values.get(name) in (None, "auto") else text.integer(name)
