"""How measurements are shown."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.startups import StartupRecord
from service.sizing.quantities import Doc


@dataclass(frozen=True, slots=True)
class CalibrationView:
    """A measured startup. Sizes are GiB per GPU."""

    id: Annotated[str, Doc("digest of conditions and figures", example="3f2a9c1e7b604d58")]
    kind: Annotated[str, Doc("what was measured", example="startup")]
    status: Annotated[str, Doc("accepted, quarantined or withdrawn", example="accepted")]
    reason: Annotated[str, Doc("why it is not accepted; empty where it is")]
    source: Annotated[str, Doc("where it was published or who measured it")]
    recorded_by: Annotated[str, Doc("who put it into the catalogue", example="seed")]
    recorded_on: Annotated[str, Doc("when", example="2026-11-30")]
    model: Annotated[str, Doc("as given to vLLM", example="Qwen/Qwen3-32B")]
    gpu: Annotated[str, Doc("catalogue slug", example="h100-sxm")]
    gpu_total_gib: Annotated[float | None, Doc("memory as CUDA shows it", "GiB", 79.18)]
    engine_version: Annotated[str | None, Doc("vLLM release as printed", example="0.19.0")]
    quantization: Annotated[str | None, Doc("the engine's name of it")]
    tensor_parallel_size: Annotated[int, Doc("GPUs that split every layer", example=1)]
    pipeline_parallel_size: Annotated[int, Doc("stages that split the layers", example=1)]
    data_parallel_size: Annotated[int, Doc("copies that share the load", example=1)]
    expert_parallel: Annotated[bool, Doc("whole experts over ranks", example=False)]
    gpu_memory_utilization: Annotated[float | None, Doc("share of the GPU's memory", example=0.9)]
    max_model_len: Annotated[int | None, Doc("longest context", "tokens", 8192)]
    max_num_seqs: Annotated[int | None, Doc("sequences of a step", example=1024)]
    max_num_batched_tokens: Annotated[int | None, Doc("tokens of a step", "tokens", 8192)]
    assumed: Annotated[tuple[str, ...], Doc("conditions taken to be the defaults")]
    enforce_eager: Annotated[bool | None, Doc("whether CUDA graphs were off")]
    weights_gib: Annotated[float | None, Doc("loaded", "GiB", 61.03)]
    available_kv_gib: Annotated[float | None, Doc("left for the cache", "GiB", 6.52)]
    overhead_gib: Annotated[float | None, Doc("utilisation x total - weights - cache", "GiB", 3.71)]
    kv_tokens: Annotated[int | None, Doc("what the cache holds", "tokens", 26704)]
    note: Annotated[str, Doc("what the reporter said beside")]


@dataclass(frozen=True, slots=True)
class LatencyView:
    """A distribution of times, ms; null: not reported."""

    mean_ms: Annotated[float | None, Doc("mean", "ms", 61.9)]
    median_ms: Annotated[float | None, Doc("median", "ms", 58.1)]
    p90_ms: Annotated[float | None, Doc("90th percentile", "ms")]
    p95_ms: Annotated[float | None, Doc("95th percentile", "ms")]
    p99_ms: Annotated[float | None, Doc("99th percentile", "ms", 110.8)]


@dataclass(frozen=True, slots=True)
class LoadTestView:
    """A load test of a deployment. Rates and counts are of the whole deployment."""

    id: Annotated[str, Doc("digest of conditions and figures", example="3f2a9c1e7b604d58")]
    kind: Annotated[str, Doc("what was measured", example="serving")]
    status: Annotated[str, Doc("accepted, quarantined or withdrawn", example="accepted")]
    reason: Annotated[str, Doc("why it is not accepted; empty where it is")]
    source: Annotated[str, Doc("where it was published or who measured it")]
    recorded_by: Annotated[str, Doc("who put it into the catalogue", example="seed")]
    recorded_on: Annotated[str, Doc("when", example="2026-11-30")]
    measured_on: Annotated[str | None, Doc("day of the run", example="2026-11-30")]
    note: Annotated[str, Doc("what to know about how it was measured", example="vllm bench serve, JSON")]
    model: Annotated[str, Doc("as given to the engine", example="Qwen/Qwen3-32B")]
    gpu: Annotated[str, Doc("catalogue slug", example="h100-sxm")]
    gpu_count: Annotated[int, Doc("GPUs of the whole deployment", example=2)]
    engine: Annotated[str, Doc("what served it", example="vllm")]
    engine_version: Annotated[str | None, Doc("its release", example="0.19.0")]
    tensor_parallel_size: Annotated[int, Doc("GPUs that split every layer", example=2)]
    pipeline_parallel_size: Annotated[int, Doc("stages that split the layers", example=1)]
    data_parallel_size: Annotated[int, Doc("copies that shared the load", example=1)]
    expert_parallel_size: Annotated[int, Doc("ranks that whole experts are spread over; 1: none", example=1)]
    decode_context_parallel_size: Annotated[int, Doc("ranks that share one cache", example=1)]
    precision: Annotated[str | None, Doc("of the weights", example="fp8")]
    kv_cache_dtype: Annotated[str | None, Doc("type of the cache", example="auto")]
    enforce_eager: Annotated[bool | None, Doc("whether CUDA graphs were off")]
    speculative: Annotated[str | None, Doc("method of speculative decoding; null: none, or not said")]
    input_tokens_mean: Annotated[float | None, Doc("mean prompt length", "tokens", 1024)]
    output_tokens_mean: Annotated[float | None, Doc("mean answer length", "tokens", 128)]
    concurrency: Annotated[float | None, Doc("most requests at once; null: not bounded", example=16)]
    request_rate: Annotated[float | None, Doc("asked rate; null: as fast as answered, or not said", "1/s", 2.5)]
    requests: Annotated[int | None, Doc("requests answered", example=200)]
    failed: Annotated[int | None, Doc("requests that failed", example=0)]
    duration_s: Annotated[float | None, Doc("length of the run", "s", 40)]
    ttft: Annotated[LatencyView, Doc("time to first token")]
    tpot: Annotated[LatencyView, Doc("time per output token after the first, averaged over a request")]
    itl: Annotated[LatencyView, Doc("time between two tokens")]
    e2e: Annotated[LatencyView, Doc("time of a request")]
    output_tokens_per_s: Annotated[float | None, Doc("output tokens", "1/s", 640)]
    total_tokens_per_s: Annotated[float | None, Doc("prompt and output tokens", "1/s", 5760)]
    requests_per_s: Annotated[float | None, Doc("requests answered", "1/s", 5)]
    derived: Annotated[tuple[str, ...], Doc("figures that were not measured but follow from others")]


@dataclass(frozen=True, slots=True)
class LinkPointView:
    """One message size of a link test."""

    size_bytes: Annotated[int, Doc("size of the message", "bytes", 268435456)]
    time_us: Annotated[float, Doc("time of one call", "us", 1119.8)]
    algbw_gb_per_s: Annotated[float, Doc("size over time", "GB/s", 239.71)]
    busbw_gb_per_s: Annotated[float, Doc("the same times the operation's bus factor", "GB/s", 419.49)]
    wrong: Annotated[int | None, Doc("wrong elements; null: not looked for", example=0)]


@dataclass(frozen=True, slots=True)
class LinkTestView:
    """A link test: a collective over GPUs."""

    id: Annotated[str, Doc("digest of conditions and figures", example="3f2a9c1e7b604d58")]
    kind: Annotated[str, Doc("what was measured", example="link")]
    status: Annotated[str, Doc("accepted, quarantined or withdrawn", example="accepted")]
    reason: Annotated[str, Doc("why it is not accepted; empty where it is")]
    source: Annotated[str, Doc("where it was published or who measured it")]
    recorded_by: Annotated[str, Doc("who put it into the catalogue", example="seed")]
    recorded_on: Annotated[str, Doc("when", example="2026-11-30")]
    note: Annotated[str, Doc("what the reporter said beside")]
    gpu: Annotated[str, Doc("catalogue slug", example="h100-sxm")]
    link: Annotated[str | None, Doc("what joins the GPUs; null: the catalogue's link of the card", example="nvlink")]
    operation: Annotated[str, Doc("the collective", example="all_reduce")]
    world_size: Annotated[int, Doc("GPUs that took part", example=8)]
    nodes: Annotated[int, Doc("machines they are in", example=1)]
    gpus: Annotated[tuple[str, ...], Doc("names of the cards as the driver gives them")]
    out_of_place: Annotated[tuple[LinkPointView, ...], Doc("results into another buffer, by message size")]
    in_place: Annotated[tuple[LinkPointView, ...], Doc("results into the same buffer, by message size")]


MeasurementView = CalibrationView | LoadTestView | LinkTestView


@dataclass(frozen=True, slots=True)
class CalibrationTaken:
    """A measurement as the catalogue holds it now."""

    catalogue_revision: Annotated[int, Doc("newest catalogue revision, which holds it", example=2)]
    outcome: Annotated[str, Doc("created, or unchanged where it was held already", example="created")]
    calibration: Annotated[CalibrationView, Doc("the measurement")]


@dataclass(frozen=True, slots=True)
class TestTaken:
    """What became of one test of a report."""

    outcome: Annotated[str, Doc("created, or unchanged where it was held already", example="created")]
    calibration: Annotated[LoadTestView | LinkTestView, Doc("the measurement as it is held")]


@dataclass(frozen=True, slots=True)
class ReportTaken:
    """A report's measurements as the catalogue holds them now."""

    catalogue_revision: Annotated[int, Doc("newest catalogue revision, which holds them", example=2)]
    kind: Annotated[str, Doc("serving or link", example="serving")]
    created: Annotated[int, Doc("measurements that are new", example=1)]
    items: Annotated[tuple[TestTaken, ...], Doc("every test, in the order of the report")]


