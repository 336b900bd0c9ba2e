"""What the engine fills in for arguments the caller left out.

Source: vLLM 0.33 `engine/arg_utils.py`, `config/vllm.py`, `config/scheduler.py`; earlier releases by their profile.
"""

from dataclasses import dataclass
from functools import lru_cache

from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import SMALL, BatchTier, EngineProfile, release
from service.sizing.engine.refusal import Refusal, use
from service.sizing.hardware import Vendor
from service.sizing.layouts import Layout
from service.sizing.model.shape import AttentionCache, ModelShape, StateCache
from service.sizing.model.summary import has_tower, is_latent
from service.sizing.quantities import GIB

STEP_POOLING = frozenset({"Qwen2ForProcessRewardModel"})
"""Architectures that give a reward for each step of a prompt, which must then be seen whole."""

AUTO_FIT = -1
"""`--max-model-len` that asks the engine to fit the context to memory."""

POOLING_SUFFIXES = (
    "ForTextEncoding",
    "EmbeddingModel",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ClassificationModel",
    "ForRewardModeling",
    "RewardModel",
)
"""Ends of architecture names that are served for embeddings, classes or rewards (vLLM 0.33 `config/model.py`)."""


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Engine arguments after defaults.

    Attributes
    ----------
    max_model_len : int
        Longest context in tokens; where the engine is to fit it, the longest it starts from.
    max_num_seqs, max_num_batched_tokens : int
        Sequences and tokens of one step.
    in_flight_tokens : int
        Tokens scheduled but not settled, for which windowed layers keep blocks.
    encoder_tokens : int
        Encoder tokens a request reserves cross attention for.
    prefix_caching, chunked_prefill : bool
        Whether prefixes are cached and prompts are cut to the step size.
    cuda_graph_sizes : tuple of int
        Batch sizes captured; empty when eager.
    gpu_memory_utilization : float
        Fraction of the GPU's memory the engine may take.
    first_engine : bool
        Whether vLLM's first engine (V0) runs.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int
    encoder_tokens: int
    prefix_caching: bool
    chunked_prefill: bool
    cuda_graph_sizes: tuple[int, ...]
    gpu_memory_utilization: float
    first_engine: bool


def keeps_state(model: ModelShape) -> bool:
    """Whether any layer is recurrent."""
    return any(isinstance(cache, StateCache) for layer in model.distinct for cache in layer.caches)


def attends(model: ModelShape) -> bool:
    """Whether any layer caches tokens."""
    return any(not isinstance(cache, StateCache) for layer in model.distinct for cache in layer.caches)


def batch_tier(profile: EngineProfile, device: Device) -> BatchTier:
    """The batch-size defaults of a card: by memory, with the A100 (by name) and GB10 in the last tier."""
    excluded = "a100" in device.name.lower() or device.capability == (12, 1)
    return next(
        tier
        for tier in profile.batch_tiers
        if device.memory_bytes >= tier.memory_gib * GIB and not (tier.small_core_excluded and excluded)
    )


SECOND_ENGINE_SINCE = (0, 8, 0)
SECOND_ENGINE_ALONE_SINCE = (0, 11, 0)
"""Releases since which the second engine (V1) is the default on Ampere and later, and since which there is no other."""

LONG_CONTEXT = 32_768
"""The first engine cuts longer prompts by default, so that its profile run does not take them whole."""


def runs_first_engine(device: Device, options: EngineOptions, profile: EngineProfile) -> bool:
    """Whether vLLM's first engine runs: before 0.8 everywhere, up to 0.10 on cards older than Ampere.

    Source: vLLM 0.8.5 and 0.9 `engine/arg_utils.py: _is_v1_supported_oracle`.
    """
    number = release(options.version or profile.version) or profile.first
    if number < SECOND_ENGINE_SINCE:
        return True
    return number < SECOND_ENGINE_ALONE_SINCE and device.vendor is Vendor.NVIDIA and device.capability < (8, 0)


def first_engine_cuts_prompts(model: ModelShape, device: Device, max_model_len: int) -> bool:
    """Whether the first engine cuts prompts to the step size by default.

    Source: vLLM 0.8.5 `engine/arg_utils.py: _set_default_args_v0`.
    """
    windowed = any(
        isinstance(cache, AttentionCache) and cache.window is not None
        for layer in model.distinct
        for cache in layer.caches
    )
    whole = windowed or has_tower(model) or is_latent(model) or keeps_state(model) or is_pooling(model)
    return max_model_len > LONG_CONTEXT and device.vendor is Vendor.NVIDIA and not whole


def is_pooling(model: ModelShape) -> bool:
    """Whether the engine serves the model for embeddings, classes or rewards instead of text."""
    return not any(layer.caches for layer in model.distinct) or model.architecture.endswith(POOLING_SUFFIXES)


