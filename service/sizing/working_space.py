"""Memory that is neither weights nor cache: activations, sampler, expert kernels, collectives, CUDA graphs.

The engine measures it on the GPU. Here it is a sum of terms, fitted to 190 public startups of vLLM 0.8 to 0.20 and, for
later releases, extended by what changed in vLLM's source; each term has a low, a central and a high value, and the high
ones decide. What is known of the error stands in docs/memory.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.sizing.hardware import Gpu, Link, Vendor
from service.sizing.layouts import Layout
from service.sizing.model.modules import Experts
from service.sizing.model.schemes import Compute
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import (
    deepstack_layers,
    dense_intermediate,
    has_tower,
    is_latent,
    keeps_packed_cache,
    routed_experts,
)
from service.sizing.quantities import GIB, round_up

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """Low, central and high value, in bytes."""

    low: float
    value: float
    high: float

    def __add__(self, other: "Band") -> "Band":
        return Band(self.low + other.low, self.value + other.value, self.high + other.high)

    def scaled(self, factor: float) -> "Band":
        """Every value times a factor."""
        return Band(self.low * factor, self.value * factor, self.high * factor)


NOTHING = Band(0, 0, 0)


def gib(low: float, value: float, high: float) -> Band:
    """A band given in GiB."""
    return Band(low * GIB, value * GIB, high * GIB)


@dataclass(frozen=True, slots=True)
class Era:
    """Releases that divide memory alike.

    Attributes
    ----------
    name : str
        For people.
    measured : bool
        Whether startups of these releases were fitted; else they are extended from the source.
    logit_bytes : Band
        Transient bytes of one sequence's logit: its copies and what the sampler makes of them.
    sampler_state : Band
        Resident bytes for each sequence slot and vocabulary entry.
    base : Band
        Residual activations and growth outside the allocator.
    fused, plain : mapping of int to Band
        Workspaces of tensor parallelism by its size, with and without all-reduce fused into the norm.
    fuses : bool
        Whether fusing is the default where the card has it.
    charges_graphs : bool
        Whether an estimate of the CUDA graph pool is taken off the cache.
    expert_workspace : bool
        Whether the expert kernels' buffers are counted; before, only those of block-quantised latent models and, on
        NVIDIA, of whole 8-bit experts in compressed-tensors are.
    """

    name: str
    measured: bool
    logit_bytes: Band
    sampler_state: Band
    base: Band
    fused: Mapping[int, Band]
    plain: Mapping[int, Band]
    fuses: bool
    charges_graphs: bool
    expert_workspace: bool


def _around(centres: Mapping[int, float], low: float = 0.0, high: float = 0.0) -> Mapping[int, Band]:
    return {size: gib(centre - low, centre, centre + high) for size, centre in centres.items()}


PLAIN = _around({2: 0.387, 4: 0.468, 8: 0.735})
FUSED = _around({2: 1.80, 4: 1.914, 8: 2.14})

FIRST_ENGINE = Era(
    name="up to 0.7",
    measured=True,
    logit_bytes=Band(14, 38, 38),
    sampler_state=NOTHING,
    base=gib(0.0, 0.08, 0.30),
    # It measures before the communicators exist, so that their buffers count too.
    fused={},
    plain={2: gib(0.0, 0.25, 0.6), 4: gib(0.3, 1.0, 1.6), 8: gib(1.0, 2.1, 2.7)},
    fuses=False,
    charges_graphs=False,
    expert_workspace=False,
)
"""vLLM's first engine (V0), fitted to a dozen startups of small cards; releases before 0.8 and cards before Ampere."""

UP_TO_0_13 = Era(
    name="0.8 to 0.13",
    measured=True,
    # Sorting top-k and top-p: 16-bit and float32 logits, sorted values, 64-bit indices, probabilities.
    logit_bytes=Band(14, 38, 38),
    sampler_state=NOTHING,
    base=gib(0.07, 0.222, 0.422),
    fused=PLAIN,
    plain=PLAIN,
    fuses=False,
    charges_graphs=False,
    expert_workspace=False,
)

UPSTREAM_0_11_0 = replace(UP_TO_0_13, logit_bytes=Band(14, 14, 38))
"""The release image of 0.11.0, whose sampler did not sort; builds of others, and 0.11.2 again, sort.

Its block-quantised latent experts took no workspace either. Two startups on H200: DeepSeek-R1 and Llama 3.3 70B.
"""

UP_TO_0_16 = Era(
    name="0.14 to 0.16",
    measured=True,
    logit_bytes=Band(14, 38, 38),
    sampler_state=NOTHING,
    base=gib(0.07, 0.222, 0.422),
    fused=PLAIN,
    plain=PLAIN,
    fuses=False,
    charges_graphs=False,
    expert_workspace=True,
)

UP_TO_0_19 = Era(
    name="0.17 to 0.19",
    measured=True,
    # A kernel that does not sort: 16-bit and three float32 copies.
    logit_bytes=Band(14, 14, 14),
    sampler_state=NOTHING,
    base=gib(0.23, 0.38, 0.58),
    fused=FUSED,
    plain=PLAIN,
    fuses=True,
    charges_graphs=False,
    expert_workspace=True,
)

