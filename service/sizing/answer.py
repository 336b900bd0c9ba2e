"""What is answered: a plan, its alternatives, and a reason for everything left out.

Field descriptions, units and examples are part of the types: the published contract is made from them.
"""

from dataclasses import dataclass
from typing import Annotated

from service.sizing.load_answers import LoadPoint, ObjectivesAnswer, PeopleAnswer
from service.sizing.quantities import Doc, Figure


@dataclass(frozen=True, slots=True)
class LayoutAnswer:
    """Parallel sizes, named as the engine's flags."""

    tensor_parallel_size: Annotated[int, Doc("GPUs that split every layer", example=4)]
    pipeline_parallel_size: Annotated[int, Doc("stages that split the layers", example=1)]
    data_parallel_size: Annotated[int, Doc("copies that share the load", example=1)]
    expert_parallel: Annotated[bool, Doc("whole experts are spread over ranks instead of split", example=False)]
    decode_context_parallel_size: Annotated[int, Doc("ranks that share one cache by tokens", example=1)]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The model as it was read."""

    name: Annotated[str, Doc("name as asked", example="meta-llama/Llama-3.1-70B-Instruct")]
    architecture: Annotated[str, Doc("the engine's model class", example="LlamaForCausalLM")]
    parameters: Annotated[int, Doc("parameters of the published checkpoint", "elements", 70553706496)]
    active_parameters: Annotated[int, Doc("parameters one token visits", "elements", 70553706496)]
    weights_bytes: Annotated[
        int, Doc("parameters and buffers as loaded on one GPU, at the precision asked", "bytes", 141107945728)
    ]
    kv_bytes_per_token: Annotated[
        int | None,
        Doc(
            "what one more token adds to a long conversation, over the whole model, unsharded; null for a cache type "
            "without rules",
            "bytes",
            327680,
        ),
    ]
    attention: Annotated[
        str, Doc("attention kinds and how many layers have each", example="80 full (8 KV heads of 128)")
    ]
    max_context_tokens: Annotated[int, Doc("longest context the engine accepts", "tokens", 131072)]
    quantization: Annotated[str | None, Doc("the engine's name of the weight quantisation", example="fp8")]
    status: Annotated[str, Doc("exact: every rule restated and proved; estimated: a formula with known error")]
    notes: Annotated[tuple[str, ...], Doc("what a reader should know about this model")]


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The budget of the tightest GPU."""

    total_bytes: Annotated[int, Doc("memory a CUDA process sees", "bytes", 85027258368)]
    usable_bytes: Annotated[int, Doc("what the engine may take: total x utilisation", "bytes", 78225077699)]
    weights_bytes: Annotated[
        int, Doc("parameters and buffers as loaded, with copies and padding of the kernels", "bytes", 35278159872)
    ]
    working_space_bytes: Annotated[int, Doc("all that is neither weights nor cache, centre of the band", "bytes")]
    working_space_low_bytes: Annotated[int, Doc("optimistic end of the working space", "bytes")]
    working_space_high_bytes: Annotated[int, Doc("pessimistic end: it decides whether the plan starts", "bytes")]
    kv_cache_needed_bytes: Annotated[int, Doc("one copy's share of the conversations asked for", "bytes")]
    kv_cache_room_bytes: Annotated[int, Doc("usable - weights - working space", "bytes")]
    free_bytes: Annotated[int, Doc("room - needed", "bytes")]


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """One pipeline stage, tensor rank 0."""

    stage: Annotated[int, Doc("pipeline stage, from 0", example=0)]
    layers: Annotated[int, Doc("decoder layers of the stage", example=80)]
    parameter_bytes: Annotated[int, Doc("parameters as the engine builds them", "bytes")]
    buffer_bytes: Annotated[int, Doc("buffers beside the parameters, such as rotary tables", "bytes")]
    working_space_bytes: Annotated[int, Doc("all that is neither weights nor cache, centre of the band", "bytes")]
    kv_cache_room_bytes: Annotated[int, Doc("what is left for the cache on this stage", "bytes")]


