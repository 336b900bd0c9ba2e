"""Sizes of rotary tables, as vLLM 0.33 `layers/rotary_embedding` builds them."""

import math

from service.sizing.model.shape import RopeTable
from service.sizing.model.source import Source

STRETCHED = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Scalings whose table covers the original context times the factor."""

UNSTRETCHED = frozenset({"default", "mrope", "llama3", "dynamic", "proportional"})
"""Scalings whose table covers the context length."""


def rotary_table(
    source: Source, head_size: int, *, partial: float | None = None, positions: int = 8192, deepseek: bool = False
) -> RopeTable | None:
    """The table of sines and cosines for heads of `head_size`; None for a scaling whose table is not known.

    Parameters
    ----------
    partial : float, optional
        Share of the head that is rotated; by default what the configuration says, else all of it.
    positions : int
        Context length of a configuration that names none.
    deepseek : bool
        Whether the model class reads every scaling as the DeepSeek kind of YaRN.
    """
    positions = source.text.integer("max_position_embeddings", default=positions)
    rope = source.rope()
    if partial is None:
        partial = source.text.number("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", default=1.0)
        partial = rope.number("partial_rotary_factor", default=partial) if rope else partial
    size = int(head_size * partial)
    kind = source.rope_type()
    if rope is None or kind == "default" or (kind in UNSTRETCHED and not deepseek):
        return RopeTable(positions, size, 2)
    if kind in STRETCHED or deepseek:
        original = rope.integer("original_max_position_embeddings", default=positions)
        return RopeTable(math.ceil(original * rope.number("factor", default=1.0)), size, 2)
    if kind == "linear":
        return RopeTable(math.ceil(positions * rope.number("factor", default=1.0)), size, 2)
    return None
