"""Domyn Edge: windows and rotary positions listed by layer, heads that some layers size for themselves.

Source: vLLM 0.33 `model_executor/models/domyn_edge.py`, `transformers_utils/model_arch_config_convertor.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds
from service.sizing.model.families.llama import FLOAT32_BYTES, read_attention
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Units
from service.sizing.model.rope import rotary_table, used_by
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source

NORMS = ("pre_attention_norm", "post_attention_norm", "pre_feedforward_norm", "post_feedforward_norm")


def head_sizes(source: Source, layers: int, default: int) -> list[int]:
    """The head size of every layer: its own where `per_layer_config` names one."""
    given = source.text.child("per_layer_config") or Fields({}, "per_layer_config")
    sizes = [default] * layers
    for number in given.values:
        own = given.child(number)
        if not number.isdecimal() or int(number) >= layers or own is None:
            raise source.invalid(
                given.named(number), f"{given.path} must give objects under numbers of the {layers} layers"
            )
        if strange := sorted(set(own.values) - {"head_dim"}):
            raise source.refuse(own.named(strange[0]), because="layers that differ in more than head_dim are not known")
        sizes[int(number)] = own.integer("head_dim", default=default)
    return sizes


def windows(source: Source, layers: int) -> list[int | None]:
    """The window of every layer: of the listed pairs the keys before a token, which itself counts too."""
    pairs = source.text.items("window_sizes")
    if pairs is None or len(pairs) != layers:
        raise source.invalid("window_sizes", f"window_sizes must have a pair for each of the {layers} layers")
    back: list[int] = []
    for pair in pairs:
        keys = cast("Sequence[object]", pair)[0] if isinstance(pair, list | tuple) and pair else None
        if not isinstance(keys, int):
            raise source.invalid("window_sizes", "window_sizes must list pairs of whole numbers")
        back.append(keys)
    return [keys + 1 if keys > 0 else None for keys in back]


def rotary(source: Source, kinds: list[str], sizes: list[int]) -> tuple[RopeTable, ...]:
    """One float32 table for each head size of the layers with rotary positions."""
    tables = dict[int, tuple[object, RopeTable]]()
    for size in {size for kind, size in zip(kinds, sizes, strict=True) if kind == "rope"}:
        table = rotary_table(source, size)
        if table is None:
            raise source.unknown_rope()
        tables[size] = size, replace(table, element_bytes=FLOAT32_BYTES)
    unrotated = "nope", RopeTable(0, 0, FLOAT32_BYTES)
    users = [size if kind == "rope" else 0 for kind, size in zip(kinds, sizes, strict=True)]
    return tuple(table for table in used_by(users, {**tables, 0: unrotated}) if table.positions)


def read_domyn(source: Source) -> ModelShape:
    """Domyn Edge."""
    text, quantization = source.text, source.quantization
    layers = text.layers("num_hidden_layers")
    kinds = layer_kinds(source, "position_layers", known=frozenset({"rope", "nope"}))
    if kinds is None:
        raise source.invalid("position_layers", "position_layers is missing: list rope or nope for every layer")
    kinds = counted_kinds(source, kinds, "position_layers")
    hidden, vocabulary, width = (
        text.integer("hidden_size"),
        text.integer("vocab_size"),
        text.integer("intermediate_size"),
    )
    attention = read_attention(source)
    heads, kv_heads = attention.heads, attention.kv_heads
    sizes, seen = head_sizes(source, layers, attention.head_size), windows(source, layers)

    def layer(index: int) -> LayerShape:
        path, size = f"model.layers.{index}", sizes[index]
        return LayerShape(
            (AttentionCache(heads, kv_heads, size, size, seen[index]),),
            (
                blocks.query_key_value(quantization, f"{path}.attention", hidden, heads, kv_heads, size),
                blocks.row(quantization, f"{path}.attention", "o_proj", Units(heads, size), hidden),
                blocks.norm("k_norm", size),
                *blocks.gated_mlp(quantization, f"{path}.feedforward", hidden, width),
                *(blocks.norm(name, hidden) for name in NORMS),
            ),
        )

    return assemble(
        source,
        build_layers(source, list(zip(sizes, seen, strict=True)), layer),
        ends(source, hidden, vocabulary, tied=source.tied(default=True)),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        rope_tables=rotary(source, kinds, sizes),
    )


READERS = {"DomynEdgeForCausalLM": read_domyn}
