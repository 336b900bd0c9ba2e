"""How measurements are shown."""

from dataclasses import asdict, dataclass
from typing import Annotated

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
class CalibrationTaken:
    """A measurement as the catalogue holds it now."""

    catalogue_revision: Annotated[int, Doc("newest catalogue revision, which holds it", example=2)]
    outcome: Annotated[str, Doc("created, or unchanged where it was held already", example="created")]
    calibration: Annotated[CalibrationView, Doc("the measurement")]


@dataclass(frozen=True, slots=True)
class CalibrationPage:
    """Measurements in the order of their ids."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    items: Annotated[tuple[CalibrationView, ...], Doc("measurements")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


def view(record: StartupRecord) -> CalibrationView:
    """A measurement as it is shown."""
    measured = record.measurement
    shown = {name: value for name, value in asdict(measured).items() if name in CalibrationView.__slots__}
    shown |= {"status": measured.status.value, "overhead_gib": measured.overhead_gib}
    return CalibrationView(
        id=record.id,
        kind="startup",
        recorded_by=record.recorded_by,
        recorded_on=record.recorded_on.isoformat(),
        **shown,
    )
