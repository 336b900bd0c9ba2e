"""`accuracy`: predicted against measured startups."""

import argparse

from service.api.calibrations.views import AccuracyView, accuracy
from service.catalogue.accuracy import Errors
from service.settings import Settings
from service.storage import provision
from service.storage.catalogue import load_snapshot
from service.storage.engine import create_engine

NAMES = {
    "predicted": "predicted",
    "calibrated": "corrected by other startups",
    "flat_2_gib": "2 GiB of working space",
    "no_working_space": "no working space",
    "weights_x_1_2": "1.2 x weights",
}
COLUMNS = ("startups", "median %", "P90 %", "bias %", "worst %")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print how far predicted cache memory is from measured, beside common rules and by group."""
    from rich.console import Console
    from rich.table import Table

    with provision.database(settings) as provided:
        provision.migrate(provided)
        provision.fill(provided)
        with create_engine(provided, pooled=False).connect() as connection:
            found = accuracy(load_snapshot(connection))
    console = Console(soft_wrap=True)
    if not found.startups:
        console.print("No accepted startup of a model and GPU that can be sized.")
        return 0
    console.print(
        f"{found.startups} startups; {found.within_band_percent:.0f} % of them lie in the predicted band. "
        "Errors are those of the memory left for the cache."
    )
    for title, rows in tables(found):
        table = Table(title, *COLUMNS, title_justify="left")
        for name, row in rows:
            figures = (row.median_percent, row.p90_percent, row.bias_percent, row.worst_percent)
            table.add_row(name, str(row.startups), *(f"{figure:.2f}" for figure in figures))
        console.print(table)
    return 0


def tables(found: AccuracyView) -> tuple[tuple[str, list[tuple[str, Errors]]], ...]:
    """Title and rows of each table."""
    groups = {"GPU": found.by_gpu, "architecture": found.by_architecture, "release": found.by_release}
    return (
        ("rule", [(NAMES[name], row) for name, row in found.rules.items()]),
        *((title, [(each.name, each.predicted) for each in rows]) for title, rows in groups.items()),
    )
