"""What loading takes beyond the parameters and buffers a model is built with.

The engine prints "Model loading took": copies its kernels make of the weights, rows they pad, and buffers sized by the
step are in it. The figures are in docs/memory.md with what they were compared with.
"""

from dataclasses import replace
from functools import lru_cache

from service.sizing.hardware import Gpu, Vendor
from service.sizing.layouts import Layout
from service.sizing.model.modules import Experts, Module
from service.sizing.model.schemes import Padding, Quantised
from service.sizing.model.shape import LatentCache, ModelShape
from service.sizing.model.summary import TOWERS, deepstack_layers, is_latent, routed_experts, weight_bits
from service.sizing.quantities import GIB
from service.sizing.weights import StageWeights, module_bytes, rank_bytes, stage_bounds
from service.sizing.working_space import NOTHING, Band, Release

LATENT_REMAINDER = Band(0.03 * GIB, 0.15 * GIB, 0.35 * GIB)
"""What latent models took beyond the copies of `absorbed`; most with an indexer and on Blackwell."""

PADDED_MXFP4 = Padding(hidden=256, intermediate=64)
MXFP4_ON_HOPPER_PADDED_UNTIL = (0, 33)
"""The first release whose Triton kernel takes the widths of MXFP4 experts on Hopper as they are."""

WHOLE_TOWER_UNTIL = (0, 20)
"""The first release that splits the tower of Mistral's own checkpoint format over the tensor ranks."""

ROCM_SHARE = {(False, 16): 0.0, (False, 8): 0.0094, (True, 16): 0.027, (True, 8): 0.0125}
"""What AMD cards took beyond the parameters, by whether there are experts and by the bits of most weights."""

ROCM_EXPERTS_HIGH = 0.37
"""Some builds keep a second layout of 16-bit experts: up to this share more was measured."""


def loaded_beyond(
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    weights: StageWeights,
    *,
    release: Release,
    max_num_batched_tokens: int,
) -> Band:
    """Bytes that loading one pipeline stage takes on a GPU beyond its parameters and buffers.

    Raises
    ------
    Indivisible
        When a dimension does not divide over the ranks.
    """
    stage, stages = weights.stage, layout.pipeline_parallel_size
    first, end = stage_bounds(len(model.layers), stages)[stage]
    exact = absorbed(model, layout, first, end)
    if gpu.compute_capability and gpu.compute_capability[0] == 9 and release < MXFP4_ON_HOPPER_PADDED_UNTIL:
        exact += padded_experts(model, layout, first, end)
    if stage == 0:
        exact += deep_features(model, max_num_batched_tokens)
    total = Band(exact, exact, exact) + rocm(model, gpu, weights)
    if is_latent(model):
        total += LATENT_REMAINDER
    if stage == 0 and release < WHOLE_TOWER_UNTIL:
        total += whole_tower(model, layout)
    return total


@lru_cache(maxsize=4096)
def absorbed(model: ModelShape, layout: Layout, first: int, end: int) -> int:
    """16-bit copies of latent attention's projections up to the heads: `latent x heads on a rank x (plain + value)`.

    Source: vLLM `layers/attention/mla_attention.py: process_weights_after_loading` (`W_UK_T`, `W_UV`).
    """
    total = 0
    for layer, count in model.counted(first, end):
        for cache in layer.caches:
            if isinstance(cache, LatentCache):
                plain = cache.key_head_size - cache.rope_size
                heads = cache.heads // layout.tensor_parallel_size
                total += count * cache.latent_size * heads * (plain + cache.value_head_size) * 2
    return total


@lru_cache(maxsize=4096)
def padded_experts(model: ModelShape, layout: Layout, first: int, end: int) -> int:
    """Rows that the Triton kernel's layout of MXFP4 experts on Hopper adds."""
    total = 0
    for layer, count in model.counted(first, end):
        for module in layer.modules:
            if not isinstance(module, Experts) or not isinstance(module.scheme, Quantised):
                continue
            if module.scheme.name == "MXFP4" and module.scheme.padding is not None:
                padded = replace(module, scheme=replace(module.scheme, padding=PADDED_MXFP4))
                total += count * (
                    rank_bytes(padded, layout, model.element_bytes) - rank_bytes(module, layout, model.element_bytes)
                )
    return total


def deep_features(model: ModelShape, max_num_batched_tokens: int) -> int:
    """Buffers for the features of several encoder layers: one of every token of a step for each.

    Source: vLLM 0.33 `model_executor/models/qwen3_vl.py: deepstack_input_embeds`.
    """
    return deepstack_layers(model) * max_num_batched_tokens * model.hidden_size * model.element_bytes


@lru_cache(maxsize=4096)
def whole_tower(model: ModelShape, layout: Layout) -> Band:
    """What a tower of Pixtral's kind takes more where every tensor rank holds it whole.

    That is how Mistral's own checkpoint format is loaded, which its own repositories hold and the engine prefers;
    a configuration does not tell whether the repository holds it.
    """
    if model.architecture not in ("Mistral3ForConditionalGeneration", "PixtralForConditionalGeneration"):
        return NOTHING
    tower = tuple(module for module in model.first_stage if module.tensor_class in TOWERS)
    size = _bytes(tower, Layout(), model) - _bytes(tower, layout, model)
    return Band(0, size if model.name.startswith("mistralai/") else 0, size)


def _bytes(modules: tuple[Module, ...], layout: Layout, model: ModelShape) -> int:
    return sum(module_bytes(modules, layout, model.element_bytes, router_kernels=True))


def rocm(model: ModelShape, gpu: Gpu, weights: StageWeights) -> Band:
    """What AMD cards take more: padded rows, and for some builds a second layout of 16-bit experts."""
    if gpu.vendor is not Vendor.AMD:
        return NOTHING
    experts = routed_experts(model)
    bits = min(16, max(8, weight_bits(model)))
    value = ROCM_SHARE.get((experts is not None, bits), 0.0) * weights.total_bytes
    high = ROCM_EXPERTS_HIGH * weights.total_bytes if experts and bits == 16 else value + 0.01 * weights.total_bytes
    return Band(0, value, max(value, high))
