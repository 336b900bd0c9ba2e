"""`accuracy`: predicted against measured startups and load tests."""

import argparse

from service.api.calibrations.accuracy import AccuracyView, GroupServingAccuracy, accuracy
from service.catalogue.accuracy import Errors
from service.catalogue.serving_accuracy import LeftOut
from service.settings import Settings
from service.sizing.performance.accuracy import ServingErrors
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
SERVING_COLUMNS = ("points", "TPOT", "TTFT", "tokens/s", "roofline", "2 points", "promises")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print how far predictions are from what was measured, beside common rules and by group."""
    from rich.console import Console
    from rich.table import Table

    with provision.database(settings) as provided:
        provision.migrate(provided)
        provision.fill(provided)
        with create_engine(provided, pooled=False).connect() as connection:
            found = accuracy(load_snapshot(connection))
    console = Console(soft_wrap=True)
    if found.startups:
        console.print(
            f"{found.startups} startups; {found.within_band_percent:.0f} % of them lie in the predicted band. "
            "Errors are those of the memory left for the cache."
        )
    else:
        console.print("No accepted startup of a model and GPU that can be sized.")
    if found.serving.runs:
        console.print(
            f"{found.serving.runs} load tests: median / P90 of absolute errors, %; roofline: TPOT by a plain one; "
            "2 points: TPOT corrected by a configuration's fastest and slowest load; promises: % named within one "
            "measured load / % broken."
        )
    for title, columns, rows in tables(found):
        table = Table(title, *columns, title_justify="left")
        for name, *figures in rows:
            table.add_row(name, *figures)
        if rows:
            console.print(table)
    return 0


Row = tuple[str, ...]


def tables(found: AccuracyView) -> tuple[tuple[str, tuple[str, ...], list[Row]], ...]:
    """Title, columns and rows of each table."""
    tokens = [] if found.tokens is None else [("printed tokens", found.tokens)]
    memory = {"GPU": found.by_gpu, "architecture": found.by_architecture, "release": found.by_release}
    memory |= {"kind": found.by_kind}
    serving = {
        "load tests": () if found.serving.all is None else (GroupServingAccuracy("all", found.serving.all),),
        "load tests by GPU": found.serving.by_gpu,
        "load tests by architecture": found.serving.by_architecture,
        "load tests by release": found.serving.by_release,
    }
    left = [(each.model, each.gpu, str(each.measurements), each.reason) for each in _left(found)]
    return (
        ("rule", COLUMNS, [_row(name, row) for name, row in (*_rules(found), *tokens)]),
        *((title, COLUMNS, [_row(each.name, each.predicted) for each in rows]) for title, rows in memory.items()),
        *((title, SERVING_COLUMNS, [_serving_row(each) for each in rows]) for title, rows in serving.items()),
        ("not compared", ("GPU", "measurements", "reason"), left),
    )


def _rules(found: AccuracyView) -> list[tuple[str, Errors]]:
    return [(NAMES[name], row) for name, row in found.rules.items()]


def _left(found: AccuracyView) -> tuple[LeftOut, ...]:
    return (*found.left_out, *found.serving.left_out)


def _row(name: str, row: Errors) -> Row:
    figures = (row.median_percent, row.p90_percent, row.bias_percent, row.worst_percent)
    return (name, str(row.startups), *(f"{figure:.2f}" for figure in figures))


def _serving_row(group: GroupServingAccuracy) -> Row:
    errors = group.errors

    def both(each: ServingErrors | None) -> str:
        return "" if each is None else f"{each.median_percent:.0f} / {each.p90_percent:.0f}"

    decided = errors.safe_decisions
    return (
        group.name,
        str(errors.tpot.points),
        *map(both, (errors.tpot, errors.ttft, errors.throughput, errors.roofline_tpot, errors.calibrated_tpot)),
        "" if decided is None else f"{decided.within_one_step_percent:.0f} / {decided.promised_too_much_percent:.0f}",
    )
