"""Decoders whose layers a search has thinned out: each with its own KV heads and MLP width, or without one of them.

Source: vLLM 0.33 `model_executor/models/nemotron_nas.py`.
"""

from collections.abc import Callable

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers
from service.sizing.model.families.dense import LLAMA
from service.sizing.model.families.llama import Attention, attention_modules, even_head_size, mlp_modules, surroundings
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.quantities import round_up

WIDTH_MULTIPLE = 256
"""MLP widths given as multipliers are rounded up to this."""

REPLACEMENTS = ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "mamba", "moe", "llama4")
"""What else a search may put in a layer, which the engine's class does not build."""

Block = tuple[int, int]
"""KV heads and MLP width of one layer; 0: the layer has no attention, or no MLP."""


def read_blocks(source: Source, layers: int, heads: int, hidden: int) -> list[Block]:
    """The layers, as `block_configs` lists them.

    Raises
    ------
    InvalidConfig
        When it lists fewer than `layers`, or a layer's fields are missing.
    NotUnderstood
        When a layer's attention or MLP is replaced by something else.
    """
    listed = source.text.items("block_configs")
    if listed is None or len(listed) < layers:
        found = "missing" if listed is None else f"{len(listed)} long"
        raise source.invalid(
            "block_configs", f"block_configs is {found}: give a list of num_hidden_layers ({layers}) layers"
        )
    entries = Fields({str(index): entry for index, entry in enumerate(listed)}, "block_configs")
    return [read_block(source, entries, str(index), heads, hidden) for index in range(layers)]


def read_block(source: Source, entries: Fields, index: str, heads: int, hidden: int) -> Block:
    """One layer."""
    entry = entries.child(index)
    attention, feed_forward = (read_part(source, entry, index, name) for name in ("attention", "ffn"))
    return (
        0 if attention.flag("no_op", default=False) else groups(source, attention, heads),
        0 if feed_forward.flag("no_op", default=False) else width(feed_forward, hidden),
    )


def groups(source: Source, attention: Fields, heads: int) -> int:
    """KV heads, from the query heads that share one."""
    name, shared = attention.named("n_heads_in_group"), attention.integer("n_heads_in_group")
    if heads % shared:
        raise source.invalid(name, f"{name} ({shared}) must divide num_attention_heads ({heads})")
    return heads // shared


def read_part(source: Source, entry: Fields | None, index: str, name: str) -> Fields:
    """The attention or the MLP of one layer."""
    part = entry.child(name) if entry else None
    if part is None:
        field = f"block_configs.{index}.{name}"
        raise source.invalid(field, f"{field} is missing: give an object")
    for strange in REPLACEMENTS:
        if part.raw(strange)[1]:
            raise source.refuse(part.named(strange), because=f"{part.named(strange)} is not understood")
    return part


def width(feed_forward: Fields, hidden: int) -> int:
    """MLP width: given, or two thirds of a multiple of the hidden size, rounded up."""
    if "ffn_mult" not in feed_forward:
        return feed_forward.integer("intermediate_size")
    return round_up(int(2 * feed_forward.number("ffn_mult") * hidden / 3), WIDTH_MULTIPLE)


def read(source: Source) -> ModelShape:
    """Llama with layers of unequal sizes."""
    text = source.text
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    layers, heads = text.layers("num_hidden_layers"), text.integer("num_attention_heads")
    size = text.optional_integer("head_dim") or even_head_size(source, heads)
    built = read_blocks(source, layers, heads, hidden)
    kv_heads = next((kv_heads for kv_heads, _ in built if kv_heads), None)
    if kv_heads is None:
        raise source.refuse("block_configs", because="a model without any attention is not understood")

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        own, intermediate = built[index]
        modules: list[Module] = []
        if own:
            sizes = Attention(heads, own, size)
            modules += attention_modules(source, LLAMA, sizes, f"{path}.self_attn", hidden)
            modules.append(blocks.norm("input_layernorm", hidden))
        if intermediate:
            modules += mlp_modules(source, LLAMA, f"{path}.mlp", hidden, intermediate)
            modules.append(blocks.norm("post_attention_layernorm", hidden))
        return LayerShape((AttentionCache(heads, own, size, size),) if own else (), tuple(modules))

    around, tables = surroundings(source, LLAMA, hidden, vocabulary, size, causal=True)
    return assemble(
        source,
        build_layers(source, built, layer),
        around,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        rope_tables=tables,
    )


READERS: dict[str, Callable[[Source], ModelShape]] = {"DeciLMForCausalLM": read}
