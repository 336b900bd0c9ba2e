"""What other formulas need to know of a model's structure, in a few numbers."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from service.sizing.model.modules import Experts, Linear, Split, TensorClass
from service.sizing.model.shape import (
    AttentionCache,
    Cache,
    CrossCache,
    IndexerCache,
    InputsCache,
    LatentCache,
    ModelShape,
    PackedCache,
    RingCache,
    StateCache,
)
from service.sizing.model.towers.qwen import DEEPSTACK_NORM

TOWERS = frozenset({TensorClass.TOWER, TensorClass.PROJECTOR})
DENSE_MLPS = frozenset({TensorClass.MLP, TensorClass.SHARED_EXPERTS})


@lru_cache(maxsize=1024)
def routed_experts(model: ModelShape) -> Experts | None:
    """The widest routed experts of any layer; None: dense."""
    found = [module for layer in model.distinct for module in layer.modules if isinstance(module, Experts)]
    return max(found, key=lambda module: module.active * module.intermediate, default=None)


@lru_cache(maxsize=1024)
def dense_intermediate(model: ModelShape) -> int:
    """Widest dense MLP of any layer (0: none)."""
    return max(
        (
            module.outputs[0].total
            for layer in model.distinct
            for module in layer.modules
            if isinstance(module, Linear) and module.tensor_class in DENSE_MLPS and module.split is Split.COLUMN
        ),
        default=0,
    )


@lru_cache(maxsize=1024)
def weight_bits(model: ModelShape) -> int:
    """Bits of most weights: those of the routed experts, else of the widest dense weights."""
    if (experts := routed_experts(model)) is not None:
        return experts.scheme.bits
    linears = [module for layer in model.distinct for module in layer.modules if isinstance(module, Linear)]
    widest = max(linears, key=lambda module: module.inputs.total * sum(units.total for units in module.outputs))
    return widest.scheme.bits


@lru_cache(maxsize=1024)
def has_tower(model: ModelShape) -> bool:
    """Whether images, sound or video are encoded beside the text."""
    return any(module.tensor_class in TOWERS for module in model.first_stage)


@lru_cache(maxsize=1024)
def deepstack_layers(model: ModelShape) -> int:
    """Encoder layers whose features are fed to the decoder beside the last one's (0: only the last's)."""
    return sum(module.name == DEEPSTACK_NORM for module in model.first_stage)


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """One kind of cache and how many layers keep it."""

    text: str
    layers: int


@lru_cache(maxsize=1024)
def attention_kinds(model: ModelShape) -> tuple[AttentionKind, ...]:
    """What the layers keep, for people, most frequent first."""
    counts: Counter[str] = Counter()
    for layer, count in model.counted():
        for cache in layer.caches:
            counts[_described(cache)] += count
    return tuple(AttentionKind(text, layers) for text, layers in counts.most_common())


def _described(cache: Cache) -> str:
    match cache:
        case AttentionCache():
            kind = (
                f"sliding window {cache.window}"
                if cache.window
                else f"chunks of {cache.chunk}"
                if cache.chunk
                else "full"
            )
            return f"{kind} ({cache.heads} heads on {cache.kv_heads} KV heads of {cache.head_size})"
        case LatentCache():
            sparse = ", sparse" if cache.sparse else ""
            return f"latent{sparse} ({cache.latent_size} + {cache.rope_size} for {cache.heads} heads)"
        case IndexerCache():
            each = f", one in {cache.tokens_per_key} tokens" if cache.tokens_per_key > 1 else ""
            return f"indexer (head of {cache.head_size}{each})"
        case RingCache():
            return f"tokens not yet pooled ({cache.slots or 'a block'} of {cache.slot_bytes} bytes)"
        case InputsCache():
            return f"inputs of convolutions over {cache.tokens} tokens ({cache.heads} heads of {cache.width})"
        case PackedCache():
            kept = f"sliding window {cache.window}" if cache.window else f"one in {cache.tokens_per_vector} tokens"
            return f"{cache.role.value} ({kept}, {cache.vector_bytes} bytes each)"
        case StateCache():
            return f"{cache.kind.value.replace('_', ' ')} state"
        case CrossCache():
            return f"cross attention ({cache.kv_heads} KV heads of {cache.head_size})"


@lru_cache(maxsize=1024)
def is_latent(model: ModelShape) -> bool:
    """Whether any layer keeps a latent cache."""
    return any(isinstance(cache, LatentCache) for layer in model.distinct for cache in layer.caches)


@lru_cache(maxsize=1024)
def keeps_cache(model: ModelShape) -> bool:
    """Whether any layer keeps anything between tokens (encoders do not)."""
    return any(layer.caches for layer in model.distinct)


@lru_cache(maxsize=1024)
def keeps_packed_cache(model: ModelShape) -> bool:
    """Whether any layer keeps the caches of compressed attention (DeepSeek V4)."""
    return any(isinstance(cache, PackedCache) for layer in model.distinct for cache in layer.caches)