@dataclass(frozen=True, slots=True)
class CacheGroupAnswer:
    """Layers that share one block table."""

    kind: Annotated[str, Doc("what the layers keep", example="full attention")]
    layers: Annotated[int, Doc("layers in the group over the whole model", example=80)]
    block_size: Annotated[int, Doc("tokens of a block", "tokens", 16)]
    page_bytes: Annotated[int, Doc("one layer's block on one GPU", "bytes", 16384)]
    blocks_per_request: Annotated[int, Doc("blocks reserved by a request of the longest context", "blocks", 8192)]


@dataclass(frozen=True, slots=True)
class CacheAnswer:
    """The KV cache as the engine prints it at startup, at the centre of the working-space band."""

    block_size: Annotated[int, Doc("tokens of a block", "tokens", 16)]
    num_blocks: Annotated[int, Doc("blocks of one copy", "blocks", 30000)]
    tokens: Annotated[int, Doc("the printed 'GPU KV cache size'", "tokens", 480000)]
    max_concurrency: Annotated[float, Doc("the printed 'Maximum concurrency' for the longest context", example=3.66)]
    max_model_len: Annotated[int, Doc("longest context served", "tokens", 131072)]
    dtype: Annotated[str, Doc("type the cache is stored in", example="bfloat16")]
    bytes_per_token_per_gpu: Annotated[
        int, Doc("what one more token of a long conversation takes on the tightest GPU", "bytes", 81920)
    ]
    bytes_per_block: Annotated[int, Doc("one block over all layers of the tightest stage", "bytes")]
    groups: Annotated[tuple[CacheGroupAnswer, ...], Doc("block tables of the model")]


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """How many conversations memory holds."""

    concurrent_sequences: Annotated[
        int, Doc("whole conversations of workload.context_tokens that fit, over all copies", example=122)
    ]


@dataclass(frozen=True, slots=True)
class CommunicationAnswer:
    """Traffic of one decode step."""

    link: Annotated[str, Doc("what joins the GPUs of a node", example="nvlink")]
    all_reduces_per_step: Annotated[int, Doc("two a layer with tensor parallelism", example=160)]
    all_reduce_bytes_per_token: Annotated[int, Doc("size of each, for one token", "bytes", 16384)]
    pipeline_handoffs_per_step: Annotated[int, Doc("stage boundaries a token crosses", example=0)]
    handoff_bytes_per_token: Annotated[int, Doc("what a boundary passes for one token", "bytes", 0)]
    nodes_crossed: Annotated[int, Doc("node boundaries between stages or ranks", example=0)]


@dataclass(frozen=True, slots=True)
class LatencyAnswer:
    """Time of one token."""

    weight_read_ms: Annotated[
        float, Doc("plain roofline: reading a rank's active parameters once, stages added up", "ms", 24.8)
    ]
    tpot_ms: Annotated[Figure | None, Doc("time per output token under the workload's load")]
    ttft_ms: Annotated[Figure | None, Doc("time to first token under the workload's load")]
    limited_by: Annotated[str | None, Doc("what binds: memory, bandwidth, compute, communication or scheduler")]
    notes: Annotated[tuple[str, ...], Doc("what was not validated by measurement")]


@dataclass(frozen=True, slots=True)
class ThroughputAnswer:
    """Tokens per second of the whole deployment."""

    output_tokens_per_second: Annotated[Figure | None, Doc("under the workload's load, over all copies")]
    requests_per_second: Annotated[float | None, Doc("requests completed a second: a rate given, as it is", "1/s")]
    output_tokens_per_second_per_gpu: Annotated[float | None, Doc("the same by GPU", "tokens/s")]


@dataclass(frozen=True, slots=True)
class ExchangeRateAnswer:
    """The exchange rate that was given, at which sums were converted."""

    base: Annotated[str, Doc("currency of which one unit is told", example="EUR")]
    quote: Annotated[str, Doc("currency it is told in", example="USD")]
    rate: Annotated[str, Doc("`quote` for one `base`", example="1.08")]
    observed_on: Annotated[str, Doc("the day it was fixed", example="2026-11-27")]
    source: Annotated[str | None, Doc("who fixed it; null: not stated", example="ECB reference rate")]