def cuts_prompts(model: ModelShape) -> bool:
    """Whether prompts are cut to the size of a step: not what is read both ways, nor rewards given step by step.

    Source: vLLM 0.33 `config/model.py: is_chunked_prefill_supported`.
    """
    reads_once = any(layer.caches for layer in model.distinct) and model.architecture not in STEP_POOLING
    return reads_once and not model.is_encoder_decoder


def concurrent_batches(profile: EngineProfile, layout: Layout, model: ModelShape) -> int:
    """Steps in flight at once: one a stage, and one more where scheduling is asynchronous, as it is for text.

    Releases whose profile says so reserve for one step only, whatever is in flight.
    """
    if not profile.overlaps_batches:
        return 1
    return layout.pipeline_parallel_size + (0 if is_pooling(model) else 1)


def cuda_graph_sizes(
    model: ModelShape, device: Device, *, max_num_seqs: int, max_num_batched_tokens: int
) -> tuple[int, ...]:
    """Batch sizes captured as CUDA graphs: 1, 2, 4, then steps of 8 below 256 and of 16 above.

    Source: vLLM 0.33 `config/vllm.py: _set_cudagraph_sizes`, `models/config.py: GptOssForCausalLMConfig`.
    """
    if model.architecture == "GptOssForCausalLM":
        ceiling, whole_batch = 1024, False
    else:
        ceiling = min(2 * max_num_seqs, 1024 if device.capability[0] == 10 else 512)
        whole_batch = max_num_seqs <= ceiling
    most = min(ceiling, max_num_batched_tokens)
    sizes = {size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most}
    if max_num_batched_tokens <= most:
        sizes.add(max_num_batched_tokens)
    if whole_batch and max_num_seqs <= most:
        sizes.add(max_num_seqs)
    return tuple(sorted(sizes))


@lru_cache(maxsize=4096)
def resolve_defaults(
    model: ModelShape, layout: Layout, device: Device, options: EngineOptions, profile: EngineProfile
) -> EngineDefaults | Refusal:
    """Engine arguments after defaults, or the refusal of sizes that contradict each other."""
    max_model_len = model.default_context_tokens if options.max_model_len in (None, AUTO_FIT) else options.max_model_len
    first_engine = runs_first_engine(device, options, profile)
    tier = SMALL if first_engine else batch_tier(profile, device)
    chunked_prefill = cuts_prompts(model)
    if first_engine:
        chunked_prefill = chunked_prefill and first_engine_cuts_prompts(model, device, max_model_len)
    sequences = options.max_num_seqs or tier.max_num_seqs
    tokens = options.max_num_batched_tokens
    if tokens is None:
        tokens = tier.max_num_batched_tokens
        if not chunked_prefill:
            tokens = max(max_model_len, tokens)
        if model.image_prefix and model.largest_item_tokens is not None:
            tokens = max(tokens, model.largest_item_tokens)
        tokens = min(sequences * max_model_len, tokens)
    if options.max_num_seqs is None:
        sequences = min(sequences, tokens)
    if tokens < max_model_len and not chunked_prefill:
        return Refusal(
            "batch_smaller_than_context",
            f"prompts of this model are not cut, so a step of {tokens} tokens cannot hold {max_model_len}",
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({max_model_len}). This effectively "
            "limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. "
            "Please increase max_num_batched_tokens or decrease max_model_len.",
            (use("max_num_batched_tokens", max_model_len, "more"),),
        )
    if tokens < sequences:
        return Refusal(
            "batch_smaller_than_sequences",
            f"a step of {tokens} tokens cannot advance {sequences} sequences",
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({sequences}).",
            (use("max_num_seqs", tokens, "less"), use("max_num_batched_tokens", sequences, "more")),
        )
    if options.enable_prefix_caching is not None:
        prefix_caching = options.enable_prefix_caching
    elif keeps_state(model):
        prefix_caching = attends(model) and profile.hybrid_prefix_caching
    else:
        prefix_caching = not model.is_encoder_decoder and not first_engine
    return EngineDefaults(
        max_model_len=max_model_len,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        in_flight_tokens=concurrent_batches(profile, layout, model) * tokens,
        encoder_tokens=max(tokens, model.largest_item_tokens or 0),
        prefix_caching=prefix_caching,
        chunked_prefill=chunked_prefill,
        cuda_graph_sizes=()
        if options.enforce_eager
        else cuda_graph_sizes(model, device, max_num_seqs=sequences, max_num_batched_tokens=tokens),
        gpu_memory_utilization=options.gpu_memory_utilization
        if options.gpu_memory_utilization is not None
        else profile.gpu_memory_utilization,
        first_engine=first_engine,
    )
