"""Which layers share a block table.

Every group claims blocks from one pool, so all groups need pages of one size; layers of different kinds are dealt into
groups of as equal a number as can be. Source: vLLM 0.33 `v1/core/kv_cache_planning.py: get_kv_cache_groups`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from service.sizing.engine.profile import EngineProfile
from service.sizing.engine.refusal import Refusal, leave_out
from service.sizing.kv_cache.specs import FULL_FAMILY, LATENT_FAMILY, CacheKind, CacheSpec
from service.sizing.quantities import ceil_div

Counts = Mapping[CacheSpec, tuple[int, ...]]
"""Layers of each kind on every pipeline stage, kinds in the order they first occur."""

WINDOWED = {
    CacheKind.WINDOW: CacheKind.FULL,
    CacheKind.CHUNK: CacheKind.FULL,
    CacheKind.LATENT_WINDOW: CacheKind.LATENT,
}
"""Kinds that free what leaves their span, and what they become where that is switched off."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers under one block table: several kinds only where all need the same number of blocks.

    `members` gives the layers of each kind on every stage.
    """

    members: tuple[tuple[CacheSpec, tuple[int, ...]], ...]

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.members[0][0].block_size

    @property
    def layers(self) -> int:
        """Layers over the whole model."""
        return sum(sum(stages) for _, stages in self.members)

    def block_bytes(self, stage: int) -> int:
        """Bytes of one block over all layers of a stage."""
        return sum(spec.page_bytes * stages[stage] for spec, stages in self.members)

    def blocks_reserved(self, tokens: int, *, in_flight_tokens: int, encoder_tokens: int, context_ranks: int) -> int:
        """Blocks one request of `tokens` may hold at once."""
        return max(
            spec.blocks_reserved(
                tokens,
                in_flight_tokens=in_flight_tokens,
                encoder_tokens=encoder_tokens,
                context_ranks=context_ranks,
            )
            for spec, _ in self.members
        )

    def blocks_kept(self, tokens: int, context_ranks: int) -> int:
        """Blocks a conversation of `tokens` keeps between steps."""
        return max(spec.blocks_kept(tokens, context_ranks) for spec, _ in self.members)


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups of a model and what a reader of the engine's log would see beside them.

    Blocks take a multiple of `block_multiple` bytes.
    """

    groups: tuple[Group, ...]
    warnings: tuple[str, ...] = ()
    block_multiple: int = 1


def group_layers(counts: Counts, *, hybrid_manager: bool, profile: EngineProfile) -> Grouping | Refusal:
    """Divide the layers of a whole model, all stages together, into groups.

    Parameters
    ----------
    counts : mapping
        Layers of each kind on every stage.
    hybrid_manager : bool
        Whether windowed layers free what leaves their window.
    """
    if not counts:
        return Grouping(())
    warnings = list[str]()
    if not hybrid_manager:
        promoted = promote(counts)
        if isinstance(promoted, Refusal):
            return promoted
        if promoted is not counts:
            warnings.append("sliding-window and chunked layers keep every token: the hybrid cache manager is off")
        counts = promoted
    if same_kind(counts):
        return Grouping((Group(tuple(counts.items())),), tuple(warnings))
    unified = unify_pages(counts)
    if unified is None:
        fallback = full_allocation(counts)
        if fallback is None:
            return Refusal(
                "cache_pages_differ",
                "pages of latent attention neither divide those of other layers nor can be padded",
                "page size is not divisible by the maximum page size and cannot be padded. Padding is only supported "
                "for non-MLA attention layers.",
            )
        warnings.append("sliding-window layers keep every token: their pages do not fit those of latent attention")
        return Grouping((Group(tuple(fallback.items())),), tuple(warnings))
    return deal(unified, profile, warnings)


def same_kind(counts: Counts) -> bool:
    """Whether all layers need the same number of blocks of the same number of tokens."""
    specs = list(counts)
    first = specs[0]
    if len({spec.block_size for spec in specs}) > 1:
        return False
    match first.kind:
        case CacheKind.FULL | CacheKind.LATENT | CacheKind.INDEXER:
            return all(spec.kind in FULL_FAMILY for spec in specs)
        case CacheKind.WINDOW:
            kinds = (CacheKind.WINDOW, CacheKind.LATENT_WINDOW)
            return all(spec.kind in kinds and spec.span == first.span for spec in specs)
        case CacheKind.STATE:
            return all(
                spec.kind is CacheKind.STATE
                and spec.state_blocks == first.state_blocks
                and spec.page_bytes == first.page_bytes
                for spec in specs
            )
        case CacheKind.CROSS:
            return all(spec.kind is CacheKind.CROSS for spec in specs)
        case _:
            return all(spec.kind is first.kind and spec.span == first.span for spec in specs)


