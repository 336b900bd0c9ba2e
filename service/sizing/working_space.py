"""Memory that is neither weights nor cache: activations, sampler, graphs, collectives.

The engine measures it on the GPU; here it is a sum of terms with a band. The terms and their bands for 0.33 extend
what was fitted to 190 public startups of 0.8 to 0.20 by the changes in vLLM's source; no startup of 0.33 has been
measured, so every figure is marked assumed.
"""

from dataclasses import dataclass

from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import dense_intermediate, has_tower, routed_experts
from service.sizing.quantities import GIB, round_up


@dataclass(frozen=True, slots=True)
class Band:
    """Low, central and high value of a term, in bytes."""

    low: float
    value: float
    high: float

    def __add__(self, other: "Band") -> "Band":
        return Band(self.low + other.low, self.value + other.value, self.high + other.high)


ZERO = Band(0, 0, 0)

LOGIT_BYTES = Band(10, 14, 16)
"""Transient bytes of one sequence's logit: 16-bit and float32 copies and the sampler's own."""

SAMPLER_STATE_BYTES = 4.125
"""Resident bytes for each sequence slot and vocabulary entry: an int32 count and one mask bit (V2 model runner)."""

BASE = Band(0.15 * GIB, 0.30 * GIB, 0.60 * GIB)
"""Residual activations and driver growth."""

FUSED_COLLECTIVES = {
    2: Band(0.4 * GIB, 1.8 * GIB, 2.3 * GIB),
    4: Band(0.45 * GIB, 1.9 * GIB, 2.4 * GIB),
    8: Band(0.7 * GIB, 2.15 * GIB, 2.8 * GIB),
}
"""Workspaces of tensor parallelism where all-reduce is fused with the norm (compute capability 9.0 and 10.x)."""

PLAIN_COLLECTIVES = {
    2: Band(0.0 * GIB, 0.35 * GIB, 0.6 * GIB),
    4: Band(0.1 * GIB, 0.45 * GIB, 0.8 * GIB),
    8: Band(0.3 * GIB, 0.7 * GIB, 1.2 * GIB),
}
"""Workspaces of tensor parallelism elsewhere."""

FULL_GRAPH_SIZES = 51
"""CUDA graph sizes of the default capture, to which the graph terms were fitted."""


def logits(sequences: int, vocabulary: int) -> Band:
    """Sampling `sequences` at once from a vocabulary padded to 64: transient copies and resident state."""
    entries = sequences * round_up(vocabulary, 64)
    state = SAMPLER_STATE_BYTES * entries
    return Band(LOGIT_BYTES.low * entries, LOGIT_BYTES.value * entries, LOGIT_BYTES.high * entries) + Band(
        state, state, state
    )


def forward(model: ModelShape, layout: Layout, tokens: int) -> float:
    """Bytes of one layer's activations over `tokens`: `2 x tokens x (3 x intermediate / tensor + 4 x hidden)`."""
    return 2 * tokens * (3 * dense_intermediate(model) / layout.tensor_parallel_size + 4 * model.hidden_size)


def expert_workspace(model: ModelShape, layout: Layout, tokens: int) -> Band:
    """Buffers of the expert kernels: `2 x tokens x active x (max(2 x width, hidden) + max(width, hidden))`.

    Kernels that need none exist, so the low end is 0; the central value holds for unquantised experts.
    """
    experts = routed_experts(model)
    if experts is None:
        return ZERO
    width = experts.intermediate // layout.expert_width_ranks
    bytes_ = 2 * tokens * experts.active * (max(2 * width, experts.hidden) + max(width, experts.hidden))
    return Band(0, bytes_, 1.3 * bytes_)


def graphs(model: ModelShape, sizes: int) -> Band:
    """CUDA graph pool for `sizes` captured batch sizes; nothing when eager."""
    if sizes == 0:
        return ZERO
    full = 0.76 + (0.40 if model.experts else 0.0)
    value = max(0.15, full * sizes / FULL_GRAPH_SIZES) * GIB
    return Band(0.35 * value, value, 1.8 * value)


def collectives(layout: Layout, gpu: Gpu, link: Link) -> Band:
    """Workspaces of tensor parallelism; sizes between the fitted ones take the next larger."""
    tensor = layout.tensor_parallel_size
    if tensor == 1:
        return ZERO
    fused = gpu.compute_capability is not None and gpu.compute_capability[0] in (9, 10) and link is Link.NVLINK
    table = FUSED_COLLECTIVES if fused else PLAIN_COLLECTIVES
    return table[next((size for size in table if size >= tensor), 8)]


def encoder(model: ModelShape, tokens: int) -> Band:
    """Outputs of the image or sound encoder during the profile run: 0.15 GiB and one hidden state a token."""
    if not has_tower(model):
        return ZERO
    value = 0.147 * GIB + 2 * max(tokens, 16384) * model.hidden_size
    return Band(0, value, value + 0.5 * GIB)


def working_space(
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    link: Link,
    *,
    stage: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    graph_sizes: int,
) -> Band:
    """Working space of one GPU of a pipeline stage, in bytes.

    The first stage encodes images, the last one samples; logits and a layer's activations do not peak together.
    """
    tokens = max_num_batched_tokens
    sampling = (
        logits(min(max_num_seqs, tokens), model.vocab_size) if stage == layout.pipeline_parallel_size - 1 else ZERO
    )
    residual = 2.0 * tokens * model.hidden_size
    layer = forward(model, layout, tokens)
    state = sampling.value and SAMPLER_STATE_BYTES * min(max_num_seqs, tokens) * round_up(model.vocab_size, 64)
    peak = Band(*(max(end - state + residual, layer) + state for end in (sampling.low, sampling.value, sampling.high)))
    total = (
        peak
        + BASE
        + expert_workspace(model, layout, tokens)
        + collectives(layout, gpu, link)
        + graphs(model, graph_sizes)
    )
    return total + encoder(model, tokens) if stage == 0 else total
