"""Does one layout on one machine start, and does it hold the workload?"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from service.sizing.answer import LayoutAnswer, Rejection
from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import profile_for
from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity import Setting, first_refusal
from service.sizing.errors import Indivisible
from service.sizing.hardware import Gpu, Link
from service.sizing.kv_cache.planner import (
    CacheLayout,
    CachePlan,
    cache_layout,
    gib,
    largest_context,
    plan_cache,
    sequences_refusal,
)
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from service.sizing.quantities import ceil_div
from service.sizing.question import Machine, Question
from service.sizing.roofline import DEFAULT_BANDWIDTH_FRACTION, step_ms
from service.sizing.weights import StageWeights, stage_weights
from service.sizing.working_space import Band, working_space

ROUTER_KERNEL_MAJORS = (9, 10)
"""Compute capability majors with the engine's router kernels (vLLM 0.33 `fused_moe/router/gate_linear.py`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """What a layout is on a GPU under the engine's rules, whatever is asked of it."""

    weights: tuple[StageWeights, ...]
    cache: CacheLayout
    bands: tuple[Band, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Feasible:
    """A layout that starts and holds the workload.

    Attributes
    ----------
    options : EngineOptions
        The caller's options with what the plan adds (`max_model_len`, `max_num_seqs`, `max_num_batched_tokens`).
    total_bytes, usable_bytes : int
        Memory a process sees on a GPU, and what the engine may take of it.
    rooms, safe_rooms : tuple of int
        Bytes left for the cache on each stage, at the centre and at the pessimistic end of the working space.
    printed : CachePlan
        The cache as the engine prints it, at the centre.
    tight : int
        The stage with the fewest blocks.
    sequences : int
        Conversations of one copy.
    needed_bytes : int
        What they keep on a GPU of the tight stage.
    capacity : int
        Conversations that fit over all copies, at the pessimistic end.
    step_ms : float
        Time of one decode step at the workload's concurrency, by the roofline.
    warnings : tuple of str
        What the plan had to change or assume.
    """

    question: Question
    machine: Machine
    layout: Layout
    options: EngineOptions
    fitted: Fitted
    total_bytes: int
    usable_bytes: int
    rooms: tuple[int, ...]
    safe_rooms: tuple[int, ...]
    printed: CachePlan
    tight: int
    sequences: int
    needed_bytes: int
    capacity: int
    step_ms: float
    warnings: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens a second over all copies, by the roofline."""
        sequences = min(self.question.workload.concurrent_sequences, self.sequences * self.layout.data_parallel_size)
        return sequences / self.step_ms * 1000


def judge(question: Question, machine: Machine, layout: Layout) -> Feasible | Rejection:
    """Judge one layout; the first reason against it, as the engine would meet it."""
    verdict = _judge(question, machine, layout)
    return verdict if isinstance(verdict, Feasible) else rejection(machine.gpu, layout, verdict)


def rejection(gpu: Gpu, layout: Layout | None, refusal: Refusal, gpu_count: int | None = None) -> Rejection:
    """A refusal as it is answered."""
    return Rejection(
        gpu=gpu.slug,
        gpu_count=layout.gpu_count if layout else gpu_count,
        layout=layout_answer(layout) if layout else None,
        code=refusal.code,
        message=refusal.message,
        engine_error=refusal.engine_error,
        fix=refusal.fix,
    )


def layout_answer(layout: Layout) -> LayoutAnswer:
    """A layout as it is answered."""
    return LayoutAnswer(
        layout.tensor_parallel_size,
        layout.pipeline_parallel_size,
        layout.data_parallel_size,
        layout.expert_parallel,
        layout.decode_context_parallel_size,
    )


@lru_cache(maxsize=16384)
def fit(model: ModelShape, layout: Layout, gpu: Gpu, link: Link, options: EngineOptions) -> Fitted | Refusal:
    """Weights, cache layout and working space, or the engine's first refusal."""
    profile, _ = profile_for(options.version)
    refusal = first_refusal(Setting(model, layout, gpu, options, profile.first))
    if refusal:
        return refusal
    try:
        cache = cache_layout(model, layout, Device.of(gpu), options)
        if isinstance(cache, Refusal):
            return cache
        router_kernels = gpu.compute_capability is not None and gpu.compute_capability[0] in ROUTER_KERNEL_MAJORS
        weights = stage_weights(model, layout, router_kernels)
    except Indivisible as error:
        return Refusal(
            "dimension_not_divisible",
            f"a dimension of {error.dimension} does not split evenly over {error.ranks} GPUs",
            str(error),
            "choose a smaller tensor parallel size",
        )
    bands = tuple(
        working_space(
            model,
            layout,
            gpu,
            link,
            stage=stage,
            max_num_seqs=cache.defaults.max_num_seqs,
            max_num_batched_tokens=cache.defaults.max_num_batched_tokens,
            graph_sizes=len(cache.defaults.cuda_graph_sizes),
        )
        for stage in range(layout.pipeline_parallel_size)
    )
    return Fitted(weights, cache, bands)


