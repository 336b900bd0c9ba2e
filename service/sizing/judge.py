"""Does one layout on one machine start, and does it hold the workload?"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, wraps
from math import ceil
from typing import Any, TypeVar

from service.sizing.answer import LayoutAnswer, Rejection
from service.sizing.demand import Demand
from service.sizing.engine.defaults import AUTO_FIT, resolve_defaults
from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import profile_for
from service.sizing.engine.refusal import Fix, Refusal
from service.sizing.fit import Fitted, Neighbours, Points, corrected, fit
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
from service.sizing.layouts import Layout, cut_by
from service.sizing.model.shape import ModelShape
from service.sizing.outside import no_room_outside
from service.sizing.quantities import ceil_div
from service.sizing.question import Assumptions, Machine, Question
from service.sizing.working_space import Band


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """One copy of a layout with its memory divided.

    Attributes
    ----------
    options : EngineOptions
        The options with what the plan adds (`max_model_len`, a lowered `max_num_seqs`).
    total_bytes, usable_bytes : int
        Memory a process sees on a GPU, and what the engine may take of it.
    rooms, safe_rooms : tuple of int
        Bytes left for the cache on each stage, at the centre and at the pessimistic end of the working space.
    printed : CachePlan
        The cache as the engine prints it, at the centre.
    safe_blocks, safe_length : int
        Blocks and longest context at the pessimistic end.
    tight : int
        The stage with the fewest blocks.
    """

    options: EngineOptions
    fitted: Fitted
    total_bytes: int
    usable_bytes: int
    rooms: tuple[int, ...]
    safe_rooms: tuple[int, ...]
    printed: CachePlan
    safe_blocks: int
    safe_length: int
    tight: int


@dataclass(frozen=True, slots=True, eq=False)
class Feasible:
    """A layout that starts and holds the workload.

    Attributes
    ----------
    settled : Settled
        One copy.
    sequences : int
        Conversations of one copy.
    conversation_bytes : int
        What one conversation keeps on a GPU of the tight stage.
    held : int
        Conversations that fit in one copy, at the pessimistic end.
    warnings : tuple of str
        What the plan had to change.
    demand : Demand or None
        The load that people make of it, where they are given.
    known : dict
        What was worked out of it by the functions marked `once`.
    """

    question: Question
    machine: Machine
    layout: Layout
    settled: Settled
    sequences: int
    conversation_bytes: int
    held: int
    warnings: tuple[str, ...]
    demand: Demand | None = None
    known: dict[Callable[..., Any], Any] = field(default_factory=dict[Callable[..., Any], Any], init=False, repr=False)

    @property
    def needed_bytes(self) -> int:
        """What the conversations of a copy keep on a GPU of the tight stage."""
        return self.sequences * self.conversation_bytes

    @property
    def capacity(self) -> int:
        """Conversations that fit over all copies, at the pessimistic end."""
        return self.held * self.layout.data_parallel_size


Found = TypeVar("Found")


def once(figure: Callable[[Feasible], Found]) -> Callable[[Feasible], Found]:
    """A figure that is asked for several times while one answer is found and written: kept with the layout."""

    @wraps(figure)
    def known(found: Feasible) -> Found:
        if figure not in found.known:
            found.known[figure] = figure(found)
        return found.known[figure]

    return known


WORTH_ASKING = 8
"""Conversations shorter than this part of the longest that fits alone are no advice: better have fewer of them."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheTooSmall:
    """One copy that starts, but does not hold its conversations.

    Attributes
    ----------
    context, sequences : int
        Tokens of a conversation, and conversations of a copy.
    held : int
        Conversations that fit in one copy, at the pessimistic end.
    copies : int
        Copies of the layout.
    raised : bool
        Whether the flags raise the engine's default number of sequences.
    """

    settled: Settled
    context: int
    sequences: int
    held: int
    copies: int
    raised: bool

    @property
    def code(self) -> str:
        """The stable code of the reason."""
        return "cache_too_small"

    def refusal(self) -> Refusal:
        """The reason in words, with the longest or the most conversations that would be held."""
        settled, cache, context = self.settled, self.settled.fitted.cache, self.context
        room = gib(max(0, settled.safe_rooms[settled.tight]))
        if context > settled.safe_length:
            return Refusal(
                self.code,
                f"one conversation of {context} tokens does not fit in the {room} GiB left for the cache; "
                f"{settled.safe_length} tokens do",
                fixes=_shorter(cache, settled.safe_blocks, self.copies, self.sequences, settled.safe_length),
            )
        needed = self.sequences * cache.conversation_bytes(context, settled.tight)
        return Refusal(
            self.code,
            f"{self.sequences} conversations of {context} tokens need {gib(needed)} GiB of cache on each GPU; {room} "
            f"GiB are left, which hold {self.held}",
            # Fewer than the engine's default need less working space too: how many fit then is not known here.
            fixes=(fewer_conversations(self.held * self.copies),) if self.held and not self.raised else (),
        )


