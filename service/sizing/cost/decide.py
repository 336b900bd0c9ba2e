"""Choosing between priced options: which are worth a look, and what would change the choice."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

from service.sizing.cost.money import Number, amount, at_least_zero, decimal

Option = TypeVar("Option")


def pareto(
    options: Iterable[Option], cost: Callable[[Option], Number], other: Callable[[Option], Number]
) -> tuple[Option, ...]:
    """Options no other one beats in both respects, the cheapest first; less is better in both.

    For a respect in which more is better (throughput) give its negative. Of (cost, latency) (10, 50), (20, 30),
    (25, 30) and (30, 60), the first two remain. Options equal in both all remain.
    """
    ranked = sorted(options, key=lambda option: (cost(option), other(option)))
    kept: list[Option] = []
    for option in ranked:
        beats_latest = not kept or other(option) < other(kept[-1])
        equals_latest = bool(kept) and (cost(option), other(option)) == (cost(kept[-1]), other(kept[-1]))
        if beats_latest or equals_latest:
            kept.append(option)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Flip:
    """The price at which a decision turns.

    Attributes
    ----------
    price : Decimal
        Where both options cost the same.
    change : Decimal or None
        Move from today's price, 0.25 for a quarter more; None if today's price is 0.
    """

    price: Decimal
    change: Decimal | None


def flip_price(price: Decimal, quantity: Number, rival_cost: Decimal, other_costs: Decimal = Decimal(0)) -> Flip | None:
    """How far a price must move before the rival is as cheap; None if no price does it.

    The option costs price x quantity + other costs, so they meet at (rival - other) / quantity. A GPU hour at 3.00 for
    8 GPUs x 730 h against a hosted bill of 21,900: 21,900 / 5,840 = 3.75, a move of +25 %.

    Parameters
    ----------
    quantity : Number
        How often the price is paid in the span compared (GPU-hours, kWh, millions of tokens).
    """
    today = amount(price, "price")
    bought = at_least_zero(quantity, "quantity")
    left = amount(rival_cost, "rival_cost") - amount(other_costs, "other_costs")
    if bought == 0 or left < 0:
        return None
    meets = left / bought
    return Flip(meets, decimal(meets / today - 1, "price") if today else None)
