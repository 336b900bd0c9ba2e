"""Measurements that correct predictions: startups, serving runs, links.

A measurement is kept whole, with its conditions, and never changed: it is accepted, quarantined with a reason, or
withdrawn. What makes one doubtful is in `calibration_checks`.
"""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from math import isfinite


class Status(StrEnum):
    """What a measurement may be used for: everything, nothing until someone looked at it, nothing any more."""

    ACCEPTED = "accepted"
    QUARANTINED = "quarantined"
    WITHDRAWN = "withdrawn"


class Engine(StrEnum):
    """Which of vLLM's two engines ran."""

    V0 = "V0"
    V1 = "V1"


@dataclass(frozen=True, slots=True)
class StartupMeasurement:
    """What one vLLM startup took and left of a GPU's memory. Sizes are GiB (2^30) per GPU.

    Where ranks differ: the largest weights, the smallest cache.

    Attributes
    ----------
    source : str
        Where it was published or who reported it.
    engine_version, engine : str or None, Engine or None
        As printed; None where the report does not say.
    model : str
        As given to vLLM.
    gpu, gpu_total_gib, gpu_count : str, float or None, int
        Catalogue slug; memory as CUDA reports it; GPUs of one copy.
    link : str or None
        What joins the GPUs, where the report says.
    dtype, quantization, kv_cache_dtype : str or None
        As printed; `quantization` None for none.
    tensor_parallel_size ... decode_context_parallel_size : int
        Sizes of the layout.
    expert_parallel : bool
        Whether experts are spread over ranks.
    gpu_memory_utilization, kv_cache_memory_bytes : float or None, int or None
        One of them sized the cache.
    max_model_len, max_num_seqs, max_num_batched_tokens : int or None
        The engine's limits.
    assumed : tuple of str
        Conditions that the report leaves out and that were taken to be the defaults of its version and GPU.
    enforce_eager, prefix_caching : bool or None
        Whether graphs were off, prefixes cached.
    speculative, lora, other_arguments : str or None, bool, str or None
        What else takes memory: speculative decoding, adapters, and further arguments as printed.
    note : str
        What the reporter said beside.
    weights_gib, available_kv_gib : float or None
        "Model loading took"; what was left for the cache.
    kv_tokens, gpu_blocks, max_concurrency, concurrency_tokens : int or float or None
        What the cache holds; how many requests of `concurrency_tokens` tokens fit it.
    cudagraph_gib, cudagraph_estimate_gib, activation_peak_gib, non_torch_gib, consumed_gib : float or None
        Further figures of the memory summary.
    status, reason : Status, str
        What it may be used for, and why not more.
    """

    source: str
    model: str
    gpu: str
    engine_version: str | None = None
    engine: Engine | None = None
    gpu_total_gib: float | None = None
    gpu_count: int = 1
    link: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    expert_parallel: bool = False
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    assumed: tuple[str, ...] = ()
    enforce_eager: bool | None = None
    prefix_caching: bool | None = None
    speculative: str | None = None
    lora: bool = False
    other_arguments: str | None = None
    note: str = ""
    weights_gib: float | None = None
    available_kv_gib: float | None = None
    kv_tokens: int | None = None
    gpu_blocks: int | None = None
    max_concurrency: float | None = None
    concurrency_tokens: int | None = None
    cudagraph_gib: float | None = None
    cudagraph_estimate_gib: float | None = None
    activation_peak_gib: float | None = None
    non_torch_gib: float | None = None
    consumed_gib: float | None = None
    status: Status = Status.ACCEPTED
    reason: str = ""

    @property
    def overhead_gib(self) -> float | None:
        """Memory of the budget that is neither weights nor cache (GiB); None where a figure for it is missing.

        utilisation x total - weights - available cache. With a cache sized in bytes the budget is not utilised, so the
        difference says nothing.
        """
        figures = (self.gpu_memory_utilization, self.gpu_total_gib, self.weights_gib, self.available_kv_gib)
        if self.kv_cache_memory_bytes is not None or None in figures:
            return None
        utilization, total, weights, available = (figure or 0.0 for figure in figures)
        return utilization * total - weights - available


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution of times, ms; None where a report leaves a statistic out."""

    mean_ms: float | None = None
    median_ms: float | None = None
    p90_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None

    @property
    def central_ms(self) -> float | None:
        """The median, else the mean."""
        return self.median_ms if self.median_ms is not None else self.mean_ms

    @property
    def summed_ms(self) -> float | None:
        """The mean, else the median: what adds up over requests."""
        return self.mean_ms if self.mean_ms is not None else self.median_ms


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """What a load test asked for and got.

    Attributes
    ----------
    input_tokens_mean, output_tokens_mean : float or None
        Tokens of one request, as measured where that is reported.
    concurrency : float or None
        Requests in flight at most, as asked; None where only a rate was set.
    request_rate : float or None
        Requests per second, as asked; infinite where all came at once.
    requests, failed, duration_s : int or None, int or None, float or None
        Requests answered and not; length of the run.
    ttft, tpot, itl, e2e : Latency
        Time to first token; time per output token after the first, averaged over a request; time between two tokens;
        time of a request.
    output_tokens_per_s, total_tokens_per_s, requests_per_s : float or None
        Throughput of the whole deployment.
    """

    input_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    concurrency: float | None = None
    request_rate: float | None = None
    requests: int | None = None
    failed: int | None = None
    duration_s: float | None = None
    ttft: Latency = Latency()
    tpot: Latency = Latency()
    itl: Latency = Latency()
    e2e: Latency = Latency()
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    requests_per_s: float | None = None

    @property
    def answered_per_s(self) -> float | None:
        """Requests answered in a second, as reported or by their tokens."""
        if self.requests_per_s is not None:
            return self.requests_per_s
        if self.output_tokens_per_s is None or not self.output_tokens_mean:
            return None
        return self.output_tokens_per_s / self.output_tokens_mean

    @property
    def request_ms(self) -> float | None:
        """Time of a request (ms), as reported or by its tokens."""
        if self.e2e.summed_ms is not None:
            return self.e2e.summed_ms
        if self.ttft.summed_ms is None or self.tpot.summed_ms is None:
            return None
        return self.ttft.summed_ms + self.tpot.summed_ms * max(0.0, (self.output_tokens_mean or 1) - 1)

    @property
    def in_flight(self) -> float | None:
        """Requests under way on average, by Little's law."""
        if self.answered_per_s is None or self.request_ms is None:
            return None
        return self.answered_per_s * self.request_ms / 1000

    @property
    def has_rate(self) -> bool:
        """Whether requests came at a rate, and not each when another was answered or all at once."""
        return self.request_rate is not None and isfinite(self.request_rate)


