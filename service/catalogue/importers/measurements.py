"""From what a log or a file says, with what the caller adds, to a measurement that can be kept."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from service.catalogue.importers.benchmark import BenchmarkRow
from service.catalogue.importers.benchmark.fields import engine_of
from service.catalogue.importers.nccl import LinkTest
from service.catalogue.importers.startup_log import Outcome, Reading, Readings, StartupLog
from service.catalogue.records.calibration import (
    Collective,
    LinkMeasurement,
    ServingFigures,
    ServingMeasurement,
    StartupMeasurement,
    Status,
)
from service.catalogue.records.calibration_checks import check_link, check_serving, check_startup, engine_gpus

M = TypeVar("M", StartupMeasurement, ServingMeasurement, LinkMeasurement)

Value = str | int | float | bool

_ALWAYS: Mapping[str, Value] = {
    "pipeline_parallel_size": 1,
    "tensor_parallel_size": 1,
    "data_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "enable_expert_parallel": False,
    "enforce_eager": False,
    "enable_lora": False,
    "kv_cache_dtype": "auto",
    "speculative": "none",
}
"""Defaults that are the same in every version of vLLM from 0.6 to 0.33."""

_BY_VERSION = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
"""Defaults that depend on version and GPU, which the caller knows."""

_NEEDED = (
    "engine_version",
    "model",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "max_model_len",
)


class MissingConditions(ValueError):
    """A measurement cannot be kept without these.

    Attributes
    ----------
    names : tuple of str
        What is missing, named as in the log or file.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"needed and not given: {', '.join(names)}")
        self.names = names


def startup_measurement(
    log: StartupLog,
    *,
    source: str,
    gpu: str,
    gpu_total_gib: float | None = None,
    given: Mapping[str, Value] | None = None,
    defaults: Mapping[str, Value] | None = None,
) -> StartupMeasurement:
    """The measurement a startup log makes.

    Parameters
    ----------
    log : StartupLog
        What the log says.
    source, gpu : str
        Who reported it; catalogue slug of the card.
    gpu_total_gib : float or None
        The card's memory as the catalogue knows it (GiB), used where the log does not print it.
    given : mapping or None
        Conditions the caller states, by their names in the log. Where the log says otherwise, the measurement is
        quarantined.
    defaults : mapping or None
        The defaults of this version and GPU for conditions the log leaves at default; what is taken from here is listed
        as assumed.

    Returns
    -------
    StartupMeasurement
        Accepted, or quarantined with its reasons.

    Raises
    ------
    MissingConditions
        A condition without which the figures mean nothing is neither in the log nor given.
    """
    settled = _Settled(log, given or {}, defaults or {})
    missing = tuple(name for name in _NEEDED if settled.value(name) is None)
    if log.weights_gib is None and log.available_kv_gib is None and log.kv_tokens is None and log.gpu_blocks is None:
        missing = (*missing, "weights_gib", "available_kv_gib")
    if missing:
        raise MissingConditions(missing)
    tensor, pipeline, data = (settled.count(f"{name}_parallel_size") or 1 for name in ("tensor", "pipeline", "data"))
    total = log.gpu_total_gib.low if log.gpu_total_gib else gpu_total_gib
    measurement = StartupMeasurement(
        source=source,
        engine_version=settled.text("engine_version"),
        engine=log.engine.value if log.engine else None,
        model=settled.text("model") or "",
        gpu=gpu,
        gpu_total_gib=total,
        gpu_count=tensor * pipeline * data,
        dtype=settled.text("dtype"),
        quantization=_none(settled.text("quantization")),
        kv_cache_dtype=settled.text("kv_cache_dtype"),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        decode_context_parallel_size=settled.count("decode_context_parallel_size") or 1,
        expert_parallel=bool(settled.value("enable_expert_parallel")),
        gpu_memory_utilization=None if log.reserved_kv_gib else settled.number("gpu_memory_utilization"),
        kv_cache_memory_bytes=log.kv_cache_memory_bytes.value if log.kv_cache_memory_bytes else None,
        max_model_len=settled.count("max_model_len"),
        max_num_seqs=settled.count("max_num_seqs"),
        max_num_batched_tokens=settled.count("max_num_batched_tokens"),
        assumed=(*settled.assumed, *(["gpu_total_gib"] if log.gpu_total_gib is None and total is not None else [])),
        enforce_eager=_flag(settled.value("enforce_eager")),
        prefix_caching=_flag(settled.value("enable_prefix_caching")),
        speculative=_none(settled.text("speculative")),
        lora=bool(settled.value("enable_lora")),
        other_arguments="; ".join(f"{name}={value}" for name, value in log.other_arguments) or None,
        weights_gib=_high(log.weights_gib),
        available_kv_gib=_low(log.available_kv_gib),
        kv_tokens=_low(log.kv_tokens),
        gpu_blocks=_low(log.gpu_blocks),
        max_concurrency=_low(log.max_concurrency),
        concurrency_tokens=_low(log.concurrency_tokens),
        cudagraph_gib=_high(log.cudagraph_gib),
        cudagraph_estimate_gib=_high(log.cudagraph_estimate_gib),
        activation_peak_gib=_high(log.activation_peak_gib),
        non_torch_gib=_high(log.non_torch_gib),
        consumed_gib=_high(log.consumed_gib),
    )
    return _judged(measurement, (*_doubts(log), *settled.disagreements(), *check_startup(measurement)))