@dataclass(frozen=True, slots=True)
class PriceAnswer:
    """The price a cost rests on."""

    provider: Annotated[str, Doc("who rents it", example="lambda")]
    kind: Annotated[str, Doc("on_demand, spot, reserved_1y, reserved_3y, marketplace or community")]
    instance_type: Annotated[str | None, Doc("the machine, where the price is for one")]
    region: Annotated[str | None, Doc("where")]
    gpu_count: Annotated[int, Doc("GPUs the price is for", example=8)]
    per_hour: Annotated[str, Doc("price of that machine, as listed", "`currency`/h", "23.92")]
    currency: Annotated[str, Doc("of the list", example="USD")]
    observed_on: Annotated[str, Doc("when the price was seen", example="2026-07-20")]
    source: Annotated[str, Doc("where the price was seen")]


@dataclass(frozen=True, slots=True)
class CostAnswer:
    """What the deployment costs, exact decimals as strings."""

    currency: Annotated[str, Doc("of the amounts beside it: USD, unless an exchange rate was given", example="USD")]
    exchange_rate: Annotated[ExchangeRateAnswer | None, Doc("at which USD were converted; null: they were not")]
    per_hour: Annotated[str, Doc("all machines", "`currency`/h", "11.96")]
    per_month: Annotated[str, Doc("730 hours", "`currency`", "8730.80")]
    per_million_output_tokens: Annotated[
        str | None, Doc("at the throughput of the workload's load, all the time", "`currency`", "1.84")
    ]
    price: Annotated[PriceAnswer, Doc("the price used")]


@dataclass(frozen=True, slots=True)
class FlagAnswer:
    """One engine argument and its reason."""

    flag: Annotated[str, Doc("spelling on the command line", example="--tensor-parallel-size")]
    value: Annotated[str | None, Doc("its value; null for a switch", example="4")]
    why: Annotated[str, Doc("why it is there")]


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What starts the deployment."""

    version: Annotated[str, Doc("vLLM release the plan is for", example="0.33.0")]
    args: Annotated[tuple[str, ...], Doc("arguments after `vllm serve MODEL`", example=("--tensor-parallel-size", "4"))]
    env: Annotated[dict[str, str], Doc("environment variables the plan needs")]
    command: Annotated[str, Doc("the whole command; one line a node where there are several")]
    docker: Annotated[str, Doc("the first node's command in a container")]
    flags: Annotated[tuple[FlagAnswer, ...], Doc("each argument with its reason")]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a number of the plan comes from."""

    basis: Annotated[str, Doc("given, catalogue, measured, computed or assumed", example="computed")]
    source: Annotated[str, Doc("the rule, row or measurement", example="vLLM 0.33 KV cache planner, restated")]


@dataclass(frozen=True, slots=True)
class PredictionAnswer:
    """What was predicted before a measurement corrected it, of the tightest GPU."""

    weights_bytes: Annotated[int, Doc("loaded on the GPU", "bytes")]
    working_space_bytes: Annotated[int, Doc("centre of the band", "bytes")]
    working_space_low_bytes: Annotated[int, Doc("optimistic end", "bytes")]
    working_space_high_bytes: Annotated[int, Doc("pessimistic end", "bytes")]


@dataclass(frozen=True, slots=True)
class CalibrationAnswer:
    """The measured startup that corrected weights and working space, or of another model, the working space alone."""

    id: Annotated[str, Doc("its id under /calibrations", example="3f2a9c1e7b604d58")]
    tier: Annotated[
        str,
        Doc(
            "exact: the same deployment, copied; same_version and same_era: what the prediction missed there is added; "
            "other_model: half of what it missed there, 0.3 GiB at most",
            example="same_version",
        ),
    ]
    distance: Annotated[
        float,
        Doc(
            "doublings of sizes and minor releases between the two, one more for another model; 0: the same deployment",
            example=1.0,
        ),
    ]
    model: Annotated[str, Doc("model measured, as given to vLLM", example="Qwen/Qwen3-32B")]
    version: Annotated[str, Doc("vLLM release measured", example="0.19.0")]
    layout: Annotated[LayoutAnswer, Doc("layout measured")]
    source: Annotated[str, Doc("where it was published or who reported it")]
    prediction_without: Annotated[PredictionAnswer, Doc("the same figures without it")]


