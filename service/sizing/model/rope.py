"""Sizes of rotary tables, as vLLM 0.33 `layers/rotary_embedding` builds them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Tensor, TensorClass, Units
from service.sizing.model.shape import RopeTable
from service.sizing.model.source import Source, rope_kind

Kind = TypeVar("Kind")

STRETCHED = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Scalings whose table covers the original context times the factor."""

UNSTRETCHED = frozenset({"default", "llama3", "dynamic", "ntk"})
"""Scalings whose table covers the context length."""


def rotary_table(
    source: Source,
    head_size: int,
    *,
    settings: Fields | None = None,
    partial: float | None = None,
    positions: int = 8192,
    position_fields: tuple[str, ...] = ("max_position_embeddings",),
    deepseek: bool = False,
    section_factor: int = 1,
) -> RopeTable | None:
    """The table of sines and cosines for heads of `head_size`; None for a scaling whose table is not known.

    Parameters
    ----------
    settings : Fields, optional
        The rotary settings, where they are not the configuration's own.
    partial : float, optional
        Share of the head that is rotated; by default what the configuration says, else all of it.
    positions : int
        Context length of a configuration that names none.
    position_fields : tuple of str
        Where the class reads the context length.
    deepseek : bool
        Whether the model class reads every scaling as the DeepSeek kind of YaRN.
    section_factor : int
        Positions that the table of a multimodal rope covers for each position of the context (4 in most classes).
    """
    positions = source.text.integer(*position_fields, default=positions)
    rope = settings or source.rope()
    size = rotary_size(source, head_size, partial, settings)
    kind = rope_kind(rope)
    if rope is None:
        return RopeTable(positions, size, 2)
    sections = section_factor if "mrope_section" in rope else 1
    if kind == "default" or (kind in UNSTRETCHED and not deepseek):
        return RopeTable(positions * sections, size, 2)
    if kind in STRETCHED or deepseek:
        original = original_positions(source, rope, positions)
        return RopeTable(stretched(rope, original * sections), size, 2)
    if kind == "proportional":
        return RopeTable(positions, head_size, 2)
    if kind == "linear":
        return RopeTable(stretched(rope, positions), size, 2)
    if kind == "longrope":
        return RopeTable(original_positions(source, rope, positions) + positions, size, 2)
    return None


def settings_key(settings: Fields) -> object:
    """What the engine knows a table by: tables of equal settings are one."""
    return tuple(
        (name, value if isinstance(value, int | float | str) else str(value))
        for name, value in sorted(settings.values.items())
    )


def used_by(kinds: Sequence[Kind], tables: Mapping[Kind, tuple[object, RopeTable]]) -> tuple[RopeTable, ...]:
    """The tables of layers of several kinds, each with the layers that use it.

    Parameters
    ----------
    kinds : sequence
        The kind of every layer.
    tables : mapping
        Of each kind, what its settings are known by and its table; kinds with equal settings share one.
    """
    placed = dict[object, tuple[RopeTable, set[int]]]()
    for index, kind in enumerate(kinds):
        key, table = tables[kind]
        placed.setdefault(key, (table, set()))[1].add(index)
    return tuple(replace(table, layers=frozenset(layers)) for table, layers in placed.values())


def rotary_size(source: Source, head_size: int, partial: float | None = None, settings: Fields | None = None) -> int:
    """Elements of a head that are rotated, under the configuration's rotary settings or others."""
    rope = settings or source.rope()
    if rope and "rope_dim" in rope:
        return rope.integer("rope_dim")
    name = "partial_rotary_factor"
    if partial is None:
        fields = rope if rope and name in rope else source.text
        name = fields.named(fields.raw(name, "rotary_pct", "rotary_emb_fraction")[0])
        partial = fields.number("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", default=1.0)
    if not 0 < partial <= 1:
        raise InvalidConfig(name, f"{name} must be above 0 and at most 1, not {partial}")
    return int(head_size * partial)


def original_positions(source: Source, rope: Fields, positions: int) -> int:
    """Context length before scaling: the configuration's own field wins over the rope's."""
    outside = source.text.optional_integer("original_max_position_embeddings")
    return outside or rope.integer("original_max_position_embeddings", default=positions)


def stretched(rope: Fields, positions: int) -> int:
    """Positions of a table stretched by the scaling's factor."""
    factor = rope.number("factor", default=1.0)
    if not 0 < factor <= 1 << 20:
        raise InvalidConfig(rope.named("factor"), f"{rope.named('factor')} must be above 0, not {factor}")
    return math.ceil(positions * factor)


def inverse_frequencies(source: Source, head_size: int) -> Tensor:
    """What transformers' rotary classes keep instead of a table: the frequencies, twice, in float32."""
    frequencies = math.ceil(rotary_size(source, head_size) / 2)
    return Tensor("rotary_emb", TensorClass.OTHER, (Units(2 * frequencies),), element_bytes=4, buffer=True)
