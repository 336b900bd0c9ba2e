"""The prices and machines that come with the package (`data/`, sources and licences in `data/NOTICE.md`)."""

from collections.abc import Iterator
from importlib.resources import files

from service.catalogue.importers.instances import read_instances_csv
from service.catalogue.importers.outcome import Quarantined, R, Skipped
from service.catalogue.importers.own import read_hosted_csv, read_price_csv
from service.catalogue.records.price import HostedPrice, InstanceType, Price


class ShippedDataError(Exception):
    """A file of the package does not pass the checks every import passes."""


def shipped_prices() -> tuple[Price, ...]:
    """Every shipped price of a machine.

    Raises
    ------
    ShippedDataError
        If a row would not be taken.
    """
    return tuple(_all_taken("prices.csv", read_price_csv(_lines("prices.csv"), None, "")))


def shipped_hosted_prices() -> tuple[HostedPrice, ...]:
    """Every shipped price of a hosted model; raises as `shipped_prices`."""
    return tuple(_all_taken("hosted_prices.csv", read_hosted_csv(_lines("hosted_prices.csv"), None, "")))


def shipped_instance_types() -> tuple[InstanceType, ...]:
    """Every shipped machine type; raises as `shipped_prices`."""
    return tuple(_all_taken("instances.csv", read_instances_csv(_lines("instances.csv"), None, "")))


def _lines(name: str) -> list[str]:
    return files("service.catalogue").joinpath("data", name).read_text("utf-8").splitlines(keepends=True)


def _all_taken(name: str, outcomes: Iterator[R | Skipped | Quarantined]) -> Iterator[R]:
    for outcome in outcomes:
        if isinstance(outcome, Skipped | Quarantined):
            raise ShippedDataError(f"{name} row {outcome.row}: {outcome.reason}: {outcome.detail}")
        yield outcome
