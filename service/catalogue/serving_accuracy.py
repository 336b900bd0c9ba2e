"""Predicted against measured load tests: how far off the times and the throughput of a plan are."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from service.catalogue.records.calibration import ServingMeasurement, Status
from service.catalogue.records.model import ModelRecord
from service.catalogue.servings import ENGINE, NoLoad, layout_of, load_of
from service.sizing.corrections import checkpoint_weights, reported_weights
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import release
from service.sizing.engine.refusal import Refusal
from service.sizing.errors import SizingError
from service.sizing.fit import fit
from service.sizing.hardware import Gpu
from service.sizing.layouts import Layout, cut_by
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import weight_bits
from service.sizing.performance import Replica, vllm
from service.sizing.performance.accuracy import Run, ServingAccuracy, evaluate
from service.sizing.quantities import Doc

if TYPE_CHECKING:
    from service.catalogue.snapshot import Snapshot

BITS = {"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "nvfp4": 4, "mxfp4": 4, "int4": 4}
"""Bits of a weight by the precision that a report names."""

REQUANTISED = {"fp8": "fp8", "int8": "int8", "fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "int4": "int4"}
"""What a 16-bit checkpoint is quantised to for a run of it at such a precision."""

FOUR_BIT_SUFFIX = "-NVFP4"
"""End of the names under which 4-bit copies of other checkpoints are published."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A measured load beside the deployment it ran on: catalogue slug, model class, minor release."""

    gpu: str
    architecture: str
    release: str
    run: Run


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Measurements that have no prediction to compare with."""

    model: Annotated[str, Doc("as the measurements name it", example="Qwen/Qwen3-32B")]
    gpu: Annotated[str, Doc("catalogue slug", example="h100-sxm")]
    measurements: Annotated[int, Doc("how many", example=10)]
    reason: Annotated[str, Doc("why there is none", example="the model is not in the catalogue")]


class _CannotCompare(Exception):
    """Why a run has no prediction."""


def compared_runs(
    snapshot: "Snapshot", measurements: Iterable[ServingMeasurement]
) -> tuple[tuple[ComparedRun, ...], tuple[LeftOut, ...]]:
    """Accepted runs of vLLM beside their deployments, and those that have no prediction, by model, GPU and reason."""
    found = list[ComparedRun]()
    left = defaultdict[tuple[str, str, str], int](int)
    for each in measurements:
        if each.engine == ENGINE and each.status is Status.ACCEPTED:
            try:
                found.append(_compared(snapshot, each))
            except _CannotCompare as reason:
                left[each.model, each.gpu, str(reason)] += 1
    return tuple(found), tuple(LeftOut(model, gpu, runs, why) for (model, gpu, why), runs in sorted(left.items()))


def accuracy_by(runs: Sequence[ComparedRun], key: Callable[[ComparedRun], str]) -> Mapping[str, ServingAccuracy]:
    """Errors of the runs by a property, in its order."""
    groups = defaultdict[str, list[Run]](list)
    for each in runs:
        groups[key(each)].append(each.run)
    return {name: evaluate(group) for name, group in sorted(groups.items())}


def _compared(snapshot: "Snapshot", measured: ServingMeasurement) -> ComparedRun:
    gpu = snapshot.known_gpu(measured.gpu)
    if gpu is None:
        raise _CannotCompare("the card is not in the catalogue")
    model = served_model(snapshot, measured.model, measured.precision)
    layout = layout_of(measured)
    version = measured.engine_version
    replica = _replica(model, layout, gpu, version, measured.kv_cache_dtype or "auto")
    try:
        point = load_of(measured)
    except NoLoad as reason:
        raise _CannotCompare(str(reason)) from None
    siblings = f"{measured.model} {measured.precision} {gpu.slug} {version}"
    run = Run(f"{siblings} {layout} {measured.source}", replica, point, siblings)
    number = release(version or "")
    minor = f"{number[0]}.{number[1]}" if number else version or "not reported"
    return ComparedRun(gpu.slug, model.architecture, minor, run)


def served_model(snapshot: "Snapshot", name: str, precision: str | None) -> ModelShape:
    """What was served: the checkpoint where its weights are of that precision, else what it becomes at it."""
    record = snapshot.known_model(name)
    if record is None:
        raise _CannotCompare("the model is not in the catalogue")
    shape = _shape(record, "checkpoint")
    bits, reported = BITS.get((precision or "").lower()), reported_weights(precision or "")
    is_kind = reported is None or reported.may_be(checkpoint_weights(shape))
    if bits is None or (weight_bits(shape) == bits and is_kind):
        return shape
    if weight_bits(shape) == 16:
        return _shape(record, REQUANTISED[(precision or "").lower()])
    wanted = f"{record.name.rpartition('/')[2]}{FOUR_BIT_SUFFIX}".casefold()
    copy = next((each for each in snapshot.models if each.name.rpartition("/")[2].casefold() == wanted), None)
    if copy is None or bits != 4:
        raise _CannotCompare(f"the catalogue holds no {precision} checkpoint of it")
    return _shape(copy, "checkpoint")


def _shape(record: ModelRecord, precision: str) -> ModelShape:
    try:
        return record.shape_at(precision)
    except SizingError as error:
        raise _CannotCompare(str(error)) from None


def _replica(model: ModelShape, layout: Layout, gpu: Gpu, version: str | None, kv_cache_dtype: str) -> Replica:
    """One copy with the engine's defaults; its cache is taken to have held what it ran."""
    copy = cut_by(layout, model.experts)
    fitted = fit(model, copy, gpu, gpu.link, EngineOptions(version=version, kv_cache_dtype=kv_cache_dtype))
    if isinstance(fitted, Refusal):
        raise _CannotCompare(f"the engine's rules refuse it: {fitted.message}")
    defaults = fitted.cache.defaults
    return Replica(
        model=model,
        layout=layout,
        gpu=gpu,
        link=gpu.link,
        gpus_per_node=gpu.gpus_per_node,
        max_num_seqs=defaults.max_num_seqs,
        cache_holds=defaults.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        kv_cache_dtype=kv_cache_dtype,
        engine=vllm(version),
    )
