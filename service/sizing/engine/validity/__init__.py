"""Every reason for which vLLM refuses a layout or a setting, in the order in which it meets them.

A rule is a function from a Setting to a Refusal or None. Rules that need the cache planned live with the planner.
"""

from dataclasses import replace

from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity import hardware, layout, quantization, shapes
from service.sizing.engine.validity.setting import Rule, Setting

RULES: tuple[Rule, ...] = (
    *hardware.RULES,
    quantization.method_built_in,
    *layout.RULES,
    *quantization.CARD,
    *shapes.RULES,
    *quantization.WHILE_BUILDING,
)
"""All rules, in the order in which the engine meets them."""


SPLITTING = frozenset(
    {
        "attention_heads_not_divisible",
        "dimension_not_divisible",
        "more_ranks_than_experts",
        "more_ranks_than_kv_heads",
        "quantization_block_cut",
        "quantization_group_cut",
        "state_groups_not_divisible",
        "state_heads_not_divisible",
    }
)
"""Reasons that another tensor parallel size may remove."""

MOST_TENSOR_RANKS = 64
"""Sizes beyond this are not named in a fix."""


def first_refusal(setting: Setting) -> Refusal | None:
    """The first reason the engine would give, or None where it starts.

    A tensor parallel size is put right by one that no rule refuses: what divides one dimension may not divide the next.
    """
    refusal = _first(setting)
    if refusal is None or refusal.code not in SPLITTING:
        return refusal
    whole = replace(setting, layout=replace(setting.layout, expert_parallel=True))
    spread = ", or spread whole experts with expert_parallel" if setting.model.experts and not _first(whole) else ""
    if sizes := _tensor_sizes(setting):
        return replace(refusal, fix=f"choose a tensor parallel size from {sizes}{spread}")
    alone = replace(setting, layout=replace(setting.layout, data_parallel_size=1))
    if sizes := _tensor_sizes(alone):
        return replace(refusal, fix=f"choose data_parallel_size 1 and a tensor parallel size from {sizes}{spread}")
    return replace(refusal, fix=spread.removeprefix(", or ") or None)


def _first(setting: Setting) -> Refusal | None:
    return next((refusal for rule in RULES if (refusal := rule(setting))), None)


def _tensor_sizes(setting: Setting) -> str:
    """Tensor parallel sizes with which the rest of the layout starts; the cache is split by heads alone."""
    heads = max(1, setting.model.attention_heads)
    sizes = (size for size in range(1, min(heads, MOST_TENSOR_RANKS) + 1) if heads % size == 0)
    layouts = (replace(setting.layout, tensor_parallel_size=size, decode_context_parallel_size=1) for size in sizes)
    return ", ".join(
        str(layout.tensor_parallel_size) for layout in layouts if _first(replace(setting, layout=layout)) is None
    )


__all__ = ["RULES", "SPLITTING", "Refusal", "Rule", "Setting", "first_refusal"]
