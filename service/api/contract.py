"""What callers send: the models that validate are the models that document."""

import math
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic.fields import FieldInfo

from service.sizing.engine.defaults import AUTO_FIT
from service.sizing.engine.kv_dtypes import KV_CACHE_DTYPES
from service.sizing.question import LONGEST_PROMISE_MS, MOST_GPUS, RankBy

MAX_TOKENS = 100_000_000
MAX_SEQUENCES = 10_000_000
MAX_PEOPLE = 1_000_000
MAX_CURVE_POINTS = 64
MAX_BYTES = 1 << 60
MAX_NAMES = 200
ONE_LINE = r"^[^\x00-\x1f\x7f]*$"
"""No control characters."""


def _integral(value: object) -> object:
    """Take 4096.0 for 4096: JSON has one kind of number."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def _encodable(value: str) -> str:
    """Refuse half of a surrogate pair: it can be neither stored nor sent."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode, without lone surrogates") from None
    return value


INTEGRAL = BeforeValidator(_integral)
"""Outermost on whole numbers: inside, it would hide their bounds from the published schema."""

Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAMES, pattern=ONE_LINE),
    AfterValidator(_encodable),
]
"""One line without control characters."""


def _known_cache_dtype(value: str) -> str:
    if value not in KV_CACHE_DTYPES:
        raise ValueError(f"must be one of {', '.join(KV_CACHE_DTYPES)}")
    return value


CacheDtype = Annotated[
    str, AfterValidator(_known_cache_dtype), Field(json_schema_extra={"enum": list[Any](KV_CACHE_DTYPES)})
]


def _context_length(value: int) -> int:
    if value != AUTO_FIT and not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"must be from 1 to {MAX_TOKENS}, or {AUTO_FIT} to let the engine fit it to memory")
    return value


ContextLength = Annotated[
    int,
    AfterValidator(_context_length),
    Field(json_schema_extra={"anyOf": [{"const": AUTO_FIT}, {"minimum": 1, "maximum": MAX_TOKENS}]}),
    INTEGRAL,
]
"""A longest context as the engine takes one (vLLM 0.33 `config/model.py: ModelConfig`)."""

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS), INTEGRAL]
Count = Annotated[int, Field(ge=1, le=MOST_GPUS), INTEGRAL]


