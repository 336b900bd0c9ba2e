"""What machines are offered for, and which offer carries a deployment for the least."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from service.sizing.cost.tokens import deployment_per_hour


@dataclass(frozen=True, slots=True)
class Offer:
    """What a machine was to be rented for on a day.

    Attributes
    ----------
    provider, kind, region : str
        Who rents it, on what terms ("on_demand", ...), and where (empty: not stated, or everywhere).
    instance_type : str
        The machine; empty where GPUs are sold one by one.
    gpu_count : int
        GPUs of the machine.
    per_hour : Decimal
        The whole machine, an hour, in the currency of the answer.
    observed_on, source : str
        Day (YYYY-MM-DD) and place it was seen.
    age_days : int
        Days before the day asked for, or before the newest price known.
    currency, listed_per_hour : str, Decimal
        What the list asks for the machine an hour, in its own currency.
    """

    provider: str
    kind: str
    instance_type: str
    region: str
    gpu_count: int
    per_hour: Decimal
    observed_on: str
    source: str
    age_days: int
    currency: str
    listed_per_hour: Decimal


def holding(offers: Iterable[Offer], gpu_count: int, gpus_per_node: int) -> tuple[Offer, ...]:
    """The offers of machines that hold as many GPUs as a deployment keeps together.

    All of them, or a node's where it spans nodes; GPUs sold one by one are taken to stand together.
    """
    together = min(gpu_count, gpus_per_node)
    return tuple(offer for offer in offers if not offer.instance_type or offer.gpu_count >= together)


def cheapest(offers: Iterable[Offer], gpu_count: int, gpus_per_node: int) -> tuple[Offer, Decimal] | None:
    """The offer that carries a deployment for the least, and the cost of all its machines per hour.

    Machines are rented whole, and one must hold what is kept together (`holding`). GPUs sold one by one cost what they
    cost times their number. 4 GPUs at 98.32 for a
    machine of 8 or 60.00 for one of 4: 60.00; at 12.00 for machines of one, those do not serve.

    Parameters
    ----------
    gpu_count, gpus_per_node : int
        GPUs of the deployment, and of one machine as it was planned.
    """
    serving = [
        (deployment_per_hour(offer.per_hour, gpu_count, offer.gpu_count), index, offer)
        for index, offer in enumerate(holding(offers, gpu_count, gpus_per_node))
    ]
    if not serving:
        return None
    cost, _, offer = min(serving, key=lambda each: each[:2])
    return offer, cost
