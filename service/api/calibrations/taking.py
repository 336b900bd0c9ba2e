"""From a pasted log or given figures to a measurement that is kept."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from service.api.calibrations.requests import StartupLogRequest, StartupRequest
from service.api.problems import FieldError, invalid, unknown
from service.catalogue.importers.gpu_match import Match, match_gpu
from service.catalogue.importers.measurements import MissingConditions, Value, startup_measurement
from service.catalogue.importers.startup_log import LogNotUnderstood, StartupLog, read_startup_log
from service.catalogue.records.calibration import StartupMeasurement, Status
from service.catalogue.records.calibration_checks import check_startup
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing.engine.defaults import batch_tier
from service.sizing.engine.device import Device
from service.sizing.engine.profile import profile_for
from service.sizing.hardware import Gpu
from service.sizing.quantities import GIB


def gpu_of(given: str | None, log: StartupLog | None, snapshot: Snapshot) -> Gpu:
    """The card of a startup, as given or as the log names it.

    Raises
    ------
    Problem
        404 for an unknown card, 400 where the log does not tell it.
    """
    if given is not None:
        try:
            return snapshot.gpu(given).gpu()
        except UnknownName as error:
            raise unknown("gpu", error.name, error.nearest, "gpu") from None
    name = log.gpu_name.value if log and log.gpu_name else None
    if name is not None:
        memory = log.gpu_total_gib.low if log and log.gpu_total_gib else None
        readings = () if memory is None else ((Decimal(str(round(memory * GIB / 1e9, 2))),),)
        verdict = match_gpu({}, name, provider="", memory=readings)
        if isinstance(verdict, Match) and verdict.gpu is not None:
            return snapshot.gpu(verdict.gpu).gpu()
    said = "does not name the GPU" if name is None else f"names the GPU {name[:100]!r}, which may be several cards"
    raise invalid((FieldError("gpu", f"the log {said}: give its catalogue slug"),))


def startup_of_log(
    text: str, conditions: StartupLogRequest | None, snapshot: Snapshot, source: str
) -> tuple[StartupMeasurement, str]:
    """The measurement that a pasted log makes, and the text to keep.

    Raises
    ------
    Problem
        400: no startup of vLLM is in it, or conditions are missing, which the problem names.
    """
    kept = storable(text)
    try:
        log = read_startup_log(kept)
    except LogNotUnderstood as error:
        raise invalid((FieldError("text", str(error)),)) from None
    gpu = gpu_of(conditions.gpu if conditions else None, log, snapshot)
    given = conditions.given() if conditions else {}
    version = log.engine_version.value if log.engine_version else given.get("engine_version")
    try:
        measurement = startup_measurement(
            log,
            source=(conditions.source if conditions else None) or source,
            gpu=gpu.slug,
            gpu_total_gib=gpu.memory_total_bytes / GIB,
            given=given,
            defaults=defaults_of(str(version), gpu) if version else {},
        )
    except MissingConditions as missing:
        raise invalid(
            tuple(FieldError(name, "the log does not say it: give it beside the text") for name in missing.names)
        ) from None
    return measurement, kept


def storable(text: str) -> str:
    """A text as the database can keep it."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def defaults_of(version: str, gpu: Gpu) -> Mapping[str, Value]:
    """Defaults of a release on a card, for what a log leaves at default."""
    profile, _ = profile_for(version)
    tier = batch_tier(profile, Device.of(gpu))
    return {
        "gpu_memory_utilization": profile.gpu_memory_utilization,
        "max_num_seqs": tier.max_num_seqs,
        "max_num_batched_tokens": tier.max_num_batched_tokens,
    }


def startup_of_figures(asked: StartupRequest, snapshot: Snapshot, source: str) -> StartupMeasurement:
    """The measurement that given figures make.

    Raises
    ------
    Problem
        404 for an unknown card.
    """
    gpu = gpu_of(asked.gpu, None, snapshot)
    defaults = defaults_of(asked.engine_version, gpu)
    assumed = [name for name in ("max_num_seqs", "max_num_batched_tokens") if getattr(asked, name) is None]
    if asked.gpu_total_gib is None:
        assumed.append("gpu_total_gib")
    tensor, pipeline, data = (
        asked.tensor_parallel_size or 1,
        asked.pipeline_parallel_size or 1,
        asked.data_parallel_size or 1,
    )
    return StartupMeasurement(
        source=asked.source or source,
        model=asked.model,
        gpu=gpu.slug,
        engine_version=asked.engine_version,
        gpu_total_gib=asked.gpu_total_gib or gpu.memory_total_bytes / GIB,
        gpu_count=tensor * pipeline * data,
        dtype=asked.dtype,
        quantization=asked.quantization,
        kv_cache_dtype=asked.kv_cache_dtype,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        decode_context_parallel_size=asked.decode_context_parallel_size or 1,
        expert_parallel=bool(asked.enable_expert_parallel),
        gpu_memory_utilization=asked.gpu_memory_utilization,
        kv_cache_memory_bytes=asked.kv_cache_memory_bytes,
        max_model_len=asked.max_model_len,
        max_num_seqs=asked.max_num_seqs or int(defaults["max_num_seqs"]),
        max_num_batched_tokens=asked.max_num_batched_tokens or int(defaults["max_num_batched_tokens"]),
        assumed=tuple(assumed),
        enforce_eager=asked.enforce_eager,
        prefix_caching=asked.enable_prefix_caching,
        note=asked.note,
        weights_gib=asked.weights_gib,
        available_kv_gib=asked.available_kv_gib,
        kv_tokens=asked.kv_tokens,
        cudagraph_gib=asked.cudagraph_gib,
    )


def checked(measurement: StartupMeasurement, snapshot: Snapshot) -> StartupMeasurement:
    """A measurement, quarantined where it cannot be or where its likes contradict it."""
    likes = [record.measurement for record in snapshot.startups if record.is_accepted]
    reasons = check_startup(measurement, [other for other in likes if _alike(other, measurement)])
    if not reasons:
        return measurement
    known = measurement.reason.split("; ") if measurement.reason else []
    joined = "; ".join(dict.fromkeys((*known, *reasons)))
    return replace(measurement, status=Status.QUARANTINED, reason=joined)


def _alike(one: StartupMeasurement, other: StartupMeasurement) -> bool:
    names = (
        "gpu",
        "quantization",
        "engine_version",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "expert_parallel",
        "max_num_seqs",
        "max_num_batched_tokens",
    )
    same = all(getattr(one, name) == getattr(other, name) for name in names)
    return same and one.model.casefold() == other.model.casefold()
