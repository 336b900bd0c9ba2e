"""What callers send about measured startups."""

from typing import Annotated, Literal

from pydantic import Field

from service.api.contract import INTEGRAL, MAX_BYTES, MAX_SEQUENCES, MAX_TOKENS, Contract, Count, Number, Text
from service.api.paging import PageQuery
from service.catalogue.importers.measurements import Value
from service.catalogue.startups import StartupRecord

MAX_LOG_BYTES = 4 << 20
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


class CalibrationQuery(PageQuery):
    """Which measurements."""

    model: Text | None = Field(default=None, description="name of the model, in any case")
    gpu: Text | None = Field(default=None, description="catalogue slug")
    status: Literal["accepted", "quarantined", "withdrawn"] | None = Field(default=None, description="of that status")

    def finds(self, record: StartupRecord) -> bool:
        """Whether a measurement is asked for."""
        measured = record.measurement
        return (
            (self.model is None or self.model.casefold() == measured.model.casefold())
            and (self.gpu is None or self.gpu == measured.gpu)
            and (self.status is None or self.status == measured.status.value)
        )
