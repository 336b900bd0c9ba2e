"""What callers send about measurements."""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from service.api.contract import INTEGRAL, MAX_BYTES, MAX_SEQUENCES, MAX_TOKENS, ONE_LINE, Contract, Count, Number, Text
from service.api.paging import PageQuery
from service.catalogue.importers.measurements import Value
from service.catalogue.records.calibration import Collective, Status
from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.startups import StartupRecord

MAX_LOG_BYTES = 4 << 20
MAX_REPORT_BYTES = 8 << 20
MAX_GIB = 1 << 20

Gibibytes = Annotated[Number, Field(gt=0, le=MAX_GIB)]
Size = Annotated[int, Field(ge=1, le=MAX_TOKENS), INTEGRAL]
Word = Annotated[Text, Field(max_length=100)]


class StartupConditions(Contract):
    """How a startup was made; null: not said."""

    source: Text | None = Field(default=None, description="where it was published or who measured it; null: the key")
    dtype: Word | None = Field(default=None, description="type of the unquantised weights", examples=["bfloat16"])
    quantization: Word | None = Field(default=None, description="the engine's name of it; null: none, or in the log")
    kv_cache_dtype: Word | None = Field(default=None, description="type of the cache", examples=["auto"])
    tensor_parallel_size: Count | None = Field(default=None, description="GPUs that split every layer")
    pipeline_parallel_size: Count | None = Field(default=None, description="stages that split the layers")
    data_parallel_size: Count | None = Field(default=None, description="copies that share the load")
    decode_context_parallel_size: Count | None = Field(default=None, description="ranks that share one cache")
    enable_expert_parallel: bool | None = Field(default=None, description="whole experts over ranks")
    max_model_len: Size | None = Field(default=None, description="longest context (tokens)", examples=[8192])
    max_num_seqs: Annotated[int, Field(ge=1, le=MAX_SEQUENCES), INTEGRAL] | None = Field(
        default=None, description="sequences of a step"
    )
    max_num_batched_tokens: Size | None = Field(default=None, description="tokens of a step")
    enforce_eager: bool | None = Field(default=None, description="whether CUDA graphs were off")
    enable_prefix_caching: bool | None = Field(default=None, description="whether prefixes were cached")

    def given(self) -> dict[str, Value]:
        """Conditions that are said, by their names in a log."""
        values = self.model_dump(exclude={"source", "gpu", "text"})
        return {name: value for name, value in values.items() if value is not None}


class StartupLogRequest(StartupConditions):
    """A pasted startup log, and what it leaves out."""

    engine_version: Word | None = Field(default=None, description="vLLM release as printed", examples=["0.19.0"])
    model: Text | None = Field(default=None, description="as given to vLLM", examples=["Qwen/Qwen3-32B"])
    gpu: Text | None = Field(default=None, description="catalogue slug or name of the card", examples=["h100-sxm"])
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        default=None, description="share of the GPU's memory", examples=[0.9]
    )
    text: Annotated[str, Field(min_length=1, max_length=MAX_LOG_BYTES)] = Field(
        description="the log from its beginning until vLLM is ready, as it is"
    )


class StartupRequest(StartupConditions):
    """One measured startup in figures. Sizes are per GPU; where ranks differ, the largest weights, the least cache."""

    engine_version: Word = Field(description="vLLM release as printed", examples=["0.19.0"])
    model: Text = Field(description="as given to vLLM", examples=["Qwen/Qwen3-32B"])
    gpu: Text = Field(description="catalogue slug or name of the card", examples=["h100-sxm"])
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] = Field(
        description="share of the GPU's memory", examples=[0.9]
    )
    gpu_total_gib: Gibibytes | None = Field(
        default=None, description="memory as CUDA shows it (GiB); null: the catalogue's"
    )
    weights_gib: Gibibytes = Field(description='"Model loading took" (GiB)', examples=[61.03])
    available_kv_gib: Gibibytes = Field(description='"Available KV cache memory" (GiB)', examples=[6.52])
    kv_tokens: Size | None = Field(default=None, description='"GPU KV cache size" (tokens)', examples=[26704])
    cudagraph_gib: Annotated[Number, Field(ge=-MAX_GIB, le=MAX_GIB)] | None = Field(
        default=None, description='"Graph capturing ... took" (GiB)'
    )
    kv_cache_memory_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES), INTEGRAL] | None = Field(
        default=None, description="given cache size (bytes), where it was given"
    )
    note: Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")] = Field(
        default="", description="what else to know"
    )