UP_TO_0_20 = Era(
    name="0.20",
    measured=True,
    logit_bytes=Band(14, 14, 14),
    sampler_state=NOTHING,
    base=gib(0.23, 0.38, 0.58),
    fused=FUSED,
    plain=PLAIN,
    fuses=True,
    charges_graphs=True,
    expert_workspace=True,
)

FROM_0_21 = Era(
    name="0.21 and later",
    measured=False,
    logit_bytes=Band(10, 14, 16),
    # An int32 count and one mask bit (V2 model runner); nothing with the first runner, which some releases still use.
    sampler_state=Band(0, 4.125, 4.125),
    base=gib(0.15, 0.30, 0.60),
    fused={2: gib(0.4, 1.8, 2.3), 4: gib(0.45, 1.9, 2.4), 8: gib(0.7, 2.15, 2.8)},
    plain={2: gib(0.0, 0.35, 0.6), 4: gib(0.1, 0.45, 0.8), 8: gib(0.3, 0.7, 1.2)},
    fuses=True,
    charges_graphs=True,
    expert_workspace=True,
)

ERAS: tuple[tuple[Release, Era], ...] = (
    ((0, 8), FIRST_ENGINE),
    ((0, 14), UP_TO_0_13),
    ((0, 17), UP_TO_0_16),
    ((0, 20), UP_TO_0_19),
    ((0, 21), UP_TO_0_20),
)
"""Each era with the first release after it."""

ROCM_BASE = 1.058 * GIB
ROCM_EIGHT = (1.462 + 0.42) * GIB
"""What MI300X took beyond the rest, and more over eight cards.

Over eight, the cache in blocks was 0.42 GiB smaller than the one printed for the first card: another card had less.
"""

UNMODELLED_BUFFERS = gib(0, 3, 8)
"""Room kept for the buffers of compressed latent attention, which no formula here covers: several GiB."""

FULL_GRAPH_SIZES = 51
"""CUDA graph sizes of the default capture, to which the graph terms were fitted."""

ROCM_GRAPHS = gib(3, 6, 9)
"""Graph pools measured on MI300X; charged since the release that estimates them there too."""

ROCM_ESTIMATES_GRAPHS = (0, 21)

ENCODER_TOKENS = 16_384
"""Tokens of the profile run's images where features of several encoder layers are kept."""


def era_of(release: Release) -> Era:
    """The era of a release."""
    return next((era for end, era in ERAS if release < end), FROM_0_21)


def era_for(release: Release, version: str | None, *, first_engine: bool = False) -> Era:
    """How one build divides memory."""
    if first_engine:
        return FIRST_ENGINE
    return UPSTREAM_0_11_0 if version is not None and version.removeprefix("v") == "0.11.0" else era_of(release)


def sampling(era: Era, sequences: int, vocabulary: int) -> tuple[Band, Band]:
    """Transient and resident bytes of sampling `sequences` at once from a vocabulary padded to 64."""
    entries = sequences * round_up(vocabulary, 64)
    return era.logit_bytes.scaled(entries), era.sampler_state.scaled(entries)


def layer_activations(model: ModelShape, layout: Layout, tokens: int) -> float:
    """One layer's activations over `tokens`: `2 x tokens x (3 x intermediate / tensor + 4 x hidden)`."""
    return 2 * tokens * (3 * dense_intermediate(model) / layout.tensor_parallel_size + 4 * model.hidden_size)


def peak(era: Era, model: ModelShape, layout: Layout, *, tokens: int, sequences: int, samples: bool) -> Band:
    """The most that one step needs: logits beside the hidden states, or one layer; they do not peak together."""
    layer = layer_activations(model, layout, tokens)
    if not samples:
        return Band(layer, layer, layer)
    transient, resident = sampling(era, sequences, model.vocab_size)
    states = 2.0 * tokens * model.hidden_size
    return resident + Band(
        max(transient.low + states, layer), max(transient.value + states, layer), max(transient.high + states, layer)
    )


def expert_workspace(era: Era, model: ModelShape, layout: Layout, gpu: Gpu, release: Release, tokens: int) -> Band:
    """Buffers of the expert kernels: `2 x tokens x active x (max(2 x width, hidden) + max(width, hidden))`.

    Exact for unquantised experts; which kernel runs quantised ones decides whether it needs them, so their low end is
    nothing and the centre follows the kernels that were measured.
    """
    experts = routed_experts(model)
    if experts is None:
        return NOTHING
    width = experts.intermediate // layout.expert_width_ranks
    size = 2.0 * tokens * experts.active * (max(2 * width, experts.hidden) + max(width, experts.hidden))
    if not _kernel_needs_workspace(era, experts, model, layout, gpu, release):
        return Band(0, 0, max(size, 0.25 * GIB) if _may_need_workspace(era, experts, gpu) else 0.25 * GIB)
    if not era.measured:
        return Band(0, size, 1.3 * size)
    return Band(size - 0.15 * GIB if experts.scheme.bits >= 16 else 0, size, size + 0.3 * GIB)


