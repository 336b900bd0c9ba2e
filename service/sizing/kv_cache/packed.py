"""Compressed and pooled attention: caches of many page sizes that share blocks as wide as the widest group.

Source: vLLM 0.33 `models/deepseek_v4`, `models/glm5next`, `v1/attention/backends/mla/indexer.py`, `sparse_utils.py`,
`v1/core/kv_cache_planning.py: _get_packed_kv_cache_groups`.
"""

from math import gcd, lcm

from service.sizing.engine import kv_dtypes
from service.sizing.engine.backends import Kernels
from service.sizing.engine.refusal import Fix, Refusal, leave_out, use
from service.sizing.hardware import Vendor
from service.sizing.kv_cache.groups import Counts, Group, Grouping, dealt, same_kind
from service.sizing.kv_cache.page_bytes import token_bytes
from service.sizing.kv_cache.setting import Attended, CacheSetting
from service.sizing.kv_cache.specs import PACKED_FAMILY, CacheKind, CacheSpec
from service.sizing.model.shape import (
    AttentionCache,
    IndexerCache,
    LatentCache,
    ModelShape,
    PackedCache,
    PackedRole,
    RingCache,
)
from service.sizing.quantities import ceil_div, round_up

PACKED_BLOCK_SIZE = 256
"""Tokens of a block of the caches that keep every token."""

REGION = 8
"""Tokens of a region that a summary stands for (Step 5)."""

OPEN_REGION = 7
"""Tokens of a region that is not summarised yet, at most (Step 5)."""

SUMMARISED_CARDS = frozenset({(9, 0), (10, 0), (10, 3)})
"""Compute capabilities with kernels for attention by summaries of regions."""

PACKED_MAJORS = frozenset({9, 10, 12})
"""Generations of cards with kernels for the indexer."""

KERNEL_NAMES = {
    PackedRole.LATENT: "FLASHMLA_SPARSE_DSV4",
    PackedRole.INDEXER: "DEEPSEEK_V4_INDEXER",
    PackedRole.PARTIAL: "CompressorBackend",
}


def packed_kernels(setting: CacheSetting, cache: PackedCache) -> Kernels | Refusal:
    """The kernels that serve one cache of compressed attention."""
    device, asked = setting.device, setting.options.block_size
    if device.vendor is Vendor.NVIDIA and device.capability[0] not in PACKED_MAJORS:
        return Refusal(
            "no_attention_backend",
            f"no kernel of compressed attention runs on {device.name}",
            "Sparse Attention Indexer CUDA op requires DeepGEMM support in the current vLLM environment.",
            (Fix("choose a GPU of compute capability 9.0, 10.x or 12.x"),),
        )
    if asked is not None and asked % PACKED_BLOCK_SIZE:
        return Refusal(
            "block_size_unsupported",
            f"compressed attention takes blocks of a multiple of {PACKED_BLOCK_SIZE} tokens, not of {asked}",
            f"No common block size for {asked}",
            (leave_out("block_size"),),
        )
    return Kernels(KERNEL_NAMES[cache.role], (PACKED_BLOCK_SIZE,))


def has_summaries(model: ModelShape) -> bool:
    """Whether some layers pick regions by summaries; the others then store as FlashAttention does on every card."""
    caches = (cache for layer in model.distinct for cache in layer.caches)
    return any(isinstance(cache, AttentionCache) and cache.summarised for cache in caches)


def summarised_kernels(setting: CacheSetting) -> Kernels | Refusal:
    """The kernels of attention that picks regions by summaries."""
    device = setting.device
    if device.vendor is Vendor.NVIDIA and device.capability in SUMMARISED_CARDS:
        return Kernels("STEP5_DSA")
    major, minor = device.capability
    return Refusal(
        "no_attention_backend",
        f"no kernel of attention by summaries runs on {device.name}",
        f"Step5 DSA requires SM90, SM100 or SM103; got DeviceCapability(major={major}, minor={minor}).",
        (Fix("choose a GPU of compute capability 9.0, 10.0 or 10.3"),),
    )


