"""Every reason for which vLLM refuses a layout or a setting, in the order in which it meets them.

A rule is a function from a Setting to a Refusal or None. Rules that need the cache planned live with the planner.
"""

from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity import hardware, layout, quantization, shapes
from service.sizing.engine.validity.setting import Rule, Setting

RULES: tuple[Rule, ...] = (
    *hardware.RULES,
    *quantization.BEFORE_LAYOUT,
    *layout.RULES,
    *shapes.RULES,
    *quantization.WHILE_BUILDING,
)
"""All rules, in the order in which the engine meets them."""


def first_refusal(setting: Setting) -> Refusal | None:
    """The first reason the engine would give, or None where it starts."""
    return next((refusal for rule in RULES if (refusal := rule(setting))), None)


__all__ = ["RULES", "Refusal", "Rule", "Setting", "first_refusal"]