@dataclass(frozen=True, slots=True)
class ServingPointAnswer:
    """One measured load of the model on the GPU."""

    id: Annotated[str, Doc("its id under /calibrations", example="8d0f3b5c2a917e46")]
    source: Annotated[str, Doc("where it was published or who reported it")]
    version: Annotated[str | None, Doc("vLLM release measured; null: not reported", example="0.19.0")]
    layout: Annotated[LayoutAnswer, Doc("layout measured")]
    concurrency: Annotated[float, Doc("requests at once in one copy", example=32)]
    prompt_tokens: Annotated[int, Doc("of a request", "tokens", 1024)]
    output_tokens: Annotated[int, Doc("of a request", "tokens", 1024)]


@dataclass(frozen=True, slots=True)
class TimesWithoutAnswer:
    """Central times and throughput without a correction."""

    tpot_ms: Annotated[float, Doc("time per output token", "ms")]
    ttft_ms: Annotated[float, Doc("time to first token", "ms")]
    output_tokens_per_second: Annotated[float, Doc("over all copies", "tokens/s")]


@dataclass(frozen=True, slots=True)
class TimesCalibrationAnswer:
    """The measured loads that corrected times and throughput."""

    tier: Annotated[
        str,
        Doc(
            "points: several loads of this layout; one_point: one; siblings: other layouts of the same model and GPU",
            example="points",
        ),
    ]
    used: Annotated[int, Doc("measured loads used", example=12)]
    points: Annotated[tuple[ServingPointAnswer, ...], Doc("the first ten of them")]
    prediction_without: Annotated[TimesWithoutAnswer, Doc("the same figures without them")]


@dataclass(frozen=True, slots=True)
class LinkTestUsedAnswer:
    """One measured link test, and by how much it moved a collective."""

    collective: Annotated[
        str,
        Doc(
            "all_reduce: sums over the tensor ranks; exchange: tokens between expert ranks; handoff and "
            "handoff_between_nodes: what a pipeline stage passes on",
            example="all_reduce",
        ),
    ]
    id: Annotated[str, Doc("its id under /calibrations", example="5c1e09d2b7a8f364")]
    source: Annotated[str, Doc("where it was published or who reported it")]
    operation: Annotated[str, Doc("operation measured, as the NCCL tests name it", example="all_reduce")]
    world_size: Annotated[int, Doc("GPUs that took part", example=8)]
    nodes: Annotated[int, Doc("machines they were in", example=1)]
    distance: Annotated[
        float,
        Doc(
            "doublings of GPUs and nodes between the measured group and the plan's, one more for another operation; "
            "each halves what is believed of the deviation, on a logarithmic scale",
            example=0.0,
        ),
    ]
    measured_start: Annotated[
        float | None,
        Doc("time of the shortest message up to 32 KiB, over NCCL's usual one; null: not used for it", example=1.4),
    ]
    start_factor: Annotated[float | None, Doc("factor on the predicted time to start; null: not used for it")]
    measured_rate: Annotated[
        float | None,
        Doc("bytes a second of messages from 8 MiB on, over NCCL's usual ones; null: not used for it", example=0.6),
    ]
    rate_factor: Annotated[float | None, Doc("factor on the predicted bytes a second; null: not used for it")]


