"""Parameter and buffer bytes, over all ranks and on one."""

from dataclasses import dataclass
from functools import lru_cache

from service.sizing.errors import Indivisible
from service.sizing.layouts import Layout
from service.sizing.model.modules import Embedding, Experts, Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.schemes import ExpertStack
from service.sizing.model.shape import (
    AttentionCache,
    AttentionScales,
    CrossCache,
    LatentCache,
    LayerShape,
    ModelShape,
    RopeTable,
)
from service.sizing.quantities import ceil_div, round_up

VOCABULARY_PADDING = 64
"""Rows of a vocabulary table are padded to a multiple of this (vLLM `vocab_parallel_embedding.py`)."""

FLOAT32_BYTES = 4

EXPERT_MAP_BYTES = 4
"""Bytes of one entry (int32) of the table from global to local experts."""

ATTENTION_SCALE_BYTES = 16
"""Four float32 scales (query, key, value, probability) that every attention layer registers as buffers (vLLM 0.33)."""

RELATIVE_SCALE_BYTES = 8
"""The same of attention with logits by distance: key and value (vLLM 0.33 `models/inkling/nvidia/attention.py`)."""


def parameters(module: Module) -> int:
    """Elements of a module in the published checkpoint."""
    match module:
        case Linear():
            outputs = sum(units.total for units in module.outputs)
            return outputs * module.inputs.total + (outputs if module.bias else 0) - module.unpublished
        case Experts():
            return module.count * expert_parameters(module)
        case Embedding():
            return module.vocabulary * (module.hidden + module.bias) if module.counted else 0
        case Tensor():
            counted = module.counted and not module.buffer
            return sum(units.total for units in module.rows) * module.columns if counted else 0


def expert_parameters(module: Experts) -> int:
    """Elements of one routed expert."""
    projections = 3 if module.gated else 2
    bias = (projections - 1) * module.intermediate + module.hidden if module.bias else 0
    return projections * module.hidden * module.intermediate + bias


def active_parameters(module: Module) -> int:
    """Elements of a module that one token multiplies with: of experts only those it visits."""
    if isinstance(module, Experts):
        return module.active * expert_parameters(module)
    return parameters(module)


def held_whole(module: Linear, layout: Layout) -> bool:
    """Whether every tensor rank holds a split layer whole under a layout."""
    if module.split_units is not None and module.split_units % layout.tensor_parallel_size:
        return True
    if module.whole is Whole.TOKENS_SPLIT_ONE_STAGE and layout.pipeline_parallel_size > 1:
        return False
    return module.whole is not Whole.NEVER and layout.splits_expert_tokens


def sizes_on_rank(module: Linear, layout: Layout) -> tuple[int, tuple[int, ...]]:
    """Inputs, and outputs of each fused matrix, of a linear layer on a tensor rank.

    Raises
    ------
    Indivisible
        When a split dimension does not divide over the ranks.
    """
    ranks = 1 if held_whole(module, layout) else layout.tensor_parallel_size
    inputs = module.inputs.per_rank(ranks) if module.split is Split.ROW else module.inputs.total
    parts = module.outputs
    if module.joined and ranks < module.joined.count and module.joined.count % ranks == 0:
        parts = (parts[0], module.joined)
    outputs = tuple(units.per_rank(ranks) if module.split is Split.COLUMN else units.total for units in parts)
    return inputs, outputs


def rank_bytes(module: Module, layout: Layout, element_bytes: int, router_kernels: bool = True) -> int:
    """Bytes of a module on tensor rank 0, as the engine builds it before any repacking.

    `router_kernels` tells whether the card has the engine's router kernels (see `stage_weights`).

    Raises
    ------
    Indivisible
        When a dimension does not divide over the ranks.
    """
    tensor = layout.tensor_parallel_size
    match module:
        case Linear():
            element = module.element_bytes or element_bytes
            if module.float32_without_router_kernels and not router_kernels:
                element = FLOAT32_BYTES
            inputs, outputs = sizes_on_rank(module, layout)
            if padding := -sum(outputs) % module.output_multiple:
                outputs += (padding,)
            if module.one_beyond_units and any(units.replicated and tensor > units.count for units in module.outputs):
                outputs = (sum(outputs),)
            bias = sum(outputs) * element if module.bias else 0
            return module.scheme.linear_bytes(inputs, outputs, element) + bias
        case Experts():
            local = ceil_div(module.count, layout.expert_ranks if module.spread else 1)
            width = intermediate_on_rank(module, layout)
            stack = ExpertStack(local, module.hidden, width, module.gated, module.bias)
            return module.scheme.experts_bytes(stack, element_bytes, hopper_kernels=router_kernels)
        case Embedding():
            rows = vocabulary_on_rank(module.vocabulary, tensor)
            bias = rows * element_bytes if module.bias else 0
            return module.scheme.linear_bytes(module.hidden, (rows,), element_bytes) + bias
        case Tensor():
            element = module.element_bytes or element_bytes
            rows = sum(units.per_rank(tensor) if module.split else units.total for units in module.rows)
            rows = round_up(rows, module.row_multiple)
            return rows * module.columns * element if module.built else 0


