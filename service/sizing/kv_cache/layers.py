"""The caches of every layer of a model on one rank, with the kernels that serve them.

Source: vLLM 0.33, the layers' `get_kv_cache_spec`.
"""

from collections import Counter
from dataclasses import dataclass

from service.sizing.engine import backends, kv_dtypes
from service.sizing.engine.backends import Kernels, choose_kernels
from service.sizing.engine.kv_dtypes import indexer_cell
from service.sizing.engine.refusal import Refusal, use
from service.sizing.hardware import Vendor
from service.sizing.kv_cache.block_size import attended_token_bytes, checkpoint_grid, chosen_block_size
from service.sizing.kv_cache.packed import (
    has_summaries,
    packed_kernels,
    packed_spec,
    pooled_kernels,
    ring_refusal,
    ring_spec,
    stride_bytes,
    summarised_kernels,
)
from service.sizing.kv_cache.page_bytes import heads_on_rank, inputs_token_bytes, state_bytes, token_bytes
from service.sizing.kv_cache.setting import Attended, CacheSetting, attention_query, first_attended, head_size
from service.sizing.kv_cache.specs import CacheKind, CacheSpec
from service.sizing.model.shape import (
    AttentionCache,
    Cache,
    CrossCache,
    IndexerCache,
    InputsCache,
    LatentCache,
    LayerShape,
    ModelShape,
    PackedCache,
    RingCache,
    StateCache,
    StateKind,
)
from service.sizing.weights import stage_bounds


@dataclass(frozen=True, slots=True)
class LayerSpecs:
    """The caches of every layer and what was chosen for them.

    Attributes
    ----------
    by_number : tuple
        Caches of each distinct layer of the model, by its number in the model's pattern.
    at_edges : tuple
        The same for the `edge_layers` at both ends of the model, whose type may differ.
    edge_layers : int
        Layers at each end that `at_edges` concerns.
    block_size : int
        Tokens of a block as the engine prints it.
    kernels : tuple of str
        Attention backends, in layer order.
    notes : tuple of str
        Where an installation may choose otherwise.
    """

    by_number: tuple[tuple[CacheSpec, ...], ...]
    at_edges: tuple[tuple[CacheSpec, ...], ...]
    edge_layers: int
    block_size: int
    kernels: tuple[str, ...]
    notes: tuple[str, ...]


def layer_specs(setting: CacheSetting) -> LayerSpecs | Refusal:
    """The caches of every layer, the block size and the kernels.

    Raises
    ------
    Indivisible
        When a state does not divide over the tensor ranks.
    """
    model, edge = setting.model, setting.edge_layers
    served, general = dict[tuple[Cache, str], Kernels](), dict[Kernels, None]()
    notes = dict[str, None]()
    for dtype in ("auto", setting.dtype) if edge else (setting.dtype,):
        for cache in (c for layer in model.distinct for c in layer.caches if not isinstance(c, StateCache)):
            if (cache, dtype) in served:
                continue
            kernels = cache_kernels(setting, cache, dtype)
            if isinstance(kernels, Refusal):
                return kernels
            served[cache, dtype] = kernels
            if isinstance(cache, IndexerCache | PackedCache | RingCache | InputsCache):
                general[kernels] = None
                continue
            query = attention_query(setting, cache, dtype)
            general[backends.for_whole_model(kernels, query, setting.device)] = None
            note = backends.note(query, kernels, setting.device)
            notes |= {note: None} if note else {}
    kernels = list(general)
    block_size = chosen_block_size(setting, kernels)
    if isinstance(block_size, Refusal):
        return block_size
    attended = first_attended(model)
    state_page = block_size * attended_token_bytes(setting, attended) if attended else None

    def beside(layer: LayerShape, dtype: str) -> CacheSpec | None:
        attention = next((cache for cache in layer.caches if isinstance(cache, AttentionCache)), None)
        return token_spec(setting, attention, served[attention, dtype], dtype, block_size) if attention else None

    def specs(layer: LayerShape, dtype: str) -> tuple[CacheSpec, ...]:
        return tuple(
            state_spec(setting, cache, block_size, state_page)
            if isinstance(cache, StateCache)
            else packed_spec(cache, block_size)
            if isinstance(cache, PackedCache)
            else ring_spec(cache, beside(layer, dtype))
            if isinstance(cache, RingCache)
            else inputs_spec(setting, cache)
            if isinstance(cache, InputsCache)
            else token_spec(setting, cache, served[cache, dtype], dtype, block_size)
            for cache in layer.caches
        )

    for layer in model.distinct:
        for cache in layer.caches:
            if not isinstance(cache, RingCache) or cache.slots:
                continue
            if refusal := ring_refusal(ring_spec(cache, beside(layer, setting.dtype)), cache.slot_bytes):
                return refusal
    return LayerSpecs(
        by_number=tuple(specs(layer, setting.dtype) for layer in model.distinct),
        at_edges=tuple(specs(layer, "auto") for layer in model.distinct) if edge else (),
        edge_layers=edge,
        block_size=block_size,
        kernels=tuple(dict.fromkeys(each.name for each in kernels)),
        notes=tuple(notes),
    )


def stage_counts(model: ModelShape, stages: int, specs: LayerSpecs) -> dict[CacheSpec, tuple[int, ...]]:
    """Layers of each kind of cache on every pipeline stage, kinds in the order they first occur."""
    counts = dict[CacheSpec, list[int]]()
    edge, total = specs.edge_layers, len(model.layers)
    parts = ((specs.at_edges, 0, edge), (specs.by_number, edge, total - edge), (specs.at_edges, total - edge, total))
    for stage, (start, end) in enumerate(stage_bounds(total, stages)):
        for by_number, first, last in parts:
            for number, layers in Counter(model.pattern[max(first, start) : min(last, end)]).items():
                for spec in by_number[number]:
                    counts.setdefault(spec, [0] * stages)[stage] += layers
    return {spec: tuple(numbers) for spec, numbers in counts.items()}


