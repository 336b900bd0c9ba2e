"""The measurements that come with the package (`data/startups.jsonl`, `data/serving.csv`; see `data/NOTICE.md`)."""

import csv
import json
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from typing import Any, cast

from service.catalogue.records.calibration import (
    Engine,
    Latency,
    ServingFigures,
    ServingMeasurement,
    StartupMeasurement,
)


def load_startups() -> tuple[StartupMeasurement, ...]:
    """Every shipped startup, all accepted."""
    return tuple(_startup(json.loads(line)) for line in _text("startups.jsonl").splitlines())


def load_serving() -> tuple[ServingMeasurement, ...]:
    """Every shipped load test of vLLM, all accepted; their throughput follows from concurrency and times."""
    return tuple(map(_serving, csv.DictReader(_text("serving.csv").splitlines())))


def _text(name: str) -> str:
    return files("service.catalogue").joinpath("data", name).read_text("utf-8")


def _startup(row: dict[str, object]) -> StartupMeasurement:
    fields = cast("dict[str, Any]", row)
    fields["engine"] = Engine(fields["engine"]) if "engine" in fields else None
    fields["assumed"] = tuple(fields.get("assumed", ()))
    return StartupMeasurement(**fields)


def _serving(row: Mapping[str, str]) -> ServingMeasurement:
    figures = ServingFigures(
        input_tokens_mean=float(row["input_tokens_mean"]),
        output_tokens_mean=float(row["output_tokens_mean"]),
        concurrency=float(row["concurrency"]),
        ttft=Latency(median_ms=float(row["ttft_median_ms"])),
        tpot=Latency(median_ms=float(row["tpot_median_ms"])),
        output_tokens_per_s=float(row["output_tokens_per_s"]),
    )
    return ServingMeasurement(
        source=row["source"],
        measured_on=date.fromisoformat(row["measured_on"]) if row["measured_on"] else None,
        model=row["model"],
        engine=row["engine"],
        engine_version=row["engine_version"] or None,
        gpu=row["gpu"],
        gpu_count=int(row["gpu_count"]),
        tensor_parallel_size=int(row["tensor_parallel_size"]),
        data_parallel_size=int(row["data_parallel_size"]),
        expert_parallel_size=int(row["expert_parallel_size"]),
        precision=row["precision"],
        figures=figures,
        derived=tuple(row["derived"].split()),
    )
