"""A vLLM startup log, pasted as it is, read into conditions and figures.

Reads the logs of vLLM 0.6 to 0.33, of either engine, from one process or many, whole or in part. Nothing is filled in:
what the log does not say is named as missing.
"""

from dataclasses import replace

from service.catalogue.importers.startup_log.conditions import Conditions
from service.catalogue.importers.startup_log.contradictions import contradictions_in
from service.catalogue.importers.startup_log.lines import FIRST_WORDS
from service.catalogue.importers.startup_log.reading import (
    MEANING,
    Engine,
    Failure,
    LogNotUnderstood,
    Outcome,
    Reading,
    Readings,
    StartupLog,
)
from service.catalogue.importers.startup_log.startups import Startup, startups_in
from service.catalogue.importers.startup_log.text import TooLong, read_messages

__all__ = [
    "MEANING",
    "Engine",
    "Failure",
    "LogNotUnderstood",
    "Outcome",
    "Reading",
    "Readings",
    "StartupLog",
    "read_startup_log",
]

_OTHER_ENGINES = (
    ("SGLang", ("sglang", "ServerArgs(", "max_total_num_tokens=")),
    ("TensorRT-LLM", ("[TensorRT-LLM]", "tensorrt_llm")),
    ("llama.cpp", ("llama_model_loader", "ggml_", "llama_context")),
    ("text-generation-inference", ("text_generation_launcher", "text-generation-launcher")),
    ("LMDeploy", ("lmdeploy", "[TM][")),
)
_NEEDED = (
    "engine_version", "model", "gpu_name", "gpu_total_gib", "dtype", "quantization", "kv_cache_dtype",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "enforce_eager",
    "enable_prefix_caching", "weights_gib", "available_kv_gib",
)  # fmt: skip


def read_startup_log(text: str) -> StartupLog:
    """Read the last complete startup in a pasted vLLM log.

    Parameters
    ----------
    text : str
        The log, with whatever terminals, containers, quoting and wrapping added to it. Of several startups the last
        that came as far as a KV cache is read; if none did, the last.

    Returns
    -------
    StartupLog
        Every value with the line it stands on; sizes in GiB per GPU.

    Raises
    ------
    LogNotUnderstood
        Nothing of a vLLM startup is in it.
    """
    try:
        startups = startups_in(read_messages(text, FIRST_WORDS))
    except TooLong as too_long:
        raise LogNotUnderstood(str(too_long)) from too_long
    if not startups:
        raise LogNotUnderstood(_what_it_is(text))
    complete = [startup for startup in startups if startup.complete]
    chosen = complete[-1] if complete else startups[-1]
    conditions = Conditions(chosen)
    log = _assembled(chosen, conditions, len(startups))
    contradictions = (*conditions.disagreements(), *contradictions_in(log))
    return replace(log, contradictions=contradictions, notes=_notes(chosen, startups))


