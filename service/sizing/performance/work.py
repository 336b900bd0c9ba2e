"""What one step reads, multiplies and sends on a rank, counted from a model's layers.

Nothing here knows a GPU's speed: bytes and floating-point operations only, by kind, so that rates can be applied later.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from service.sizing.engine import kv_dtypes
from service.sizing.kv_cache.page_bytes import inputs_token_bytes, state_bytes, token_bytes
from service.sizing.layouts import Layout
from service.sizing.model.modules import Embedding, Experts, Linear, Split, TensorClass
from service.sizing.model.schemes import Compute, Scheme
from service.sizing.model.shape import (
    AttentionCache,
    Cache,
    CrossCache,
    IndexerCache,
    InputsCache,
    LatentCache,
    LayerShape,
    ModelShape,
    PackedCache,
    PackedRole,
    RingCache,
    StateCache,
)
from service.sizing.model.summary import TOWERS
from service.sizing.weights import (
    expert_parameters,
    held_whole,
    rank_bytes,
    sizes_on_rank,
    stage_bounds,
    stage_modules,
    vocabulary_on_rank,
)

SPARSE_TOKENS = 2048
"""Tokens that attend where an indexer picks them (`index_topk` of DeepSeek V3.2 and GLM-5; assumed for others)."""

LONGEST_COMPRESSED = 16
"""Compressed attention picks among vectors of fewer tokens than this; of longer ones it reads all (DeepSeek V4)."""


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored: the type they are multiplied in where the GPU has it, and their bits.

    `microscaled` marks the MX formats, for which some cards have kernels of their own.
    """

    compute: Compute
    bits: int
    microscaled: bool

    @classmethod
    def of(cls, scheme: Scheme) -> "Format":
        """The format of a scheme."""
        return cls(scheme.compute, scheme.bits, scheme.name.startswith("MXFP"))


