r"""The lines of a vLLM startup that carry figures, from 0.6 to 0.33.

Every pattern runs over text without white space, begins with (or holds) literal words and has no nested repetition, so
that it is linear in the length of a message. A named group is a figure, named as in `StartupLog`.

Sources, all read in vLLM: 0.6.4 and 0.6.6 `worker/worker.py`, 0.6.6 `executor/gpu_executor.py`; 0.8.5
`worker/model_runner.py`, `executor/executor_base.py`, `v1/core/kv_cache_utils.py`; 0.11.2 and 0.33
`v1/worker/gpu_worker.py`, `v1/worker/gpu_model_runner.py`, `v1/core/kv_cache_utils.py`. "GB" in old versions is GiB:
bytes divided by 2^30.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from service.catalogue.importers.startup_log.text import Message

# No printed number has a leading zero: one that has lost its beginning, or its point.
_GIB = r"-?(?:0|[1-9]\d{0,8})(?:\.\d{1,9})?"
_COUNT = r"(?:[1-9]\d{0,2}(?:,\d{3}){1,5}|0|[1-9]\d{0,17})"
_RATE = r"(?:0|[1-9]\d{0,11})(?:\.\d{1,9})?"


@dataclass(frozen=True, slots=True)
class LineFormat:
    """One line format.

    Attributes
    ----------
    word : str
        Literal text that every such line holds once its white space is gone; looked for first because it is cheap.
    pattern : re.Pattern
        The whole format.
    open_ended : bool
        Whether its last figure has nothing behind it, so that only the end of the line says where it stops.
    """

    word: str
    pattern: re.Pattern[str]
    open_ended: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A figure in a message: its name, its digits, and where it stands in the squeezed text."""

    name: str
    digits: str
    start: int


def _format(word: str, pattern: str, *, open_ended: bool = False) -> LineFormat:
    pattern = pattern.replace("<GIB>", _GIB).replace("<COUNT>", _COUNT).replace("<RATE>", _RATE)
    return LineFormat(word, re.compile(pattern), open_ended)


