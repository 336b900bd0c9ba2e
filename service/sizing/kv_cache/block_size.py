"""How many tokens a block has: what the kernels take, raised where pages of different kinds must cover each other.

Source: vLLM 0.33 `platforms/interface.py`.
"""

from collections.abc import Iterable
from math import lcm

from service.sizing.engine import kv_dtypes
from service.sizing.engine.backends import Kernels
from service.sizing.engine.refusal import Refusal, leave_out
from service.sizing.kv_cache.page_bytes import state_bytes, token_bytes
from service.sizing.kv_cache.setting import Attended, CacheSetting, first_attended, head_size
from service.sizing.model.shape import LatentCache, StateKind
from service.sizing.quantities import ceil_div, round_up

DEFAULT_BLOCK_SIZE = 16
"""Tokens of a block where the kernels take it."""

LATENT_HYBRID_ALIGNMENT = 128
"""Blocks of latent attention beside recurrent layers are whole multiples of this."""

DELTA_NET_CHECKPOINT_TOKENS = 64
"""A gated delta net can write its state out midway at multiples of this (FlashInfer's kernel)."""


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


def hybrid_block_size(setting: CacheSetting, attended: Attended, kernels: list[Kernels], block_size: int) -> int:
    """The block size at which a page of attention covers a recurrent state.

    Source: vLLM 0.33 `_align_hybrid_block_size`.
    """
    state = max(state_bytes(state, setting.layout.tensor_parallel_size) for state in setting.states)
    alignment = max(min(kernels[0].blocks), block_size)
    if isinstance(attended, LatentCache):
        alignment = max(alignment, LATENT_HYBRID_ALIGNMENT)
    alignment = lcm(alignment, checkpoint_grid(setting) or 1)
    covering = round_up(ceil_div(state, attended_token_bytes(setting, attended)), alignment)
    return max(block_size, round_up(covering, lcm(*(min(each.blocks) for each in kernels))))


def attended_token_bytes(setting: CacheSetting, cache: Attended) -> int:
    """One token of attention as the alignment with recurrent states counts it: packed latents at their plain size."""
    if isinstance(cache, LatentCache):
        return head_size(cache) * (1 if kv_dtypes.is_quantised(setting.dtype) else 2)
    return token_bytes(cache, setting.dtype, setting.layout.tensor_parallel_size)


def edge_block_size(setting: CacheSetting, attended: Attended, kernels: list[Kernels], block_size: int) -> int:
    """The block size at which a quantised page covers the smallest page of a layer left in 16 bits.

    The engine sizes the quantised page by the first layer's kernels, which know no packing: a byte an element.
    Source: vLLM 0.33 `_align_heterogeneous_kv_block_size`.
    """
    whole = token_bytes(attended, "auto", setting.layout.tensor_parallel_size)
    smallest = min(kernels[0].blocks)
    alignment = max(smallest, block_size)
    return max(block_size, round_up(ceil_div(whole * smallest, whole // 2), alignment))


def chosen_block_size(setting: CacheSetting, kernels: list[Kernels]) -> int | Refusal:
    """Tokens of a block: the caller's or the kernels', raised where pages of different kinds must cover each other."""
    attended = first_attended(setting.model)
    if attended is None:
        return setting.options.block_size or (common_block_size(kernels) if kernels else DEFAULT_BLOCK_SIZE)
    asked = setting.options.block_size or common_block_size(kernels)
    if isinstance(asked, Refusal):
        return asked
    size = hybrid_block_size(setting, attended, kernels, asked) if setting.states else asked
    if setting.edge_layers:
        size = edge_block_size(setting, attended, kernels, size)
    rejecting = [each.name for each in kernels if not each.accepts(size)] if size != asked else []
    if rejecting:
        return Refusal(
            "block_size_unsupported",
            f"blocks of {size} tokens, which cover a recurrent state, do not suit {', '.join(rejecting)}",
            f"Aligned KV cache block size {size} is not supported by attention backend(s): {', '.join(rejecting)}.",
            (leave_out("block_size"),) if setting.options.block_size else (),
        )
    return size
