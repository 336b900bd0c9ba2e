"""Measured load tests and links as the catalogue keeps them, and as the performance model takes them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.catalogue.measurement import MeasurementRecord
from service.catalogue.records.calibration import LinkMeasurement, ServingFigures, ServingMeasurement
from service.catalogue.records.calibration_checks import bus_factor
from service.sizing.hardware import Link
from service.sizing.layouts import Layout
from service.sizing.performance.calibration import MeasuredPoint
from service.sizing.performance.link_tests import LinkTest
from service.sizing.performance.measured import ServingPoint

ENGINE = "vllm"
"""The engine whose load tests correct predictions."""

KEPT_UP = 0.9
"""Least share of the asked rate that a steady open-loop run answers."""


@dataclass(frozen=True, slots=True)
class ServingRecord(MeasurementRecord[ServingMeasurement]):
    """A load test in the catalogue.

    Attributes
    ----------
    report : str or None
        Digest of the kept text that it was read from.
    """

    report: str | None = None


@dataclass(frozen=True, slots=True)
class LinkRecord(MeasurementRecord[LinkMeasurement]):
    """A link test in the catalogue.

    Attributes
    ----------
    report : str or None
        Digest of the kept text that it was read from.
    """

    report: str | None = None


class NoLoad(ValueError):
    """A load test tells nothing of the load of a copy; the message says why."""


def point_of(record: ServingRecord) -> ServingPoint | None:
    """What a load test tells the performance model; None: it is not accepted, of another engine, or tells no load."""
    measured = record.measurement
    if not record.is_accepted or measured.engine != ENGINE:
        return None
    try:
        point = load_of(measured)
    except NoLoad:
        return None
    return ServingPoint(
        id=record.id,
        source=measured.source,
        version=measured.engine_version or "",
        layout=layout_of(measured),
        precision=measured.precision or "",
        point=point,
        is_shipped=record.is_shipped,
    )


def layout_of(measured: ServingMeasurement) -> Layout:
    """How the model was split."""
    return Layout(
        measured.tensor_parallel_size,
        measured.pipeline_parallel_size,
        measured.data_parallel_size,
        measured.expert_parallel_size > 1,
        measured.decode_context_parallel_size,
    )


def load_of(measured: ServingMeasurement) -> MeasuredPoint:
    """The load of one copy, and what it took.

    Raises
    ------
    NoLoad
        The load is not known or was not steady, or the engine did not run as plans are predicted.
    """
    figures = measured.figures
    if measured.enforce_eager or measured.speculative:
        raise NoLoad("it ran without CUDA graphs or with speculation")
    load, prompt, output = steady_load(figures), figures.input_tokens_mean, figures.output_tokens_mean
    if load is None or prompt is None or output is None:
        raise NoLoad("the load is not known")
    ttft, tpot = figures.ttft.central_ms, figures.tpot.central_ms
    if ttft is not None and tpot is not None and ttft > output * tpot:
        raise NoLoad("requests waited longer than they were served: how many ran is not known")
    copies, rate = copies_of(measured), figures.output_tokens_per_s
    point = MeasuredPoint(
        concurrency=load / copies,
        prompt_tokens=max(1, round(prompt)),
        output_tokens=max(1, round(output)),
        ttft_ms=ttft,
        tpot_ms=tpot,
        output_tokens_per_second=None if rate is None else rate / copies,
    )
    if point.token_ms is None:
        raise NoLoad("no time per output token")
    return point


def points_by_model(records: Iterable[ServingRecord]) -> Mapping[str, Mapping[str, tuple[ServingPoint, ...]]]:
    """Usable load tests by model (in lower case) and GPU slug."""
    found: defaultdict[str, defaultdict[str, list[ServingPoint]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if (point := point_of(record)) is not None:
            found[record.measurement.model.casefold()][record.measurement.gpu].append(point)
    return {model: {gpu: tuple(points) for gpu, points in by_gpu.items()} for model, by_gpu in found.items()}


def link_test_of(record: LinkRecord) -> LinkTest:
    """A link test as the performance model takes it: out of place, as the engine sums, else in place."""
    measured = record.measurement
    points = measured.out_of_place or measured.in_place
    return LinkTest(
        id=record.id,
        source=measured.source,
        operation=measured.operation.value,
        link=None if measured.link is None else Link(measured.link),
        ranks=measured.world_size,
        nodes=measured.nodes,
        bus_factor=bus_factor(measured.operation, measured.world_size),
        points=tuple((each.size_bytes, each.time_us * 1e-6) for each in points),
    )


def link_tests_by_gpu(records: Iterable[LinkRecord]) -> Mapping[str, tuple[LinkTest, ...]]:
    """Accepted link tests of at least two GPUs, by GPU slug."""
    found = defaultdict[str, list[LinkTest]](list)
    for record in records:
        if record.is_accepted and record.measurement.world_size > 1:
            found[record.measurement.gpu].append(link_test_of(record))
    return {gpu: tuple(tests) for gpu, tests in found.items()}


def copies_of(measured: ServingMeasurement) -> float:
    """Copies that shared the load: data-parallel ones, and whole deployments side by side."""
    return max(1.0, measured.gpu_count / (measured.tensor_parallel_size * measured.pipeline_parallel_size))


def steady_load(figures: ServingFigures) -> float | None:
    """Requests at once over the whole deployment.

    Of a rate that was answered, by Little's law; else as many as were allowed. None where nothing bounded them.
    """
    if figures.has_rate and (figures.answered_per_s or 0.0) >= KEPT_UP * (figures.request_rate or 0.0):
        return figures.in_flight
    return figures.concurrency
