"""Measurements as rows of their tables, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from service.catalogue.records.calibration import (
    Collective,
    Engine,
    Latency,
    LinkMeasurement,
    LinkPoint,
    ServingFigures,
    ServingMeasurement,
    StartupMeasurement,
    Status,
)
from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.startups import StartupRecord
from service.storage.forms import POINT_COLUMNS

Row = Mapping[str, Any]

UNMEASURED = frozenset({"digest", "kind", "recorded_by", "recorded_on"})
"""Columns of a measurement that say who recorded what."""


def startup_to_row(record: StartupRecord) -> dict[str, Any]:
    """A row of the table of startups."""
    measured = record.measurement
    return asdict(measured) | {
        "digest": record.id,
        "kind": "startup",
        "recorded_by": record.recorded_by,
        "recorded_on": record.recorded_on,
        "engine": None if measured.engine is None else measured.engine.value,
        "status": measured.status.value,
        "assumed": list(measured.assumed),
    }


def startup_from_row(row: Row) -> StartupRecord:
    """A measured startup from a row of its table."""
    fields = {name: value for name, value in row.items() if name not in UNMEASURED}
    converted: dict[str, Any] = {
        "engine": None if row["engine"] is None else Engine(row["engine"]),
        "status": Status(row["status"]),
        "assumed": tuple(row["assumed"]),
    }
    return StartupRecord(StartupMeasurement(**(fields | converted)), row["recorded_by"], row["recorded_on"])


TIMES = ("ttft", "tpot", "itl", "e2e")
WAYS = ("out_of_place", "in_place")


def _recorded(record: ServingRecord | LinkRecord) -> dict[str, Any]:
    """Columns that every measurement with a report has."""
    return {
        "digest": record.id,
        "recorded_by": record.recorded_by,
        "recorded_on": record.recorded_on,
        "report": record.report,
        "status": record.measurement.status.value,
    }


def serving_to_row(record: ServingRecord) -> dict[str, Any]:
    """A row of the table of load tests."""
    row = asdict(record.measurement)
    figures: dict[str, Any] = row.pop("figures")
    for time in TIMES:
        row |= {f"{time}_{statistic}": value for statistic, value in figures.pop(time).items()}
    return row | figures | _recorded(record) | {"derived": list(record.measurement.derived)}


def serving_from_row(row: Row) -> ServingRecord:
    """A load test from a row of its table."""
    figures: dict[str, Any] = {
        time: Latency(**{name: row[f"{time}_{name}"] for name in Latency.__dataclass_fields__}) for time in TIMES
    }
    figures |= {name: row[name] for name in ServingFigures.__dataclass_fields__ if name not in TIMES}
    fields: dict[str, Any] = {
        name: row[name] for name in ServingMeasurement.__dataclass_fields__ if name not in ("figures", "status")
    }
    fields["derived"] = tuple(row["derived"])
    measurement = ServingMeasurement(**fields, figures=ServingFigures(**figures), status=Status(row["status"]))
    return ServingRecord(measurement, row["recorded_by"], row["recorded_on"], row["report"])


def link_to_row(record: LinkRecord) -> dict[str, Any]:
    """A row of the table of link tests."""
    row = asdict(record.measurement)
    for way in WAYS:
        points = row.pop(way)
        row |= {f"{way}_{name}": [point[name] for point in points] for name in POINT_COLUMNS}
    return row | _recorded(record) | {"operation": record.measurement.operation.value, "gpus": list(row["gpus"])}


def link_from_row(row: Row) -> LinkRecord:
    """A link test from a row of its table."""
    measurement = LinkMeasurement(
        source=row["source"],
        gpu=row["gpu"],
        operation=Collective(row["operation"]),
        world_size=row["world_size"],
        nodes=row["nodes"],
        gpus=tuple(row["gpus"]),
        link=row["link"],
        note=row["note"],
        status=Status(row["status"]),
        reason=row["reason"],
        **{way: _points(row, way) for way in WAYS},
    )
    return LinkRecord(measurement, row["recorded_by"], row["recorded_on"], row["report"])


def _points(row: Row, way: str) -> tuple[LinkPoint, ...]:
    return tuple(map(LinkPoint, *(row[f"{way}_{name}"] for name in POINT_COLUMNS)))