def intermediate_on_rank(module: Experts, layout: Layout) -> int:
    """Width of each expert on a rank."""
    tensor = layout.tensor_parallel_size
    if not module.spread:
        return Units(module.intermediate).per_rank(tensor)
    if not layout.expert_parallel and tensor > 1 and module.intermediate // tensor < module.least_width:
        return module.least_width // layout.data_parallel_size
    if module.intermediate % layout.expert_width_ranks:
        raise Indivisible(module.intermediate, layout.expert_width_ranks)
    return module.intermediate // layout.expert_width_ranks


def vocabulary_on_rank(vocabulary: int, tensor_parallel_size: int) -> int:
    """Rows of a vocabulary table on a rank, padding included."""
    padded = round_up(vocabulary, VOCABULARY_PADDING)
    if padded % tensor_parallel_size:
        raise Indivisible(padded, tensor_parallel_size)
    return padded // tensor_parallel_size


def stage_bounds(layers: int, stages: int) -> tuple[tuple[int, int], ...]:
    """First and past-the-last layer of each pipeline stage.

    `layers // stages` each; the remainder goes one by one to the stages before the last, from the back, the first
    stage only when every other has one. Source: vLLM 0.33 `distributed/utils.py: get_pp_indices`.
    """
    base, rest = divmod(layers, stages)
    sizes = [base] * stages
    for extra in range(rest):
        sizes[stages - 2 - extra] += 1
    bounds, start = list[tuple[int, int]](), 0
    for size in sizes:
        bounds.append((start, start + size))
        start += size
    return tuple(bounds)


def is_buffer(module: Module) -> bool:
    """Whether a module is computed by the engine instead of read from the checkpoint."""
    return isinstance(module, Tensor) and module.buffer


def expert_map_bytes(module: Module, layout: Layout) -> int:
    """Bytes of the table from global to local experts (int32) that spread experts need on every rank.

    Source: vLLM 0.33 `fused_moe/expert_map_manager.py: determine_expert_map`.
    """
    if not isinstance(module, Experts) or not module.spread or layout.expert_ranks == 1:
        return 0
    count = round_up(module.count, layout.expert_ranks) if module.filled else module.count
    return count * EXPERT_MAP_BYTES


@dataclass(frozen=True, slots=True)
class StageWeights:
    """What one pipeline stage loads on tensor rank 0."""

    stage: int
    layers: int
    parameter_bytes: int
    buffer_bytes: int

    @property
    def total_bytes(self) -> int:
        """Parameters and buffers."""
        return self.parameter_bytes + self.buffer_bytes


def follows_tied_head(module: Module) -> bool:
    """Whether the last stage holds a module of the first one too: the embedding, with learned positions beside it."""
    if isinstance(module, Embedding):
        return module.tensor_class is TensorClass.EMBEDDING
    return module.tensor_class is TensorClass.POSITIONS


def stage_modules(model: ModelShape, stage: int, stages: int) -> tuple[Module, ...]:
    """Modules outside the layers that a stage holds: embedding and towers first, final norm and head last."""
    modules = model.every_stage
    if stage == 0:
        modules += model.first_stage
    if stage == stages - 1:
        modules += model.last_stage
        if model.tied_head and stages > 1:
            modules += tuple(m for m in model.first_stage if follows_tied_head(m))
    return modules


