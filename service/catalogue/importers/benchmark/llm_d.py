"""Results of the llm-d project: the rows of its planner and the benchmark report of its benchmark.

The planner's rows (`model_hf_repo`, `hardware`, `ttft_mean` ...) are a JSON array or a CSV; times are ms. Many of them
are simulated or estimated, and say so. The benchmark report (llm-d-benchmark, schemas 0.1, 0.2 and 0.2.1) gives every
statistic with its unit; its inter-token figures come from whichever tool ran the load.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

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
    rate,
    row,
    size,
    text,
)
from service.catalogue.importers.benchmark.row import BenchmarkRow, FormatNotUnderstood
from service.catalogue.records.calibration import Latency, ServingFigures

NAME = "llm-d planner rows or llm-d benchmark report"

_SIMULATED = ("simulat", "synthetic", "estimat", "roofline", "generated from blis")
_TO_MS = {"ms": 1.0, "ms/token": 1.0, "s": 1e3, "s/token": 1e3, "us": 1e-3}
_WIDE = 0.3


def is_planner_row(document: Json) -> bool:
    """Whether an object is one row of the planner."""
    return "model_hf_repo" in document


def is_planner_file(document: Json) -> bool:
    """Whether a JSON object is a file of planner rows."""
    benchmarks = items(document.get("benchmarks"))
    first = mapping(benchmarks[0]) if benchmarks else None
    return first is not None and is_planner_row(first)


def read_planner_file(document: Json) -> Iterator[BenchmarkRow]:
    """The rows of a file; what its metadata says of all of them holds for each."""
    simulated = _says_simulated(document.get("_metadata"))
    for each in items(document.get("benchmarks")):
        found = mapping(each)
        if found is not None:
            yield read_planner_row(found, simulated=simulated)


def read_planner_row(document: Json, *, simulated: bool = False) -> BenchmarkRow:
    """One row of the planner, times in ms: `requests_per_second` were asked, `responses_per_second` answered."""
    estimated = simulated or str(document.get("estimated", "")).lower() == "true"
    estimated = estimated or _says_simulated(document.get("framework_version"))
    answered = positive(document.get("responses_per_second"))
    per_token = _flat_times(document, "itl")
    figures = ServingFigures(
        input_tokens_mean=positive(document.get("mean_input_tokens")) or positive(document.get("prompt_tokens")),
        output_tokens_mean=positive(document.get("mean_output_tokens")) or positive(document.get("output_tokens")),
        request_rate=rate(document.get("requests_per_second")),
        ttft=_flat_times(document, "ttft"),
        tpot=per_token,
        itl=per_token,
        e2e=_flat_times(document, "e2e"),
        output_tokens_per_s=positive(document.get("tokens_per_second")),
        requests_per_s=answered,
    )
    deployment = Deployment(
        model=text(document.get("model_hf_repo")),
        engine=engine_of(document.get("framework")),
        engine_version=None if estimated else _version(document.get("framework_version")),
        gpu=text(document.get("hardware")),
        gpu_count=size(document.get("hardware_count")),
    )
    notes = ("the figures were simulated or estimated, not measured",) if estimated else ()
    return row("llm-d planner", deployment, figures, measured=not estimated, notes=notes, tolerance=_WIDE)


def _flat_times(document: Json, name: str) -> Latency:
    names = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    return latency({statistic: number(document.get(f"{name}_{key}")) for statistic, key in names.items()})


def _says_simulated(said: object) -> bool:
    words = str(said).lower()
    return any(mark in words for mark in _SIMULATED)


def _version(said: object) -> str | None:
    found = text(said)
    return found.removeprefix("v") if found else None


def _engine_version(engine: object) -> str | None:
    """Its version, else the tag of its image."""
    tag = re.search(r":v?(\d+\.\d+\.\d+[\w.+-]{0,40})$", text(at(engine, "name")) or "")
    return _version(at(engine, "version")) or (tag[1] if tag else None)


def is_report(document: Json) -> bool:
    """Whether a JSON object is a benchmark report."""
    return "scenario" in document and ("metrics" in document or "results" in document)


def read_report(document: Json) -> BenchmarkRow:
    """The row of one benchmark report.

    Raises
    ------
    FormatNotUnderstood
        It has no aggregate of its requests, or a time in an unknown unit.
    """
    old = mapping(document.get("metrics"))
    performance = old if old is not None else mapping(at(document, "results", "request_performance", "aggregate"))
    if performance is None:
        raise FormatNotUnderstood("the benchmark report holds no aggregate of its requests", (NAME,))
    throughput = performance.get("throughput")
    total, failures = count(at(performance, "requests", "total")), count(at(performance, "requests", "failures"))
    asked = at(document, "scenario", "load", "standardized") or at(document, "scenario", "load", "args")
    figures = ServingFigures(
        input_tokens_mean=positive(at(performance, "requests", "input_length", "mean")),
        output_tokens_mean=positive(at(performance, "requests", "output_length", "mean")),
        concurrency=positive(at(asked, "concurrency")) or positive(at(asked, "max_concurrency")),
        request_rate=rate(at(asked, "rate_qps")) or rate(at(asked, "request_rate")),
        requests=total - (failures or 0) if total is not None else None,
        failed=failures,
        duration_s=positive(at(performance, "time", "duration")),
        ttft=_unit_times(performance, "time_to_first_token"),
        tpot=_unit_times(performance, "time_per_output_token"),
        itl=_unit_times(performance, "inter_token_latency"),
        e2e=_unit_times(performance, "request_latency"),
        output_tokens_per_s=_rate(throughput, "output_tokens_per_sec", "output_token_rate"),
        total_tokens_per_s=_rate(throughput, "total_tokens_per_sec", "total_token_rate"),
        requests_per_s=_rate(throughput, "requests_per_sec", "request_rate"),
    )
    version = text(document.get("version")) or "of unknown version"
    return row(f"llm-d benchmark report {version}", _deployment(document), figures, tolerance=_WIDE)


def _rate(throughput: object, old: str, new: str) -> float | None:
    return positive(at(throughput, old)) or positive(at(throughput, new, "mean"))


def _unit_times(performance: Json, name: str) -> Latency:
    summary = at(performance, "latency", name)
    if number(at(summary, "mean")) is None:
        return Latency()
    unit = text(at(summary, "units")) or ""
    if unit not in _TO_MS:
        raise FormatNotUnderstood(f"{name} is in {unit!r}; understood are {', '.join(_TO_MS)}", (NAME,))
    names = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    values = {statistic: number(at(summary, key)) for statistic, key in names.items()}
    factor = _TO_MS[unit]
    return latency({statistic: value * factor if value is not None else None for statistic, value in values.items()})


def _deployment(document: Json) -> Deployment:
    """The engines of the stack, if they are alike; several kinds (prefill and decode) are no single deployment."""
    engines = [
        found
        for component in items(at(document, "scenario", "stack"))
        if (found := mapping(at(component, "standardized"))) is not None and found.get("kind") == "inference_engine"
    ]
    if engines:
        return _alike([_engine(each) for each in engines])
    accelerators = items(at(document, "scenario", "host", "accelerator"))
    platforms = [*items(at(document, "scenario", "platform", "engine"))]
    named = Deployment(
        model=text(at(document, "scenario", "model", "name")),
        engine=engine_of(at(platforms[0], "name")) if platforms else None,
        engine_version=_engine_version(platforms[0]) if platforms else None,
        quantization=text(at(document, "scenario", "model", "quantization")),
    )
    return _alike([_accelerated(named, each) for each in accelerators]) if accelerators else named


def _engine(found: Json) -> Deployment:
    replicas = size(found.get("replicas")) or 1
    named = Deployment(
        model=text(at(found, "model", "name")),
        engine=engine_of(found.get("tool")),
        quantization=text(at(found, "model", "quantization")),
    )
    return _accelerated(named, found.get("accelerator"), replicas)


def _accelerated(named: Deployment, accelerator: object, replicas: int = 1) -> Deployment:
    layout = at(accelerator, "parallelism")
    cards = size(at(accelerator, "count"))
    return Deployment(
        model=named.model,
        engine=named.engine,
        engine_version=named.engine_version,
        gpu=text(at(accelerator, "model")),
        gpu_count=cards * replicas if cards else None,
        replicas=replicas,
        tensor_parallel_size=size(at(layout, "tp")),
        pipeline_parallel_size=size(at(layout, "pp")),
        data_parallel_size=size(at(layout, "dp")),
        expert_parallel_size=size(at(layout, "ep")),
        quantization=named.quantization,
    )


def _alike(deployments: list[Deployment]) -> Deployment:
    first = deployments[0]
    if any(other != first for other in deployments[1:]):
        return Deployment(model=first.model, engine=first.engine)
    total = first.gpu_count * len(deployments) if first.gpu_count else None
    return replace(first, gpu_count=total, replicas=first.replicas * len(deployments))