def packed_spec(cache: PackedCache, block_size: int) -> CacheSpec:
    """One cache of compressed attention, in blocks of its own or of the engine's size."""
    size = cache.block_size or block_size
    return CacheSpec(
        kind=CacheKind.PACKED if cache.window is None else CacheKind.PACKED_WINDOW,
        block_size=size,
        page_bytes=round_up(size // cache.tokens_per_vector * cache.vector_bytes, cache.page_multiple),
        token_bytes=token_bytes(cache, "fp8_ds_mla"),
        geometry=(cache.role, cache.head_size, cache.tokens_per_vector),
        span=cache.window,
    )


def pooled_kernels(setting: CacheSetting, cache: IndexerCache) -> Kernels:
    """The kernels of pooled index keys: pages of 32 or 64 keys, on consumer Blackwell of 64."""
    pages = (64,) if setting.device.capability[0] == 12 else (32, 64)
    return Kernels("DEEPSEEK_V32_INDEXER", tuple(page * cache.tokens_per_key for page in pages), multiples=False)


def ring_spec(cache: RingCache, attended: CacheSpec | None) -> CacheSpec:
    """The tokens that are not pooled yet: one block a request, of its own size or that of the attention beside it."""
    if cache.slots or attended is None:
        return CacheSpec(
            kind=CacheKind.RING,
            block_size=cache.slots,
            page_bytes=cache.slots * cache.slot_bytes,
            token_bytes=0,
            geometry=(cache.slots, cache.slot_bytes),
        )
    return CacheSpec(
        kind=CacheKind.RING,
        block_size=attended.block_size,
        page_bytes=attended.page_bytes,
        token_bytes=0,
        geometry=(attended.page_bytes, cache.slot_bytes),
        stride_bytes=cache.slot_bytes,
    )


def ring_refusal(ring: CacheSpec, slot_bytes: int) -> Refusal | None:
    """A page of attention too small to hold the rest of a region (vLLM 0.33 `models/step5/nvidia/csa_tail_ring.py`)."""
    if ring.page_bytes % slot_bytes == 0 and ring.page_bytes // slot_bytes >= OPEN_REGION:
        return None
    step = slot_bytes // gcd(ring.page_bytes, slot_bytes)
    times = round_up(ceil_div(OPEN_REGION * slot_bytes, ring.page_bytes), step)
    return Refusal(
        "block_size_unsupported",
        f"a block of {ring.page_bytes} bytes does not hold the {OPEN_REGION} tokens of an open region",
        f"Step5 CSA tail ring needs {OPEN_REGION} rows of {slot_bytes} bytes in one {ring.page_bytes}-byte KV page; "
        "increase --block-size.",
        (use("block_size", times * ring.block_size),),
    )


def stride_bytes(cache: Attended | IndexerCache, kernels: Kernels, dtype: str, block_size: int, tensor: int) -> int:
    """What the distance between blocks must be a multiple of beside caches of other page sizes.

    Sparse kernels read plain latents row by row; others need whole kernel blocks where a block is cut into several.
    """
    if isinstance(cache, AttentionCache) and cache.summarised:
        whole = block_size == gcd(REGION, block_size)
        return 1 if whole else REGION * token_bytes(cache, dtype, tensor)
    if isinstance(cache, LatentCache) and cache.sparse and not kv_dtypes.is_quantised(dtype):
        return token_bytes(cache, dtype)
    if kernels.multiples and not (isinstance(cache, LatentCache) and cache.sparse):
        return 1
    kernel_block = gcd(max(kernels.blocks), block_size)
    if kernel_block == block_size:
        return 1
    if isinstance(cache, IndexerCache):
        return kernel_block // cache.tokens_per_key * kv_dtypes.indexer_cell(cache)
    return kernel_block * token_bytes(cache, dtype)


def packed_grouping(counts: Counts, *, hybrid_manager: bool) -> Grouping | Refusal | None:
    """The groups of a model with compressed or pooled attention; None: it has none.

    Parameters
    ----------
    counts : mapping
        Layers of each kind on every stage.
    hybrid_manager : bool
        Whether windowed layers free what leaves their window.
    """
    if not any(spec.kind in PACKED_FAMILY for spec in counts):
        return None
    if not hybrid_manager:
        windowed = any(spec.kind is CacheKind.PACKED_WINDOW for spec in counts)
        return Refusal(
            "hybrid_manager_needed",
            "caches of compressed or pooled attention cannot share one table: leave the hybrid cache manager on",
            "MLAAttentionSpec.__init__() got an unexpected keyword argument 'bounded_replay'"
            if windowed
            else "Failed to promote local KV cache specs to one unified type."
            if any(spec.kind is CacheKind.WINDOW for spec in counts)
            else None,
            (leave_out("disable_hybrid_kv_cache_manager"),),
        )
    return Grouping(packed_groups(counts), block_multiple=lcm(*(spec.stride_bytes for spec in counts)))


def packed_groups(counts: Counts) -> tuple[Group, ...]:
    """Groups of caches that need the same number of blocks.

    A group of one page size is split so that its parts are about as many layers as the repeats of the longest pattern
    of several page sizes, which stays whole. States are split further where they would widen the block.
    """
    buckets = list[dict[CacheSpec, tuple[int, ...]]]()
    for spec, stages in counts.items():
        for bucket in buckets:
            if same_kind({**bucket, spec: stages}):
                bucket[spec] = stages
                break
        else:
            buckets.append({spec: stages})
    repeats = {index: count for index, bucket in enumerate(buckets) if (count := pattern_repeats(bucket)) is not None}
    longest = max((count for index, count in repeats.items() if len(page_sizes(buckets[index])) > 1), default=0)
    size = closest_divisor(list(repeats.values()), longest) if longest else None
    numbers = [ceil_div(repeats[index], size) if size and index in repeats else 1 for index in range(len(buckets))]
    widest = max(
        widest_bytes(bucket, layers_of(bucket) if keeps_states(bucket) else number)
        for bucket, number in zip(buckets, numbers, strict=True)
    )
    groups = list[Group]()
    for bucket, fewest in zip(buckets, numbers, strict=True):
        number = fewest
        if keeps_states(bucket):
            in_a_block = max(widest // next(iter(bucket)).page_bytes, 1)
            number = max(fewest, ceil_div(layers_of(bucket), in_a_block))
        groups += (
            Group(tuple((spec, dealt(stages, part, number)) for spec, stages in bucket.items()))
            for part in range(number)
        )
    return tuple(groups)


def keeps_states(bucket: Counts) -> bool:
    """Whether a bucket can be split down to one layer a group."""
    return next(iter(bucket)).kind in (CacheKind.STATE, CacheKind.RING)


def layers_of(bucket: Counts) -> int:
    """Layers of a bucket over all stages."""
    return sum(sum(stages) for stages in bucket.values())


def widest_bytes(bucket: Counts, groups: int) -> int:
    """Bytes of a block of the widest of so many groups."""
    return sum(ceil_div(layers, groups) * page for page, layers in page_sizes(bucket).items())


def page_sizes(bucket: Counts) -> dict[int, int]:
    """Layers of each page size."""
    sizes = dict[int, int]()
    for spec, stages in bucket.items():
        sizes[spec.page_bytes] = sizes.get(spec.page_bytes, 0) + sum(stages)
    return sizes


def pattern_repeats(bucket: Counts) -> int | None:
    """How often a pattern of one layer of each page size repeats; None where the page sizes differ in number."""
    layers = set(page_sizes(bucket).values())
    return layers.pop() if len(layers) == 1 else None


def closest_divisor(values: list[int], least: int) -> int:
    """The number from `least` up to whose multiples the values need least padding; the largest of equals."""
    candidates = range(least, max(values) + 1)
    return min(candidates, key=lambda size: (sum(-value % size for value in values), -size), default=least)
