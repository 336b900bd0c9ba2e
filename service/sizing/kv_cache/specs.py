"""What the engine's planner knows of one layer's cache on one rank: pages of blocks of tokens.

Source: vLLM 0.33 `v1/kv_cache_interface.py`.
"""

from dataclasses import dataclass
from enum import StrEnum

from service.sizing.quantities import ceil_div


class CacheKind(StrEnum):
    """Kinds of cache that a planner treats alike."""

    FULL = "full attention"
    LATENT = "latent attention"
    INDEXER = "indexer keys"
    WINDOW = "sliding window"
    LATENT_WINDOW = "latent attention in a sliding window"
    PACKED = "compressed attention"
    PACKED_WINDOW = "compressed attention in a sliding window"
    RING = "tokens not yet pooled"
    CHUNK = "chunked attention"
    STATE = "recurrent state"
    CROSS = "cross attention"


FULL_FAMILY = frozenset({CacheKind.FULL, CacheKind.LATENT, CacheKind.INDEXER, CacheKind.PACKED})
"""Caches that keep every token."""

LATENT_FAMILY = frozenset({CacheKind.LATENT, CacheKind.INDEXER})
"""Caches of one vector a token, whose pages cannot be padded."""

PACKED_FAMILY = frozenset({CacheKind.PACKED, CacheKind.PACKED_WINDOW, CacheKind.RING})
"""Caches of compressed or pooled attention, which share blocks with all others whatever the page sizes."""

WINDOW_FAMILY = frozenset({CacheKind.WINDOW, CacheKind.LATENT_WINDOW, CacheKind.PACKED_WINDOW})
"""Caches that keep a sliding window."""


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
    stride_bytes : int
        What the distance between blocks must be a multiple of where caches of several page sizes share them.
    """

    kind: CacheKind
    block_size: int
    page_bytes: int
    token_bytes: int
    geometry: tuple[object, ...]
    span: int | None = None
    state_blocks: int = 0
    stride_bytes: int = 1

    def blocks_reserved(self, tokens: int, *, in_flight_tokens: int, encoder_tokens: int, context_ranks: int) -> int:
        """Blocks one request of `tokens` may hold at once: what the planner divides by.

        Windows and chunks keep what is in flight beside their own span, as blocks are freed once a step has settled.
        """
        match self.kind:
            case CacheKind.WINDOW | CacheKind.LATENT_WINDOW | CacheKind.PACKED_WINDOW:
                return ceil_div(min((self.span or 0) - 1 + in_flight_tokens, tokens), self.block_size) + 1
            case CacheKind.CHUNK:
                return ceil_div(min((self.span or 0) + in_flight_tokens, tokens), self.block_size)
            case CacheKind.STATE:
                return self.state_blocks
            case CacheKind.RING:
                return 1
            case CacheKind.CROSS:
                return ceil_div(encoder_tokens, self.block_size)
            case _:
                return ceil_div(ceil_div(tokens, context_ranks), self.block_size)

    def blocks_kept(self, tokens: int, context_ranks: int) -> int:
        """Blocks a conversation of `tokens` keeps between steps, at most.

        A window of w tokens needs w - 1 of the past, which may begin inside a block.
        """
        match self.kind:
            case CacheKind.WINDOW | CacheKind.LATENT_WINDOW | CacheKind.PACKED_WINDOW:
                whole = ceil_div(tokens, self.block_size)
                return min(whole, ceil_div((self.span or 0) - 1, self.block_size) + 1)
            case CacheKind.CHUNK:
                return ceil_div(min(tokens, self.span or 0), self.block_size)
            case CacheKind.STATE:
                return self.state_blocks
            case CacheKind.RING:
                return 1
            case CacheKind.CROSS:
                return ceil_div(self.span or 0, self.block_size)
            case _:
                return ceil_div(ceil_div(tokens, context_ranks), self.block_size)
