"""What changed when: one profile for each range of vLLM releases whose rules are known.

Sources read: vLLM 0.8.5, 0.11.2, 0.16.0, 0.20.2 and 0.33.0. Startup logs place the change of the token line at 0.20.1
and that of Hopper's latent attention (what it prints as concurrency) between 0.16 and 0.18.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

Release = tuple[int, int, int]


class TokenLine(StrEnum):
    """What "GPU KV cache size: N tokens" counts.

    BLOCKS: blocks x block size, and the concurrency is tokens / context.
    SHARED: (blocks // groups) x the smallest block size, while the concurrency counts each group's own blocks.
    CONCURRENCY: concurrency x context, rounded down.
    """

    BLOCKS = "blocks"
    SHARED = "shared"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class BatchTier:
    """Batch-size defaults of `vllm serve` for cards of at least `memory_gib` (GiB, as the driver reports)."""

    memory_gib: int
    max_num_batched_tokens: int
    max_num_seqs: int
    small_core_excluded: bool = False
    """A100 (by its name) and compute capability 12.1 take the next tier."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineProfile:
    """The rules of vLLM releases `first` to `last`; compared by identity.

    Attributes
    ----------
    version : str
        The release an answer names.
    gpu_memory_utilization : float
        Default fraction of the GPU's memory.
    token_line : TokenLine
        Meaning of the printed cache size.
    batch_tiers : tuple of BatchTier
        First match wins; the last one takes every card.
    overlaps_batches : bool
        Whether more than one batch is in flight (asynchronous scheduling), which windowed layers reserve for.
    groups_by_kind : bool
        Whether windowed layers free what leaves the window (hybrid cache manager); before, every layer is full.
    widens_groups : bool
        Whether the largest kind of layer sets the group size when it has fewer than 1.5 times the smallest's layers.
    reserves_null_block : bool
        Whether one block is held back when a request of the longest context is checked.
    hybrid_prefix_caching : bool
        Whether models with recurrent layers cache prefixes by default.
    state_checkpoints : bool
        Whether recurrent layers keep states at block boundaries while prefixes are cached.
    prefers_flash_mla : bool
        Whether 16-bit latent attention on Hopper runs on FlashMLA, in blocks of 64 tokens.
    request_possessive : str
        How the refusal of one long request spells its possessive.
    """

    version: str
    first: Release
    last: Release
    gpu_memory_utilization: float
    token_line: TokenLine
    batch_tiers: tuple[BatchTier, ...]
    overlaps_batches: bool
    groups_by_kind: bool
    widens_groups: bool
    reserves_null_block: bool
    hybrid_prefix_caching: bool
    state_checkpoints: bool
    prefers_flash_mla: bool
    request_possessive: str


SMALL = BatchTier(0, 2048, 256)

V0_8 = EngineProfile(
    version="0.8.5",
    first=(0, 8, 0),
    last=(0, 8, 99),
    gpu_memory_utilization=0.90,
    token_line=TokenLine.BLOCKS,
    batch_tiers=(BatchTier(70, 8192, 1024), SMALL),
    overlaps_batches=False,
    groups_by_kind=False,
    widens_groups=False,
    reserves_null_block=False,
    hybrid_prefix_caching=False,
    state_checkpoints=False,
    prefers_flash_mla=True,
    request_possessive="models's",
)

V0_16 = replace(
    V0_8,
    version="0.16.0",
    first=(0, 11, 0),
    last=(0, 16, 99),
    token_line=TokenLine.SHARED,
    batch_tiers=(BatchTier(70, 8192, 1024, small_core_excluded=True), SMALL),
    groups_by_kind=True,
)

V0_19 = replace(V0_16, version="0.19.0", first=(0, 17, 0), last=(0, 19, 99), prefers_flash_mla=False)

V0_20_0 = replace(V0_19, version="0.20.0", first=(0, 20, 0), last=(0, 20, 0), gpu_memory_utilization=0.92)

V0_20_2 = replace(V0_20_0, version="0.20.2", first=(0, 20, 1), last=(0, 20, 99), token_line=TokenLine.CONCURRENCY)

V0_33 = replace(
    V0_20_2,
    version="0.33.0",
    first=(0, 33, 0),
    last=(0, 33, 99),
    batch_tiers=(BatchTier(160, 16384, 1024), *V0_20_2.batch_tiers),
    overlaps_batches=True,
    widens_groups=True,
    reserves_null_block=True,
    hybrid_prefix_caching=True,
    state_checkpoints=True,
    request_possessive="model's",
)

PROFILES = (V0_8, V0_16, V0_19, V0_20_0, V0_20_2, V0_33)
"""In the order of releases; no two overlap."""

NEWEST = PROFILES[-1]


def release(version: str) -> Release | None:
    """The three numbers a version starts with: "0.20.1rc1.dev16+g7a1eb8ac2" is a build of 0.20.1; None: no number.

    A pre-release counts as the release before it would: 0.20.1rc1 still prints what 0.20.0 prints.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(rc|a|b|\.dev)?", version.strip())
    if match is None:
        return None
    major, minor, patch, before = match.groups()
    number = (int(major), int(minor), int(patch or 0))
    return (number[0], number[1], number[2] - 1) if before and number[2] > 0 else number


def profile_for(version: str | None) -> tuple[EngineProfile, str | None]:
    """The profile of a release, and a warning when its rules were not read but taken from the nearest that were.

    Parameters
    ----------
    version : str or None
        As `vllm --version` prints it; None: the newest known.
    """
    if version is None:
        return NEWEST, None
    number = release(version)
    if number is None:
        return NEWEST, f"version {version!r} is not a vLLM release; the rules of {NEWEST.version} are applied"
    for profile in PROFILES:
        if profile.first <= number <= profile.last:
            return profile, None
    nearest = min(reversed(PROFILES), key=lambda profile: _distance(profile, number))
    return nearest, f"the rules of vLLM {version} were not read; those of {nearest.version}, the nearest, are applied"


def _distance(profile: EngineProfile, number: Release) -> int:
    """Minor releases between a profile and a release outside it."""
    return max(_minors(number) - _minors(profile.last), _minors(profile.first) - _minors(number))


def _minors(number: Release) -> int:
    """Minor releases since 0.0; a new major counts as a hundred."""
    return number[0] * 100 + number[1]
