"""What a deployment will do under a load, with a band from measured error."""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import ceil, hypot

from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout, cut_by
from service.sizing.model.shape import ModelShape
from service.sizing.performance.bands import (
    MOST_MEASURED_CONCURRENCY,
    MOST_MEASURED_CONTEXT,
    Range,
    confidence,
)
from service.sizing.performance.calibration import UNCORRECTED, Compared, Correction, MeasuredPoint, Tier
from service.sizing.performance.collectives import AS_USUAL, USUAL_LINKS, Collective, Links, handoff
from service.sizing.performance.costs import StageCost, stage_costs
from service.sizing.performance.link_tests import starts_node
from service.sizing.performance.parameters import FITTED, VLLM, Engine, Parameters
from service.sizing.performance.serving import Copy, Pace, State
from service.sizing.quantities import Basis, Figure


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a deployment, or the group of copies that share experts, and how it is served.

    Attributes
    ----------
    layout : Layout
        Of the whole deployment; copies of dense models run side by side.
    kv_cache_dtype : str
        As `--kv-cache-dtype` takes it.
    max_num_seqs, cache_holds : int
        Most sequences a copy runs at once: by the engine's setting, and by what its cache holds.
    max_num_batched_tokens : int
        Tokens of a step: longer prompts are cut.
    memory_bandwidth_fraction : float or None
        Share of the rated bandwidth, in place of the fitted ones.
    links : Links
        How its links differ from the usual ones.
    """

    model: ModelShape
    layout: Layout
    gpu: Gpu
    link: Link
    gpus_per_node: int
    max_num_seqs: int
    cache_holds: int
    max_num_batched_tokens: int
    kv_cache_dtype: str = "auto"
    memory_bandwidth_fraction: float | None = None
    engine: Engine = VLLM
    parameters: Parameters = FITTED
    links: Links = USUAL_LINKS


def copy_of(replica: Replica, prompt_tokens: int, output_tokens: int, correction: Correction = UNCORRECTED) -> Copy:
    """The copy, serving requests of these lengths, its times corrected by measured points.

    Copies of a dense model are alike, however many there are.

    Raises
    ------
    Indivisible
        When a dimension of the model does not divide over the ranks.
    """
    layout = cut_by(replica.layout, replica.model.experts)
    one = replica if layout == replica.layout else replace(replica, layout=layout)
    return _copy_of(one, prompt_tokens, output_tokens, correction)


@lru_cache(maxsize=1024)
def _copy_of(replica: Replica, prompt_tokens: int, output_tokens: int, correction: Correction) -> Copy:
    layout, node = replica.layout, replica.gpus_per_node
    stages = stage_costs(
        replica.model,
        layout,
        replica.gpu,
        replica.link,
        node,
        replica.kv_cache_dtype,
        replica.engine,
        replica.memory_bandwidth_fraction,
        replica.parameters,
        replica.links,
    )
    chunks = max(1, ceil(prompt_tokens / replica.max_num_batched_tokens))
    tensor = layout.tensor_parallel_size
    inside, across = (_handoff(replica, between_nodes=between_nodes) for between_nodes in (False, True))
    return Copy(
        paces=_paces(stages, prompt_tokens, output_tokens, chunks),
        handoffs=tuple(
            across if starts_node(stage, tensor, node) else inside for stage in range(1, layout.pipeline_parallel_size)
        ),
        handoff_bytes=replica.model.handoff_tensors * replica.model.hidden_size * replica.model.element_bytes,
        engine=replica.engine,
        first_token_steps=replica.parameters.first_token_steps,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        chunks=chunks,
        most_chunks=max(1.0, replica.max_num_batched_tokens * chunks / max(1, prompt_tokens)),
        limit=float(max(1, min(replica.max_num_seqs, replica.cache_holds))),
        correction=correction,
    )


def _handoff(replica: Replica, *, between_nodes: bool) -> Collective:
    """Passing a tensor to the next stage over the links at hand."""
    links = replica.links
    scale = links.handoff_between_nodes if between_nodes else links.handoff
    return handoff(replica.link, between_nodes=between_nodes).scaled(scale)


def _paces(stages: tuple[StageCost, ...], prompt_tokens: int, output_tokens: int, chunks: int) -> tuple[Pace, ...]:
    """The pace of every stage; those alike share one."""
    alike = {stage: Pace.of(stage, prompt_tokens, output_tokens, chunks) for stage in dict.fromkeys(stages)}
    return tuple(alike[stage] for stage in stages)


@dataclass(frozen=True, slots=True)
class Load:
    """What one copy serves.

    Attributes
    ----------
    concurrency : float
        Requests at once in one copy, each sent when the last is answered.
    prompt_tokens, output_tokens : int
        Of a request, mean.
    requests_per_second : float or None
        Arrivals over all copies; they decide the concurrency where they are given.
    over_all_copies : float or None
        Requests at once over all copies, where they do not share evenly and `concurrency` is that of the fullest;
        None: as many in each.
    """

    concurrency: float
    prompt_tokens: int
    output_tokens: int
    requests_per_second: float | None = None
    over_all_copies: float | None = None


class Limit(StrEnum):
    """What binds."""

    MEMORY = "memory"
    BANDWIDTH = "bandwidth"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of an output token goes, ms; the parts add up to the uncorrected prediction.

    Attributes
    ----------
    weights_ms, cache_ms : float
        Kernels that wait for memory.
    compute_ms : float
        Kernels that wait for the multipliers.
    communication_ms : float
        Collectives and handoffs.
    overhead_ms : float
        Launches, small kernels, sampling and scheduling; idle stages of a pipeline.
    prompts_ms : float
        Steps made longer by the prompts of others.
    """

    weights_ms: float
    cache_ms: float
    compute_ms: float
    communication_ms: float
    overhead_ms: float
    prompts_ms: float

    @property
    def limit(self) -> Limit:
        """The largest part."""
        parts = {
            Limit.BANDWIDTH: self.weights_ms + self.cache_ms,
            Limit.COMPUTE: self.compute_ms + self.prompts_ms,
            Limit.COMMUNICATION: self.communication_ms,
            Limit.SCHEDULER: self.overhead_ms,
        }
        return max(parts, key=lambda each: parts[each])