def promote(counts: Counts) -> Counts | Refusal:
    """Let windowed layers keep every token, as `--disable-hybrid-kv-cache-manager` does; unchanged if all are alike.

    Source: vLLM 0.33 `_promote_local_kv_cache_specs`.
    """
    if same_kind(counts):
        return counts
    full_sizes = {spec.block_size for spec in counts if spec.kind in FULL_FAMILY}
    windowed = [spec for spec in counts if spec.kind in WINDOWED]
    if full_sizes and windowed:
        if len({spec.span for spec in windowed if spec.kind is CacheKind.WINDOW}) > 1 and not any(
            spec.kind in LATENT_FAMILY for spec in counts
        ):
            return Refusal(
                "hybrid_manager_needed",
                "layers with different windows cannot share one table: leave the hybrid cache manager on",
                "All attention layers in the same KV cache group must have the same window size.",
                (leave_out("disable_hybrid_kv_cache_manager"),),
            )
        size = full_sizes.pop() if len(full_sizes) == 1 else None
        counts = merged((_widened(spec, size), stages) for spec, stages in counts.items())
    if same_kind(counts):
        return counts
    return Refusal(
        "hybrid_manager_needed",
        "layers that keep different things cannot share one table: leave the hybrid cache manager on",
        "Failed to promote local KV cache specs to one unified type.",
        (leave_out("disable_hybrid_kv_cache_manager"),),
    )


def _widened(spec: CacheSpec, block_size: int | None) -> CacheSpec:
    """A windowed layer as one that keeps every token, in blocks of `block_size`."""
    if spec.kind not in WINDOWED:
        return spec
    size = block_size or spec.block_size
    return replace(
        spec, kind=WINDOWED[spec.kind], block_size=size, page_bytes=spec.page_bytes // spec.block_size * size, span=None
    )


def merged(layers: Iterable[tuple[CacheSpec, tuple[int, ...]]]) -> Counts:
    """Layers whose caches have become equal, counted together."""
    counts = dict[CacheSpec, tuple[int, ...]]()
    for spec, stages in layers:
        counts[spec] = tuple(map(sum, zip(counts[spec], stages, strict=True))) if spec in counts else stages
    return counts


def unify_pages(counts: Counts) -> Counts | None:
    """Give all layers pages of one size: by more tokens a block where that divides, else by padding; None: neither.

    Source: vLLM 0.33 `unify_kv_cache_spec_page_size`.
    """
    largest = max(spec.page_bytes for spec in counts)
    unified = list[tuple[CacheSpec, tuple[int, ...]]]()
    for spec, stages in counts.items():
        ratio, rest = divmod(largest, spec.page_bytes)
        if rest and spec.kind in LATENT_FAMILY:
            return None
        grows = not rest and spec.kind is not CacheKind.STATE
        block_size = spec.block_size * ratio if grows else spec.block_size
        unified.append((replace(spec, page_bytes=largest, block_size=block_size), stages))
    return merged(unified)


def full_allocation(counts: Counts) -> Counts | None:
    """Plain windows beside latent attention, kept whole so that pages of different sizes may share a table.

    Source: vLLM 0.33 `_try_get_full_allocation_fallback_groups`.
    """
    kinds = {spec.kind for spec in counts}
    if kinds & {CacheKind.LATENT_WINDOW, CacheKind.CHUNK} or not (CacheKind.WINDOW in kinds and kinds & LATENT_FAMILY):
        return None
    promoted = promote(counts)
    return None if isinstance(promoted, Refusal) else promoted


def deal(counts: Counts, profile: EngineProfile, warnings: list[str]) -> Grouping:
    """Deal the layers of each kind into groups of the smallest kind's number, in turn, as cards are dealt.

    From 0.33 on the largest kind's number is taken where it is less than 1.5 times the smallest's.
    Source: vLLM 0.33 `_get_kv_cache_groups_uniform_page_size`.
    """
    totals = [sum(stages) for stages in counts.values()]
    smallest, largest = min(totals), max(totals)
    size = largest if profile.widens_groups and largest < 1.5 * smallest else smallest
    groups = list[Group]()
    for (spec, stages), total in zip(counts.items(), totals, strict=True):
        padding = -total % size
        if padding:
            warnings.append(
                f"Add {padding} padding layers, may waste at most {padding / total * 100:.2f}% KV cache memory"
            )
        number = ceil_div(total, size)
        groups += (Group(((spec, dealt(stages, index, number)),)) for index in range(number))
    return Grouping(tuple(groups), tuple(warnings))


def dealt(stages: tuple[int, ...], index: int, groups: int) -> tuple[int, ...]:
    """Layers of each stage that fall to group `index` of `groups` when every layer in turn goes to the next group."""
    shares, before = list[int](), 0
    for layers in stages:
        after = before + layers
        shares.append((after + groups - 1 - index) // groups - (before + groups - 1 - index) // groups)
        before = after
    return tuple(shares)