@dataclass(frozen=True, slots=True)
class ServingMeasurement:
    """One load test of one deployment.

    Attributes
    ----------
    source, measured_on : str, date or None
        Where it was published or who reported it; the day it was run.
    model, engine, engine_version : str, str, str or None
        Engine "vllm", "sglang", "trtllm" ...
    gpu, gpu_count : str, int
        Catalogue slug; GPUs of the whole deployment.
    tensor_parallel_size, pipeline_parallel_size, data_parallel_size, expert_parallel_size : int
        The layout; `expert_parallel_size` 1 without expert parallelism.
    decode_context_parallel_size : int
        Tensor ranks that share one cache.
    precision, kv_cache_dtype : str or None
        Of weights and cache.
    enforce_eager, speculative : bool or None, str or None
        Whether graphs were off; the speculative method where one ran.
    figures : ServingFigures
        The results.
    note : str
        What a reader should know about how they were measured.
    derived : tuple of str
        Figures that were not measured but follow from others.
    status, reason : Status, str
        What it may be used for, and why not more.
    """

    source: str
    model: str
    engine: str
    gpu: str
    gpu_count: int
    figures: ServingFigures
    engine_version: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    precision: str | None = None
    kv_cache_dtype: str | None = None
    enforce_eager: bool | None = None
    speculative: str | None = None
    measured_on: date | None = None
    note: str = ""
    derived: tuple[str, ...] = ()
    status: Status = Status.ACCEPTED
    reason: str = ""


class Collective(StrEnum):
    """A communication among GPUs, as the NCCL and RCCL tests name it."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "alltoall"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND_RECEIVE = "sendrecv"
    HYPERCUBE = "hypercube"


@dataclass(frozen=True, slots=True)
class LinkPoint:
    """One message size of a link test.

    Attributes
    ----------
    size_bytes : int
        Size of the message, as the test defines it.
    time_us, algbw_gb_per_s, busbw_gb_per_s : float
        Time of one call; size over time; that times the operation's bus factor (GB = 10^9 bytes).
    wrong : int or None
        Wrong elements found; None where the test did not look.
    """

    size_bytes: int
    time_us: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None = None


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """One run of a collective over a group of GPUs.

    Attributes
    ----------
    source, gpu : str
        Where it was published or who reported it; catalogue slug of the cards.
    link : str or None
        What joins them, where that is said.
    operation : Collective
        What was measured.
    world_size : int
        GPUs taking part.
    nodes : int
        Machines they are in.
    gpus : tuple of str
        Distinct names of the cards, as the driver gives them.
    in_place, out_of_place : tuple of LinkPoint
        Results by message size; empty where not run.
    note : str
        What the reporter said beside.
    status, reason : Status, str
        What it may be used for, and why not more.
    """

    source: str
    gpu: str
    operation: Collective
    world_size: int
    nodes: int
    gpus: tuple[str, ...]
    in_place: tuple[LinkPoint, ...]
    out_of_place: tuple[LinkPoint, ...]
    link: str | None = None
    note: str = ""
    status: Status = Status.ACCEPTED
    reason: str = ""