class Contract(BaseModel):
    """A request object: unknown fields are refused, types are exact."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class InlineModel(Contract):
    """A model given by its published configuration."""

    name: Text = Field(description="name for messages and flags", examples=["my-org/my-model"])
    config: dict[str, Any] = Field(
        description="the model's config.json; non-finite numbers are accepted here only",
        examples=[{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096}],
    )
    hf_quant_config: dict[str, Any] | None = Field(
        default=None, description="hf_quant_config.json, which ModelOpt checkpoints publish beside it"
    )
    weights_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES), INTEGRAL] | None = Field(
        default=None,
        description="total size of the safetensors files (bytes): checked against the count, never used as one",
    )


def _model_kind(value: object) -> str:
    return "name" if isinstance(value, str) else "inline"


ModelReference = Annotated[
    Annotated[Text, Tag("name")] | Annotated[InlineModel, Tag("inline")], Discriminator(_model_kind)
]


class PeopleRequest(Contract):
    """Who uses the deployment; its load follows from how fast it answers them."""

    people: Annotated[int, Field(ge=1, le=MAX_PEOPLE), INTEGRAL] = Field(
        description="all who may use it", examples=[50]
    )
    share_active: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=0.5, description="share of them who use it in the busy hour"
    )
    think_seconds: Annotated[Number, Field(ge=0, le=86_400)] = Field(
        default=40, description="from the end of an answer to the next question: reading it and writing (s)"
    )
    answer_seconds: Annotated[Number, Field(gt=0, le=86_400)] | None = Field(
        default=None, description="from a question to the end of its answer (s); null: as predicted of each layout"
    )
    peak_chance: Annotated[Number, Field(ge=0.000001, le=0.5)] = Field(
        default=0.01, description="share of the busy hour in which more may wait at once than is planned for"
    )


class WorkloadRequest(Contract):
    """What the deployment serves."""

    context_tokens: Tokens = Field(
        description="longest conversation kept in cache, prompt and answer (tokens)", examples=[8192]
    )
    concurrent_sequences: Annotated[int, Field(ge=1, le=MAX_SEQUENCES), INTEGRAL] = Field(
        default=1, description="conversations held at once", examples=[16]
    )
    prompt_tokens: Tokens | None = Field(
        default=None, description="prompt of a typical request (tokens); null: 7/8 of the context", examples=[7168]
    )
    output_tokens: Tokens | None = Field(
        default=None, description="answer of a typical request (tokens); null: 1/8 of the context", examples=[1024]
    )
    requests_per_second: Annotated[Number, Field(gt=0, le=1_000_000)] | None = Field(
        default=None,
        description="requests that arrive a second (1/s), at random, over all copies; null: concurrent_sequences are "
        "in flight all the time",
        examples=[2.5],
    )
    people: PeopleRequest | None = Field(
        default=None, description="who makes the load, instead of concurrent_sequences or requests_per_second"
    )


class ObjectivesRequest(Contract):
    """Promises the deployment must keep under the load asked, held against the prediction with a margin."""

    ttft_ms: Annotated[Number, Field(gt=0, le=LONGEST_PROMISE_MS)] | None = Field(
        default=None, description="most time to first token, median (ms)", examples=[1000]
    )
    tpot_ms: Annotated[Number, Field(gt=0, le=LONGEST_PROMISE_MS)] | None = Field(
        default=None, description="most time per output token, median (ms)", examples=[40]
    )


class HardwareRequest(Contract):
    """Which machines may be used."""

    gpus: Annotated[list[Text], Field(min_length=1, max_length=MAX_NAMES)] | None = Field(
        default=None, description="GPU slugs of the catalogue; null: every GPU with rules", examples=[["h100-sxm"]]
    )
    instances: Annotated[list[Text], Field(min_length=1, max_length=MAX_NAMES)] | None = Field(
        default=None, description="rentable instance types; null: any machine", examples=[["p5.48xlarge"]]
    )
    gpu_counts: Annotated[list[Count], Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="exact total GPU counts to judge; not together with max_gpus", examples=[[4, 8]]
    )
    max_gpus: Count | None = Field(default=None, description="most GPUs the search may use; null: 16", examples=[16])
    gpus_per_node: Annotated[int, Field(ge=1, le=1024), INTEGRAL] | None = Field(
        default=None, description="GPUs of one machine; null: the catalogue's usual node", examples=[8]
    )
    link: Literal["nvlink", "pcie", "xgmi"] | None = Field(
        default=None, description="what joins the GPUs of a machine; null: the catalogue's usual node"
    )
    topology: Annotated[str, Field(min_length=1, max_length=100_000)] | None = Field(
        default=None, description="pasted `nvidia-smi topo -m` or its relatives, for one machine"
    )


class LayoutRequest(Contract):
    """Parallel sizes to judge instead of searching; omitted sizes are 1."""

    tensor_parallel_size: Count = Field(default=1, description="GPUs that split every layer", examples=[4])
    pipeline_parallel_size: Count = Field(default=1, description="stages that split the layers", examples=[1])
    data_parallel_size: Count = Field(default=1, description="copies that share the load", examples=[1])
    expert_parallel: bool = Field(default=False, description="spread whole experts over ranks")
    decode_context_parallel_size: Count = Field(default=1, description="ranks that share one cache by tokens")


class EngineRequest(Contract):
    """Engine arguments to take as given; null: the engine's default."""

    version: Annotated[Text, Field(max_length=40, examples=["0.33.0"])] | None = Field(
        default=None, description="vLLM release; null: the newest known"
    )
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        default=None, description="share of GPU memory the engine may take", examples=[0.92]
    )
    max_model_len: ContextLength | None = Field(
        default=None, description="longest context (tokens); -1: let the engine fit it to memory", examples=[32768]
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=1_000_000), INTEGRAL] | None = Field(
        default=None, description="most sequences in one batch", examples=[256]
    )
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=10_000_000), INTEGRAL] | None = Field(
        default=None, description="most tokens in one step", examples=[8192]
    )
    kv_cache_memory_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES), INTEGRAL] | None = Field(
        default=None, description="cache memory per GPU (bytes), instead of what utilisation leaves"
    )
    block_size: Annotated[int, Field(ge=1, le=1 << 20), INTEGRAL] | None = Field(
        default=None, description="tokens of a cache block", examples=[16]
    )
    enable_prefix_caching: bool | None = Field(default=None, description="keep prefixes for reuse")
    disable_hybrid_kv_cache_manager: bool | None = Field(
        default=None, description="treat windowed layers as full ones in the cache"
    )
    enforce_eager: bool | None = Field(default=None, description="no CUDA graphs")


class AssumptionsRequest(Contract):
    """Figures to use instead of ours; the answer repeats which were."""

    gpu_memory_gib: Annotated[Number, Field(gt=0, le=1_048_576)] | None = Field(
        default=None, description="memory a process sees on one GPU (GiB)", examples=[79.6]
    )
    working_space_gib: Annotated[Number, Field(ge=0, le=1_048_576)] | None = Field(
        default=None, description="memory that is neither weights nor cache (GiB); taken as exact", examples=[2.0]
    )
    memory_bandwidth_fraction: Annotated[Number, Field(ge=0.001, le=1)] | None = Field(
        default=None, description="share of the rated bandwidth that weight reads reach", examples=[0.85]
    )


PriceKindName = Literal["on_demand", "spot", "reserved_1y", "reserved_3y", "marketplace", "community"]


Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", examples=["EUR"])]


class ExchangeRateRequest(Contract):
    """What one unit of a currency was worth in another on a day; one of the two is USD."""

    base: Currency = Field(description="currency of which one unit is told, by its three letters", examples=["EUR"])
    quote: Currency = Field(description="currency it is told in", examples=["USD"])
    rate: Annotated[Decimal, Field(ge=Decimal("1e-7"), le=10**7, allow_inf_nan=False, max_digits=24, strict=False)] = (
        Field(description="`quote` for one `base`", examples=["1.08"])
    )
    observed_on: date = Field(description="the day it was fixed", examples=["2026-11-27"])
    source: Text | None = Field(default=None, description="who fixed it", examples=["ECB reference rate"])