def _assembled(startup: Startup, read: Conditions, startups: int) -> StartupLog:
    versions = read.versions()
    log = StartupLog(
        first_line=startup.first_line,
        last_line=startup.last_line,
        startups=startups,
        outcome=_outcome(startup),
        failure=startup.failure,
        engine_version=versions[0] if versions else None,
        engine=read.engine(),
        device=read.device(),
        gpu_name=startup.gpu_names[0] if startup.gpu_names else None,
        gpu_total_gib=read.sizes("gpu_total_gib"),
        model=read.model(),
        dtype=_without_module(read.text("dtype")),
        quantization=read.text("quantization"),
        kv_cache_dtype=read.text("kv_cache_dtype"),
        tensor_parallel_size=read.number("tensor_parallel_size"),
        pipeline_parallel_size=read.number("pipeline_parallel_size"),
        data_parallel_size=read.number("data_parallel_size"),
        decode_context_parallel_size=read.number("decode_context_parallel_size"),
        prefill_context_parallel_size=read.number("prefill_context_parallel_size"),
        enable_expert_parallel=read.flag("enable_expert_parallel"),
        gpu_memory_utilization=read.utilization(),
        kv_cache_memory_bytes=read.number("kv_cache_memory_bytes"),
        max_model_len=read.max_model_len(),
        max_num_seqs=read.number("max_num_seqs"),
        max_num_batched_tokens=read.line("max_num_batched_tokens") or read.number("max_num_batched_tokens"),
        block_size=read.number("block_size"),
        num_gpu_blocks_override=read.line("num_gpu_blocks_override") or read.number("num_gpu_blocks_override"),
        enforce_eager=read.flag("enforce_eager"),
        enable_prefix_caching=read.flag("enable_prefix_caching"),
        enable_chunked_prefill=read.flag("enable_chunked_prefill") or read.flag("chunked_prefill_enabled"),
        speculative=read.raw("speculative_config"),
        enable_lora=read.flag("enable_lora"),
        cpu_offload_gib=read.offload_gib(),
        other_arguments=read.others(),
        defaults=read.defaults(),
        weights_gib=read.sizes("weights_gib", "summary_weights_gib", "profile_weights_gib"),
        available_kv_gib=read.sizes("available_kv_gib", "reserved_kv_gib"),
        reserved_kv_gib=read.sizes("reserved_kv_gib"),
        kv_tokens=read.counts("kv_tokens"),
        max_concurrency=read.sizes("max_concurrency"),
        concurrency_tokens=read.counts("concurrency_tokens"),
        gpu_blocks=read.counts("gpu_blocks"),
        cpu_blocks=read.counts("cpu_blocks"),
        cudagraph_gib=read.sizes("cudagraph_gib", "summary_cudagraph_gib"),
        cudagraph_estimate_gib=read.sizes("cudagraph_estimate_gib"),
        activation_peak_gib=read.sizes("activation_peak_gib"),
        non_torch_gib=read.sizes("non_torch_gib"),
        consumed_gib=read.sizes("consumed_gib"),
        kv_in_use_gib=read.sizes("kv_in_use_gib"),
        free_gib=read.sizes("free_gib"),
        requested_gib=read.sizes("requested_gib"),
        attention_block_size=read.counts("attention_block_size"),
        missing=(),
        contradictions=(),
        notes=(),
    )
    return replace(log, missing=_missing(log))


def _missing(log: StartupLog) -> tuple[str, ...]:
    needed = [*_NEEDED, "gpu_blocks" if log.engine and log.engine.value is Engine.V0 else "kv_tokens"]
    by_bytes = log.kv_cache_memory_bytes or log.reserved_kv_gib
    settled = {*log.defaults, *(["gpu_memory_utilization"] if by_bytes else [])}
    return tuple(name for name in needed if getattr(log, name) is None and name not in settled)


def _outcome(startup: Startup) -> Outcome:
    if startup.failure is not None:
        return Outcome.FAILED
    return Outcome.STARTED if startup.started else Outcome.UNKNOWN


def _without_module(dtype: Reading[str] | None) -> Reading[str] | None:
    return replace(dtype, value=dtype.value.removeprefix("torch.")) if dtype else None


def _notes(chosen: Startup, startups: list[Startup]) -> tuple[str, ...]:
    if len(startups) == 1:
        return ()
    which = "the last" if chosen is startups[-1] else "the last complete one"
    return (
        f"the text holds {len(startups)} startups; lines {chosen.first_line} to {chosen.last_line}, {which}, are read",
    )


def _what_it_is(text: str) -> str:
    for name, marks in _OTHER_ENGINES:
        if any(mark in text for mark in marks):
            return f"this is a log of {name}; a startup log of vLLM is needed"
    if not text.strip():
        return "the text is empty; the log that `vllm serve` prints until it is ready is needed"
    return (
        "no line of a vLLM startup was found; looked for the engine's configuration (`Initializing a V1 LLM engine`), "
        "its arguments (`non-default args:`), and figures such as `Model loading took ... GiB`, "
        "`Available KV cache memory: ... GiB`, `GPU KV cache size: ... tokens`, `# GPU blocks: ...`"
    )
