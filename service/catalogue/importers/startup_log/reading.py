"""What a startup log says, each value with the line it stands on."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from service.catalogue.records.calibration import Engine

T = TypeVar("T")
N = TypeVar("N", int, float)


class LogNotUnderstood(ValueError):
    """The text is not a vLLM startup log; the message says what it looks like instead."""


class Outcome(StrEnum):
    """How the startup ended, as far as the log shows."""

    STARTED = "started"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """One printed value.

    Attributes
    ----------
    value : T
        The value as printed, in the unit of the field it fills.
    line : int
        Number of its line in the pasted text, from 1.
    process : str
        Label of the process that printed it, such as "Worker_TP0 pid=12"; empty where the log has none.
    text : str
        What stands there, shortened to 240 characters.
    """

    value: T
    line: int
    process: str
    text: str


@dataclass(frozen=True, slots=True)
class Readings(Generic[N]):
    """The same figure printed by one or several ranks.

    Attributes
    ----------
    each : tuple of Reading
        Every printed value in the order of the log; at least one.
    """

    each: tuple[Reading[N], ...]

    @property
    def low(self) -> N:
        """The smallest value any rank printed."""
        return min(reading.value for reading in self.each)

    @property
    def high(self) -> N:
        """The largest value any rank printed."""
        return max(reading.value for reading in self.each)

    @property
    def agree(self) -> bool:
        """Whether every rank printed the same."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the engine says it did not start.

    Attributes
    ----------
    kind : str
        Short name: one of those in `failures.py`.
    line : int
        Number of the line in the pasted text, from 1.
    text : str
        The engine's words, shortened to 240 characters.
    numbers : tuple of (str, float)
        The figures in it by name, such as ("needed_gib", 1.1).
    """

    kind: str
    line: int
    text: str
    numbers: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class StartupLog:
    """One vLLM startup as its log tells it. Sizes are GiB (2^30) per GPU; a field is None where the log is silent.

    Conditions stand for themselves; figures keep every rank's value. `quantization`, `speculative` and their like hold
    the text "none" where the log says that there is none, which is not the same as silence.

    Attributes
    ----------
    first_line, last_line : int
        The lines of the paste this startup spans.
    startups : int
        How many startups the paste holds; this is the last complete one.
    outcome, failure
        How it ended, and the engine's reason where it failed.
    engine_version, engine, device, gpu_name, gpu_total_gib
        What ran on what. `gpu_name` only where some line names the card.
    model ... cpu_offload_gib
        The conditions, named as vLLM's arguments are.
    other_arguments : tuple of (str, str)
        Arguments the log shows that have no field here, with their printed values.
    defaults : tuple of str
        Conditions the log shows to have been left at vLLM's default: its list of non-default arguments is there, whole,
        and does not name them.
    weights_gib
        Memory taken by loading ("Model loading took", "model weights take").
    available_kv_gib, reserved_kv_gib
        Memory left for the KV cache; memory given to it by `kv_cache_memory_bytes`, which then stands for both.
    kv_tokens, max_concurrency, concurrency_tokens, gpu_blocks, cpu_blocks
        What the cache holds, as printed; `max_concurrency` is for requests of `concurrency_tokens` tokens.
    cudagraph_gib, cudagraph_estimate_gib
        Memory of CUDA graphs, captured and estimated.
    activation_peak_gib, non_torch_gib, consumed_gib, kv_in_use_gib, free_gib, requested_gib
        From the memory summary. `consumed_gib` is weights and non-torch memory together (0.21 and later).
    missing : tuple of str
        Conditions and figures a calibration needs and the log does not give; `MEANING` says what each is.
    contradictions : tuple of str
        Places where the log disagrees with itself.
    notes : tuple of str
        What was passed over, and why.
    """

    first_line: int
    last_line: int
    startups: int
    outcome: Outcome
    failure: Failure | None

    engine_version: Reading[str] | None
    engine: Reading[Engine] | None
    device: Reading[str] | None
    gpu_name: Reading[str] | None
    gpu_total_gib: Readings[float] | None

    model: Reading[str] | None
    dtype: Reading[str] | None
    quantization: Reading[str] | None
    kv_cache_dtype: Reading[str] | None
    tensor_parallel_size: Reading[int] | None
    pipeline_parallel_size: Reading[int] | None
    data_parallel_size: Reading[int] | None
    decode_context_parallel_size: Reading[int] | None
    prefill_context_parallel_size: Reading[int] | None
    enable_expert_parallel: Reading[bool] | None
    gpu_memory_utilization: Reading[float] | None
    kv_cache_memory_bytes: Reading[int] | None
    max_model_len: Reading[int] | None
    max_num_seqs: Reading[int] | None
    max_num_batched_tokens: Reading[int] | None
    block_size: Reading[int] | None
    num_gpu_blocks_override: Reading[int] | None
    enforce_eager: Reading[bool] | None
    enable_prefix_caching: Reading[bool] | None
    enable_chunked_prefill: Reading[bool] | None
    speculative: Reading[str] | None
    enable_lora: Reading[bool] | None
    cpu_offload_gib: Reading[float] | None
    other_arguments: tuple[tuple[str, str], ...]
    defaults: tuple[str, ...]

    weights_gib: Readings[float] | None
    available_kv_gib: Readings[float] | None
    reserved_kv_gib: Readings[float] | None
    kv_tokens: Readings[int] | None
    max_concurrency: Readings[float] | None
    concurrency_tokens: Readings[int] | None
    gpu_blocks: Readings[int] | None
    cpu_blocks: Readings[int] | None
    cudagraph_gib: Readings[float] | None
    cudagraph_estimate_gib: Readings[float] | None
    activation_peak_gib: Readings[float] | None
    non_torch_gib: Readings[float] | None
    consumed_gib: Readings[float] | None
    kv_in_use_gib: Readings[float] | None
    free_gib: Readings[float] | None
    requested_gib: Readings[float] | None
    attention_block_size: Readings[int] | None

    missing: tuple[str, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]


MEANING = {
    "engine_version": "the vLLM version, as in `vllm --version`",
    "model": "the model, as given to `vllm serve`",
    "gpu_name": "the GPU, as `nvidia-smi -L` names it",
    "gpu_total_gib": "memory of one GPU as CUDA reports it (GiB); follows from the GPU where it is known",
    "dtype": "the data type of the weights and activations (`--dtype`), such as bfloat16",
    "quantization": "the quantisation (`--quantization`, or the checkpoint's), or none",
    "kv_cache_dtype": "the data type of the KV cache (`--kv-cache-dtype`), such as auto or fp8",
    "tensor_parallel_size": "`--tensor-parallel-size`",
    "pipeline_parallel_size": "`--pipeline-parallel-size`",
    "data_parallel_size": "`--data-parallel-size`",
    "enable_expert_parallel": "whether `--enable-expert-parallel` was given",
    "gpu_memory_utilization": "`--gpu-memory-utilization`",
    "max_model_len": "`--max-model-len`, or the length vLLM derived",
    "max_num_seqs": "`--max-num-seqs`, or vLLM's default for this version and GPU",
    "max_num_batched_tokens": "`--max-num-batched-tokens`, or vLLM's default for this version and GPU",
    "enforce_eager": "whether `--enforce-eager` was given",
    "enable_prefix_caching": "whether prefix caching was on",
    "weights_gib": "the figure of the line `Model loading took ... GiB`",
    "available_kv_gib": "the figure of the line `Available KV cache memory: ... GiB`",
    "kv_tokens": "the figure of the line `GPU KV cache size: ... tokens`",
    "gpu_blocks": "the figure of the line `# GPU blocks: ...` or `# cuda blocks: ...`",
}
"""What each name in `StartupLog.missing` is, in words a caller can be asked with."""