def _judge(question: Question, machine: Machine, layout: Layout) -> Feasible | Refusal:
    model, workload, gpu = question.model, question.workload, machine.gpu
    if workload.context_tokens > (longest := _longest(question)):
        return Refusal(
            "context_too_long",
            f"conversations of {workload.context_tokens} tokens are longer than the {longest} that can be served",
            fix=f"ask for at most {longest} tokens",
        )
    sequences = ceil_div(workload.concurrent_sequences, layout.data_parallel_size)
    options, warnings = _with_sequences(question.engine, model, layout, gpu, sequences)
    for _ in range(2):
        settled = _settle(question, machine, layout, options, sequences)
        if isinstance(settled, Refusal | Feasible):
            break
        options = settled
    else:
        raise AssertionError("lowering the sequences settles at once")
    return replace(settled, warnings=(*warnings, *settled.warnings)) if isinstance(settled, Feasible) else settled


def _longest(question: Question) -> int:
    """The longest conversation that the model and a given limit allow."""
    given = question.engine.max_model_len
    longest = question.model.max_context_tokens
    return longest if given is None or given == -1 else min(longest, given)


def _with_sequences(
    options: EngineOptions, model: ModelShape, layout: Layout, gpu: Gpu, sequences: int
) -> tuple[EngineOptions, tuple[str, ...]]:
    """Options that let a copy run `sequences` at once, where the engine's default is lower and none was given."""
    cache = cache_layout_or_refusal(model, layout, gpu, options)
    if options.max_num_seqs is not None or isinstance(cache, Refusal) or sequences <= cache.defaults.max_num_seqs:
        return options, ()
    tokens = options.max_num_batched_tokens
    if tokens is None and sequences > cache.defaults.max_num_batched_tokens:
        tokens = sequences
    return replace(options, max_num_seqs=sequences, max_num_batched_tokens=tokens), (
        f"the flags raise the engine's default of {cache.defaults.max_num_seqs} sequences at once to {sequences}",
    )


def cache_layout_or_refusal(
    model: ModelShape, layout: Layout, gpu: Gpu, options: EngineOptions
) -> CacheLayout | Refusal:
    """The layout of the cache, an indivisible state as a refusal."""
    try:
        return cache_layout(model, layout, Device.of(gpu), options)
    except Indivisible as error:
        return Refusal("dimension_not_divisible", str(error), str(error))