@dataclass(frozen=True, eq=False)
class Refused:
    """A layout that does not start, or not hold the workload, and the first reason, put in words where it is told."""

    layout: Layout
    reason: Refusal | CacheTooSmall

    @property
    def code(self) -> str:
        """Of the reason."""
        return self.reason.code

    @cached_property
    def refusal(self) -> Refusal:
        """The reason in words."""
        return self.reason if isinstance(self.reason, Refusal) else self.reason.refusal()


def judge(question: Question, machine: Machine, layout: Layout) -> Feasible | Refused:
    """Judge one layout; the first reason against it, as the engine would meet it."""
    verdict = _judge(question, machine, layout)
    return verdict if isinstance(verdict, Feasible) else Refused(layout, verdict)


def rejection(gpu: Gpu, refused: Refused, fix: str) -> Rejection:
    """A refusal as it is answered."""
    return Rejection(
        gpu=gpu.slug,
        gpu_count=refused.layout.gpu_count,
        layout=layout_answer(refused.layout),
        code=refused.refusal.code,
        message=refused.refusal.message,
        engine_error=refused.refusal.engine_error,
        fix=fix,
    )


@lru_cache(maxsize=4096)
def layout_answer(layout: Layout) -> LayoutAnswer:
    """A layout as it is answered."""
    return LayoutAnswer(
        layout.tensor_parallel_size,
        layout.pipeline_parallel_size,
        layout.data_parallel_size,
        layout.expert_parallel,
        layout.decode_context_parallel_size,
    )


def _judge(question: Question, machine: Machine, layout: Layout) -> Feasible | Refusal | CacheTooSmall:
    model, workload, gpu, link = question.model, question.workload, machine.gpu, machine.link
    if workload.context_tokens > (longest := _longest(question)):
        return Refusal(
            "context_too_long",
            f"conversations of {workload.context_tokens} tokens are longer than the {longest} that can be served",
            fixes=_longer(question, longest),
        )
    sequences = ceil_div(workload.concurrent_sequences, layout.data_parallel_size)
    copy = cut_by(layout, model.experts)
    options, warnings = _with_sequences(question.engine, model, gpu, sequences)
    context = workload.context_tokens
    beyond = context if context > model.default_context_tokens else 0
    points = question.calibrations.get(gpu.slug, ())
    neighbours = question.neighbours.get(gpu.slug, ())
    settled = settle(model, copy, gpu, link, options, question.assumptions, beyond, points, neighbours)
    if isinstance(settled, Refusal):
        return settled
    if context > settled.safe_length:
        return CacheTooSmall(settled, context, sequences, 0, layout.data_parallel_size, bool(warnings))
    cache = settled.fitted.cache
    kept = cache.conversation_blocks(context)
    # A model that keeps no cache holds what the engine runs at once.
    held = settled.safe_blocks // kept if kept else cache.defaults.max_num_seqs
    if held < sequences:
        return CacheTooSmall(settled, context, sequences, held, layout.data_parallel_size, bool(warnings))
    return Feasible(
        question=question,
        machine=machine,
        layout=layout,
        settled=settled,
        sequences=sequences,
        conversation_bytes=kept * cache.block_bytes[settled.tight],
        held=held,
        warnings=warnings,
    )


