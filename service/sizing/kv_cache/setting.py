"""What decides the caches of a model's layers, and the questions the engine asks of it."""

from dataclasses import dataclass

from service.sizing.engine import kv_dtypes
from service.sizing.engine.backends import AttentionQuery
from service.sizing.engine.defaults import EngineDefaults
from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import EngineProfile
from service.sizing.layouts import Layout
from service.sizing.model.shape import (
    AttentionCache,
    CrossCache,
    LatentCache,
    ModelShape,
    StateCache,
    StateKind,
)

DELTA_KEY_SIZE = 128
"""Key head size that the kernels which write states midway need (on Hopper only Kimi's)."""

TURBOQUANT_EDGE_LAYERS = 2
"""Layers at each end of a model without recurrent layers whose cache TurboQuant leaves in 16 bits."""

Attended = AttentionCache | LatentCache | CrossCache
"""Caches that attention reads."""


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """All that decides the caches of a model's layers."""

    model: ModelShape
    layout: Layout
    device: Device
    options: EngineOptions
    defaults: EngineDefaults
    profile: EngineProfile
    dtype: str

    @property
    def states(self) -> list[StateCache]:
        """The recurrent states of the distinct layers."""
        return [c for layer in self.model.distinct for c in layer.caches if isinstance(c, StateCache)]

    @property
    def keeps_boundary_states(self) -> bool:
        """Whether recurrent states are kept at block boundaries, for cached prefixes."""
        return bool(self.states) and self.defaults.prefix_caching and self.profile.state_checkpoints

    def writes_midway(self, state: StateCache) -> bool:
        """Whether the prefill kernel of a recurrent layer can write its state out before the end of a prompt.

        Sources: vLLM 0.33 `mamba_mixer2.py`, `qwen_gdn_linear_attn.py: _resolve_gdn_prefill_backend`,
        `models/kimi_k3/nvidia/kda.py: is_flashkda_supported`.
        """
        if not (self.keeps_boundary_states and state.exports_checkpoints):
            return False
        major = self.device.capability[0]
        wide = state.tensors[-1].columns == DELTA_KEY_SIZE
        match state.kind:
            case StateKind.MAMBA2:
                return True
            case StateKind.GATED_DELTA_NET:
                return self.device.capability == (9, 0) or (major in (10, 12) and wide)
            case StateKind.KIMI_DELTA_ATTENTION:
                bfloat16 = kv_dtypes.compute_dtype(self.model, self.device) == "bfloat16"
                return major in (9, 10, 12) and wide and bfloat16
            case _:
                return False

    @property
    def edge_layers(self) -> int:
        """Layers at each end that a TurboQuant cache leaves in 16 bits."""
        if self.dtype not in kv_dtypes.TURBOQUANT_BITS or self.states:
            return 0
        return min(TURBOQUANT_EDGE_LAYERS, len(self.model.layers) // 2)


def first_attended(model: ModelShape) -> Attended | None:
    """The first cache that attention reads; None: the model does not attend."""
    return next((c for layer in model.distinct for c in layer.caches if isinstance(c, Attended)), None)


def model_head_size(model: ModelShape) -> int:
    """The head size the engine takes for the whole model: the largest of any attention layer."""
    return max(head_sizes(model), default=0)


def head_sizes(model: ModelShape) -> set[int]:
    """Elements of a key over the attention layers."""
    return {head_size(c) for layer in model.distinct for c in layer.caches if isinstance(c, Attended)}


def head_size(cache: Attended) -> int:
    """Elements of a key; latent and rotary elements together for latent attention."""
    return cache.latent_size + cache.rope_size if isinstance(cache, LatentCache) else cache.head_size


def attention_query(setting: CacheSetting, cache: Attended, dtype: str) -> AttentionQuery:
    """The question put to the kernel selector for one cache."""
    model, latent = setting.model, isinstance(cache, LatentCache)
    return AttentionQuery(
        head_size=head_size(cache),
        value_head_size=cache.value_head_size if isinstance(cache, AttentionCache) else head_size(cache),
        heads=max(1, cache.heads // setting.layout.tensor_parallel_size),
        dtype=kv_dtypes.compute_dtype(model, setting.device),
        kv_cache_dtype=dtype,
        block_size=setting.options.block_size,
        latent=latent,
        indexed=isinstance(cache, LatentCache) and cache.sparse,
        blockwise_sparse=isinstance(cache, AttentionCache) and cache.sparse,
        windowed=not isinstance(cache, CrossCache) and cache.window is not None,
        sinks=model.attention_sinks and not latent,
        softcap=model.logit_softcap,
        image_prefix=model.image_prefix and not latent,
        context_split=setting.layout.decode_context_parallel_size > 1,
        model_head_size=model_head_size(model),
        mixed_heads=model.architecture.startswith("Gemma4") and len(head_sizes(model)) > 1,
        only_flash_attention_2=setting.dtype in kv_dtypes.TURBOQUANT_BITS,
        flash_mla_first=setting.profile.prefers_flash_mla,
        rope_free=isinstance(cache, LatentCache) and cache.rope_size == 0,
    )
