"""Reports of GuideLLM, from 0.2 to 0.8.

Read in its sources: 0.2.1 and 0.3.1 `benchmark/benchmark.py`; 0.4.0, 0.5.3 and 0.6.0 `benchmark/schemas/generative/`;
0.8.1 `benchmark/schemas/`. The file holds one benchmark for each rate or concurrency. Its `time_per_output_token_ms`
counts the first token too, so that vLLM's TPOT is its `inter_token_latency_ms`: the time from first to last token over
the tokens after the first. `request_latency` is in seconds.
"""

from collections.abc import Iterator

from service.catalogue.importers.benchmark.fields import (
    Deployment,
    Json,
    at,
    count,
    engine_of,
    items,
    latency,
    mapping,
    number,
    positive,
    row,
    text,
)
from service.catalogue.importers.benchmark.row import BenchmarkRow, FormatNotUnderstood
from service.catalogue.records.calibration import Latency, ServingFigures

NAME = "GuideLLM"

_NOTES = ("TPOT is GuideLLM's inter_token_latency_ms; its time_per_output_token_ms counts the first token",)
_WIDE = 0.3
"""GuideLLM cuts warm-up and cool-down off its rates, so that counts over duration need not match them."""


def is_report(document: Json) -> bool:
    """Whether a JSON object is a report of GuideLLM."""
    benchmarks = items(document.get("benchmarks"))
    first = mapping(benchmarks[0]) if benchmarks else None
    return first is not None and ("metrics" in first or ("mode" in first and "results" in first))


def read(document: Json) -> Iterator[BenchmarkRow]:
    """A row for each benchmark of a report.

    Raises
    ------
    FormatNotUnderstood
        The report is of GuideLLM 0.1, which keeps single requests and no statistics.
    """
    generation = _generation(document)
    for benchmark in items(document.get("benchmarks")):
        if at(benchmark, "metrics") is None:
            raise FormatNotUnderstood(
                "a report of GuideLLM 0.1 holds single requests and no statistics; run the benchmark with 0.2 or later",
                (NAME,),
            )
        yield row(f"{NAME}, {generation}", _deployment(benchmark), _figures(benchmark), notes=_NOTES, tolerance=_WIDE)


def _generation(document: Json) -> str:
    version = text(at(document, "metadata", "guidellm_version"))
    if version is not None:
        return f"report of {version}"
    benchmarks = items(document.get("benchmarks"))
    return "report of 0.4" if benchmarks and at(benchmarks[0], "config") is not None else "report of 0.2 or 0.3"


def _deployment(benchmark: object) -> Deployment:
    names = (
        at(benchmark, "worker", "backend_model"),
        at(benchmark, "benchmarker", "backend", "model"),
        at(benchmark, "config", "backend", "model"),
        at(benchmark, "config", "backend", "backend_model"),
    )
    model = next((found for name in names if (found := text(name)) and found != "None"), None)
    return Deployment(model=model, engine=engine_of(at(benchmark, "extras", "engine")))


def _figures(benchmark: object) -> ServingFigures:
    metrics = at(benchmark, "metrics")
    strategy = next(
        (
            found
            for path in (("args", "strategy"), ("config", "strategy"), ("scheduler", "strategy"))
            if (found := at(benchmark, *path))
        ),
        None,
    )
    kind = text(at(strategy, "type_"))
    made = at(metrics, "request_totals") or at(benchmark, "run_stats", "requests_made")
    concurrency = positive(at(strategy, "streams")) or positive(at(strategy, "max_concurrency"))
    per_token = _times(metrics, "inter_token_latency_ms")
    return ServingFigures(
        input_tokens_mean=_mean(metrics, "prompt_token_count"),
        output_tokens_mean=_mean(metrics, "output_token_count"),
        concurrency=1.0 if kind == "synchronous" else concurrency,
        request_rate=positive(at(strategy, "rate")) or (float("inf") if kind == "throughput" else None),
        requests=count(at(made, "successful")),
        failed=count(at(made, "errored")),
        duration_s=positive(at(benchmark, "duration")),
        ttft=_times(metrics, "time_to_first_token_ms"),
        tpot=per_token,
        itl=per_token,
        e2e=_times(metrics, "request_latency", 1000.0),
        output_tokens_per_s=_mean(metrics, "output_tokens_per_second"),
        total_tokens_per_s=_mean(metrics, "tokens_per_second"),
        requests_per_s=_mean(metrics, "requests_per_second"),
    )


def _mean(metrics: object, name: str) -> float | None:
    return positive(at(metrics, name, "successful", "mean"))


def _times(metrics: object, name: str, factor: float = 1.0) -> Latency:
    summary = at(metrics, name, "successful")
    found = {
        "mean": number(at(summary, "mean")),
        "median": number(at(summary, "median")),
        "p90": number(at(summary, "percentiles", "p90")),
        "p95": number(at(summary, "percentiles", "p95")),
        "p99": number(at(summary, "percentiles", "p99")),
    }
    if all(not value for value in found.values()):
        return Latency()  # Nothing was streamed: GuideLLM then writes zeros.
    return latency({statistic: value * factor if value is not None else None for statistic, value in found.items()})
