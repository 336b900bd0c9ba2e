"""Models and machines made by hand, for tests of the cache planner: layers with caches and no weights."""

from dataclasses import replace
from typing import Any

from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.refusal import Refusal
from service.sizing.hardware import Vendor
from service.sizing.kv_cache.planner import CacheLayout, CachePlan, cache_layout, plan_cache
from service.sizing.layouts import Layout
from service.sizing.model.modules import Units
from service.sizing.model.shape import (
    AttentionCache,
    Cache,
    CrossCache,
    IndexerCache,
    LatentCache,
    LayerShape,
    ModelShape,
    StateCache,
    StateKind,
    StateTensor,
)
from service.sizing.quantities import GIB

DEVICES = {
    "T4": Device("Tesla T4", Vendor.NVIDIA, (7, 5), 15828320256),
    "A100": Device("NVIDIA A100-SXM4-80GB", Vendor.NVIDIA, (8, 0), 85094825984),
    "L40S": Device("NVIDIA L40S", Vendor.NVIDIA, (8, 9), 47810936832),
    "H100": Device("NVIDIA H100 80GB HBM3", Vendor.NVIDIA, (9, 0), 85045084160),
    "H200": Device("NVIDIA H200", Vendor.NVIDIA, (9, 0), 150109880320),
    "B200": Device("NVIDIA B200", Vendor.NVIDIA, (10, 0), 191501893632),
    "RTX PRO 6000": Device("NVIDIA RTX PRO 6000 Blackwell Server Edition", Vendor.NVIDIA, (12, 0), 101970870272),
    "MI300X": Device("AMD Instinct MI300X", Vendor.AMD, (0, 0), 192 * GIB),
}
"""GPUs as the driver describes them: name, compute capability, memory."""


def model(*layers: tuple[Cache, ...], context_tokens: int = 131072, **fields: Any) -> ModelShape:
    """A model of these layers, each given by its caches."""
    described: dict[str, Any] = {
        "name": "a model",
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": 4096,
        "vocab_size": 32000,
        "attention_heads": 32,
        "kv_heads": 8,
        "first_stage": (),
        "last_stage": (),
        "tied_head": False,
        "rope_tables": (),
        "max_context_tokens": context_tokens,
        "default_context_tokens": context_tokens,
        "context_field": "max_position_embeddings",
    }
    return ModelShape(layers=tuple(LayerShape(caches, ()) for caches in layers), **described | fields)


def full(kv_heads: int = 8, head_size: int = 128, **fields: Any) -> AttentionCache:
    """Grouped-query attention over every token."""
    return AttentionCache(fields.pop("heads", kv_heads), kv_heads, head_size, head_size, **fields)


def window(tokens: int, kv_heads: int = 8, head_size: int = 128) -> AttentionCache:
    """Grouped-query attention over a sliding window."""
    return AttentionCache(kv_heads, kv_heads, head_size, head_size, window=tokens)


def latent(heads: int = 128, **fields: Any) -> LatentCache:
    """DeepSeek's latent attention: 512 latent and 64 rotary elements a token."""
    return LatentCache(heads, 512, 64, 128, 128, **fields)


def delta_net(key_heads: int = 16, value_heads: int = 32, *, state_bytes: int = 2) -> StateCache:
    """A gated delta net with heads of 128 and a convolution over 4 tokens."""
    return StateCache(
        StateKind.GATED_DELTA_NET,
        (
            StateTensor((Units(key_heads, 256), Units(value_heads, 128)), 3, 2),
            StateTensor((Units(value_heads, 128),), 128, state_bytes),
        ),
    )


def cache_from(entry: dict[str, Any]) -> Cache:
    """A cache written down in test data."""
    fields = {key: value for key, value in entry.items() if key != "is"}
    match entry["is"]:
        case "attention":
            return AttentionCache(**fields)
        case "latent":
            return LatentCache(**fields)
        case "indexer":
            return IndexerCache(**fields)
        case "cross":
            return CrossCache(**fields)
        case kind:
            tensors = tuple(
                StateTensor(tuple(Units(*row) for row in rows), columns, element_bytes)
                for rows, columns, element_bytes in fields.pop("tensors")
            )
            return StateCache(StateKind(kind), tensors, **fields)


def laid_out(shape: ModelShape, gpu: str = "H100", layout: Layout | None = None, **options: Any) -> CacheLayout:
    """The layout of a cache that the engine accepts."""
    found = attempt(shape, gpu, layout, **options)
    assert isinstance(found, CacheLayout), found
    return found


def attempt(
    shape: ModelShape, gpu: str = "H100", layout: Layout | None = None, **options: Any
) -> CacheLayout | Refusal:
    """The layout of a cache, or the engine's refusal."""
    return cache_layout(shape, layout or Layout(), DEVICES[gpu], replace(EngineOptions(version="0.33.0"), **options))


def planned(cache: CacheLayout, *available_bytes: int) -> CachePlan:
    """What the engine prints for this memory on each stage."""
    found = plan_cache(cache, available_bytes)
    assert isinstance(found, CachePlan), found
    return found


def refusal(found: object) -> str:
    """The engine's words."""
    assert isinstance(found, Refusal), found
    assert found.engine_error is not None
    return found.engine_error
