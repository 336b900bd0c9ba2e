"""A reason why the engine would not start, or not serve what is asked."""

from dataclasses import dataclass


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
    fix : str or None
        The nearest change that would be accepted.
    """

    code: str
    message: str
    engine_error: str | None = None
    fix: str | None = None
