"""Every reason for which vLLM refuses a layout or a setting, in the order in which it meets them.

A rule is a function from a Setting to a Refusal or None. Rules that need the cache planned live with the planner.
"""

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


def first_refusal(setting: Setting) -> Refusal | None:
    """The first reason the engine would give, or None where it starts."""
    return next((refusal for rule in RULES if (refusal := rule(setting))), None)


__all__ = ["RULES", "SPLITTING", "Refusal", "Rule", "Setting", "first_refusal"]
