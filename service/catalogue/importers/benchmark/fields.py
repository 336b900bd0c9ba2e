"""Safe steps into parsed JSON, and the making of a row from what was found."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

from service.catalogue.importers.benchmark.row import BenchmarkRow
from service.catalogue.records.calibration import Latency, ServingFigures
from service.catalogue.records.calibration_checks import contradictions_of

Json = Mapping[str, object]

_LARGEST = 10**15
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?")
_ENGINES = (("vllm", "vllm"), ("sglang", "sglang"), ("tensorrt-llm", "trtllm"), ("trtllm", "trtllm"), ("tgi", "tgi"))
"""How an engine, or the image it runs from, is named."""


def mapping(value: object) -> Json | None:
    """The value if it is a JSON object."""
    return cast("Json", value) if isinstance(value, dict) else None


def items(value: object) -> Sequence[object]:
    """The elements if it is a JSON array, else nothing."""
    return cast("list[object]", value) if isinstance(value, list) else ()


def at(value: object, *path: str) -> object:
    """What stands under a path of keys; None where a step is missing."""
    for key in path:
        inner = mapping(value)
        if inner is None:
            return None
        value = inner.get(key)
    return value


def number(value: object) -> float | None:
    """A number, also one written as text; None for anything else, and for one too large to be a figure."""
    if isinstance(value, str):
        text = value.strip().replace(",", "")
        value = float(text) if _NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None


def positive(value: object) -> float | None:
    """A number above zero."""
    found = number(value)
    return found if found is not None and found > 0 else None


def count(value: object) -> int | None:
    """A whole number from 0."""
    found = number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def size(value: object) -> int | None:
    """A whole number from 1."""
    return count(value) or None


def text(value: object) -> str | None:
    """A non-empty text of at most 300 characters."""
    return value.strip()[:300] or None if isinstance(value, str) else None


def rate(value: object) -> float | None:
    """A request rate: "inf" is infinite."""
    if isinstance(value, float) and value == inf:
        return inf
    if isinstance(value, str) and value.strip().lower() in ("inf", "infinity"):
        return inf
    return positive(value)


def engine_of(backend: object) -> str | None:
    """The engine a name stands for; None for one that is only a protocol, such as "openai-chat"."""
    words = re.split(r"[/:_ -]", (text(backend) or "").lower().replace("tensorrt-llm", "trtllm"))
    return next((engine for name, engine in _ENGINES if name in words), None)


def anywhere(value: object, name: str, depth: int = 6) -> Iterator[object]:
    """Every value under the key `name`, at most `depth` levels down."""
    inner = mapping(value)
    if inner is not None:
        if name in inner:
            yield inner[name]
        children: Iterable[object] = inner.values()
    else:
        children = items(value)
    if depth > 0:
        for child in children:
            yield from anywhere(child, name, depth - 1)


def the_one(values: Iterable[float | None]) -> float | None:
    """The value all agree on; None where there is none, or several."""
    distinct = {value for value in values if value is not None}
    return distinct.pop() if len(distinct) == 1 else None


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a file says of the server: everything in a row that is not a figure."""

    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    replicas: int = 1


def row(
    file_format: str,
    deployment: Deployment,
    figures: ServingFigures,
    *,
    measured: bool = True,
    notes: tuple[str, ...] = (),
    tolerance: float = 0.05,
) -> BenchmarkRow:
    """A row, with what is missing from it and where it contradicts itself.

    Parameters
    ----------
    tolerance : float
        Relative difference between counted and stated rates that is still agreement.
    """
    return BenchmarkRow(
        format=file_format,
        model=deployment.model,
        engine=deployment.engine,
        engine_version=deployment.engine_version,
        gpu=deployment.gpu,
        gpu_count=deployment.gpu_count,
        tensor_parallel_size=deployment.tensor_parallel_size,
        pipeline_parallel_size=deployment.pipeline_parallel_size,
        data_parallel_size=deployment.data_parallel_size,
        expert_parallel_size=deployment.expert_parallel_size,
        quantization=deployment.quantization,
        kv_cache_dtype=deployment.kv_cache_dtype,
        replicas=deployment.replicas,
        figures=figures,
        measured=measured,
        missing=tuple(_missing(deployment, figures)),
        contradictions=tuple(contradictions_of(figures, tolerance)),
        notes=notes,
        tolerance=tolerance,
    )


def _missing(deployment: Deployment, figures: ServingFigures) -> Iterator[str]:
    needed: dict[str, object] = {
        "model": deployment.model,
        "engine": deployment.engine,
        "engine_version": deployment.engine_version,
        "gpu": deployment.gpu,
        "gpu_count": deployment.gpu_count,
        "tensor_parallel_size": deployment.tensor_parallel_size,
        "input_tokens_mean": figures.input_tokens_mean,
        "output_tokens_mean": figures.output_tokens_mean,
        "load": figures.concurrency or figures.request_rate,
        "ttft": figures.ttft.central_ms,
        "tpot": figures.tpot.central_ms,
        "output_tokens_per_s": figures.output_tokens_per_s,
        "requests": figures.requests,
    }
    return (name for name, value in needed.items() if value is None)


def per_request(total: object, requests: int | None) -> float | None:
    """Tokens of one request from the tokens of all."""
    tokens = positive(total)
    return tokens / requests if tokens and requests else None


def latency(found: Mapping[str, float | None]) -> Latency:
    """A distribution from its statistics by name: mean, median, p90, p95, p99 (ms)."""
    return Latency(
        mean_ms=found.get("mean"),
        median_ms=found.get("median"),
        p90_ms=found.get("p90"),
        p95_ms=found.get("p95"),
        p99_ms=found.get("p99"),
    )