def _doubts(log: StartupLog) -> Iterator[str]:
    """Why the figures of a log may not be those of an ordinary startup."""
    yield from log.contradictions
    if log.outcome is Outcome.FAILED and log.failure is not None:
        yield f"the engine did not start: {log.failure.kind}"
    if log.device is not None and log.device.value not in ("cuda", "rocm"):
        yield f"it ran on {log.device.value}, not on a GPU with rules"
    if log.cpu_offload_gib is not None and log.cpu_offload_gib.value > 0:
        yield f"{log.cpu_offload_gib.value:g} GiB of weights are in host memory"
    if log.num_gpu_blocks_override is not None:
        yield "the number of blocks was overridden: it says nothing about memory"


class _Settled:
    """Each condition of a log as it is settled: stated, given, or the default."""

    def __init__(self, log: StartupLog, given: Mapping[str, Value], defaults: Mapping[str, Value]) -> None:
        self._log = log
        self._given = given
        self._fallback = {
            **{name: value for name, value in _ALWAYS.items() if name in log.defaults},
            **{name: defaults[name] for name in _BY_VERSION if name in log.defaults and name in defaults},
        }

    def value(self, name: str) -> Value | None:
        stated = _stated(self._log, name)
        return stated.value if stated else self._given.get(name, self._fallback.get(name))

    def text(self, name: str) -> str | None:
        value = self.value(name)
        return value if isinstance(value, str) else None

    def count(self, name: str) -> int | None:
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        value = self.value(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def assumed(self) -> tuple[str, ...]:
        return tuple(
            name
            for name in _BY_VERSION
            if name in self._fallback and name not in self._given and getattr(self._log, name) is None
        )

    def disagreements(self) -> Iterator[str]:
        for name, value in self._given.items():
            stated = _stated(self._log, name)
            if stated and stated.value != value:
                yield f"{name} was given as {value}, the log says {stated.value} (line {stated.line})"


def _stated(log: StartupLog, name: str) -> Reading[Value] | None:
    reading: object = getattr(log, name, None)
    return cast("Reading[Value]", reading) if isinstance(reading, Reading) else None


def serving_measurement(
    row: BenchmarkRow, *, source: str, gpu: str, given: Mapping[str, Value] | None = None, note: str = ""
) -> ServingMeasurement:
    """The measurement a load test makes.

    Parameters
    ----------
    row : BenchmarkRow
        What the file says.
    source, gpu : str
        Who reported it; catalogue slug of the card.
    given : mapping or None
        What the caller states: conditions by their names in `ServingMeasurement`, `enable_expert_parallel`, lengths and
        concurrency. Where the file says otherwise, the measurement is quarantined.
    note : str
        What else to know.

    Raises
    ------
    MissingConditions
        Something without which the figures mean nothing is neither in the file nor given.
    """
    told = _Told(row, given or {})
    sizes = [told.size(f"{name}_parallel_size") for name in ("tensor", "pipeline", "data")]
    tensor, pipeline, data = (size or 1 for size in sizes)
    count = told.size("gpu_count") or tensor * pipeline * data
    figures = told.figures()
    needed: dict[str, object] = {
        "model": told.text("model"),
        "engine": told.engine(),
        "engine_version": told.version(),
        "tensor_parallel_size": sizes[0] or (1 if told.size("gpu_count") == 1 else None),
        "input_tokens_mean": figures.input_tokens_mean,
        "output_tokens_mean": figures.output_tokens_mean,
        "concurrency": figures.concurrency or figures.request_rate,
        "tpot": figures.tpot.central_ms if figures.tpot.central_ms is not None else figures.output_tokens_per_s,
    }
    missing = tuple(name for name, value in needed.items() if value is None)
    if missing:
        raise MissingConditions(missing)
    measurement = ServingMeasurement(
        source=source,
        model=told.text("model") or "",
        engine=told.engine() or "",
        engine_version=told.version(),
        gpu=gpu,
        gpu_count=count,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        expert_parallel_size=row.expert_parallel_size or (tensor * data if told.spreads_experts() else 1),
        decode_context_parallel_size=told.size("decode_context_parallel_size") or 1,
        precision=told.text("precision"),
        kv_cache_dtype=told.text("kv_cache_dtype"),
        enforce_eager=_flag(told.value("enforce_eager")),
        speculative=_none(told.text("speculative")),
        figures=figures,
        note="; ".join(filter(None, (row.format, *row.notes, note))),
    )
    simulated = () if row.measured else ("its figures were simulated or estimated, not measured",)
    doubts = check_serving(measurement, tolerance=row.tolerance)
    return _judged(measurement, (*simulated, *told.disagreements(), *_idle(measurement, row.replicas), *doubts))


def _idle(measurement: ServingMeasurement, replicas: int) -> Iterator[str]:
    """More GPUs than the layout takes may have shared the load, or idled: nobody knows."""
    taken = engine_gpus(measurement) * replicas
    if measurement.gpu_count != taken:
        yield (
            f"{measurement.gpu_count} GPUs, of which the layout takes {taken}: copies that share the load are data "
            "parallel"
        )


_IN_FIGURES = ("input_tokens_mean", "output_tokens_mean", "concurrency")


class _Told:
    """What a row says, and beside it the caller."""

    def __init__(self, row: BenchmarkRow, given: Mapping[str, Value]) -> None:
        self._row = row
        self._given = given

    def _stated(self, name: str) -> Value | None:
        if name in _IN_FIGURES:
            return cast("Value | None", getattr(self._row.figures, name))
        if name == "enable_expert_parallel":
            size = self._row.expert_parallel_size
            return None if size is None else size > 1
        # The file calls the precision of the weights their quantisation.
        return cast("Value | None", getattr(self._row, "quantization" if name == "precision" else name, None))

    def value(self, name: str) -> Value | None:
        stated = self._stated(name)
        return self._given.get(name) if stated is None else stated

    def text(self, name: str) -> str | None:
        value = self.value(name)
        return None if value is None else str(value)

    def size(self, name: str) -> int | None:
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def engine(self) -> str | None:
        named = self.text("engine")
        return named and (engine_of(named) or named.lower())

    def version(self) -> str | None:
        named = self.text("engine_version")
        return named and re.sub(r"^v(?=\d)", "", named)

    def spreads_experts(self) -> bool:
        return bool(self.value("enable_expert_parallel"))

    def figures(self) -> ServingFigures:
        added = {name: self.value(name) for name in _IN_FIGURES}
        numbers = {name: float(value) for name, value in added.items() if isinstance(value, int | float)}
        return replace(self._row.figures, **numbers)

    def disagreements(self) -> Iterator[str]:
        for name, value in self._given.items():
            stated = self._stated(name)
            if stated is not None and _plain(stated) != _plain(value):
                yield f"{name} was given as {value}, the report says {stated}"


def _plain(value: Value) -> Value:
    """A value without what spellings of it differ in."""
    return value.casefold().removeprefix("v") if isinstance(value, str) else value


def link_measurement(
    test: LinkTest, *, source: str, gpu: str, given: Mapping[str, Value] | None = None, note: str = ""
) -> LinkMeasurement:
    """The measurement a link test makes.

    Parameters
    ----------
    test : LinkTest
        What the text says.
    source, gpu : str
        Who reported it; catalogue slug of the cards.
    given : mapping or None
        What the caller states: `operation`, `world_size`, `nodes`, `link`. Where the text says otherwise, the
        measurement is quarantined.
    note : str
        What else to know.

    Raises
    ------
    MissingConditions
        Operation, number of GPUs or of machines are neither in the text nor given.
    """
    added = given or {}
    stated = {"operation": test.operation, "world_size": test.world_size, "nodes": test.nodes}
    known = {name: added.get(name) if value is None else value for name, value in stated.items()}
    missing = tuple(name for name, value in known.items() if value is None)
    if missing:
        raise MissingConditions(missing)
    disagreements = (
        f"{name} was given as {added[name]}, the test says {value}"
        for name, value in stated.items()
        if value is not None and name in added and added[name] != value
    )
    measurement = LinkMeasurement(
        source=source,
        gpu=gpu,
        operation=Collective(str(known["operation"])),
        world_size=_size(known["world_size"]),
        nodes=_size(known["nodes"]),
        gpus=test.gpus,
        in_place=test.in_place,
        out_of_place=test.out_of_place,
        link=_text(added.get("link")),
        note=note,
    )
    return _judged(measurement, (*test.contradictions, *disagreements, *check_link(measurement)))


def _judged(measurement: M, reasons: Iterable[str]) -> M:
    distinct = "; ".join(dict.fromkeys(reasons))
    return replace(measurement, status=Status.QUARANTINED, reason=distinct) if distinct else measurement


N = TypeVar("N", int, float)


def _low(readings: Readings[N] | None) -> N | None:
    return readings.low if readings else None


def _high(readings: Readings[N] | None) -> N | None:
    return readings.high if readings else None


def _none(value: str | None) -> str | None:
    return None if value == "none" else value


def _flag(value: Value | None) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Value | None) -> str | None:
    return None if value is None else str(value)


def _size(value: Value | None) -> int:
    return value if isinstance(value, int) and value > 0 else 1