@dataclass(frozen=True, slots=True)
class DenseWork:
    """Weights of one format that every token multiplies with, on a rank: bytes, and operations a token."""

    format: Format
    read_bytes: int
    flops_per_token: float


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """The routed experts of one kind on a rank, its layers added up.

    Attributes
    ----------
    count, active : int
        Experts of a layer, and how many of them a token visits.
    read_bytes : int
        Weights of all experts the rank holds.
    flops_per_token : float
        Operations on the rank for each token of the group.
    visits : int
        Experts that one token visits over all layers.
    shares_tokens : bool
        Whether the copies of a data-parallel group route their tokens together.
    """

    format: Format
    count: int
    active: int
    read_bytes: int
    flops_per_token: float
    visits: int
    shares_tokens: bool


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Attention of one kind on a rank, its layers added up.

    Attributes
    ----------
    token_bytes : float
        Bytes of cache read for one sequence and cached token.
    span : int or None
        Tokens that attend at most; None: all.
    decode_flops, prompt_flops : float
        Operations for one query token and attended token.
    """

    token_bytes: float
    span: int | None
    decode_flops: float
    prompt_flops: float

    def attended(self, tokens: float) -> float:
        """Cached tokens that one query reads at a context of `tokens`."""
        return tokens if self.span is None or tokens < self.span else self.span

    def prompt_pairs(self, tokens: float) -> float:
        """Pairs of query and attended token in a prompt, each token seeing its past: `tokens^2 / 2` without a span."""
        seen = self.attended(tokens)
        return seen * seen / 2 + (tokens - seen) * seen


@dataclass(frozen=True, slots=True)
class Blocks:
    """Parts of the layers of a stage, each of which costs launches and small kernels whatever the batch.

    `quantised` counts layers by the types that their activations are quantised to.
    """

    layers: int
    mixers: int
    mlps: int
    experts: int
    states: int
    indexers: int
    quantised: tuple[tuple[frozenset[Compute], int], ...]


@dataclass(frozen=True, slots=True)
class StageWork:
    """One step of a pipeline stage on tensor rank 0.

    Attributes
    ----------
    dense : tuple of DenseWork
        What every token multiplies with: all but experts, embedding, head and towers.
    head_bytes, head_flops : float
        The output head, on the last stage; it multiplies with the last token of a sequence only.
    experts, attention : tuple
        See `ExpertWork`, `AttentionWork`.
    state_bytes : int
        Recurrent state of one sequence, read and written by every step.
    sequence_bytes : int
        What one sequence reads whatever its length beside that: cross attention, tokens not yet pooled.
    blocks : Blocks
        What the fixed costs are counted by.
    all_reduces : int
        Sums over the tensor ranks, each of the residual stream.
    exchanges : int
        Expert layers whose tokens travel between the ranks of a data-parallel group.
    """

    dense: tuple[DenseWork, ...]
    head_bytes: int
    head_flops: float
    experts: tuple[ExpertWork, ...]
    attention: tuple[AttentionWork, ...]
    state_bytes: int
    sequence_bytes: int
    blocks: Blocks
    all_reduces: int
    exchanges: int


@lru_cache(maxsize=4096)
def stage_work(model: ModelShape, layout: Layout, kv_cache_dtype: str, router_kernels: bool) -> tuple[StageWork, ...]:
    """The work of every pipeline stage.

    Raises
    ------
    Indivisible
        When a dimension does not divide over the ranks.
    """
    counting = _Counting(model, layout, kv_dtypes.checkpoint_dtype(model, kv_cache_dtype), router_kernels)
    bounds = stage_bounds(len(model.layers), layout.pipeline_parallel_size)
    return tuple(counting.stage(number, start, end) for number, (start, end) in enumerate(bounds))


@dataclass
class _Sum:
    """A stage being added up."""

    dense: dict[Format, tuple[int, float]] = field(default_factory=dict[Format, tuple[int, float]])
    experts: dict[tuple[Format, int, int, bool], tuple[int, float, int]] = field(
        default_factory=dict[tuple[Format, int, int, bool], tuple[int, float, int]]
    )
    attention: dict[int | None, tuple[float, float, float]] = field(
        default_factory=dict[int | None, tuple[float, float, float]]
    )
    state_bytes: int = 0
    sequence_bytes: int = 0
    blocks: Counter[str] = field(default_factory=Counter[str])
    quantised: Counter[frozenset[Compute]] = field(default_factory=Counter[frozenset[Compute]])
    all_reduces: int = 0
    exchanges: int = 0


@dataclass(frozen=True)
class _Counting:
    model: ModelShape
    layout: Layout
    stored: str
    router_kernels: bool

    def stage(self, stage: int, start: int, end: int) -> StageWork:
        total, layout = _Sum(), self.layout
        for layer, times in self.model.counted(start, end):
            self._layer(total, layer, times)
        stages = layout.pipeline_parallel_size
        for module in stage_modules(self.model, stage, stages):
            if isinstance(module, Linear) and module.tensor_class not in TOWERS:
                self._linear(total, module, 1)
        head_bytes, head_flops = self._head() if stage == stages - 1 else (0, 0.0)
        return StageWork(
            dense=tuple(DenseWork(stored, *sizes) for stored, sizes in total.dense.items()),
            head_bytes=head_bytes,
            head_flops=head_flops,
            experts=tuple(
                ExpertWork(stored, count, active, *sizes, shares_tokens=spread and layout.data_parallel_size > 1)
                for (stored, count, active, spread), sizes in total.experts.items()
            ),
            attention=tuple(AttentionWork(size, span, *flops) for span, (size, *flops) in total.attention.items()),
            state_bytes=total.state_bytes,
            sequence_bytes=total.sequence_bytes,
            blocks=Blocks(
                layers=end - start,
                mixers=total.blocks["mixers"],
                mlps=total.blocks["mlps"],
                experts=total.blocks["experts"],
                states=total.blocks["states"],
                indexers=total.blocks["indexers"],
                quantised=tuple(total.quantised.items()),
            ),
            all_reduces=total.all_reduces,
            exchanges=total.exchanges,
        )

    def _head(self) -> tuple[int, float]:
        """Bytes, and operations for each sampled token, of the output head or of the embedding it is tied to."""
        model, layout = self.model, self.layout
        wanted = TensorClass.EMBEDDING if model.tied_head else TensorClass.HEAD
        for module in (*model.last_stage, *model.every_stage, *model.first_stage):
            if isinstance(module, Embedding) and module.tensor_class is wanted:
                rows = vocabulary_on_rank(module.vocabulary, layout.tensor_parallel_size)
                return rank_bytes(module, layout, model.element_bytes, self.router_kernels), 2.0 * rows * module.hidden
        return 0, 0.0

    def _layer(self, total: _Sum, layer: LayerShape, times: int) -> None:
        for module in layer.modules:
            match module:
                case Linear():
                    self._linear(total, module, times)
                case Experts():
                    self._experts(total, module, times)
                case _:
                    pass
        attended = layer.caches if layer.cache_of is None else self.model.layers[layer.cache_of].caches
        for cache in attended:
            self._cache(total, cache, times)
        total.blocks.update({name: count * times for name, count in layer_blocks(layer).items()})
        if computes := quantised_types(layer):
            total.quantised[computes] += times

    def _linear(self, total: _Sum, module: Linear, times: int) -> None:
        inputs, outputs = sizes_on_rank(module, self.layout)
        whole, tensor = held_whole(module, self.layout), self.layout.tensor_parallel_size
        # A layer held whole while tensor ranks split the tokens multiplies with its share of them only.
        share = tensor if whole and module.split is not Split.REPLICATED else 1
        stored = Format.of(module.scheme)
        read, flops = total.dense.get(stored, (0, 0.0))
        total.dense[stored] = (
            read + times * rank_bytes(module, self.layout, self.model.element_bytes, self.router_kernels),
            flops + times * 2.0 * inputs * sum(outputs) / share,
        )
        sums = module.split is Split.ROW and module.tensor_class is not TensorClass.SHARED_EXPERTS
        if sums and tensor > 1 and not whole:
            total.all_reduces += times

    def _experts(self, total: _Sum, module: Experts, times: int) -> None:
        layout = self.layout
        ranks = layout.tensor_parallel_size * (layout.data_parallel_size if module.spread else 1)
        key = Format.of(module.scheme), module.count, module.active, module.spread
        read, flops, visits = total.experts.get(key, (0, 0.0, 0))
        total.experts[key] = (
            read + times * rank_bytes(module, layout, self.model.element_bytes, self.router_kernels),
            flops + times * 2.0 * module.active * expert_parameters(module) / ranks,
            visits + times * module.active,
        )
        if module.spread and layout.data_parallel_size > 1:
            total.exchanges += times
        elif layout.tensor_parallel_size > 1:
            total.all_reduces += times

    def _cache(self, total: _Sum, cache: Cache, times: int) -> None:
        tensor, shared = self.layout.tensor_parallel_size, self.layout.decode_context_parallel_size
        match cache:
            case StateCache():
                total.state_bytes += times * 2 * state_bytes(cache, tensor)
                return
            case CrossCache():
                total.sequence_bytes += times * token_bytes(cache, self.stored, tensor) * cache.source_tokens
                return
            case RingCache():
                total.sequence_bytes += times * cache.slots * cache.slot_bytes
                return
            case InputsCache():
                total.sequence_bytes += times * inputs_token_bytes(cache, tensor) * cache.tokens
                return
            case AttentionCache():
                span = SPARSE_TOKENS if cache.sparse or cache.summarised else cache.window or cache.chunk
                decode = prompt = 2.0 * max(1, cache.heads // tensor) * (cache.head_size + cache.value_head_size)
            case LatentCache():
                span = SPARSE_TOKENS if cache.sparse else cache.window
                heads = max(1, cache.heads // tensor)
                decode = 2.0 * heads * (2 * cache.latent_size + cache.rope_size)
                prompt = decode if cache.sparse else 2.0 * heads * (cache.key_head_size + cache.value_head_size)
            case IndexerCache():
                span, decode, prompt = None, 0.0, 0.0
            case PackedCache():
                span, decode = cache.window, 0.0
                if cache.role is PackedRole.LATENT:
                    heads = max(1, self.model.attention_heads // tensor)
                    decode = 4.0 * heads * cache.head_size / cache.tokens_per_vector
                    if span is None and cache.tokens_per_vector < LONGEST_COMPRESSED:
                        span = SPARSE_TOKENS
                prompt = decode
        size, decoded, prompted = total.attention.get(span, (0.0, 0.0, 0.0))
        total.attention[span] = (
            size + times * token_bytes(cache, self.stored, tensor) / shared,
            decoded + times * decode,
            prompted + times * prompt,
        )


def layer_blocks(layer: LayerShape) -> dict[str, int]:
    """The parts of one layer, by the names of `Blocks`."""
    classes = {module.tensor_class for module in layer.modules if isinstance(module, Linear)}
    return {
        "mixers": int(bool(layer.caches) or bool(classes & {TensorClass.ATTENTION, TensorClass.STATE})),
        "mlps": int(TensorClass.MLP in classes),
        "experts": sum(isinstance(module, Experts) for module in layer.modules),
        "states": int(any(isinstance(cache, StateCache) for cache in layer.caches)),
        "indexers": int(any(isinstance(cache, IndexerCache) for cache in layer.caches)),
    }


def quantised_types(layer: LayerShape) -> frozenset[Compute]:
    """The types, below 16 bits, that the activations of a layer are quantised to."""
    schemes = (module.scheme for module in layer.modules if isinstance(module, Linear | Experts))
    return frozenset(scheme.compute for scheme in schemes) - {Compute.SIXTEEN_BIT}
