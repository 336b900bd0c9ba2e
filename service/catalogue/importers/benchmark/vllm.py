"""Results of vLLM's serving benchmark: the JSON of `--save-result` and the table on the console.

`vllm bench serve` and `benchmarks/benchmark_serving.py` before it write the same keys (0.6.6, 0.8.5, 0.11.2 and 0.33
`benchmarks/serve.py`); SGLang's `bench_serving` took them over. Total tokens are those of answered requests, so that
the means here are measured and not asked for.
"""

import re
from collections.abc import Iterator

from service.catalogue.importers.benchmark.fields import (
    Deployment,
    Json,
    count,
    engine_of,
    latency,
    number,
    per_request,
    positive,
    rate,
    row,
    size,
    text,
)
from service.catalogue.importers.benchmark.row import BenchmarkRow, FormatNotUnderstood
from service.catalogue.records.calibration import Latency, ServingFigures

NAME = "vllm bench serve"

_TABLE = re.compile(r"=+ {0,2}Serving Benchmark Result {0,2}=+")
_TABLE_END = re.compile(r"={20,}")
_STATISTICS = {"mean": ("mean",), "median": ("median", "p50"), "p90": ("p90",), "p95": ("p95",), "p99": ("p99",)}
_METADATA = {
    "engine_version": ("engine_version", "vllm_version", "sglang_version", "server_version", "version"),
    "gpu": ("gpu", "gpu_name", "gpu_type", "accelerator", "hardware", "device"),
    "gpu_count": ("gpu_count", "num_gpus", "gpus", "hardware_count"),
    "tensor_parallel_size": ("tensor_parallel_size", "tensor_parallel", "tp_size", "tp"),
    "pipeline_parallel_size": ("pipeline_parallel_size", "pp_size", "pp"),
    "data_parallel_size": ("data_parallel_size", "dp_size", "dp"),
    "expert_parallel_size": ("expert_parallel_size", "ep_size", "ep"),
    "quantization": ("quantization", "precision"),
    "kv_cache_dtype": ("kv_cache_dtype",),
}
_LABELS = (
    ("Backend:", "backend"),
    ("Traffic request rate:", "request_rate"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Max request concurrency:", "max_concurrency"),
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
    ("Total Token throughput (tok/s):", "total_token_throughput"),
)
"""What the table, and the lines before it, call the keys of the JSON."""

_TIME = re.compile(
    r"(?P<statistic>Mean|Median|P50|P90|P95|P99) (?P<kind>TTFT|TPOT|ITL|E2EL) \(ms\): {1,40}(?P<value>\S{1,30})"
)
_ARGUMENT = re.compile(
    r"\b(?P<name>model|backend|max_concurrency|request_rate)=(?P<value>'[^']{0,200}'|[\w.+-]{1,40})[,)]"
)


def is_result(document: Json) -> bool:
    """Whether a JSON object is the result of a serving benchmark."""
    return "request_throughput" in document and ("mean_ttft_ms" in document or "output_throughput" in document)


def read_json(document: Json) -> BenchmarkRow:
    """The row of one result object.

    Raises
    ------
    FormatNotUnderstood
        It is the result of a benchmark of embeddings.
    """
    if "total_output_tokens" not in document and "output_throughput" not in document:
        raise FormatNotUnderstood("the result is of an embedding or pooling benchmark: it generated no tokens", (NAME,))
    requests = count(document.get("completed"))
    output = per_request(document.get("total_output_tokens", document.get("total_output")), requests)
    figures = ServingFigures(
        input_tokens_mean=per_request(document.get("total_input_tokens", document.get("total_input")), requests),
        output_tokens_mean=output,
        concurrency=positive(document.get("max_concurrency")),
        request_rate=rate(document.get("request_rate")),
        requests=requests,
        failed=count(document.get("failed")),
        duration_s=positive(document.get("duration")),
        ttft=_times(document, "ttft"),
        tpot=Latency() if output is not None and output <= 1 else _times(document, "tpot"),
        itl=_times(document, "itl"),
        e2e=_times(document, "e2el"),
        output_tokens_per_s=positive(document.get("output_throughput")),
        total_tokens_per_s=positive(document.get("total_token_throughput")),
        requests_per_s=positive(document.get("request_throughput")),
    )
    return row(f"{NAME}, JSON", _deployment(document), figures)


def _times(document: Json, kind: str) -> Latency:
    found: dict[str, float | None] = {}
    for statistic, names in _STATISTICS.items():
        values = (number(document.get(f"{name}_{kind}_ms")) for name in names)
        found[statistic] = next((value for value in values if value is not None), None)
    return latency(found)


def _deployment(document: Json) -> Deployment:
    """The model is in every result; the rest only where `--metadata` put it."""
    said: dict[str, object] = {}
    for name, keys in _METADATA.items():
        said[name] = next((document[key] for key in keys if document.get(key) is not None), None)
    return Deployment(
        model=text(document.get("model_id")) or text(document.get("model")),
        engine=engine_of(document.get("engine")) or engine_of(document.get("backend")),
        engine_version=text(said["engine_version"]),
        gpu=text(said["gpu"]),
        gpu_count=size(said["gpu_count"]),
        tensor_parallel_size=size(said["tensor_parallel_size"]),
        pipeline_parallel_size=size(said["pipeline_parallel_size"]),
        data_parallel_size=size(said["data_parallel_size"]),
        expert_parallel_size=size(said["expert_parallel_size"]),
        quantization=text(said["quantization"]),
        kv_cache_dtype=text(said["kv_cache_dtype"]),
    )


def has_table(pasted: str) -> bool:
    """Whether a text holds the console table."""
    return "Serving Benchmark Result" in pasted


def read_tables(pasted: str) -> Iterator[BenchmarkRow]:
    """The rows of every console table in a paste, each with the arguments printed before it."""
    known: dict[str, object] = {}
    table: dict[str, object] | None = None
    for line in pasted.splitlines():
        if _TABLE.search(line):
            if table is not None:
                yield _table_row(known, table)
            table = {}
        elif table is not None and _TABLE_END.search(line):
            yield _table_row(known, table)
            known, table = {}, None
        elif table is not None:
            table.update(_labelled(line))
        else:
            known.update(_arguments(line))
    if table is not None:
        yield _table_row(known, table)


def _labelled(line: str) -> Iterator[tuple[str, object]]:
    for label, name in _LABELS:
        at = line.find(label)
        if at >= 0 and not line[:at].strip(" #>|*-"):
            words = line[at + len(label) :].split(maxsplit=1)
            if words:
                yield name, words[0]
    time = _TIME.search(line)
    if time:
        yield f"{time['statistic'].lower()}_{time['kind'].lower()}_ms", time["value"]


def _arguments(line: str) -> Iterator[tuple[str, object]]:
    """From the `Namespace(...)` the benchmark prints first, and the lines on traffic behind it."""
    if "Namespace(" in line and len(line) < 20_000:
        for match in _ARGUMENT.finditer(line):
            yield match["name"], match["value"].strip("'")
    yield from _labelled(line)


def _table_row(known: Json, table: Json) -> BenchmarkRow:
    if "request_throughput" not in table:
        raise FormatNotUnderstood(
            "the table of the serving benchmark has no line `Request throughput (req/s):`", (NAME,)
        )
    found = read_json({**known, "output_throughput": None, **table})
    return row(f"{NAME}, table", _deployment({**known, **table}), found.figures)
