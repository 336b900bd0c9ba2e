"""Measured startups as the catalogue keeps them, and as the sizing rules take them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.catalogue.measurement import MeasurementRecord
from service.catalogue.records.calibration import StartupMeasurement
from service.sizing.calibration import StartupPoint
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import release
from service.sizing.layouts import Layout
from service.sizing.quantities import GIB


@dataclass(frozen=True, slots=True)
class StartupRecord(MeasurementRecord[StartupMeasurement]):
    """A measured startup in the catalogue."""


def point_of(record: StartupRecord) -> StartupPoint | None:
    """What a startup tells the sizing rules; None: it lacks a figure, or something else took memory too."""
    measured = record.measurement
    overhead, weights = measured.overhead_gib, measured.weights_gib
    number = release(measured.engine_version or "")
    if not record.is_accepted or overhead is None or weights is None or number is None:
        return None
    if measured.speculative or measured.lora or measured.engine_version is None:
        return None
    return StartupPoint(
        id=record.id,
        source=measured.source,
        model=measured.model,
        version=measured.engine_version,
        release=number,
        layout=Layout(
            measured.tensor_parallel_size,
            measured.pipeline_parallel_size,
            measured.data_parallel_size,
            measured.expert_parallel,
            measured.decode_context_parallel_size,
        ),
        options=EngineOptions(
            version=measured.engine_version,
            gpu_memory_utilization=measured.gpu_memory_utilization,
            max_model_len=measured.max_model_len,
            max_num_seqs=measured.max_num_seqs,
            max_num_batched_tokens=measured.max_num_batched_tokens,
            enforce_eager=measured.enforce_eager,
        ),
        weights_bytes=round(weights * GIB),
        overhead_bytes=round(overhead * GIB),
    )


def points_by_model(records: Iterable[StartupRecord]) -> Mapping[str, Mapping[str, tuple[StartupPoint, ...]]]:
    """Usable startups by model (in lower case) and GPU slug."""
    found: defaultdict[str, defaultdict[str, list[StartupPoint]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if (point := point_of(record)) is not None:
            found[record.measurement.model.casefold()][record.measurement.gpu].append(point)
    return {model: {gpu: tuple(points) for gpu, points in by_gpu.items()} for model, by_gpu in found.items()}
