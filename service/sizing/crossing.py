"""Where a rising function crosses zero."""

from collections.abc import Callable

MOST_STEPS = 60


def crossing(rising: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """The argument between `low` and `high` at which a rising function is zero, to a relative tolerance.

    Regula falsi with the Illinois rule (Dowell and Jarratt, BIT 11, 1971): an end that stays twice counts half. An end
    that has the sign of the other is the answer.
    """
    at_low, at_high = rising(low), rising(high)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    before, stayed = low, 0
    for _ in range(MOST_STEPS):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        value = rising(middle)
        if value == 0 or abs(middle - before) <= tolerance * high:
            return middle
        before = middle
        if value < 0:
            low, at_low = middle, value
            at_high /= 2 if stayed < 0 else 1
            stayed = -1
        else:
            high, at_high = middle, value
            at_low /= 2 if stayed > 0 else 1
            stayed = 1
    return (low + high) / 2
