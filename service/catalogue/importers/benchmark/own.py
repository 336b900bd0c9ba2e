"""Our own rows: one load test a row, in CSV or JSON, with the column names of `COLUMNS`.

Times are ms, rates per second, lengths tokens. An unknown column is refused by name rather than ignored; an empty cell
is an absent value.
"""

from collections.abc import Callable

from service.catalogue.importers.benchmark.fields import (
    Deployment,
    Json,
    count,
    latency,
    number,
    positive,
    rate,
    row,
    size,
    text,
)
from service.catalogue.importers.benchmark.row import BenchmarkRow, FormatNotUnderstood
from service.catalogue.records.calibration import Latency, ServingFigures

NAME = "shardwise rows"

_TIMES = tuple(
    f"{kind}_{statistic}_ms"
    for kind in ("ttft", "tpot", "itl", "e2e")
    for statistic in ("mean", "median", "p90", "p95", "p99")
)
_TEXTS = ("model", "engine", "engine_version", "gpu", "quantization", "kv_cache_dtype")
_SIZES = ("gpu_count", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel_size")
_COUNTS = ("requests", "failed")
_RATES = (
    "input_tokens_mean", "output_tokens_mean", "concurrency", "request_rate", "duration_s", "output_tokens_per_s",
    "total_tokens_per_s", "requests_per_s",
)  # fmt: skip

COLUMNS = (*_TEXTS, *_SIZES, *_COUNTS, *_RATES, *_TIMES)
"""The columns a row may have; `model`, `gpu` and one time or rate it must have."""

_NEEDED: dict[str, tuple[Callable[[object], float | None], str]] = {
    **dict.fromkeys(_SIZES, (size, "a whole number from 1")),
    **dict.fromkeys(_COUNTS, (count, "a whole number from 0")),
    **dict.fromkeys(_RATES, (rate, "a number above 0")),
    **dict.fromkeys(_TIMES, (positive, "a number above 0")),
}


def is_row(document: Json) -> bool:
    """Whether an object looks like one of our rows: `model` and `gpu`, and a figure named our way."""
    return (
        "model" in document
        and "gpu" in document
        and any(name in document for name in (*_TIMES, "output_tokens_per_s", "requests_per_s"))
    )


def read_row(document: Json) -> BenchmarkRow:
    """One row.

    Raises
    ------
    FormatNotUnderstood
        A column is not one of `COLUMNS`, or a value is not of its kind.
    """
    unknown = [name for name in document if name not in COLUMNS]
    if unknown:
        raise FormatNotUnderstood(f"unknown column {unknown[0]!r}; known are {', '.join(COLUMNS)}", (NAME,))
    for name, (reads, needed) in _NEEDED.items():
        value = document.get(name)
        if value not in (None, "") and reads(value) is None:
            raise FormatNotUnderstood(f"{name} is {value!r}; {needed} is needed", (NAME,))
    figures = ServingFigures(
        input_tokens_mean=positive(document.get("input_tokens_mean")),
        output_tokens_mean=positive(document.get("output_tokens_mean")),
        concurrency=positive(document.get("concurrency")),
        request_rate=rate(document.get("request_rate")),
        requests=count(document.get("requests")),
        failed=count(document.get("failed")),
        duration_s=positive(document.get("duration_s")),
        ttft=_times(document, "ttft"),
        tpot=_times(document, "tpot"),
        itl=_times(document, "itl"),
        e2e=_times(document, "e2e"),
        output_tokens_per_s=positive(document.get("output_tokens_per_s")),
        total_tokens_per_s=positive(document.get("total_tokens_per_s")),
        requests_per_s=positive(document.get("requests_per_s")),
    )
    deployment = Deployment(
        model=text(document.get("model")),
        engine=text(document.get("engine")),
        engine_version=text(document.get("engine_version")),
        gpu=text(document.get("gpu")),
        gpu_count=size(document.get("gpu_count")),
        tensor_parallel_size=size(document.get("tensor_parallel_size")),
        pipeline_parallel_size=size(document.get("pipeline_parallel_size")),
        data_parallel_size=size(document.get("data_parallel_size")),
        expert_parallel_size=size(document.get("expert_parallel_size")),
        quantization=text(document.get("quantization")),
        kv_cache_dtype=text(document.get("kv_cache_dtype")),
    )
    return row(NAME, deployment, figures)


def _times(document: Json, kind: str) -> Latency:
    names = ("mean", "median", "p90", "p95", "p99")
    return latency({statistic: number(document.get(f"{kind}_{statistic}_ms")) for statistic in names})