def _longer(question: Question, longest: int) -> tuple[Fix, ...]:
    """What lets a conversation be served that is longer than the model or a given limit allow."""
    context = question.workload.context_tokens
    shorter = shorter_conversations(longest)
    if context > question.model.max_context_tokens:
        return (shorter,)
    return shorter, Fix(f"use --max-model-len {context}", (("engine.max_model_len", context),))


def fewer_conversations(most: int) -> Fix:
    """To ask for at most as many."""
    words = "ask for 1 conversation" if most == 1 else f"ask for {most} conversations or fewer"
    return Fix(words, (("workload.concurrent_sequences", most),))


def shorter_conversations(tokens: int) -> Fix:
    """To ask for conversations of at most as many tokens."""
    return Fix(f"ask for at most {tokens} tokens", (("workload.context_tokens", tokens),))


def _shorter(cache: CacheLayout, blocks: int, copies: int, sequences: int, longest: int) -> tuple[Fix, ...]:
    """The longest conversations of which `sequences` fit in a copy, up to `longest` tokens."""
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cache.conversation_blocks(middle) * sequences <= blocks else (low, middle - 1)
    if low * WORTH_ASKING >= longest > 0:
        return (shorter_conversations(low),)
    if longest == 0:
        return ()
    fewer = fewer_conversations(max(1, blocks // max(1, cache.conversation_blocks(longest))) * copies)
    shorter = shorter_conversations(longest)
    words = f"{shorter.words} and {fewer.words.removeprefix('ask for ')}"
    return (Fix(words, shorter.changes + fewer.changes),)


def _longest(question: Question) -> int:
    """The longest conversation that the model and a given limit allow."""
    given = question.engine.max_model_len
    longest = question.model.max_context_tokens
    return longest if given is None or given == AUTO_FIT else min(longest, given)


@lru_cache(maxsize=4096)
def _default_batch(model: ModelShape, gpu: Gpu, options: EngineOptions) -> tuple[int, int] | None:
    """Sequences and tokens of a step by default, on any layout; None where the options contradict each other."""
    profile, _ = profile_for(options.version)
    defaults = resolve_defaults(model, Layout(), Device.of(gpu), options, profile)
    return None if isinstance(defaults, Refusal) else (defaults.max_num_seqs, defaults.max_num_batched_tokens)


def _with_sequences(
    options: EngineOptions, model: ModelShape, gpu: Gpu, sequences: int
) -> tuple[EngineOptions, tuple[str, ...]]:
    """Options that let a copy run `sequences` at once, where the engine's default is lower and none was given."""
    batch = _default_batch(model, gpu, options) if options.max_num_seqs is None else None
    if batch is None or sequences <= batch[0]:
        return options, ()
    tokens = options.max_num_batched_tokens
    if tokens is None and sequences > batch[1]:
        tokens = sequences
    return replace(options, max_num_seqs=sequences, max_num_batched_tokens=tokens), (
        f"the flags raise the engine's default of {batch[0]} sequences at once to {sequences}",
    )


@lru_cache(maxsize=4096)
def settle(
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    link: Link,
    options: EngineOptions,
    assumed: Assumptions,
    beyond: int,
    points: Points = (),
    neighbours: Neighbours = (),
    *,
    lowered: bool = False,
) -> Settled | Refusal:
    """Divide the memory of one copy, whatever conversations it is to hold.

    `beyond` is a conversation longer than the engine's own limit, which must then be raised (0: none); `points` are
    measured startups of the model on the GPU, `neighbours` those of others; `lowered` says that the sequences were
    lowered to the state blocks already.
    """
    fitted = fit(model, layout, gpu, link, options)
    if isinstance(fitted, Refusal):
        return fitted
    space = assumed.working_space_bytes
    if space is not None:
        fitted = replace(fitted, bands=(Band(space, space, space),) * len(fitted.bands))
    elif points or neighbours:
        fitted = corrected(fitted, model, layout, gpu, link, options, points, neighbours)
    total = assumed.gpu_memory_bytes or gpu.memory_total_bytes
    usable = ceil(total * fitted.cache.defaults.gpu_memory_utilization)
    rooms = _rooms(fitted, options, total, usable)
    if isinstance(rooms, Refusal):
        return rooms
    central, safe = rooms
    length = _settled_length(options, fitted.cache, safe, beyond)
    if isinstance(length, Refusal):
        return length
    cache = fitted.cache
    if length != cache.defaults.max_model_len:
        options = replace(options, max_model_len=length)
        cache = _with_context(model, layout, gpu, options, cache)
        if isinstance(cache, Refusal):
            return cache
    safe_plan, printed = plan_cache(cache, safe), plan_cache(cache, central)
    if isinstance(safe_plan, Refusal):
        return safe_plan
    if isinstance(printed, Refusal):
        return printed
    if refusal := sequences_refusal(cache, safe_plan.num_blocks):
        if options.max_num_seqs is not None or lowered:
            return refusal
        fewer = replace(options, max_num_seqs=safe_plan.num_blocks)
        return settle(model, layout, gpu, link, fewer, assumed, beyond, points, neighbours, lowered=True)
    blocks = [room // block if block else 0 for room, block in zip(safe, cache.block_bytes, strict=True)]
    return Settled(
        options=options,
        fitted=replace(fitted, cache=cache),
        total_bytes=total,
        usable_bytes=usable,
        rooms=central,
        safe_rooms=safe,
        printed=printed,
        safe_blocks=safe_plan.num_blocks,
        safe_length=safe_plan.max_model_len,
        tight=blocks.index(min(blocks)),
    )


def _rooms(
    fitted: Fitted, options: EngineOptions, total: int, usable: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | Refusal:
    """Bytes left for the cache on each stage, at the centre and at the pessimistic end; a given size is both."""
    loaded = fitted.loaded
    given = options.kv_cache_memory_bytes
    if given is None and (refusal := no_room_outside(total, usable, fitted.cache.defaults.gpu_memory_utilization)):
        return refusal
    limit = usable if given is None else total - given
    safe = tuple(limit - weights - ceil(band.high) for weights, band in zip(loaded, fitted.bands, strict=True))
    tight = safe.index(min(safe))
    if safe[tight] < 0 or (safe[tight] == 0 and given is None):
        weights, space = loaded[tight], fitted.bands[tight].high
        return Refusal(
            "does_not_fit",
            f"weights of {gib(weights)} GiB and a working space of up to {gib(ceil(space))} GiB do not fit beside a "
            f"cache in the {gib(max(0, limit))} GiB that a GPU has for them",
            "No available memory for the cache blocks." if given is None else None,
        )
    if given is not None:
        return (given,) * len(loaded), (given,) * len(loaded)
    return tuple(limit - weights - ceil(band.value) for weights, band in zip(loaded, fitted.bands, strict=True)), safe


def _with_context(
    model: ModelShape, layout: Layout, gpu: Gpu, options: EngineOptions, cache: CacheLayout
) -> CacheLayout | Refusal:
    """The same cache for another longest context, laid out anew only where the length decides more than itself."""
    defaults, length = cache.defaults, options.max_model_len
    assert length is not None
    decides = not defaults.chunked_prefill or cache.keeps_state
    if decides or defaults.max_num_seqs * length < defaults.max_num_batched_tokens:
        return cache_layout(model, layout, Device.of(gpu), options)
    return replace(cache, defaults=replace(defaults, max_model_len=length))


def _settled_length(
    options: EngineOptions, cache: CacheLayout, safe_rooms: tuple[int, ...], beyond: int
) -> int | Refusal:
    """The longest context to serve.

    A given length is taken as it is (the planner judges it). Without one, the engine's own, or a longer conversation's,
    if a request of it fits or the cache memory was given; else the longest that fits.
    """
    own = cache.defaults.max_model_len
    if cache.auto_fit or options.max_model_len is not None:
        return own
    if options.kv_cache_memory_bytes is not None:
        return max(own, beyond)
    longest = largest_context(cache, safe_rooms)
    if longest == own:
        return max(own, beyond)
    if longest:
        return longest
    return Refusal(
        "cache_too_small", f"the {gib(max(0, min(safe_rooms)))} GiB left for the cache do not hold a single token"
    )