def _settle(
    question: Question, machine: Machine, layout: Layout, options: EngineOptions, sequences: int
) -> Feasible | Refusal | EngineOptions:
    """Judge with these options; other options where the engine's default number of sequences must be lowered."""
    model, workload, gpu = question.model, question.workload, machine.gpu
    fitted = fit(model, layout, gpu, machine.link, options)
    if isinstance(fitted, Refusal):
        return fitted
    cache, assumed = fitted.cache, question.assumptions
    total = assumed.gpu_memory_bytes or gpu.memory_total_bytes
    usable = ceil(total * cache.defaults.gpu_memory_utilization)
    space = assumed.working_space_bytes
    bands = fitted.bands if space is None else tuple(Band(space, space, space) for _ in fitted.bands)
    loaded = [weights.total_bytes for weights in fitted.weights]
    if options.kv_cache_memory_bytes is not None:
        rooms = safe_rooms = tuple(options.kv_cache_memory_bytes for _ in loaded)
        taken = max(weights + ceil(band.high) for weights, band in zip(loaded, bands, strict=True))
        if taken + options.kv_cache_memory_bytes > total:
            return _does_not_fit(max(loaded), max(band.high for band in bands), total - options.kv_cache_memory_bytes)
    else:
        rooms = tuple(usable - weights - ceil(band.value) for weights, band in zip(loaded, bands, strict=True))
        safe_rooms = tuple(usable - weights - ceil(band.high) for weights, band in zip(loaded, bands, strict=True))
        if min(safe_rooms) <= 0:
            tight = min(range(len(loaded)), key=lambda stage: safe_rooms[stage])
            return _does_not_fit(loaded[tight], bands[tight].high, usable)
    length = _settled_length(question, cache, safe_rooms)
    if isinstance(length, Refusal):
        return length
    if length != cache.defaults.max_model_len or (length != model.default_context_tokens and not cache.auto_fit):
        changed = replace(options, max_model_len=length)
        refitted = fit(model, layout, gpu, machine.link, changed)
        if isinstance(refitted, Refusal):
            return refitted
        cache = refitted.cache
        fitted = replace(fitted, cache=cache)
        options = changed
    safe = plan_cache(cache, safe_rooms)
    printed = plan_cache(cache, rooms)
    if isinstance(safe, Refusal):
        return safe
    if isinstance(printed, Refusal):
        return printed
    refusal = sequences_refusal(cache, safe.num_blocks)
    if refusal is not None:
        if question.engine.max_num_seqs is not None or safe.num_blocks < sequences:
            return refusal
        return replace(options, max_num_seqs=safe.num_blocks)
    tight = min(
        range(len(rooms)),
        key=lambda stage: safe_rooms[stage] // cache.block_bytes[stage] if cache.block_bytes[stage] else 0,
    )
    kept = cache.conversation_blocks(workload.context_tokens)
    needed = sequences * kept * cache.block_bytes[tight]
    held = safe.num_blocks // kept if kept else cache.defaults.max_num_seqs
    if held < sequences:
        return Refusal(
            "cache_too_small",
            f"{sequences} conversations of {workload.context_tokens} tokens need {gib(needed)} GiB of cache on each "
            f"GPU; {gib(max(0, safe_rooms[tight]))} GiB are left, which hold {held}",
            fix=f"ask for {held * layout.data_parallel_size} conversations or fewer" if held else None,
        )
    mean_cached = tuple(
        cache.conversation_bytes(max(1, workload.prompt_tokens + workload.output_tokens // 2), stage)
        for stage in range(layout.pipeline_parallel_size)
    )
    return Feasible(
        question=question,
        machine=machine,
        layout=layout,
        options=options,
        fitted=replace(fitted, bands=bands),
        total_bytes=total,
        usable_bytes=usable,
        rooms=rooms,
        safe_rooms=safe_rooms,
        printed=printed,
        tight=tight,
        sequences=sequences,
        needed_bytes=needed,
        capacity=held * layout.data_parallel_size,
        step_ms=step_ms(
            model,
            layout,
            gpu,
            machine.link,
            machine.gpus_per_node,
            sequences=sequences,
            cached_bytes=mean_cached,
            bandwidth_fraction=assumed.memory_bandwidth_fraction or DEFAULT_BANDWIDTH_FRACTION,
        ),
        warnings=(),
    )


def _settled_length(question: Question, cache: CacheLayout, safe_rooms: tuple[int, ...]) -> int | Refusal:
    """The longest context to serve.

    A given length is taken as it is (the planner judges it). Without one, the engine's own if a request of it fits or
    the cache memory was given; else the longest that fits, if the workload's conversations are no longer.
    """
    options, wanted = question.engine, question.workload.context_tokens
    own = cache.defaults.max_model_len
    if cache.auto_fit:
        return own
    if options.max_model_len is not None or options.kv_cache_memory_bytes is not None:
        return max(own, wanted) if options.max_model_len is None else own
    longest = largest_context(cache, safe_rooms)
    if longest == own:
        return max(own, wanted)
    if longest >= wanted:
        return longest
    return Refusal(
        "cache_too_small",
        f"one conversation of {wanted} tokens does not fit in the {gib(min(safe_rooms))} GiB left for the cache; "
        f"{longest} tokens do"
        if longest
        else "no memory is left for the cache",
        fix=f"ask for at most {longest} tokens" if longest else None,
    )


def _does_not_fit(weights: int, space: float, usable: int) -> Refusal:
    """Weights and working space leave nothing for the cache."""
    return Refusal(
        "does_not_fit",
        f"weights of {gib(weights)} GiB and a working space of up to {gib(round(space))} GiB do not leave room for a "
        f"cache in {gib(usable)} GiB a GPU",
        "No available memory for the cache blocks." if weights + space > usable else None,
    )