FORMATS = (
    # Weights: 0.6 and 0.7 "Loading model weights took 14.9888 GB", then "Model loading took 14.9889 GiB [memory] and".
    _format("weightstook", r"Loadingmodelweightstook(?P<weights_gib><GIB>)G(?:i?)B"),
    _format("loadingtook", r"Modelloadingtook(?P<weights_gib><GIB>)G(?:i?)B(?:memory)?and<RATE>seconds"),
    # What is left for the cache, V1 from 0.8.
    _format("AvailableKVcachememory:", r"AvailableKVcachememory:(?P<available_kv_gib><GIB>)GiB"),
    # Capacity. From 0.33 one line holds both; "GPU + host" is a pool that spills to host memory.
    _format("KVcachesize:", r"KVcachesize:(?P<kv_tokens><COUNT>)tokens"),
    _format(
        "Maximumconcurrencyfor",
        r"Maximumconcurrencyfor(?P<concurrency_tokens><COUNT>)tokensperrequest:(?P<max_concurrency><RATE>)x",
    ),
    # V0 counts blocks; 0.6 says "GPU", later versions the platform's own name of the device.
    _format("blocks:", r"#(?:GPU|gpu|CUDA|cuda|ROCM|rocm|xpu|XPU|hpu|HPU)blocks:(?P<gpu_blocks><COUNT>),#CPUblocks:"),
    _format("#CPUblocks:", r"#CPUblocks:(?P<cpu_blocks><COUNT>)", open_ended=True),
    _format("#GPUblocks:", r"#GPUblocks:(?P<gpu_blocks><COUNT>)(?!,#|\d)", open_ended=True),
    # V0's memory profile: one message of three lines, which its formatter prefixes each.
    _format(
        "total_gpu_memory(",
        r"total_gpu_memory\((?P<gpu_total_gib><GIB>)GiB\)xgpu_memory_utilization\((?P<profile_utilization><RATE>)\)"
        r"=(?P<requested_gib><GIB>)GiB",
    ),
    # Its forerunner of 0.6.4 and 0.6.5, on one line.
    _format(
        "Memoryprofilingresults:",
        r"total_gpu_memory=(?P<gpu_total_gib><GIB>)GiBinitial_memory_usage=<GIB>GiBpeak_torch_memory=<GIB>GiB"
        r"memory_usage_post_profile=<GIB>Gi[bB]non_torch_memory=(?P<non_torch_gib><GIB>)GiB"
        r"kv_cache_size=(?P<available_kv_gib><GIB>)GiBgpu_memory_utilization=(?P<profile_utilization><RATE>)",
        open_ended=True,
    ),
    _format("modelweightstake", r"modelweightstake(?P<profile_weights_gib><GIB>)GiB;"),
    _format("non_torch_memorytakes", r"non_torch_memorytakes(?P<non_torch_gib><GIB>)GiB;"),
    _format("activationpeakmemorytakes", r"PyTorchactivationpeakmemorytakes(?P<activation_peak_gib><GIB>)GiB;"),
    _format("reservedforKVCacheis", r"restofthememoryreservedforKVCacheis(?P<available_kv_gib><GIB>)GiB\."),
    # CUDA graphs.
    _format(
        "raphcapturingfinished",
        r"(?<!Encoder)(?<!encoder)[Gg]raphcapturingfinishedin\d{1,6}secs?,took(?P<cudagraph_gib><GIB>)GiB",
    ),
    _format(
        "CUDAgraphpoolmemory:",
        r"CUDAgraphpoolmemory:(?P<cudagraph_gib><GIB>)GiB\(actual\),(?P<cudagraph_estimate_gib><GIB>)GiB\(estimated\)",
    ),
    _format("EstimatedCUDAgraphmemory:", r"EstimatedCUDAgraphmemory:(?P<cudagraph_estimate_gib><GIB>)GiBtotal"),
    _format(
        "Thecurrent--gpu-memory-utilization=",
        r"Thecurrent--gpu-memory-utilization=(?P<gpu_memory_utilization><RATE>)is",
    ),
    # The memory summary of V1. Its parts are read singly: people quote it with parts left out.
    _format("Freememoryondevice", r"Freememoryondevice\((?P<free_gib><GIB>)/(?P<gpu_total_gib><GIB>)GiB\)onstartup\."),
    _format(
        "DesiredGPUmemoryutilizationis",
        r"DesiredGPUmemoryutilizationis\((?P<gpu_memory_utilization><RATE>),(?P<requested_gib><GIB>)GiB\)",
    ),
    _format("GiBforweight,", r"Actualusageis(?P<summary_weights_gib><GIB>)GiBforweight,"),
    _format("GiBforconsumedmemory", r"Actualusageis(?P<consumed_gib><GIB>)GiBforconsumedmemory"),
    _format("GiBforpeakactivation", r"(?<![\d.])(?P<activation_peak_gib><GIB>)GiBforpeakactivation"),
    _format("GiBfornon-torchmemory", r"(?<![\d.])(?P<non_torch_gib><GIB>)GiBfornon-torchmemory"),
    _format("GiBforCUDAGraphmemory", r"(?<![\d.])(?P<summary_cudagraph_gib><GIB>)GiBforCUDAGraphmemory"),
    _format("Currentkvcachememoryinuse", r"Currentkvcachememoryinuseis(?P<kv_in_use_gib><GIB>)GiB"),
    _format(
        "GiB,reserved",
        r"Initialfreememory(?P<free_gib><GIB>)GiB,reserved(?P<reserved_kv_gib><GIB>)GiBmemoryforKVCacheasspecifiedby",
    ),
    # Lengths and block sizes.
    _format("Usingmaxmodellen", r"Usingmaxmodellen(?P<max_model_len><COUNT>)", open_ended=True),
    _format(
        "Auto-fitmax_model_len:reduced", r"Auto-fitmax_model_len:reducedfrom<COUNT>to(?P<fitted_model_len><COUNT>)tofit"
    ),
    _format("fullmodelcontextlength", r"fullmodelcontextlength(?P<fitted_model_len><COUNT>)fitsin"),
    _format("Settingattentionblocksizeto", r"Settingattentionblocksizeto(?P<attention_block_size><COUNT>)tokens"),
    _format(
        "num_gpu_blocks_override=",
        r"Overridingnum_gpu_blocks=<COUNT>withnum_gpu_blocks_override=(?P<num_gpu_blocks_override><COUNT>)",
        open_ended=True,
    ),
    _format("max_num_batched_tokens=", r"isenabledwithmax_num_batched_tokens=(?P<max_num_batched_tokens><COUNT>)\."),
    # The card's memory, as torch's out-of-memory error reports it.
    _format("hasatotalcapacity", r"GPU\d{1,2}hasatotalcapacityo[ft](?P<gpu_total_gib><GIB>)GiB"),
)

FIRST_WORDS = (
    "Model loading took",
    "Loading model weights took",
    "Available KV cache memory",
    "KV cache size:",
    "Maximum concurrency for",
    "Graph capturing finished",
    "CUDA graph pool memory",
    "Estimated CUDA graph memory",
    "CUDA graph memory profiling is",
    "Free memory on device",
    "Memory profiling takes",
    "Memory profiling results:",
    "the current vLLM instance can use",
    "model weights take",
    "Initial free memory",
    "Initializing a",
    "non-default args:",
    "args: Namespace(",
    "vLLM API server version",
    "vLLM server version",
    "Chunked prefill is enabled",
    "Using max model len",
    "Auto-fit max_model_len",
    "Setting attention block size",
    "Overriding num_gpu_blocks",
    "To serve at least one request",
    "No available memory for the cache blocks",
    "out of memory. Tried to allocate",
)
"""How the messages that matter begin: a line that holds one of these starts a message."""


def figures_in(message: Message) -> Iterator[Found]:
    """The figures of one message. A figure whose digits did not stand together in the paste is not one."""
    squeezed = message.squeezed
    for line_format in FORMATS:
        if line_format.word not in squeezed:
            continue
        for match in line_format.pattern.finditer(squeezed):
            yield from _figures(message, line_format, match)


def _figures(message: Message, line_format: LineFormat, match: re.Match[str]) -> Iterator[Found]:
    last = max(match.end(name) for name, digits in match.groupdict().items() if digits is not None)
    for name in match.groupdict():
        start, end = match.span(name)
        if start < 0:
            continue
        together = message.together(start, end)
        if line_format.open_ended and end == last:
            if together.broken or (together.end == end and message.runs_to_a_cut(end)):
                continue
            end = together.end
        digits = message.squeezed[start:end]
        if together.end == end and digits[-1:].isdigit():
            yield Found(name, digits, start)
