"""What a configuration was read as: parameters by tensor class, bytes by tensor parallel size, cache, context."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from service.sizing.checkpoint import all_modules, published_bytes
from service.sizing.engine.kv_dtypes import checkpoint_dtype
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import NEWEST, release
from service.sizing.engine.validity import Refusal, Setting, layout, shapes
from service.sizing.hardware import Gpu, Link, Vendor
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token
from service.sizing.layouts import Layout
from service.sizing.model.modules import TensorClass
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import attention_kinds
from service.sizing.quantities import GIB, Doc
from service.sizing.weights import active_parameters, parameters, stage_weights

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)

ANY_CARD = Gpu(
    slug="any",
    name="any card",
    vendor=Vendor.NVIDIA,
    architecture="any",
    compute_capability=(9, 0),
    memory_total_bytes=80 * GIB,
    memory_driver_bytes=None,
    memory_bandwidth_bytes_per_s=1.0,
    dense_flops={},
    link=Link.NVLINK,
    link_bandwidth_bytes_per_s=1.0,
    gpus_per_domain=8,
    gpus_per_node=8,
    has_rules=True,
)
"""Stands for the card where a rule asks about model and layout alone."""


@dataclass(frozen=True, slots=True)
class ClassAnswer:
    """The weights of one kind."""

    tensor_class: Annotated[TensorClass, Doc("what the weights are for", example="experts")]
    parameters: Annotated[int, Doc("parameters of the checkpoint", "elements", 45097156608)]
    active_parameters: Annotated[int, Doc("those one token visits", "elements", 11274289152)]
    checkpoint_bytes: Annotated[int, Doc("as published, scales included", "bytes", 90194313216)]


@dataclass(frozen=True, slots=True)
class TensorShareAnswer:
    """What each GPU loads at one tensor parallel size."""

    tensor_parallel_size: Annotated[int, Doc("GPUs that split every layer", example=4)]
    weights_bytes: Annotated[
        int | None,
        Doc("parameters and buffers on one GPU of compute capability 9.0 or 10.x; null: not valid", "bytes"),
    ]
    refusal: Annotated[str | None, Doc("why the engine does not take this size; null: it does")]
    engine_error: Annotated[str | None, Doc("the same in the engine's words")]


@dataclass(frozen=True, slots=True)
class ModelReading:
    """What a configuration was read as."""

    architecture: Annotated[str, Doc("the engine's model class", example="LlamaForCausalLM")]
    model_type: Annotated[str, Doc("`model_type` of the language model", example="llama")]
    status: Annotated[str, Doc("exact: every rule restated and proved; estimated: a formula with known error")]
    parameters: Annotated[int, Doc("parameters of the published checkpoint", "elements", 70553706496)]
    active_parameters: Annotated[int, Doc("parameters one token visits", "elements", 70553706496)]
    classes: Annotated[tuple[ClassAnswer, ...], Doc("the parameters by what they are for, most first")]
    checkpoint_bytes: Annotated[
        int, Doc("size of the published weights, counted; next-token layers left out", "bytes", 141107412992)
    ]
    weights_bytes: Annotated[int, Doc("parameters and buffers as loaded on one GPU", "bytes", 141107945728)]
    weights_by_tensor_parallel_size: Annotated[
        tuple[TensorShareAnswer, ...], Doc("what each GPU loads when 1, 2, 4 or 8 split every layer")
    ]
    dtype: Annotated[str, Doc("type of unquantised weights and of activations", example="bfloat16")]
    quantization: Annotated[str | None, Doc("the engine's name of the weight quantisation", example="fp8")]
    layers: Annotated[int, Doc("decoder layers", example=80)]
    attention: Annotated[tuple[str, ...], Doc("what the layers keep, and how many of each")]
    kv_cache_dtype: Annotated[str, Doc("what `--kv-cache-dtype auto` means for it", example="auto")]
    kv_bytes_per_token: Annotated[
        int, Doc("what one more token adds to a long conversation, over the whole model, unsharded", "bytes", 327680)
    ]
    max_context_tokens: Annotated[int, Doc("longest context the engine accepts", "tokens", 131072)]
    supports_pipeline: Annotated[bool, Doc("whether the engine can split it into pipeline stages")]
    engine_refusals: Annotated[tuple[str, ...], Doc("why vLLM 0.33 does not start it at all, in its words")]
    notes: Annotated[tuple[str, ...], Doc("what a reader should know about this model")]


def reading(model: ModelShape) -> ModelReading:
    """A model as it was read."""
    classes = by_class(model)
    refusals = (model.architecture_refusal, model.quantization_refusal, model.build_refusal)
    return ModelReading(
        architecture=model.architecture,
        model_type=model.model_type,
        status=model.status.value,
        parameters=sum(each.parameters for each in classes),
        active_parameters=sum(each.active_parameters for each in classes),
        classes=classes,
        checkpoint_bytes=sum(each.checkpoint_bytes for each in classes),
        weights_bytes=stage_weights(model, Layout())[0].total_bytes,
        weights_by_tensor_parallel_size=tuple(tensor_share(model, size) for size in TENSOR_PARALLEL_SIZES),
        dtype=model.dtype,
        quantization=model.quantization,
        layers=len(model.layers),
        attention=tuple(f"{kind.layers} {kind.text}" for kind in attention_kinds(model)),
        kv_cache_dtype=checkpoint_dtype(model, "auto"),
        kv_bytes_per_token=kv_bytes_per_token(model, "auto"),
        max_context_tokens=model.max_context_tokens,
        supports_pipeline=model.supports_pipeline,
        engine_refusals=tuple(refusal for refusal in refusals if refusal),
        notes=model.notes,
    )


def by_class(model: ModelShape) -> tuple[ClassAnswer, ...]:
    """Parameters of each tensor class, those of the next-token layers left out and a tied head counted once."""
    all_parameters, active, stored = Counter[TensorClass](), Counter[TensorClass](), Counter[TensorClass]()
    for module, count in all_modules(model):
        all_parameters[module.tensor_class] += count * parameters(module)
        active[module.tensor_class] += count * active_parameters(module)
        stored[module.tensor_class] += count * published_bytes(module, model.element_bytes)
    return tuple(
        ClassAnswer(kind, number, active[kind], stored[kind]) for kind, number in all_parameters.most_common() if number
    )


def tensor_share(model: ModelShape, tensor_parallel_size: int) -> TensorShareAnswer:
    """What each GPU loads at a tensor parallel size, or why the engine does not take it."""
    split = Layout(tensor_parallel_size)
    if refusal := layout_refusal(model, split):
        return TensorShareAnswer(tensor_parallel_size, None, refusal.message, refusal.engine_error)
    return TensorShareAnswer(tensor_parallel_size, stage_weights(model, split)[0].total_bytes, None, None)


def layout_refusal(model: ModelShape, split: Layout) -> Refusal | None:
    """The first reason against a layout that lies in the model, whatever the card."""
    setting = Setting(model, split, ANY_CARD, EngineOptions(), release(NEWEST.version) or ())
    return next((refusal for rule in (*layout.RULES, *shapes.RULES) if (refusal := rule(setting))), None)