@dataclass(frozen=True, slots=True)
class Prediction:
    """A deployment under a load.

    Attributes
    ----------
    tpot_ms, ttft_ms : Figure
        Time per output token after the first, and to the first, of the median request.
    output_tokens_per_second : Figure
        Over all copies.
    requests_per_second : float
        Completed over all copies.
    concurrency, running : float
        Requests in a copy, and those decoded together.
    utilisation : float or None
        Arrivals over what all copies complete at their limit; None without a rate.
    sustainable : bool
        Whether the arrivals, if given, leave room; if not, the figures are those at the limit.
    limited_by : Limit
        What binds.
    notes : tuple of str
        What was not validated, and what to know.
    """

    tpot_ms: Figure
    ttft_ms: Figure
    output_tokens_per_second: Figure
    requests_per_second: float
    concurrency: float
    running: float
    utilisation: float | None
    sustainable: bool
    limited_by: Limit
    notes: tuple[str, ...]
    breakdown: Breakdown


def settled(copy: Copy, load: Load, copies: int) -> State | None:
    """One copy under a load, central values; None where more arrives than it can be promised to complete."""
    if load.requests_per_second is None:
        return copy.at(load.concurrency)
    return copy.at_rate(load.requests_per_second / copies)


def completed(load: Load, state: State, copies: int) -> float:
    """Requests a second that all copies complete in a state of the fullest (Little's law), without a rate."""
    at_once = load.concurrency * copies if load.over_all_copies is None else load.over_all_copies
    return state.requests_per_second * at_once / load.concurrency


def predict(replica: Replica, load: Load, correction: Correction = UNCORRECTED) -> Prediction:
    """Times and throughput of a deployment, each with a band.

    Raises
    ------
    Indivisible
        When a dimension of the model does not divide over the ranks.
    """
    copy = copy_of(replica, load.prompt_tokens, load.output_tokens, correction)
    return predicted(replica, load, copy, settled(copy, load, replica.layout.data_parallel_size))