def cache_kernels(
    setting: CacheSetting, cache: Attended | IndexerCache | PackedCache | RingCache | InputsCache, dtype: str
) -> Kernels | Refusal:
    """The kernels that serve one cache: pages of 64 tokens for 8-bit indexer keys, of 128 for MiniMax M3's."""
    if isinstance(cache, PackedCache):
        return packed_kernels(setting, cache)
    if isinstance(cache, RingCache):
        return Kernels("KPOOL_TAIL", (1,))
    if isinstance(cache, InputsCache):
        return Kernels("INKLING_SCONV_SWA", (1,))
    if isinstance(cache, AttentionCache) and cache.relative and setting.device.vendor is Vendor.NVIDIA:
        return Kernels("FLASH_ATTN")
    if isinstance(cache, AttentionCache) and cache.summarised:
        return summarised_kernels(setting)
    if isinstance(cache, AttentionCache) and has_summaries(setting.model):
        return Kernels("FLASH_ATTN")
    if isinstance(cache, IndexerCache) and not cache.scaled:
        return Kernels("STEP5_CSA_SUMMARY", (1,))
    if isinstance(cache, IndexerCache) and cache.tokens_per_key > 1:
        return pooled_kernels(setting, cache)
    if isinstance(cache, IndexerCache):
        plain = cache.element_bytes > 1
        name = "MINIMAX_M3_SPARSE_INDEXER" if plain else "DEEPSEEK_V32_INDEXER"
        return Kernels(name, (128 if plain else 64,), multiples=False)
    kernels = choose_kernels(attention_query(setting, cache, dtype), setting.device)
    if not isinstance(kernels, Refusal) and dtype == "fp8_e5m2" and kv_dtypes.may_hold_fp8_scales(setting.model):
        return Refusal(
            "kv_cache_dtype_unsupported",
            "a checkpoint with FP8 scales cannot have its cache in fp8_e5m2",
            "fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",
            (use("kv_cache_dtype", "fp8"),),
        )
    return kernels


def state_blocks(setting: CacheSetting, cache: StateCache) -> int:
    """Blocks a request keeps of a state: one; at block boundaries two, and one more where states are written midway.

    A gated delta net writes midway only where every recurrent layer beside it does.
    """
    if not setting.keeps_boundary_states:
        return 1
    alone = cache.kind is StateKind.GATED_DELTA_NET and checkpoint_grid(setting) is None
    return 3 if setting.writes_midway(cache) and not alone else 2


def state_spec(setting: CacheSetting, cache: StateCache, block_size: int, padded_bytes: int | None) -> CacheSpec:
    """The cache of a recurrent layer: its pages are padded to those of attention beside it."""
    return CacheSpec(
        kind=CacheKind.STATE,
        block_size=block_size if setting.keeps_boundary_states else setting.defaults.max_model_len,
        page_bytes=padded_bytes or state_bytes(cache, setting.layout.tensor_parallel_size),
        token_bytes=0,
        geometry=(cache.kind, cache.tensors),
        state_blocks=state_blocks(setting, cache),
    )


def inputs_spec(setting: CacheSetting, cache: InputsCache) -> CacheSpec:
    """The inputs of short convolutions: a sliding window in blocks of its own length."""
    tensor = setting.layout.tensor_parallel_size
    size = inputs_token_bytes(cache, tensor)
    return CacheSpec(
        kind=CacheKind.WINDOW,
        block_size=cache.tokens,
        page_bytes=cache.tokens * size,
        token_bytes=size,
        geometry=(heads_on_rank(cache.heads, tensor), cache.width, 0),
        span=cache.tokens,
    )


def token_spec(
    setting: CacheSetting, cache: Attended | IndexerCache, kernels: Kernels, dtype: str, block_size: int
) -> CacheSpec:
    """The cache of a layer that keeps tokens."""
    stored = backends.stored_dtype(kernels, dtype)
    tensor = setting.layout.tensor_parallel_size
    span = None
    match cache:
        case AttentionCache():
            geometry = (heads_on_rank(cache.kv_heads, tensor), cache.head_size, cache.value_head_size, stored)
            kind, span = CacheKind.FULL, cache.window or cache.chunk
            if cache.window is not None:
                kind, block_size = CacheKind.WINDOW, kernels.largest_within(block_size)
            elif cache.chunk is not None:
                kind = CacheKind.CHUNK
        case CrossCache():
            geometry = (heads_on_rank(cache.kv_heads, tensor), cache.head_size, stored)
            kind, span = CacheKind.CROSS, cache.source_tokens
        case LatentCache():
            geometry = (head_size(cache), stored)
            kind, span = CacheKind.LATENT if cache.window is None else CacheKind.LATENT_WINDOW, cache.window
        case IndexerCache():
            geometry = (cache.head_size, cache.element_bytes, cache.tokens_per_key, cache.scaled)
            kind = CacheKind.INDEXER
    size = token_bytes(cache, stored, tensor)
    page = block_size * size
    if isinstance(cache, IndexerCache):
        page = block_size // cache.tokens_per_key * indexer_cell(cache)
    stride = stride_bytes(cache, kernels, stored, block_size, tensor)
    return CacheSpec(kind, block_size, page, size, geometry, span, stride_bytes=stride)