def _may_need_workspace(era: Era, experts: Experts, gpu: Gpu) -> bool:
    """Whether a workspace is possible though the kernels measured took none."""
    return not era.measured or (experts.scheme.bits == 8 and not _is_blackwell(gpu))


def _kernel_needs_workspace(
    era: Era, experts: Experts, model: ModelShape, layout: Layout, gpu: Gpu, release: Release
) -> bool:
    """Whether the kernel of a model's experts was seen to need the workspace."""
    method = model.quantization or ""
    latent_blocks = method == "fp8" and is_latent(model) and gpu.vendor is Vendor.NVIDIA
    if not era.expert_workspace:
        whole_experts = method == "compressed-tensors" and experts.scheme.bits == 8 and layout.expert_parallel
        blocks_need = latent_blocks and release < (0, 13) and era is not UPSTREAM_0_11_0
        return blocks_need or (whole_experts and gpu.vendor is Vendor.NVIDIA)
    if experts.scheme.bits >= 16:
        return True
    if method.startswith("modelopt") or experts.scheme.compute is Compute.SIXTEEN_BIT or experts.scheme.bits < 8:
        return False
    if method == "fp8" and layout.expert_parallel:
        return False
    return not _is_blackwell(gpu) and not (latent_blocks and (0, 15) <= release < (0, 17))


def _is_blackwell(gpu: Gpu) -> bool:
    return gpu.compute_capability is not None and gpu.compute_capability[0] >= 10


def collectives(era: Era, layout: Layout, gpu: Gpu, link: Link) -> Band:
    """Workspaces of tensor parallelism; sizes between the fitted ones take the next larger, beyond 8 those of 8."""
    tensor = layout.tensor_parallel_size
    if tensor == 1:
        return NOTHING
    major = gpu.compute_capability[0] if gpu.compute_capability else 0
    table = era.fused if era.fuses and link is Link.NVLINK and major in (9, 10) else era.plain
    found = table[next((size for size in sorted(table) if size >= tensor), 8)]
    if tensor == 2 and link is Link.PCIE:
        # A pair over PCIe keeps no buffers of its own all-reduce.
        found = Band(0, found.value, found.high)
    return found + gib(0, 0, 0.35) if tensor >= 8 else found


def graphs(era: Era, model: ModelShape, gpu: Gpu, release: Release, sizes: int) -> Band:
    """The estimate of the CUDA graph pool for `sizes` captured batch sizes; nothing when eager."""
    if sizes == 0 or not era.charges_graphs:
        return NOTHING
    if gpu.vendor is Vendor.AMD:
        return ROCM_GRAPHS if release >= ROCM_ESTIMATES_GRAPHS else NOTHING
    full = 0.76 + (0.40 if model.experts else 0.0)
    value = max(0.15, full * sizes / FULL_GRAPH_SIZES) * GIB
    return Band(0.35 * value, value, (1.6 if era.measured else 1.8) * value)


def encoder(era: Era, model: ModelShape, tokens: int) -> Band:
    """What the profile run's images take: 0.15 GiB and the encoder's outputs, several a token where layers are kept."""
    if not has_tower(model):
        return NOTHING
    kept = deepstack_layers(model)
    value = 0.147 * GIB + 2 * max(tokens, ENCODER_TOKENS if kept else 0) * model.hidden_size * (1 + kept)
    if era.measured:
        return Band(value - 0.15 * GIB, value, value + 0.35 * GIB)
    return Band(0, value, value + 0.5 * GIB)


def rocm(layout: Layout, gpu: Gpu) -> Band:
    """What AMD cards take beyond the rest."""
    if gpu.vendor is not Vendor.AMD:
        return NOTHING
    value = ROCM_BASE + (ROCM_EIGHT if layout.tensor_parallel_size >= 8 else 0)
    return Band(value - 0.35 * GIB, value, value + 0.35 * GIB)


def unmodelled(model: ModelShape) -> Band:
    """What is set aside for kinds of attention whose buffers are not known."""
    return UNMODELLED_BUFFERS if keeps_packed_cache(model) else NOTHING


def working_space(
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    link: Link,
    *,
    version: str | None = None,
    release: Release,
    stage: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    graph_sizes: int,
    first_engine: bool = False,
    cuts_prompts: bool = True,
) -> Band:
    """Working space of one GPU of a pipeline stage, in bytes.

    The first stage encodes images, the last one samples. The first engine's profile run samples nothing where prompts
    are cut: startups printed the activations of one layer alone.
    """
    era = era_for(release, version, first_engine=first_engine)
    tokens = max_num_batched_tokens
    total = (
        peak(
            era,
            model,
            layout,
            tokens=tokens,
            sequences=min(max_num_seqs, tokens),
            samples=stage == layout.pipeline_parallel_size - 1 and not (first_engine and cuts_prompts),
        )
        + expert_workspace(era, model, layout, gpu, release, tokens)
        + era.base
        + collectives(era, layout, gpu, link)
        + graphs(era, model, gpu, release, graph_sizes)
        + rocm(layout, gpu)
        + unmodelled(model)
    )
    return total + encoder(era, model, tokens) if stage == 0 else total