class PricesRequest(Contract):
    """Which prices a cost rests on."""

    provider: Text | None = Field(default=None, description="who rents the machine; null: the cheapest")
    region: Text | None = Field(default=None, description="where; null: anywhere")
    kind: PriceKindName = Field(default="on_demand", description="kind of price")
    as_of: date | None = Field(default=None, description="prices seen up to this day; null: the newest")
    exchange_rate: ExchangeRateRequest | None = Field(
        default=None,
        description="tell costs in the currency beside USD, and use prices in it too; null: costs are in USD and rest "
        "on prices in USD",
    )


Precision = Literal["checkpoint", "bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"]


class DeploymentRequest(Contract):
    """What is asked of a deployment, whatever the model."""

    kv_cache_dtype: CacheDtype = Field(
        default="auto", description="type of the KV cache, as the engine's flag takes it", examples=["auto", "fp8"]
    )
    workload: WorkloadRequest = Field(description="what is served")
    objectives: ObjectivesRequest = Field(default=ObjectivesRequest(), description="promises to keep")
    hardware: HardwareRequest = Field(default=HardwareRequest(), description="machines allowed")
    layout: LayoutRequest | None = Field(default=None, description="judge this layout; null: search")
    engine: EngineRequest = Field(default=EngineRequest(), description="engine arguments taken as given")
    assumptions: AssumptionsRequest = Field(default=AssumptionsRequest(), description="figures used instead of ours")
    prices: PricesRequest = Field(default=PricesRequest(), description="prices used")
    calibration: Literal["nearest", "off"] = Field(
        default="nearest",
        description="whether measured startups, load tests and link tests correct the predictions: the nearest of "
        "each, or none",
    )
    rank_by: RankBy = Field(default=RankBy.FEWEST_GPUS, description="what makes one plan better than another")
    curve_points: Annotated[int, Field(ge=0, le=MAX_CURVE_POINTS), INTEGRAL] = Field(
        default=0, description="points of the curve over concurrency that each plan is given; 0: none", examples=[32]
    )


class PlanRequest(DeploymentRequest):
    """A model, a workload and machines: what would start, hold it, and how."""

    model: ModelReference = Field(
        description="catalogue name, or a configuration", examples=["meta-llama/Llama-3.1-70B-Instruct"]
    )
    precision: Precision = Field(
        default="checkpoint", description="what the weights would be quantised to; checkpoint: as published"
    )


class CompareRequest(DeploymentRequest):
    """One workload over several models, precisions, GPUs or counts."""

    model: ModelReference | None = Field(
        default=None, description="the model, where there is one", examples=["meta-llama/Llama-3.1-70B-Instruct"]
    )
    models: Annotated[list[ModelReference], Field(min_length=1, max_length=MAX_NAMES)] | None = Field(
        default=None, description="several models; instead of `model`", examples=[["Qwen/Qwen3-32B"]]
    )
    precision: Precision = Field(default="checkpoint", description="what the weights would be quantised to")
    precisions: Annotated[list[Precision], Field(min_length=1, max_length=8)] | None = Field(
        default=None, description="several precisions; instead of `precision`", examples=[["fp8", "int4"]]
    )


REPEATED = {"gpus": "gpu", "gpu_counts": "gpu_count", "instances": "instance"}
"""Lists of the body that are repeated parameters of a query."""

PREFIXED = {"exchange_rate": "exchange_"}
"""Objects whose members' names say too little alone, and what a query puts before them."""

GROUPS = ("workload", "objectives", "hardware", "layout", "engine", "assumptions", "prices")


INSIDE: dict[tuple[str, ...], type[Contract]] = {
    ("layout",): LayoutRequest,
    ("workload", "people"): PeopleRequest,
    ("prices", "exchange_rate"): ExchangeRateRequest,
}
"""What optional groups hold, by their path."""


def query_names() -> dict[str, tuple[str, ...]]:
    """Path in the body of each query parameter of `GET /plan`."""
    names: dict[str, tuple[str, ...]] = {}
    for name, field in PlanRequest.model_fields.items():
        if name not in GROUPS:
            names[name] = (name,)
            continue
        group = INSIDE.get((name,)) or cast("type[Contract]", field.annotation)
        for leaf in group.model_fields:
            inner = INSIDE.get((name, leaf))
            if inner is None:
                names[REPEATED.get(leaf, leaf)] = (name, leaf)
            else:
                prefix = PREFIXED.get(leaf, "")
                names |= {prefix + deeper: (name, leaf, deeper) for deeper in inner.model_fields}
    return names


def field_at(path: tuple[str, ...]) -> FieldInfo:
    """The field of the plan request at a path."""
    owner: type[Contract] = PlanRequest
    for depth in range(1, len(path)):
        owner = INSIDE.get(path[:depth]) or cast("type[Contract]", owner.model_fields[path[depth - 1]].annotation)
    return owner.model_fields[path[-1]]