@dataclass(frozen=True, slots=True)
class LinksCalibrationAnswer:
    """The measured link tests that moved the collectives of the times."""

    tests: Annotated[tuple[LinkTestUsedAnswer, ...], Doc("each collective with each test used for it")]
    prediction_without: Annotated[TimesWithoutAnswer, Doc("the same figures over usual links")]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One GPU count of the curve of diminishing returns."""

    gpu_count: Annotated[int, Doc("GPUs", example=8)]
    layout: Annotated[LayoutAnswer, Doc("best layout of that count")]
    tpot_ms: Annotated[float, Doc("time per output token at the workload's concurrency", "ms")]
    output_tokens_per_second_per_gpu: Annotated[float, Doc("throughput by GPU", "tokens/s")]
    concurrent_sequences: Annotated[int, Doc("conversations that fit", example=122)]


@dataclass(frozen=True, slots=True)
class Plan:
    """One deployment that starts and holds the workload."""

    gpu: Annotated[str, Doc("catalogue slug", example="h100-sxm")]
    gpu_count: Annotated[int, Doc("GPUs over all copies and stages", example=4)]
    nodes: Annotated[int, Doc("machines, rounded up", example=1)]
    layout: Annotated[LayoutAnswer, Doc("parallel sizes")]
    memory: Annotated[MemoryAnswer, Doc("budget of the tightest GPU")]
    ranks: Annotated[tuple[RankAnswer, ...], Doc("one entry a pipeline stage, tensor rank 0")]
    kv_cache: Annotated[CacheAnswer, Doc("as the engine prints it")]
    capacity: Annotated[CapacityAnswer, Doc("what memory holds")]
    communication: Annotated[CommunicationAnswer, Doc("traffic of one decode step")]
    latency: Annotated[LatencyAnswer, Doc("time of one token")]
    throughput: Annotated[ThroughputAnswer, Doc("tokens a second")]
    objectives: Annotated[
        ObjectivesAnswer | None, Doc("what was promised, and what is carried within it; null where nothing was asked")
    ]
    people: Annotated[PeopleAnswer | None, Doc("the load that the people given make of it; null without people")]
    load_curve: Annotated[
        tuple[LoadPoint, ...],
        Doc("times and throughput over the loads that run at once, as many points as `curve_points` asks for"),
    ]
    cost: Annotated[CostAnswer | None, Doc("null without a price")]
    engine: Annotated[EngineAnswer, Doc("what starts it")]
    reasons: Annotated[tuple[str, ...], Doc("why this plan")]
    warnings: Annotated[tuple[str, ...], Doc("assumptions that decide, and what to check")]
    checklist: Annotated[tuple[str, ...], Doc("what to verify before buying")]
    calibration: Annotated[
        CalibrationAnswer | None, Doc("the measured startup used; null: weights and working space are predictions")
    ]
    times_calibration: Annotated[
        TimesCalibrationAnswer | None, Doc("the measured loads used; null: times and throughput are predictions")
    ]
    links_calibration: Annotated[
        LinksCalibrationAnswer | None, Doc("the measured link tests used; null: links are taken to be the usual ones")
    ]
    basis: Annotated[dict[str, Origin], Doc("origin of each figure, by its path in the plan")]


@dataclass(frozen=True, slots=True)
class Rejection:
    """One GPU and count, or a forced layout, that does not serve, with its reason."""

    gpu: Annotated[str, Doc("catalogue slug", example="l40s")]
    gpu_count: Annotated[int | None, Doc("GPUs judged", example=2)]
    layout: Annotated[LayoutAnswer | None, Doc("the layout that failed, where one was judged")]
    code: Annotated[str, Doc("stable code of the reason", example="does_not_fit")]
    message: Annotated[str, Doc("the reason in a sentence")]
    engine_error: Annotated[str | None, Doc("the engine's own words, where it would say any")]
    fix: Annotated[str | None, Doc("the nearest change that would serve", example="use 4 GPUs")]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a plan request."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    rules_version: Annotated[int, Doc("version of the sizing rules", example=1)]
    engine_version: Annotated[str, Doc("vLLM release whose rules were applied", example="0.33.0")]
    model: Annotated[ModelAnswer, Doc("the model as read")]
    recommended: Annotated[Plan | None, Doc("the best plan; null when nothing serves")]
    alternatives: Annotated[tuple[Plan, ...], Doc("the best plan of each other GPU and count, at most 10, ranked")]
    rejected: Annotated[tuple[Rejection, ...], Doc("one reason for each GPU and count that does not serve")]
    curve: Annotated[tuple[CurvePoint, ...], Doc("the recommended GPU over its counts: where more stops helping")]
    diminishing_returns_at: Annotated[
        int | None, Doc("count beyond which doubling the GPUs gives less than a quarter more speed", "GPUs", 8)
    ]
    assumptions: Annotated[dict[str, float], Doc("figures the caller gave instead of ours")]
    warnings: Annotated[tuple[str, ...], Doc("what holds for the whole answer")]
