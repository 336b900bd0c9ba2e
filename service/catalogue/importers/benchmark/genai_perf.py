"""Exports of NVIDIA's GenAI-Perf and of AIPerf, which took its form over.

`profile_export_genai_perf.json` (GenAI-Perf 0.0.16 `export_data/json_exporter.py`) and `profile_export_aiperf.json`
(AIPerf 0.13 `common/models/export_models.py`): every metric is an object with its unit and its statistics, beside the
`input_config` of the run. Their `inter_token_latency` is the request's time after the first token over its further
tokens: what vLLM calls TPOT.
"""

from service.catalogue.importers.benchmark.fields import (
    Deployment,
    Json,
    anywhere,
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
    the_one,
)
from service.catalogue.importers.benchmark.row import BenchmarkRow, FormatNotUnderstood
from service.catalogue.records.calibration import Latency, ServingFigures

NAME = "GenAI-Perf or AIPerf"

_TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_NOTES = ("TPOT is the tool's inter_token_latency, averaged over requests",)
_WIDE = 0.3
"""Both tools measure a window of the run."""


def is_export(document: Json) -> bool:
    """Whether a JSON object is an export of either tool."""
    metric = mapping(document.get("request_throughput"))
    return metric is not None and ("avg" in metric or "unit" in metric)


def read(document: Json) -> BenchmarkRow:
    """The row of one export.

    Raises
    ------
    FormatNotUnderstood
        A time is in a unit that is not known.
    """
    asked = document.get("input_config")
    duration = at(document, "benchmark_duration")
    per_token = _times(document, "inter_token_latency")
    figures = ServingFigures(
        input_tokens_mean=_average(document, "input_sequence_length"),
        output_tokens_mean=_average(document, "output_sequence_length"),
        concurrency=the_one(positive(value) for value in anywhere(asked, "concurrency")),
        request_rate=the_one(positive(value) for value in anywhere(asked, "request_rate")),
        requests=count(at(document, "request_count", "avg")),
        failed=count(at(document, "error_request_count", "avg")),
        duration_s=_seconds(duration) if duration is not None else None,
        ttft=_times(document, "time_to_first_token"),
        tpot=per_token,
        itl=per_token,
        e2e=_times(document, "request_latency"),
        output_tokens_per_s=_average(document, "output_token_throughput"),
        total_tokens_per_s=_average(document, "total_token_throughput"),
        requests_per_s=_average(document, "request_throughput"),
    )
    return row(_format(document), _deployment(document), figures, notes=_NOTES, tolerance=_WIDE)


def _format(document: Json) -> str:
    version = text(document.get("aiperf_version"))
    if version is not None or "schema_version" in document:
        return f"AIPerf {version or 'of unknown version'}"
    return "GenAI-Perf"


def _deployment(document: Json) -> Deployment:
    asked = document.get("input_config")
    cards = [text(name) for name in anywhere(document.get("telemetry_data"), "gpu_name", depth=8)]
    known = {card for card in cards if card is not None}
    engines = (engine_of(value) for value in anywhere(asked, "backend"))
    return Deployment(
        model=_model(asked),
        engine=next((engine for engine in engines if engine), None),
        gpu=known.pop() if len(known) == 1 else None,
        gpu_count=len(cards) or None,
    )


def _model(asked: object) -> str | None:
    for name in ("model_names", "models", "model"):
        for value in anywhere(asked, name):
            candidates = [value, *items(value), *items(at(value, "items"))]
            found = [text(candidate) or text(at(candidate, "name")) for candidate in candidates]
            named = [each for each in found if each]
            if len(named) == 1:
                return named[0]
    return None


def _average(document: Json, name: str) -> float | None:
    return positive(at(document, name, "avg"))


def _seconds(metric: object) -> float | None:
    value = positive(at(metric, "avg"))
    return value * _factor("benchmark_duration", metric) / 1000 if value is not None else None


def _times(document: Json, name: str) -> Latency:
    metric = mapping(document.get(name))
    if metric is None or number(metric.get("avg")) is None:
        return Latency()
    factor = _factor(name, metric)
    names = {"mean": "avg", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    values = {statistic: number(metric.get(key)) for statistic, key in names.items()}
    return latency({statistic: value * factor if value is not None else None for statistic, value in values.items()})


def _factor(name: str, metric: object) -> float:
    unit = text(at(metric, "unit")) or "ms"
    if unit not in _TO_MS:
        raise FormatNotUnderstood(f"{name} is in {unit!r}; understood are {', '.join(_TO_MS)}", (NAME,))
    return _TO_MS[unit]
