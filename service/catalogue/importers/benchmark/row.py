"""One row of a load test, whatever tool it came from."""

from dataclasses import dataclass

from service.catalogue.records.calibration import ServingFigures


class FormatNotUnderstood(ValueError):
    """The text is none of the known result formats, or one that holds no load test.

    Attributes
    ----------
    tried : tuple of str
        The formats that were looked for.
    """

    def __init__(self, message: str, tried: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tried = tried


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One load test as a file tells it. Nothing is filled in: what the file does not say is in `missing`.

    Attributes
    ----------
    format : str
        Which tool and which generation of its file.
    model, engine, engine_version : str or None
        As given. The engine is only taken from a file that names it; a benchmark's "backend" is how it speaks to the
        server, and names the engine only where it is "vllm", "sglang" or "tensorrt-llm".
    gpu, gpu_count : str or None, int or None
        Name of the card as the file gives it, not yet a catalogue slug; GPUs of the whole deployment.
    tensor_parallel_size ... expert_parallel_size : int or None
        The layout.
    quantization, kv_cache_dtype : str or None
        As given.
    replicas : int
        Whole engines that shared the load, where the file says so; the layout is of one.
    figures : ServingFigures
        What was asked and what was measured.
    measured : bool
        False where the file says that its figures were simulated or estimated.
    missing : tuple of str
        What a calibration needs and the file does not give; `MEANING` says what each is.
    contradictions : tuple of str
        Where the figures contradict each other.
    notes : tuple of str
        What a reader should know about how they were measured.
    tolerance : float
        Relative difference between counted and stated rates that is agreement for this tool.
    """

    format: str
    model: str | None
    engine: str | None
    engine_version: str | None
    gpu: str | None
    gpu_count: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    data_parallel_size: int | None
    expert_parallel_size: int | None
    quantization: str | None
    kv_cache_dtype: str | None
    replicas: int
    figures: ServingFigures
    measured: bool
    missing: tuple[str, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]
    tolerance: float


MEANING = {
    "model": "the model that was served",
    "engine": "the engine that served it, such as vllm",
    "engine_version": "its version",
    "gpu": "the GPU, as `nvidia-smi -L` names it",
    "gpu_count": "GPUs of the whole deployment",
    "tensor_parallel_size": "`--tensor-parallel-size` of the server",
    "input_tokens_mean": "mean prompt length, tokens",
    "output_tokens_mean": "mean answer length, tokens",
    "load": "requests in flight at most, or requests per second asked for",
    "ttft": "time to first token, ms",
    "tpot": "time per output token after the first, ms",
    "output_tokens_per_s": "output tokens per second of the whole deployment",
    "requests": "requests that were answered",
}
"""What each name in `BenchmarkRow.missing` is, in words a caller can be asked with."""
