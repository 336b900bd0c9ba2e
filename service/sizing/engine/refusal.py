"""A reason why the engine would not start, or not serve what is asked, and what the rule would have instead."""

from dataclasses import dataclass

Value = int | float | str | bool | None

Changes = tuple[tuple[str, Value], ...]
"""Fields of the question by their path in the request ("engine.block_size"), and what they would be."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that a rule would accept; whether the rest of the question then serves is not known to the rule.

    Attributes
    ----------
    words : str
        For a sentence.
    changes : Changes
        What the question would be; empty where only another card, model or release helps.
    """

    words: str
    changes: Changes = ()


def leave_out(argument: str) -> Fix:
    """To leave an engine argument to its default."""
    return Fix(f"leave {flag(argument)} out", ((f"engine.{argument}", None),))


def use(argument: str, value: float | str, bound: str = "") -> Fix:
    """To give an engine argument another value; `bound` is "less" or "more" where such a value would do as well."""
    shown = f"{value:g}" if isinstance(value, float) else value
    return Fix(
        f"use {flag(argument)} {shown}{f' or {bound}' if bound else ''}",
        ((f"engine.{argument}", value),),
    )


def flag(argument: str) -> str:
    """An engine argument as it is typed."""
    return f"--{argument.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a layout or a setting is refused.

    Attributes
    ----------
    code : str
        Stable name of the rule.
    message : str
        The reason in one sentence.
    engine_error : str or None
        The engine's own words; None where it would not say any.
    fixes : tuple of Fix
        Changes each of which the rule would accept, the nearest first; another layout is looked for apart from these.
    """

    code: str
    message: str
    engine_error: str | None = None
    fixes: tuple[Fix, ...] = ()