class BenchmarkRequest(Contract):
    """The report of a load or link test, and what it leaves out; null: not said, or in the report."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_REPORT_BYTES)] = Field(
        description="the report as the tool wrote or printed it: JSON of `vllm bench serve --save-result`, its table "
        "on the console, a report of GuideLLM, GenAI-Perf, AIPerf or llm-d, our own rows, or output of nccl-tests"
    )
    source: Text | None = Field(default=None, description="where it was published or who measured it; null: the key")
    note: Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")] = Field(
        default="", description="what else to know"
    )
    gpu: Text | None = Field(default=None, description="catalogue slug or name of the card", examples=["h100-sxm"])
    model: Text | None = Field(default=None, description="as given to the engine", examples=["Qwen/Qwen3-32B"])
    engine: Word | None = Field(
        default=None,
        description="what served it; null: as reported, or vllm where `vllm bench serve` does not say",
        examples=["vllm"],
    )
    engine_version: Word | None = Field(default=None, description="its release", examples=["0.19.0"])
    gpu_count: Count | None = Field(default=None, description="GPUs of the whole deployment; null: as the sizes say")
    tensor_parallel_size: Count | None = Field(default=None, description="GPUs that split every layer", examples=[2])
    pipeline_parallel_size: Count | None = Field(default=None, description="stages that split the layers; null: 1")
    data_parallel_size: Count | None = Field(default=None, description="copies that shared the load; null: 1")
    decode_context_parallel_size: Count | None = Field(default=None, description="ranks sharing one cache; null: 1")
    enable_expert_parallel: bool | None = Field(default=None, description="whole experts over ranks; null: no")
    precision: Word | None = Field(default=None, description="of the weights", examples=["fp8"])
    kv_cache_dtype: Word | None = Field(default=None, description="type of the cache", examples=["auto"])
    enforce_eager: bool | None = Field(default=None, description="whether CUDA graphs were off")
    speculative: Word | None = Field(default=None, description="method of speculative decoding; null: none")
    measured_on: date | None = Field(default=None, description="day of the run", examples=["2026-11-30"])
    input_tokens_mean: Annotated[Number, Field(gt=0, le=MAX_TOKENS)] | None = Field(
        default=None, description="mean prompt length (tokens), where the report leaves it out", examples=[1024]
    )
    output_tokens_mean: Annotated[Number, Field(gt=0, le=MAX_TOKENS)] | None = Field(
        default=None, description="mean answer length (tokens), where the report leaves it out", examples=[128]
    )
    concurrency: Annotated[Number, Field(gt=0, le=MAX_SEQUENCES)] | None = Field(
        default=None, description="most requests at once, where the report leaves it out", examples=[16]
    )
    operation: Collective | None = Field(default=None, description="link tests: the collective")
    world_size: Count | None = Field(default=None, description="link tests: GPUs that took part", examples=[8])
    nodes: Count | None = Field(default=None, description="link tests: machines they are in", examples=[1])
    link: Literal["nvlink", "pcie", "xgmi"] | None = Field(
        default=None, description="link tests: what joins the GPUs; null: the catalogue's link of the card"
    )

    def given(self) -> dict[str, Value]:
        """Conditions that are said, by their names in a measurement."""
        values = self.model_dump(exclude={"text", "source", "note", "gpu", "measured_on"})
        return {name: value for name, value in values.items() if value is not None}


class StatusRequest(Contract):
    """What a measurement may be used for."""

    status: Status = Field(
        description="accepted: it corrects predictions; quarantined: it waits for someone to look at it; withdrawn: it "
        "corrects nothing any more",
        examples=["withdrawn"],
    )
    reason: Annotated[str, Field(max_length=500, pattern=ONE_LINE)] = Field(
        default="",
        description="why; needed unless it is accepted, and then kept with the catalogue revision alone",
        examples=["the card was throttled"],
    )


Kind = Literal["startup", "serving", "link"]
KINDS: dict[type, Kind] = {StartupRecord: "startup", ServingRecord: "serving", LinkRecord: "link"}


class CalibrationQuery(PageQuery):
    """Which measurements."""

    kind: Kind | None = Field(default=None, description="of that kind; null: of every kind")
    model: Text | None = Field(default=None, description="name of the model, in any case; link tests have none")
    gpu: Text | None = Field(default=None, description="catalogue slug")
    status: Literal["accepted", "quarantined", "withdrawn"] | None = Field(default=None, description="of that status")

    def finds(self, record: StartupRecord | ServingRecord | LinkRecord) -> bool:
        """Whether a measurement is asked for."""
        measured = record.measurement
        model = None if isinstance(record, LinkRecord) else record.measurement.model.casefold()
        return (
            (self.kind is None or self.kind == KINDS[type(record)])
            and (self.model is None or self.model.casefold() == model)
            and (self.gpu is None or self.gpu == measured.gpu)
            and (self.status is None or self.status == measured.status.value)
        )
