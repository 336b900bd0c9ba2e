"""What each layer keeps, as the engine's planner sees it on one rank: pages of blocks of tokens.

Source: vLLM 0.33 `v1/kv_cache_interface.py`, the layers' `get_kv_cache_spec`, `platforms/interface.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import lcm

from service.sizing.engine import backends, kv_dtypes
from service.sizing.engine.backends import AttentionQuery, Kernels, choose_kernels
from service.sizing.engine.defaults import EngineDefaults
from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import EngineProfile
from service.sizing.engine.refusal import Refusal
from service.sizing.layouts import Layout
from service.sizing.model.shape import (
    AttentionCache,
    Cache,
    CrossCache,
    IndexerCache,
    LatentCache,
    LayerShape,
    ModelShape,
    StateCache,
    StateKind,
)
from service.sizing.quantities import ceil_div, round_up

DEFAULT_BLOCK_SIZE = 16
"""Tokens of a block where the kernels take it."""

LATENT_HYBRID_ALIGNMENT = 128
"""Blocks of latent attention beside recurrent layers are whole multiples of this."""

DELTA_NET_CHECKPOINT_TOKENS = 64
"""Recurrent states can be written out midway at multiples of this (FlashInfer's gated delta net)."""

DELTA_KEY_SIZE = 128
"""Key head size that the kernels which write states midway need (on Hopper only Kimi's)."""

TURBOQUANT_BOUNDARY_LAYERS = 2
"""Layers at each end of a model without recurrent layers whose cache TurboQuant leaves in 16 bits."""


Attended = AttentionCache | LatentCache | CrossCache
"""Caches that attention reads."""


class CacheKind(StrEnum):
    """Kinds of cache that a planner treats alike."""

    FULL = "full attention"
    LATENT = "latent attention"
    INDEXER = "indexer keys"
    WINDOW = "sliding window"
    LATENT_WINDOW = "latent attention in a sliding window"
    CHUNK = "chunked attention"
    STATE = "recurrent state"
    CROSS = "cross attention"


FULL_FAMILY = frozenset({CacheKind.FULL, CacheKind.LATENT, CacheKind.INDEXER})
"""Caches that keep every token."""

LATENT_FAMILY = frozenset({CacheKind.LATENT, CacheKind.INDEXER})
"""Caches of one vector a token, whose pages cannot be padded."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The cache of one layer on one rank.

    Attributes
    ----------
    kind : CacheKind
        What it keeps.
    block_size : int
        Tokens of a block.
    page_bytes : int
        Bytes of one block of this layer, padding included.
    token_bytes : int
        Bytes one more token adds; 0 for a recurrent state.
    geometry : tuple
        Heads, sizes and type: layers that differ in it never share a group as one.
    span : int or None
        Tokens of the window or chunk; encoder tokens of cross attention.
    state_blocks : int
        Blocks a request keeps of a recurrent state.
    """

    kind: CacheKind
    block_size: int
    page_bytes: int
    token_bytes: int
    geometry: tuple[object, ...]
    span: int | None = None
    state_blocks: int = 0

    def blocks_reserved(self, tokens: int, *, in_flight_tokens: int, encoder_tokens: int, context_ranks: int) -> int:
        """Blocks one request of `tokens` may hold at once: what the planner divides by.

        Windows and chunks keep what is in flight beside their own span, as blocks are freed once a step has settled.
        """
        match self.kind:
            case CacheKind.WINDOW | CacheKind.LATENT_WINDOW:
                return ceil_div(min((self.span or 0) - 1 + in_flight_tokens, tokens), self.block_size) + 1
            case CacheKind.CHUNK:
                return ceil_div(min((self.span or 0) + in_flight_tokens, tokens), self.block_size)
            case CacheKind.STATE:
                return self.state_blocks
            case CacheKind.CROSS:
                return ceil_div(encoder_tokens, self.block_size)
            case _:
                return ceil_div(ceil_div(tokens, context_ranks), self.block_size)

    def blocks_kept(self, tokens: int, context_ranks: int) -> int:
        """Blocks a conversation of `tokens` keeps between steps, at most.

        A window of w tokens needs w - 1 of the past, which may begin inside a block.
        """
        match self.kind:
            case CacheKind.WINDOW | CacheKind.LATENT_WINDOW:
                whole = ceil_div(tokens, self.block_size)
                return min(whole, ceil_div((self.span or 0) - 1, self.block_size) + 1)
            case CacheKind.CHUNK:
                return ceil_div(min(tokens, self.span or 0), self.block_size)
            case CacheKind.STATE:
                return self.state_blocks
            case CacheKind.CROSS:
                return ceil_div(self.span or 0, self.block_size)
            case _:
                return ceil_div(ceil_div(tokens, context_ranks), self.block_size)


@dataclass(frozen=True, slots=True)
class LayerSpecs:
    """The caches of every layer and what was chosen for them.

    Attributes
    ----------
    by_layer : dict
        Caches of each distinct layer of the model, in the engine's order.
    boundary : dict
        The same for the layers at both ends, where their type differs; else empty.
    boundary_layers : int
        How many layers at each end that concerns.
    block_size : int
        Tokens of a block as the engine prints it.
    dtype : str
        Type the cache is stored in ("auto": the model's own).
    kernels : tuple of str
        Attention backends, in layer order.
    notes : tuple of str
        Where an installation may choose otherwise.
    """

    by_layer: dict[LayerShape, tuple[CacheSpec, ...]]
    boundary: dict[LayerShape, tuple[CacheSpec, ...]]
    boundary_layers: int
    block_size: int
    dtype: str
    kernels: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """All that decides the caches of a model's layers."""

    model: ModelShape
    layout: Layout
    device: Device
    options: EngineOptions
    defaults: EngineDefaults
    profile: EngineProfile
    dtype: str

    @property
    def states(self) -> list[StateCache]:
        """The recurrent states of the distinct layers."""
        return [c for layer in self.model.distinct for c in layer.caches if isinstance(c, StateCache)]

    @property
    def keeps_boundary_states(self) -> bool:
        """Whether recurrent states are kept at block boundaries, for cached prefixes."""
        return bool(self.states) and self.defaults.prefix_caching and self.profile.state_checkpoints

    def writes_midway(self, state: StateCache) -> bool:
        """Whether the prefill kernel of a recurrent layer can write its state out before the end of a prompt.

        Sources: vLLM 0.33 `mamba_mixer2.py`, `qwen_gdn_linear_attn.py: _resolve_gdn_prefill_backend`,
        `models/kimi_k3/nvidia/kda.py: is_flashkda_supported`.
        """
        if not (self.keeps_boundary_states and state.exports_checkpoints):
            return False
        major = self.device.capability[0]
        wide = state.tensors[-1].columns == DELTA_KEY_SIZE
        match state.kind:
            case StateKind.MAMBA2:
                return True
            case StateKind.GATED_DELTA_NET:
                return self.device.capability == (9, 0) or (major in (10, 12) and wide)
            case StateKind.KIMI_DELTA_ATTENTION:
                bfloat16 = kv_dtypes.compute_dtype(self.model, self.device) == "bfloat16"
                return major in (9, 10, 12) and wide and bfloat16
            case _:
                return False

    @property
    def boundary_layers(self) -> int:
        """Layers at each end that a TurboQuant cache leaves in 16 bits."""
        if self.dtype not in kv_dtypes.TURBOQUANT_BITS or self.states:
            return 0
        return min(TURBOQUANT_BOUNDARY_LAYERS, len(self.model.layers) // 2)


def heads_on_rank(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads of one tensor rank: each rank keeps at least one."""
    return max(1, kv_heads // tensor_parallel_size)


def state_bytes(cache: StateCache, tensor_parallel_size: int) -> int:
    """The state of one sequence on a rank, in bytes.

    Raises
    ------
    Indivisible
        When its rows do not divide over the ranks.
    """
    return sum(
        sum(units.per_rank(tensor_parallel_size) for units in tensor.rows) * tensor.columns * tensor.element_bytes
        for tensor in cache.tensors
    )


def model_head_size(model: ModelShape) -> int:
    """The head size the engine takes for the whole model: the largest of any attention layer."""
    return max(head_sizes(model), default=0)


def head_sizes(model: ModelShape) -> set[int]:
    """Elements of a key over the attention layers."""
    return {head_size(c) for layer in model.distinct for c in layer.caches if isinstance(c, Attended)}


def head_size(cache: Attended) -> int:
    """Elements of a key; latent and rotary elements together for latent attention."""
    return cache.latent_size + cache.rope_size if isinstance(cache, LatentCache) else cache.head_size


def attention_query(setting: CacheSetting, cache: Attended, dtype: str) -> AttentionQuery:
    """The question put to the kernel selector for one cache."""
    model, latent = setting.model, isinstance(cache, LatentCache)
    return AttentionQuery(
        head_size=head_size(cache),
        value_head_size=cache.value_head_size if isinstance(cache, AttentionCache) else head_size(cache),
        heads=max(1, cache.heads // setting.layout.tensor_parallel_size),
        dtype=kv_dtypes.compute_dtype(model, setting.device),
        kv_cache_dtype=dtype,
        block_size=setting.options.block_size,
        latent=latent,
        indexed=isinstance(cache, LatentCache) and cache.sparse,
        blockwise_sparse=isinstance(cache, AttentionCache) and cache.sparse,
        windowed=not isinstance(cache, CrossCache) and cache.window is not None,
        sinks=model.attention_sinks and not latent,
        softcap=model.logit_softcap,
        image_prefix=model.image_prefix and not latent,
        context_split=setting.layout.decode_context_parallel_size > 1,
        model_head_size=model_head_size(model),
        mixed_heads=model.architecture.startswith("Gemma4") and len(head_sizes(model)) > 1,
        only_flash_attention_2=setting.dtype in kv_dtypes.TURBOQUANT_BITS,
        flash_mla_first=setting.profile.prefers_flash_mla,
        rope_free=isinstance(cache, LatentCache) and cache.rope_size == 0,
    )


def cache_kernels(setting: CacheSetting, cache: Attended | IndexerCache, dtype: str) -> Kernels | Refusal:
    """The kernels that serve one cache: pages of 64 tokens for 8-bit indexer keys, of 128 for MiniMax M3's."""
    if isinstance(cache, IndexerCache):
        plain = cache.element_bytes > 1
        name = "MINIMAX_M3_SPARSE_INDEXER" if plain else "DEEPSEEK_V32_INDEXER"
        return Kernels(name, (128 if plain else 64,), multiples=False)
    query = attention_query(setting, cache, dtype)
    if dtype == "fp8_e5m2" and kv_dtypes.may_hold_fp8_scales(setting.model):
        return Refusal(
            "kv_cache_dtype_unsupported",
            "a checkpoint with FP8 scales cannot have its cache in fp8_e5m2",
            "fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",
            "use --kv-cache-dtype fp8",
        )
    return choose_kernels(query, setting.device)


def common_block_size(kernels: Iterable[Kernels]) -> int | Refusal:
    """The block size all kernels accept: 16, else the smallest that is a multiple of one size of each.

    Source: vLLM 0.33 `platforms/interface.py: _preferred_block_size_for_backends`.
    """
    chosen = list(dict.fromkeys(kernels))
    if all(each.accepts(DEFAULT_BLOCK_SIZE) for each in chosen):
        return DEFAULT_BLOCK_SIZE
    if len(chosen) == 1:
        return min(chosen[0].blocks)
    candidates = {1}
    for each in chosen:
        candidates = {lcm(candidate, block) for candidate in candidates for block in each.blocks}
    for size in sorted(candidates):
        if all(each.accepts(size) for each in chosen):
            return size
    names = ", ".join(each.name for each in chosen)
    return Refusal(
        "no_common_block_size",
        f"the attention kernels {names} share no block size",
        "The attention backends share no supported KV cache block size",
    )


def checkpoint_grid(setting: CacheSetting) -> int | None:
    """Tokens at whose multiples blocks must end so that every recurrent layer can write its state out; None: any.

    Source: vLLM 0.33 `layers/mamba/abstract.py: get_mamba_prefill_checkpoint_alignment`.
    """
    delta_nets = all(state.kind is StateKind.GATED_DELTA_NET for state in setting.states)
    return DELTA_NET_CHECKPOINT_TOKENS if delta_nets and all(map(setting.writes_midway, setting.states)) else None


def state_blocks(setting: CacheSetting, cache: StateCache) -> int:
    """Blocks a request keeps of a state: one; at block boundaries two, and one more where states are written midway.

    A gated delta net writes midway only where every recurrent layer beside it does.
    """
    if not setting.keeps_boundary_states:
        return 1
    alone = cache.kind is StateKind.GATED_DELTA_NET and checkpoint_grid(setting) is None
    return 3 if setting.writes_midway(cache) and not alone else 2


def token_bytes(setting: CacheSetting, cache: Cache, dtype: str) -> int:
    """Bytes one token adds to a cache on a rank."""
    tensor = setting.layout.tensor_parallel_size
    match cache:
        case AttentionCache():
            cell = kv_dtypes.attention_cell(dtype, cache.head_size, cache.value_head_size)
            return heads_on_rank(cache.kv_heads, tensor) * cell.total_bytes
        case CrossCache():
            cell = kv_dtypes.attention_cell(dtype, cache.head_size, cache.head_size)
            return heads_on_rank(cache.kv_heads, tensor) * cell.total_bytes
        case LatentCache():
            return kv_dtypes.latent_cell(dtype, head_size(cache)).total_bytes
        case IndexerCache():
            return kv_dtypes.indexer_cell(cache.head_size, cache.element_bytes).total_bytes
        case StateCache():
            return 0


def hybrid_block_size(setting: CacheSetting, kernels: list[Kernels], block_size: int) -> int:
    """The block size at which a page of attention covers a recurrent state.

    Source: vLLM 0.33 `platforms/interface.py: _align_hybrid_block_size`.
    """
    attended = next(c for layer in setting.model.distinct for c in layer.caches if isinstance(c, Attended))
    page = attended_token_bytes(setting, attended)
    state = max(state_bytes(state, setting.layout.tensor_parallel_size) for state in setting.states)
    alignment = max(min(kernels[0].blocks), block_size)
    if isinstance(attended, LatentCache):
        alignment = max(alignment, LATENT_HYBRID_ALIGNMENT)
    alignment = lcm(alignment, checkpoint_grid(setting) or 1)
    covering = round_up(ceil_div(state, page), alignment)
    return max(block_size, round_up(covering, lcm(*(min(each.blocks) for each in kernels))))


def attended_token_bytes(setting: CacheSetting, cache: Attended) -> int:
    """One token of a hybrid's attention as the block alignment counts it: packed latents at their plain size."""
    if isinstance(cache, LatentCache):
        quantised = kv_dtypes.is_quantised(setting.dtype)
        return head_size(cache) * (1 if quantised else 2)
    return token_bytes(setting, cache, setting.dtype)


def boundary_block_size(setting: CacheSetting, kernels: list[Kernels], block_size: int) -> int:
    """The block size at which a quantised page covers the smallest page of a layer left in 16 bits.

    The engine sizes the quantised page by the first layer's kernels, which know no packing. Source: vLLM 0.33
    `platforms/interface.py: _align_heterogeneous_kv_block_size`.
    """
    attended = next(c for layer in setting.model.distinct for c in layer.caches if isinstance(c, Attended))
    whole = token_bytes(setting, attended, "auto")
    quantised = whole // 2
    smallest = min(kernels[0].blocks)
    alignment = max(smallest, block_size)
    return max(block_size, alignment * ceil_div(whole * smallest, alignment * quantised))


def layer_specs(setting: CacheSetting) -> LayerSpecs | Refusal:
    """The caches of every layer, the block size and the kernels.

    Raises
    ------
    Indivisible
        When a state does not divide over the tensor ranks.
    """
    model, edge = setting.model, setting.boundary_layers
    served, general = dict[tuple[Cache, str], Kernels](), dict[Kernels, None]()
    found_notes = dict[str, None]()
    at_edges = (*model.layers[:edge], *model.layers[len(model.layers) - edge :]) if edge else ()
    for layers, dtype in ((at_edges, "auto"), (model.distinct, setting.dtype)):
        for cache in (c for layer in layers for c in layer.caches if not isinstance(c, StateCache)):
            kernels = cache_kernels(setting, cache, dtype)
            if isinstance(kernels, Refusal):
                return kernels
            served[cache, dtype] = kernels
            if isinstance(cache, IndexerCache):
                general[kernels] = None
                continue
            query = attention_query(setting, cache, dtype)
            general[backends.for_whole_model(kernels, query, setting.device)] = None
            note = backends.notes(query, kernels, setting.device)
            found_notes |= {note: None} if note else {}
    kernels = list(general)
    block_size = chosen_block_size(setting, kernels)
    if isinstance(block_size, Refusal):
        return block_size
    state_page = None
    if setting.states and kernels:
        attended = next(c for layer in model.distinct for c in layer.caches if isinstance(c, Attended))
        state_page = block_size * attended_token_bytes(setting, attended)

    def specs(layer: LayerShape, dtype: str) -> tuple[CacheSpec, ...]:
        return tuple(
            state_spec(setting, cache, block_size, state_page)
            if isinstance(cache, StateCache)
            else token_spec(setting, cache, served[cache, dtype], dtype, block_size)
            for cache in layer.caches
        )

    return LayerSpecs(
        by_layer={layer: specs(layer, setting.dtype) for layer in model.distinct},
        boundary={layer: specs(layer, "auto") for layer in dict.fromkeys(at_edges)},
        boundary_layers=edge,
        block_size=block_size,
        dtype=setting.dtype,
        kernels=tuple(dict.fromkeys(each.name for each in kernels)),
        notes=tuple(found_notes),
    )


def chosen_block_size(setting: CacheSetting, kernels: list[Kernels]) -> int | Refusal:
    """Tokens of a block: the caller's or the kernels', raised where pages of different kinds must cover each other."""
    if not kernels:
        return setting.options.block_size or DEFAULT_BLOCK_SIZE
    asked = setting.options.block_size or common_block_size(kernels)
    if isinstance(asked, Refusal):
        return asked
    size = hybrid_block_size(setting, kernels, asked) if setting.states else asked
    if setting.boundary_layers:
        size = boundary_block_size(setting, kernels, size)
    rejecting = [each.name for each in kernels if not each.accepts(size)] if size != asked else []
    if rejecting:
        return Refusal(
            "block_size_unsupported",
            f"blocks of {size} tokens, which cover a recurrent state, do not suit {', '.join(rejecting)}",
            f"Aligned KV cache block size {size} is not supported by attention backend(s): {', '.join(rejecting)}.",
        )
    return size


def state_spec(setting: CacheSetting, cache: StateCache, block_size: int, padded_bytes: int | None) -> CacheSpec:
    """The cache of a recurrent layer: its pages are padded to those of attention beside it."""
    size = state_bytes(cache, setting.layout.tensor_parallel_size)
    span = block_size if setting.keeps_boundary_states else setting.defaults.max_model_len
    return CacheSpec(
        kind=CacheKind.STATE,
        block_size=span,
        page_bytes=padded_bytes or size,
        token_bytes=0,
        geometry=(cache.kind, cache.tensors),
        state_blocks=state_blocks(setting, cache),
    )


def token_spec(
    setting: CacheSetting, cache: Attended | IndexerCache, kernels: Kernels, dtype: str, block_size: int
) -> CacheSpec:
    """The cache of a layer that keeps tokens."""
    stored = backends.stored_dtype(kernels, dtype)
    size = token_bytes(setting, cache, stored)
    span = None
    match cache:
        case AttentionCache(window=int() as span):
            kind, block_size = CacheKind.WINDOW, kernels.largest_within(block_size)
        case AttentionCache(chunk=int() as span):
            kind = CacheKind.CHUNK
        case AttentionCache():
            kind = CacheKind.FULL
        case LatentCache(window=int() as span):
            kind = CacheKind.LATENT_WINDOW
        case LatentCache():
            kind = CacheKind.LATENT
        case IndexerCache():
            kind = CacheKind.INDEXER
        case CrossCache(source_tokens=span):
            kind = CacheKind.CROSS
    tensor = setting.layout.tensor_parallel_size
    match cache:
        case AttentionCache():
            geometry = (heads_on_rank(cache.kv_heads, tensor), cache.head_size, cache.value_head_size, stored)
        case CrossCache():
            geometry = (heads_on_rank(cache.kv_heads, tensor), cache.head_size, stored)
        case LatentCache():
            geometry = (head_size(cache), stored)
        case IndexerCache():
            geometry = (cache.head_size, cache.element_bytes)
    return CacheSpec(kind, block_size, block_size * size, size, geometry, span)
