"""The plain roofline: how long it takes to move the bytes of one token, nothing else.

It stays beside every prediction as the figure a reader can check by hand.
"""

from functools import lru_cache

from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.model.modules import Experts
from service.sizing.model.shape import ModelShape
from service.sizing.weights import rank_bytes, stage_bounds, stage_weights

DEFAULT_BANDWIDTH_FRACTION = 0.85
"""Share of the rated memory bandwidth that reading weights reaches."""


@lru_cache(maxsize=4096)
def stage_expert_bytes(model: ModelShape, layout: Layout) -> tuple[tuple[int, float], ...]:
    """Bytes of routed experts on tensor rank 0 of each stage, and the share of them one token visits."""
    result = list[tuple[int, float]]()
    for start, end in stage_bounds(len(model.layers), layout.pipeline_parallel_size):
        whole, active = 0, 0.0
        for layer, count in model.counted(start, end):
            for module in layer.modules:
                if isinstance(module, Experts):
                    size = count * rank_bytes(module, layout, model.element_bytes)
                    whole += size
                    active += size * module.active / module.count
        result.append((whole, active / whole if whole else 1.0))
    return tuple(result)


@lru_cache(maxsize=4096)
def active_weight_bytes(model: ModelShape, layout: Layout) -> float:
    """Parameter bytes one token reads on its way through all stages: of experts only those it visits."""
    stages = zip(stage_weights(model, layout), stage_expert_bytes(model, layout), strict=True)
    return sum(weights.parameter_bytes - experts * (1 - share) for weights, (experts, share) in stages)


def weight_read_ms(model: ModelShape, layout: Layout, gpu: Gpu, bandwidth_fraction: float) -> float:
    """Milliseconds to read a rank's active parameters once, the stages of a pipeline added up.

    `active bytes / (rated bandwidth x fraction)`; for one token and dense models a lower bound of its time.
    """
    rate = gpu.memory_bandwidth_bytes_per_s * bandwidth_fraction
    return active_weight_bytes(model, layout) / rate * 1000


ALL_REDUCE_START_MS = {Link.NVLINK: 0.006, Link.XGMI: 0.012, Link.PCIE: 0.022}
"""Milliseconds before the first byte of an all-reduce moves (public collective benchmarks, rounded)."""

BETWEEN_NODES_START_MS = 0.03
BETWEEN_NODES_BYTES_PER_S = 48.5e9
"""Bus bandwidth of an all-reduce over InfiniBand between nodes of eight GPUs (nccl-tests)."""


def all_reduces(model: ModelShape, layout: Layout) -> int:
    """All-reduces of one decode step: two a layer where tensors are split."""
    return 2 * len(model.layers) if layout.tensor_parallel_size > 1 else 0


def all_reduce_ms(bytes_: float, ranks: int, gpu: Gpu, link: Link, gpus_per_node: int) -> float:
    """Milliseconds of one all-reduce of `bytes_`: start, and `2 (ranks - 1) / ranks` of the bytes over the link."""
    inside = ranks <= gpus_per_node
    start = ALL_REDUCE_START_MS[link] if inside else BETWEEN_NODES_START_MS
    rate = gpu.link_bandwidth_bytes_per_s if inside else BETWEEN_NODES_BYTES_PER_S
    return start + 2 * (ranks - 1) / ranks * bytes_ / rate * 1000


def step_ms(
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    link: Link,
    gpus_per_node: int,
    *,
    sequences: int,
    cached_bytes: tuple[float, ...],
    bandwidth_fraction: float,
) -> float:
    """Milliseconds of one decode step of a copy, moving bytes only.

    Parameters
    ----------
    sequences : int
        Sequences of the copy that are decoded together; with stages, each stage works on its share of them.
    cached_bytes : tuple of float
        Bytes one sequence keeps on a GPU of each stage: read whole for every token.
    """
    rate = gpu.memory_bandwidth_bytes_per_s * bandwidth_fraction
    together = max(1.0, sequences / layout.pipeline_parallel_size)
    bytes_ = 0.0
    stages = zip(stage_weights(model, layout), stage_expert_bytes(model, layout), cached_bytes, strict=True)
    for weights, (experts, share), cached in stages:
        visited = 1 - (1 - share) ** together
        bytes_ += weights.parameter_bytes - experts * (1 - visited) + together * cached
    reductions = all_reduces(model, layout)
    size = together * model.hidden_size * model.element_bytes
    traffic = (
        reductions * all_reduce_ms(size, layout.tensor_parallel_size, gpu, link, gpus_per_node) if reductions else 0.0
    )
    return bytes_ / rate * 1000 + traffic
