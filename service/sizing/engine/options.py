"""What the caller fixes about the engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Engine arguments as given; None: the engine's default.

    Attributes
    ----------
    version : str or None
        vLLM release; None: the newest known.
    kv_cache_dtype : str
        As the flag takes it; "auto" follows the checkpoint.
    max_model_len : int or None
        Longest context; -1 asks the engine to fit it to memory.
    """

    version: str | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    enforce_eager: bool | None = None
