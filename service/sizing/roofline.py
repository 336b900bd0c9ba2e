"""The plain roofline: how long it takes to move the bytes of one token, nothing else.

It stays beside every prediction as the figure a reader can check by hand.
"""

from functools import lru_cache

from service.sizing.hardware import Gpu
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