def predicted(replica: Replica, load: Load, copy: Copy, found: State | None) -> Prediction:
    """The prediction of a copy that settled under the load; None: more arrives than it can be promised to complete."""
    copies, rate, correction = replica.layout.data_parallel_size, load.requests_per_second, copy.correction
    utilisation = None
    if rate is not None:
        utilisation = rate / copies / copy.at(copy.limit).requests_per_second
    state = found or copy.at(copy.limit)
    if rate is None:
        requests = completed(load, state, copies)
    else:
        requests = rate if found is not None else state.requests_per_second * copies
    longest = load.prompt_tokens + load.output_tokens
    sure = confidence(
        replica.model,
        replica.layout,
        replica.gpu,
        replica.link,
        replica.gpus_per_node,
        state.concurrency > MOST_MEASURED_CONCURRENCY or longest > MOST_MEASURED_CONTEXT,
        correction.tier,
        replica.links.all_reduce != AS_USUAL,
    )
    parts = _uncorrected_breakdown(copy, state)
    waits = found is None or state.concurrency > copy.limit
    full = Limit.MEMORY if replica.cache_holds < replica.max_num_seqs else Limit.SCHEDULER
    basis = Basis.MEASURED if correction.tier in (Tier.ONE_POINT, Tier.POINTS) else Basis.COMPUTED

    def figure(value: float, ends: Range, unit: str, source: str) -> Figure:
        return Figure(value, value * ends.low, value * ends.high, unit, basis, source)

    return Prediction(
        tpot_ms=figure(state.tpot_s * 1000, sure.error.tpot, "ms", sure.sources.tpot),
        ttft_ms=figure(state.ttft_s * 1000, sure.error.ttft, "ms", sure.sources.ttft),
        output_tokens_per_second=figure(
            requests * load.output_tokens, sure.error.throughput, "tokens/s", sure.sources.throughput
        ),
        requests_per_second=requests,
        concurrency=state.concurrency,
        running=state.sequences,
        utilisation=utilisation,
        sustainable=found is not None,
        limited_by=full if waits else parts.limit,
        notes=sure.notes,
        breakdown=parts,
    )


def state_of(replica: Replica, load: Load) -> State:
    """One copy at the load's concurrency, central values without bands: cheap enough to rank many layouts by."""
    return copy_of(replica, load.prompt_tokens, load.output_tokens).at(load.concurrency)


def tpot_ms(replica: Replica, load: Load) -> float:
    """The central time per output token at the load's concurrency."""
    return state_of(replica, load).tpot_s * 1000


def compared(replica: Replica, point: MeasuredPoint) -> Compared:
    """A measured point beside the prediction for its load."""
    copy = copy_of(replica, point.prompt_tokens, point.output_tokens)
    state = copy.at(point.concurrency)
    return Compared(point, copy.fixed_s * 1000, state.tpot_s * 1000, state.ttft_s * 1000)


def _uncorrected_breakdown(copy: Copy, state: State) -> Breakdown:
    if copy.correction is UNCORRECTED:
        return breakdown(copy, state)
    plain = replace(copy, correction=UNCORRECTED)
    return breakdown(plain, plain.at(state.concurrency))


def breakdown(copy: Copy, state: State) -> Breakdown:
    """Where the time of an output token goes."""
    together = min(float(len(copy.paces)), state.sequences)
    each = state.sequences / together
    weights = cache = compute = communication = overhead = 0.0
    for pace in copy.paces:
        cost = pace.cost
        kernels = [(cost.dense_read_s, cost.dense_token_s * each), (cost.head_read_s, cost.head_sequence_s * each)]
        kernels += [experts.parts(each) for experts in cost.experts]
        for read, multiply in kernels:
            if read >= multiply:
                weights += hypot(read, multiply)
            else:
                compute += hypot(read, multiply)
        if pace.attention_read_s >= pace.attention_multiply_s:
            cache += each * pace.attention_s
        else:
            compute += each * pace.attention_s
        start, token = cost.collectives_s
        communication += start + each * token
        cache += each * cost.pass_s
        overhead += cost.fixed_s + each * cost.sequence_s
    communication += sum(handoff.seconds(each * copy.handoff_bytes) for handoff in copy.handoffs)
    idle = max(0.0, state.step_s - weights - cache - compute - communication - overhead)
    return Breakdown(
        *(part * 1000 for part in (weights, cache, compute, communication, overhead + idle)),
        prompts_ms=(state.tpot_s - state.step_s) * 1000,
    )
