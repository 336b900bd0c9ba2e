"""From memory to blocks, tokens and concurrency, as the engine prints them, or its refusal.

Source: vLLM 0.33 `v1/core/kv_cache_planning.py: get_kv_cache_configs`, `v1/core/kv_cache_utils.py`; earlier releases by
their profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor

from service.sizing.engine.defaults import AUTO_FIT, EngineDefaults, resolve_defaults
from service.sizing.engine.device import Device
from service.sizing.engine.kv_dtypes import resolve_kv_cache_dtype
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import EngineProfile, TokenLine, profile_for
from service.sizing.engine.refusal import Refusal, use
from service.sizing.kv_cache.groups import Group, group_layers
from service.sizing.kv_cache.layers import layer_specs, stage_counts
from service.sizing.kv_cache.packed import packed_grouping
from service.sizing.kv_cache.setting import CacheSetting
from service.sizing.kv_cache.specs import FULL_FAMILY, WINDOW_FAMILY, CacheKind, CacheSpec
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from service.sizing.quantities import GIB, ceil_div, round_up

GUIDE = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


@dataclass(frozen=True, slots=True, eq=False)
class CacheLayout:
    """How the cache of a model is laid out on a parallel layout, whatever memory there is.

    Attributes
    ----------
    profile : EngineProfile
        The rules applied.
    defaults : EngineDefaults
        Engine arguments after defaults.
    auto_fit : bool
        Whether the engine is asked to fit the context to memory.
    block_size : int
        Tokens of a block as the engine prints it; groups may have others.
    dtype : str
        Type the cache is stored in.
    kernels : tuple of str
        Attention backends.
    groups : tuple of Group
        Layers under one block table each.
    block_bytes : tuple of int
        Bytes of one block on each pipeline stage: the widest group decides.
    token_bytes : tuple of int
        What one more token of a long conversation adds on each stage.
    context_ranks : int
        Ranks a conversation's tokens are spread over.
    keeps_state : bool
        Whether any layer is recurrent.
    warnings, notes : tuple of str
        What the engine would warn of; where an installation may differ.
    """

    profile: EngineProfile
    defaults: EngineDefaults
    auto_fit: bool
    block_size: int
    dtype: str
    kernels: tuple[str, ...]
    groups: tuple[Group, ...]
    block_bytes: tuple[int, ...]
    token_bytes: tuple[int, ...]
    context_ranks: int
    keeps_state: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def group_blocks_reserved(self, tokens: int) -> tuple[int, ...]:
        """Blocks one request of `tokens` may hold at once, by group."""
        return tuple(
            group.blocks_reserved(
                tokens,
                in_flight_tokens=self.defaults.in_flight_tokens,
                encoder_tokens=self.defaults.encoder_tokens,
                context_ranks=self.context_ranks,
            )
            for group in self.groups
        )

    def blocks_reserved(self, tokens: int) -> int:
        """Blocks one request of `tokens` may hold at once."""
        return sum(self.group_blocks_reserved(tokens))

    def group_blocks_kept(self, tokens: int) -> tuple[int, ...]:
        """Blocks a conversation of `tokens` keeps between steps, by group."""
        return tuple(group.blocks_kept(tokens, self.context_ranks) for group in self.groups)

    def conversation_blocks(self, tokens: int) -> int:
        """Blocks a conversation of `tokens` keeps between steps."""
        return sum(group.blocks_kept(tokens, self.context_ranks) for group in self.groups)

    def conversation_bytes(self, tokens: int, stage: int) -> int:
        """Bytes a conversation of `tokens` keeps on one GPU of a stage."""
        return self.conversation_blocks(tokens) * self.block_bytes[stage]


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The cache as the engine prints it at startup.

    Attributes
    ----------
    max_model_len : int
        Longest context in tokens, after fitting.
    num_blocks : int
        Blocks of one copy: the fewest of any rank.
    tokens : int
        The printed cache size.
    max_concurrency : float
        The printed number of requests of the longest context.
    blocks_per_request : tuple of int
        Blocks reserved by such a request, by group.
    """

    max_model_len: int
    num_blocks: int
    tokens: int
    max_concurrency: float
    blocks_per_request: tuple[int, ...]


def cache_layout(model: ModelShape, layout: Layout, device: Device, options: EngineOptions) -> CacheLayout | Refusal:
    """Lay out the cache of a model; the answer is remembered.

    Raises
    ------
    Indivisible
        When a state does not divide over the tensor ranks.
    """
    return _cache_layout(model, layout, device, options)


