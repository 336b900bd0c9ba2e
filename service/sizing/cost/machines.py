"""The machines that copies of a deployment are put on, and what they cost fixed or scaled by the hour."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from service.sizing.cost.money import DAYS_PER_MONTH, HOURS_PER_MONTH, MILLION, amount
from service.sizing.cost.offer import Offer
from service.sizing.cost.tokens import machines_needed
from service.sizing.cost.traffic import Fleet
from service.sizing.quantities import ceil_div

OWNED = "owned"

COMMITTED = frozenset({"reserved_1y", "reserved_3y", OWNED})
"""Kinds of price that are paid whether the machine runs or not."""


@dataclass(frozen=True, slots=True)
class MachineRate:
    """A machine and what it costs.

    Attributes
    ----------
    gpu_count : int
        GPUs of the machine.
    per_hour : Decimal
        The whole machine.
    offer : Offer or None
        The offer it is rented by; None for one that is owned.
    """

    gpu_count: int
    per_hour: Decimal
    offer: Offer | None = None


def copies_on_one(copy_gpus: int, machine_gpus: int) -> int:
    """Copies that share a machine: machine's GPUs // copy's; 0 where a copy takes several machines.

    Copies of 2 GPUs on a machine of 8: 4. Of 3: 2, and 2 GPUs are idle. Of 16: 0.
    """
    return machine_gpus // copy_gpus


def machines_of(copies: int, copy_gpus: int, machine_gpus: int) -> int:
    """Whole machines for a number of copies.

    ceil(copies / copies on one), or copies x ceil(copy's GPUs / machine's) where none shares. 5 copies of 2 GPUs on
    machines of 8 take 2; 5 copies of 16 take 10.
    """
    shared = copies_on_one(copy_gpus, machine_gpus)
    return ceil_div(copies, shared) if shared else copies * machines_needed(copy_gpus, machine_gpus)


@dataclass(frozen=True, slots=True)
class KindCost:
    """A fleet at one kind of price.

    Attributes
    ----------
    kind : str
        "on_demand", "spot", "reserved_1y", ..., "owned".
    machine : MachineRate
        What the copies are put on.
    machines : int
        Most machines at once.
    per_hour : Decimal
        Those.
    machine_hours_per_month : Decimal
        What is paid.
    per_month : Decimal
        The fleet.
    per_million_output_tokens : Decimal or None
        None if nothing is served.
    """

    kind: str
    machine: MachineRate
    machines: int
    per_hour: Decimal
    machine_hours_per_month: Decimal
    per_month: Decimal
    per_million_output_tokens: Decimal | None


def at_kind(needed: Fleet, copy_gpus: int, kind: str, machine: MachineRate) -> KindCost:
    """What a fleet costs on machines of one kind of price.

    What is reserved or owned is paid all month for the machines of the peak: machines x 730 h; everything else by the
    machine-hour: the sum over the hours of a day x 30.4167. Copies that fill a machine of their own at 10 an hour, 4 of
    them for 6 hours a day and 1 for 18: (6 x 4 + 18 x 1) x 30.4167 x 10 = 12,775.00 on demand; reserved at 6,
    4 x 730 x 6 = 17,520.00. If two share a machine: (6 x 2 + 18 x 1) x 30.4167 x 10 = 9,125.00.
    """
    by_hour = [machines_of(copies, copy_gpus, machine.gpu_count) for copies in needed.replicas]
    peak = max(by_hour)
    hours = peak * HOURS_PER_MONTH if kind in COMMITTED else sum(by_hour) * DAYS_PER_MONTH
    month = amount(machine.per_hour, kind) * hours
    served = needed.output_tokens_per_month
    return KindCost(
        kind=kind,
        machine=machine,
        machines=peak,
        per_hour=peak * machine.per_hour,
        machine_hours_per_month=hours,
        per_month=month,
        per_million_output_tokens=month / served * MILLION if served else None,
    )


def kinds_side_by_side(
    needed: Fleet, copy_gpus: int, machines: Mapping[str, Iterable[MachineRate]]
) -> tuple[KindCost, ...]:
    """A fleet at each kind of price, on the machine of that kind that carries it for the least; the cheapest first."""
    rows = [
        min((at_kind(needed, copy_gpus, kind, each) for each in several), key=lambda row: row.per_month, default=None)
        for kind, several in machines.items()
    ]
    return tuple(sorted((row for row in rows if row is not None), key=lambda row: row.per_month))


def rented(offers: Sequence[Offer]) -> tuple[MachineRate, ...]:
    """The machines of offers."""
    return tuple(MachineRate(offer.gpu_count, offer.per_hour, offer) for offer in offers)
