"""Measured startups as the catalogue keeps them, and as the sizing rules take them."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date

from service.catalogue.records.calibration import StartupMeasurement, Status
from service.sizing.calibration import StartupPoint
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import release
from service.sizing.layouts import Layout
from service.sizing.quantities import GIB

NOT_MEASURED = frozenset({"source", "note", "status", "reason"})
"""What a report says beside conditions and figures: two reports that differ in nothing else are of one startup."""


@dataclass(frozen=True, slots=True)
class StartupRecord:
    """A measured startup in the catalogue.

    Attributes
    ----------
    measurement : StartupMeasurement
        Conditions, figures, source and status.
    recorded_by, recorded_on : str, date
        Who put it into the catalogue, and when.
    """

    measurement: StartupMeasurement
    recorded_by: str
    recorded_on: date

    @property
    def id(self) -> str:
        """Digest of conditions and figures: the same startup has the same id, whoever reports it."""
        return digest(self.measurement)

    @property
    def is_accepted(self) -> bool:
        """Whether it may correct predictions."""
        return self.measurement.status is Status.ACCEPTED


def digest(measurement: StartupMeasurement) -> str:
    """Sixteen hexadecimal digits that name a startup by its conditions and figures."""
    measured = {name: value for name, value in asdict(measurement).items() if name not in NOT_MEASURED}
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:16]


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
