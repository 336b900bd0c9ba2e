"""Bytes of caches on one tensor rank."""

from service.sizing.engine import kv_dtypes
from service.sizing.kv_cache.setting import Attended, head_size
from service.sizing.model.shape import (
    AttentionCache,
    CrossCache,
    IndexerCache,
    InputsCache,
    LatentCache,
    ModelShape,
    PackedCache,
    StateCache,
)
from service.sizing.quantities import ceil_div


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


def inputs_token_bytes(cache: InputsCache, tensor_parallel_size: int) -> int:
    """Bytes of one token's inputs of convolutions on a rank: 16 bits an element."""
    return heads_on_rank(cache.heads, tensor_parallel_size) * cache.width * 2


def token_bytes(cache: Attended | IndexerCache | PackedCache, dtype: str, tensor_parallel_size: int = 1) -> int:
    """Bytes one token adds to a cache on a rank: keys and values are split by heads, latents and indexer keys never.

    Of compressed attention and of pooled keys, its share, rounded up.
    """
    match cache:
        case AttentionCache():
            cell = kv_dtypes.attention_cell(dtype, cache.head_size, cache.value_head_size)
            return heads_on_rank(cache.kv_heads, tensor_parallel_size) * cell
        case CrossCache():
            cell = kv_dtypes.attention_cell(dtype, cache.head_size, cache.head_size)
            return heads_on_rank(cache.kv_heads, tensor_parallel_size) * cell
        case LatentCache():
            return kv_dtypes.latent_cell(dtype, head_size(cache))
        case IndexerCache():
            return ceil_div(kv_dtypes.indexer_cell(cache), cache.tokens_per_key)
        case PackedCache():
            return ceil_div(cache.vector_bytes, cache.tokens_per_vector)


def kv_bytes_per_token(model: ModelShape, dtype: str) -> int:
    """What one more token adds to a long conversation over the whole model, unsharded, in bytes.

    Full, latent and compressed attention and the keys of indexers add to it; windows shorter than the longest
    conversation, chunks, cross attention and states do not.

    Parameters
    ----------
    dtype : str
        As `--kv-cache-dtype` takes it; "auto" follows the checkpoint.
    """
    stored = kv_dtypes.checkpoint_dtype(model, dtype)
    return sum(
        count * token_bytes(cache, stored)
        for layer, count in model.counted()
        for cache in layer.caches
        if isinstance(cache, IndexerCache)
        or (isinstance(cache, LatentCache | PackedCache) and cache.window is None)
        or (
            isinstance(cache, AttentionCache)
            and (cache.window is None or cache.window >= model.max_context_tokens)
            and cache.chunk is None
        )
    )