def module_bytes(
    modules: tuple[Module, ...], layout: Layout, element_bytes: int, router_kernels: bool
) -> tuple[int, int]:
    """Parameter bytes and buffer bytes of some modules on tensor rank 0."""
    parameter_bytes = buffer_bytes = 0
    for module in modules:
        size = rank_bytes(module, layout, element_bytes, router_kernels)
        if is_buffer(module):
            buffer_bytes += size
        else:
            parameter_bytes += size
            buffer_bytes += expert_map_bytes(module, layout)
    return parameter_bytes, buffer_bytes


@lru_cache(maxsize=4096)
def stage_weights(model: ModelShape, layout: Layout, router_kernels: bool = True) -> tuple[StageWeights, ...]:
    """Bytes loaded by tensor rank 0 of each pipeline stage.

    `router_kernels` is whether the card has the engine's router kernels: compute capability 9.0 and 10.x (vLLM 0.33
    `fused_moe/router/gate_linear.py`). Without them some routers are kept in float32.

    Raises
    ------
    Indivisible
        When a dimension does not divide over the ranks.
    """
    stages = layout.pipeline_parallel_size
    by_layer = {
        layer: module_bytes(layer.modules, layout, model.element_bytes, router_kernels) for layer in model.distinct
    }
    result = list[StageWeights]()
    for stage, (start, end) in enumerate(stage_bounds(len(model.layers), stages)):
        counted = model.counted(start, end)
        outside = stage_modules(model, stage, stages)
        outside_bytes, outside_buffers = module_bytes(outside, layout, model.element_bytes, router_kernels)
        attentions = sum(count * attention_layers(layer) for layer, count in counted)
        result.append(
            StageWeights(
                stage=stage,
                layers=end - start,
                parameter_bytes=sum(
                    count * (by_layer[layer][0] + attention_scale_bytes(layer, model.attention_scales, layout))
                    for layer, count in counted
                )
                + outside_bytes,
                buffer_bytes=sum(count * by_layer[layer][1] for layer, count in counted)
                + outside_buffers
                + sum(count * scale_buffer_bytes(layer) for layer, count in counted)
                + sum(rope_table_bytes(table, range(start, end), attentions > 0) for table in model.rope_tables),
            )
        )
    return tuple(result)


def rope_table_bytes(table: RopeTable, layers: range, attends: bool) -> int:
    """Bytes of a rotary table on a stage of `layers`: none where no layer uses it."""
    used = attends if table.layers is None else not table.layers.isdisjoint(layers)
    return table.positions * table.rotary_size * table.element_bytes if used else 0


def attention_scale_bytes(layer: LayerShape, scales: AttentionScales, layout: Layout) -> int:
    """Bytes of the cache scales that a quantised checkpoint adds to a layer as parameters."""
    total = 0
    for cache in layer.caches:
        if isinstance(cache, LatentCache):
            total += scales.latent_bytes
        elif isinstance(cache, CrossCache) or (isinstance(cache, AttentionCache) and not cache.relative):
            heads = max(1, cache.kv_heads // layout.tensor_parallel_size) if scales.per_kv_head else 1
            total += heads * scales.attention_bytes
    return total


def scale_buffer_bytes(layer: LayerShape) -> int:
    """Bytes of the scales that a layer's attention operators register as buffers."""
    relative = sum(isinstance(cache, AttentionCache) and cache.relative for cache in layer.caches)
    return (attention_layers(layer) - relative) * ATTENTION_SCALE_BYTES + relative * RELATIVE_SCALE_BYTES


def attention_layers(layer: LayerShape) -> int:
    """Attention operators of a layer."""
    return sum(isinstance(cache, AttentionCache | LatentCache | CrossCache) for cache in layer.caches)


def total_parameters(model: ModelShape) -> int:
    """Parameters of the published checkpoint, next-token-prediction layers left out, a tied head counted once."""
    return sum(parameters(m) for m in (*model.first_stage, *model.every_stage, *model.last_stage)) + sum(
        count * sum(parameters(m) for m in layer.modules) for layer, count in model.counted()
    )


def total_active_parameters(model: ModelShape) -> int:
    """Parameters that one token visits: all but the experts it is not routed to."""
    return sum(active_parameters(m) for m in (*model.first_stage, *model.every_stage, *model.last_stage)) + sum(
        count * sum(active_parameters(m) for m in layer.modules) for layer, count in model.counted()
    )