@lru_cache(maxsize=4096)
def _cache_layout(model: ModelShape, layout: Layout, device: Device, options: EngineOptions) -> CacheLayout | Refusal:
    profile, warning = profile_for(options.version)
    defaults = resolve_defaults(model, layout, device, options, profile)
    if isinstance(defaults, Refusal):
        return defaults
    dtype = resolve_kv_cache_dtype(model, options.kv_cache_dtype, device)
    if isinstance(dtype, Refusal):
        return dtype
    setting = CacheSetting(model, layout, device, options, defaults, profile, dtype)
    specs = layer_specs(setting)
    if isinstance(specs, Refusal):
        return specs
    counts = stage_counts(model, layout.pipeline_parallel_size, specs)
    hybrid_manager = profile.groups_by_kind and not options.disable_hybrid_kv_cache_manager
    grouping = packed_grouping(counts, hybrid_manager=hybrid_manager) or group_layers(
        counts, hybrid_manager=hybrid_manager, profile=profile
    )
    if isinstance(grouping, Refusal):
        return grouping
    ranks = layout.decode_context_parallel_size
    if ranks > 1 and any(spec.kind in WINDOW_FAMILY for group in grouping.groups for spec, _ in group.members):
        return Refusal(
            "context_parallel_unsupported",
            "a cache of sliding windows cannot be split by tokens",
            "DCP not support sliding window.",
        )
    stages = range(layout.pipeline_parallel_size)
    return CacheLayout(
        profile=profile,
        defaults=defaults,
        auto_fit=options.max_model_len == AUTO_FIT,
        block_size=specs.block_size,
        dtype=dtype,
        kernels=specs.kernels,
        groups=grouping.groups,
        block_bytes=tuple(
            round_up(max((g.block_bytes(stage) for g in grouping.groups), default=0), grouping.block_multiple)
            for stage in stages
        ),
        token_bytes=tuple(
            ceil_div(
                sum(
                    spec.token_bytes * layers[stage]
                    for group in grouping.groups
                    for spec, layers in group.members
                    if spec.kind in FULL_FAMILY or _never_slides(spec, model)
                ),
                ranks,
            )
            for stage in stages
        ),
        context_ranks=ranks,
        keeps_state=bool(setting.states),
        warnings=(*((warning,) if warning else ()), *grouping.warnings),
        notes=specs.notes,
    )


def _never_slides(spec: CacheSpec, model: ModelShape) -> bool:
    """Whether a window is as wide as the longest conversation, so that each token adds to it to the end."""
    return spec.kind is CacheKind.WINDOW and (spec.span or 0) >= model.max_context_tokens