@dataclass(frozen=True, slots=True)
class StatusSet:
    """A measurement after its status was said."""

    catalogue_revision: Annotated[int, Doc("newest catalogue revision, which holds it", example=3)]
    outcome: Annotated[str, Doc("changed, or unchanged where it was so already", example="changed")]
    calibration: Annotated[MeasurementView, Doc("the measurement as it is held")]


@dataclass(frozen=True, slots=True)
class CalibrationPage:
    """Measurements of every kind, in the order of their ids."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    items: Annotated[tuple[MeasurementView, ...], Doc("measurements; `kind` tells what each is")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


def view(record: StartupRecord) -> CalibrationView:
    """A measured startup as it is shown."""
    shown = _shown(record, "startup")
    shown["overhead_gib"] = record.measurement.overhead_gib
    return CalibrationView(**_fields(shown, CalibrationView))


def serving_view(record: ServingRecord) -> LoadTestView:
    """A load test as it is shown."""
    measured, shown = record.measurement, _shown(record, "serving")
    shown |= shown["figures"]
    for time in ("ttft", "tpot", "itl", "e2e"):
        shown[time] = LatencyView(**shown[time])
    if not measured.figures.has_rate:
        shown["request_rate"] = None
    if measured.measured_on is not None:
        shown["measured_on"] = measured.measured_on.isoformat()
    return LoadTestView(**_fields(shown, LoadTestView))


def link_view(record: LinkRecord) -> LinkTestView:
    """A link test as it is shown."""
    shown = _shown(record, "link")
    for way in ("out_of_place", "in_place"):
        shown[way] = tuple(LinkPointView(**point) for point in shown[way])
    return LinkTestView(**_fields(shown, LinkTestView))


def measurement_view(record: StartupRecord | ServingRecord | LinkRecord) -> MeasurementView:
    """A measurement of whichever kind as it is shown."""
    match record:
        case StartupRecord():
            return view(record)
        case ServingRecord():
            return serving_view(record)
        case LinkRecord():
            return link_view(record)


def _shown(record: StartupRecord | ServingRecord | LinkRecord, kind: str) -> dict[str, Any]:
    """A measurement's fields, and what every view says beside."""
    return asdict(record.measurement) | {
        "id": record.id,
        "kind": kind,
        "status": record.measurement.status.value,
        "recorded_by": record.recorded_by,
        "recorded_on": record.recorded_on.isoformat(),
    }


def _fields(shown: Mapping[str, Any], form: type[CalibrationView | LoadTestView | LinkTestView]) -> dict[str, Any]:
    """Those that a view has."""
    return {field.name: shown[field.name] for field in fields(form)}
