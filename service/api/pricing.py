"""From the machines and prices a request names to what the catalogue knows of them."""

from collections.abc import Mapping

from service.api.contract import HardwareRequest, PricesRequest
from service.api.problems import FieldError, invalid, unknown
from service.catalogue.importers.gpu_names import provider_slug
from service.catalogue.offers import PricesWanted
from service.catalogue.records.price import InstanceType, PriceKind
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing.cost import ExchangeRate, InvalidCostInput
from service.sizing.cost.offer import Offer
from service.sizing.hardware import Link
from service.sizing.question import Machine

SET_BY_INSTANCES = ("gpus", "gpus_per_node", "link", "topology")


def exchange_rate_of(prices: PricesRequest) -> ExchangeRate | None:
    """The exchange rate that a request gives.

    Raises
    ------
    Problem
        400: it is not between USD and another currency.
    """
    given = prices.exchange_rate
    if given is None:
        return None
    try:
        return ExchangeRate(given.base, given.quote, given.rate, given.observed_on.isoformat(), given.source or "")
    except InvalidCostInput as error:
        raise invalid((FieldError(f"prices.exchange_rate.{error.field}", str(error)),)) from None


def wanted_of(prices: PricesRequest, snapshot: Snapshot) -> PricesWanted:
    """Which prices a request allows.

    Raises
    ------
    Problem
        404: no price of that provider is known; 400 as `exchange_rate_of`.
    """
    provider = None if prices.provider is None else provider_slug(prices.provider)
    if provider is not None and provider not in snapshot.providers:
        raise unknown("provider", prices.provider or "", snapshot.nearest_providers(provider), "prices.provider")
    return PricesWanted(PriceKind(prices.kind), provider, prices.region, prices.as_of, exchange_rate_of(prices))


def offers_for(
    prices: PricesRequest, machines: tuple[Machine, ...], snapshot: Snapshot
) -> Mapping[str, tuple[Offer, ...]]:
    """The offers that plans on these machines may rest on; raises as `wanted_of`."""
    wanted = wanted_of(prices, snapshot)
    return {machine.instance or machine.gpu.slug: offers_of(wanted, machine, snapshot) for machine in machines}


def offers_of(wanted: PricesWanted, machine: Machine, snapshot: Snapshot) -> tuple[Offer, ...]:
    """The offers of a machine: of its instance type where it has one, else of its GPU."""
    return snapshot.offers(wanted, machine.gpu.slug, _rented(machine))


def other_currencies_for(
    prices: PricesRequest, machines: tuple[Machine, ...], snapshot: Snapshot
) -> Mapping[str, tuple[str, ...]]:
    """Currencies in which machines without an offer are priced; raises as `wanted_of`."""
    wanted = wanted_of(prices, snapshot)
    return {
        machine.instance or machine.gpu.slug: other_currencies_of(wanted, machine, snapshot)
        for machine in machines
        if not offers_of(wanted, machine, snapshot)
    }


def other_currencies_of(wanted: PricesWanted, machine: Machine, snapshot: Snapshot) -> tuple[str, ...]:
    """Currencies of the prices of a machine that are no offers for want of a rate."""
    return snapshot.other_currencies(wanted, machine.gpu.slug, _rented(machine))


def _rented(machine: Machine) -> tuple[str, str] | None:
    """Provider and instance type of a machine, where it is one that is rented."""
    if machine.instance is None:
        return None
    provider, _, instance_type = machine.instance.partition("/")
    return provider, instance_type


def instance_machines(hardware: HardwareRequest, snapshot: Snapshot) -> tuple[Machine, ...]:
    """The rentable machines that a request names.

    Raises
    ------
    Problem
        404 for an unknown one; 400 where the request also says what the machine decides, or where the machine has a
        share of a card or a card that is not certain.
    """
    for name in SET_BY_INSTANCES:
        if getattr(hardware, name) is not None:
            raise invalid((FieldError(f"hardware.{name}", "give either instances or this, not both"),))
    return tuple(
        dict.fromkeys(
            _machine(name, f"hardware.instances.{index}", snapshot)
            for index, name in enumerate(hardware.instances or ())
        )
    )


def _machine(name: str, field: str, snapshot: Snapshot) -> Machine:
    try:
        instance = snapshot.instance(name)
    except UnknownName as error:
        raise unknown("instance", error.name, error.nearest, field) from None
    if instance.gpu is None:
        known = ", ".join(instance.ambiguous)
        raise invalid((FieldError(field, f"{name} has a card that is not certain ({known}); name the gpu instead"),))
    if instance.gpu_fraction is not None:
        raise invalid((FieldError(field, f"{name} has {instance.gpu_fraction} of a card; whole cards are planned"),))
    gpu = snapshot.gpu(instance.gpu).gpu()
    link = instance.link or (gpu.link if instance.gpu_count == 1 else Link.PCIE)
    return Machine(
        gpu=gpu,
        link=link,
        gpus_per_node=instance.gpu_count,
        gpus_per_domain=1 if link is Link.PCIE else instance.link_domain_gpus,
        warnings=_warnings(instance),
        instance=f"{instance.provider}/{instance.instance_type}",
    )


def _warnings(instance: InstanceType) -> tuple[str, ...]:
    lines = list[str]()
    if instance.link is None and instance.gpu_count > 1:
        lines.append(f"what joins the GPUs of {instance.instance_type} is not known: PCIe is assumed")
    if instance.confidence == "low":
        lines.append(f"what is known of {instance.instance_type} rests on one weak source: check it with the provider")
    return tuple(lines)