def plan_cache(cache: CacheLayout, available_bytes: Sequence[int]) -> CachePlan | Refusal:
    """Blocks, tokens and concurrency for the memory left on each pipeline stage, or the engine's refusal.

    Parameters
    ----------
    cache : CacheLayout
        The layout of the cache.
    available_bytes : sequence of int
        Bytes left for the cache on the tightest GPU of each stage.
    """
    if not cache.groups:
        return CachePlan(cache.defaults.max_model_len, 1, 0, 0.0, ())
    if not all(cache.block_bytes):
        return _stage_without_cache(cache)
    usable = checked_bytes(cache, available_bytes)
    longest = cache.defaults.max_model_len
    if cache.auto_fit:
        longest = largest_context(cache, available_bytes)
        if longest == 0:
            return Refusal(
                "does_not_fit",
                "the cache cannot hold a single token",
                "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
                "increasing `gpu_memory_utilization`.",
            )
    for memory, block_bytes in zip(usable, cache.block_bytes, strict=True):
        refusal = one_request_refusal(cache, memory, block_bytes, longest)
        if refusal:
            return refusal
    num_blocks = min(memory // block for memory, block in zip(available_bytes, cache.block_bytes, strict=True))
    return printed(cache, num_blocks, longest)


def _stage_without_cache(cache: CacheLayout) -> Refusal:
    """What the engine meets on a stage whose layers keep nothing: one group has pages of no size, several none at all.

    Source: vLLM 0.33 `v1/core/kv_cache_planning.py: validate_kv_cache_layout`, `get_num_blocks`.
    """
    return Refusal(
        "stage_without_cache",
        "a pipeline stage has no layer that keeps anything, and the engine cannot divide its memory into blocks",
        "integer division or modulo by zero"
        if len(cache.groups) == 1
        else "KV cache layout LBNHC cannot express this model's mixed page sizes ([]); a backend should declare "
        "block-outermost supported layouts (e.g. BLHNC), or set VLLM_KV_CACHE_LAYOUT=BLHNC.",
    )


def checked_bytes(cache: CacheLayout, available_bytes: Sequence[int]) -> list[int]:
    """Memory of each stage that a request is checked against: from 0.33 on one block stays reserved."""
    reserved = cache.profile.reserves_null_block
    return [
        memory - (block if reserved else 0) for memory, block in zip(available_bytes, cache.block_bytes, strict=True)
    ]


def one_request_refusal(cache: CacheLayout, memory: int, block_bytes: int, tokens: int) -> Refusal | None:
    """Why one GPU cannot hold a request of `tokens`, in the engine's words.

    Source: vLLM 0.33 `_check_enough_kv_cache_memory`.
    """
    if memory <= 0:
        return Refusal(
            "does_not_fit",
            "no memory is left for the cache",
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
            f"engine (this flag also controls CPU memory reservation on the CPU backend, despite its name). {GUIDE}",
        )
    needed = cache.blocks_reserved(tokens) * block_bytes
    if needed <= memory:
        return None
    longest = fitting_context(cache, memory // block_bytes, tokens)
    estimate = f"Based on the available memory, the estimated maximum model length is {longest}. " if longest else ""
    return Refusal(
        "context_does_not_fit",
        f"one request of {tokens} tokens needs {gib(needed)} GiB of cache on a GPU and {gib(memory)} GiB are left",
        f"To serve at least one request with the {cache.profile.request_possessive} max seq len ({tokens}), "
        f"({gib(needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({gib(memory)} GiB). {estimate}Try increasing `gpu_memory_utilization` (which also controls CPU memory on "
        f"the CPU backend) or decreasing `max_model_len` when initializing the engine. {GUIDE}",
        (use("max_model_len", longest, "less"),) if longest else (),
    )


def gib(number: int) -> str:
    """Bytes in GiB with at most two decimals, as the engine prints them."""
    return f"{round(number / GIB, 2)}"


def fitting_context(cache: CacheLayout, blocks: int, longest: int) -> int:
    """Longest context up to `longest` of which one request holds at most `blocks`; 0: not one token."""
    if cache.blocks_reserved(longest) <= blocks:
        return longest
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        if cache.blocks_reserved(middle) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def largest_context(cache: CacheLayout, available_bytes: Sequence[int]) -> int:
    """Longest context, up to the engine's own, of which one request fits on every stage; 0: not one token."""
    if not cache.groups:
        return cache.defaults.max_model_len
    usable = zip(checked_bytes(cache, available_bytes), cache.block_bytes, strict=True)
    blocks = min(memory // block if block else 0 for memory, block in usable)
    return fitting_context(cache, blocks, cache.defaults.max_model_len)


def printed(cache: CacheLayout, num_blocks: int, max_model_len: int) -> CachePlan:
    """What the engine prints for a number of blocks."""
    by_group = cache.group_blocks_reserved(max_model_len)
    match cache.profile.token_line:
        case TokenLine.CONCURRENCY:
            concurrency = num_blocks / sum(by_group)
            tokens = floor(concurrency * max_model_len)
        case TokenLine.SHARED:
            concurrency = num_blocks / sum(by_group)
            smallest = min(group.block_size for group in cache.groups)
            tokens = num_blocks // len(cache.groups) * smallest * cache.context_ranks
        case TokenLine.BLOCKS:
            tokens = num_blocks * cache.block_size
            concurrency = tokens / max_model_len
    return CachePlan(max_model_len, num_blocks, tokens, concurrency, by_group)


def sequences_refusal(cache: CacheLayout, num_blocks: int) -> Refusal | None:
    """Why the engine cannot capture graphs of all its sequences: each needs a block for its recurrent state.

    Source: vLLM 0.33 `config/compilation.py`.
    """
    sequences = cache.defaults.max_num_seqs
    if not cache.keeps_state or not cache.defaults.cuda_graph_sizes or sequences <= num_blocks:
        return None
    return Refusal(
        "sequences_exceed_state_blocks",
        f"{sequences} sequences need a block each for their recurrent state and there are {num_blocks}",
        f"max_num_seqs ({sequences}) exceeds available Mamba cache blocks ({num_blocks}). Each decode sequence "
        "requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most "
        f"{num_blocks} or increase gpu_memory_utilization.",
        (use("max_num_seqs", num_blocks, "less"),) if num_blocks > 0 else (),
    )
