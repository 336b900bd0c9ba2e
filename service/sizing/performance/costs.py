"""Seconds of one step of a pipeline stage, as a function of its sequences and prompt tokens.

The work of `work.py` at the rates of a GPU. Reading and multiplying overlap imperfectly: a kernel that reads for `a`
seconds and multiplies for `b` takes `sqrt(a^2 + b^2)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import expm1, hypot, log1p

from service.sizing.engine.device import Device
from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.model.schemes import Compute
from service.sizing.model.shape import ModelShape
from service.sizing.performance.collectives import USUAL_LINKS, Collective, Links, all_reduce
from service.sizing.performance.parameters import Engine, Parameters
from service.sizing.performance.work import AttentionWork, Blocks, Format, StageWork, stage_work

ROUTER_KERNEL_MAJORS = (9, 10)
"""Compute capability majors with the engine's router kernels (vLLM 0.33 `fused_moe/router/gate_linear.py`)."""

MICROSCALING_KERNEL_MAJORS = (9, 10)
"""Compute capability majors with kernels of their own for MXFP4 experts."""

DATA_CENTRE_BLACKWELL_MAJOR = 10
SIXTEEN = 16

NEVER_PASSED_BY = -50.0
"""Stands for the logarithm of no chance: every token visits every expert."""


@dataclass(frozen=True, slots=True)
class ExpertCost:
    """Routed experts of one kind.

    Attributes
    ----------
    read_s, token_s : float
        Seconds to read all of a rank's, and to multiply one token of the group with those it visits.
    passed_by : float
        `log(1 - active / count)`: of the chance that a token does not visit a given expert.
    copies : int
        Data-parallel copies that route together.
    """

    read_s: float
    token_s: float
    passed_by: float
    copies: int

    def parts(self, tokens: float) -> tuple[float, float]:
        """Seconds to read and to multiply for `tokens` of each copy.

        Of the experts a share `1 - (1 - active / count)^tokens` is visited by some token and read.
        """
        together = tokens * self.copies
        return -self.read_s * expm1(self.passed_by * together), self.token_s * together

    def seconds(self, tokens: float) -> float:
        """Seconds for `tokens` of each copy."""
        together = tokens * self.copies
        return hypot(self.read_s * expm1(self.passed_by * together), self.token_s * together)


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Attention of one kind: seconds to read a cached token, and for a pair of query and attended token."""

    work: AttentionWork
    read_s: float
    decode_s: float
    prompt_s: float


@dataclass(frozen=True, slots=True, eq=False)
class StageCost:
    """Seconds of the parts of a step on one stage.

    Attributes
    ----------
    dense_read_s, dense_token_s : float
        Reading the dense weights, multiplying one token with them.
    head_read_s, head_sequence_s : float
        The same of the output head, for each sequence.
    state_s, sequence_s : float
        For each sequence: recurrent states and cross attention; sampling and scheduling.
    pass_s : float
        Activations of one token through memory.
    fixed_s, prompt_fixed_s : float
        Launches, small kernels and the engine's own; what a step with prompt tokens spends of it on top.
    all_reduces, exchanges, copies, residual_bytes : int
        Collectives of a step, over `residual_bytes` a token; an exchange concerns the tokens of all copies.
    """

    dense_read_s: float
    dense_token_s: float
    head_read_s: float
    head_sequence_s: float
    experts: tuple[ExpertCost, ...]
    attention: tuple[AttentionCost, ...]
    state_s: float
    sequence_s: float
    pass_s: float
    fixed_s: float
    prompt_fixed_s: float
    all_reduces: int
    all_reduce: Collective
    exchanges: int
    exchange: Collective
    copies: int
    residual_bytes: int

    @property
    def collectives_s(self) -> tuple[float, float]:
        """Seconds of the collectives of a step: to start, and for each token."""
        start, token = 0.0, 0.0
        for count, kind, copies in (
            (self.all_reduces, self.all_reduce, 1),
            (self.exchanges, self.exchange, self.copies),
        ):
            if count:
                start += count * kind.start_s
                token += count * copies * self.residual_bytes / kind.bytes_per_s
        return start, token

    def attention_s(self, context: float) -> tuple[float, float]:
        """Seconds to read and to multiply what one sequence attends to at a `context`."""
        read, multiply = self.state_s, 0.0
        for cost in self.attention:
            tokens = cost.work.attended(context)
            read += tokens * cost.read_s
            multiply += tokens * cost.decode_s
        return read, multiply

    def prompt_attention_s(self, tokens: float) -> float:
        """Seconds of a whole prompt's attention."""
        return sum(cost.work.prompt_pairs(tokens) * cost.prompt_s for cost in self.attention)


@dataclass(frozen=True, slots=True)
class Rates:
    """What a GPU reaches of its rated figures, per second."""

    gpu: Gpu
    major: int
    """Major compute capability; 0 elsewhere."""
    parameters: Parameters
    bandwidth_fraction: float | None

    def read_s(self, bytes_: float, share: float) -> float:
        """Seconds to read `bytes_` at a share of the rated bandwidth, or at the caller's."""
        return bytes_ / (self.gpu.memory_bandwidth_bytes_per_s * (self.bandwidth_fraction or share))

    def weights_s(self, stored: Format, bytes_: float, share: float) -> float:
        """Seconds to read weights; those that are widened before they are multiplied have a ceiling of their own."""
        seconds = self.read_s(bytes_, share)
        own_kernel = stored.microscaled and self.major in MICROSCALING_KERNEL_MAJORS
        if stored.bits == SIXTEEN or own_kernel or self.computes_in(stored.compute) is not Compute.SIXTEEN_BIT:
            return seconds
        return hypot(seconds, bytes_ / self.parameters.dequantised_bytes_per_s)

    def computes_in(self, compute: Compute) -> Compute:
        """The type the GPU multiplies in: 16 bits where it lacks the one asked for."""
        return compute if compute.value in self.gpu.dense_flops else Compute.SIXTEEN_BIT

    def multiply_s(self, compute: Compute, flops: float, shares: Mapping[Compute, float]) -> float:
        """Seconds of `flops` in a type."""
        used = self.computes_in(compute)
        return flops / (self.rated(used) * shares[used])

    def rated(self, compute: Compute) -> float:
        """Rated operations a second; cards before bfloat16 are rated in float16."""
        rates = self.gpu.dense_flops
        return rates[compute.value] if compute.value in rates else rates["fp16"]


@lru_cache(maxsize=4096)
def stage_costs(
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    link: Link,
    gpus_per_node: int,
    kv_cache_dtype: str,
    engine: Engine,
    bandwidth_fraction: float | None,
    parameters: Parameters,
    links: Links = USUAL_LINKS,
) -> tuple[StageCost, ...]:
    """The cost of every pipeline stage; those with the same work share one.

    Raises
    ------
    Indivisible
        When a dimension does not divide over the ranks.
    """
    major = Device.of(gpu).capability[0]
    rates = Rates(gpu, major, parameters, bandwidth_fraction)
    tensor, copies = layout.tensor_parallel_size, layout.data_parallel_size
    start = parameters.collective_start
    all_reduce_ = all_reduce(tensor, gpu, link, gpus_per_node, start_factor=start).scaled(links.all_reduce)
    exchange = all_reduce(tensor * copies, gpu, link, gpus_per_node, start_factor=start).scaled(links.exchange)
    works = stage_work(model, layout, kv_cache_dtype, major in ROUTER_KERNEL_MAJORS)
    alike = {
        work: _stage_cost(model, work, rates, engine, copies, all_reduce_, exchange) for work in dict.fromkeys(works)
    }
    return tuple(alike[work] for work in works)


def _stage_cost(
    model: ModelShape,
    work: StageWork,
    rates: Rates,
    engine: Engine,
    copies: int,
    all_reduce_: Collective,
    exchange: Collective,
) -> StageCost:
    values = rates.parameters
    sixteen = Compute.SIXTEEN_BIT
    attention_rate = rates.rated(sixteen)
    fixed = blocks_s(work.blocks, rates, engine) + engine.step_s + (values.group_step_s if work.exchanges else 0.0)
    residual = model.hidden_size * model.element_bytes
    passes = values.activation_passes * work.blocks.layers + values.expert_passes * sum(e.visits for e in work.experts)
    return StageCost(
        dense_read_s=sum(rates.weights_s(each.format, each.read_bytes, values.weight_read) for each in work.dense),
        dense_token_s=sum(
            rates.multiply_s(each.format.compute, each.flops_per_token, values.dense_flops) for each in work.dense
        ),
        head_read_s=rates.read_s(work.head_bytes, values.weight_read),
        head_sequence_s=rates.multiply_s(sixteen, work.head_flops, values.dense_flops),
        experts=tuple(
            ExpertCost(
                read_s=rates.weights_s(each.format, each.read_bytes, values.expert_read),
                token_s=rates.multiply_s(each.format.compute, each.flops_per_token, values.expert_flops),
                passed_by=log1p(-each.active / each.count) if each.active < each.count else NEVER_PASSED_BY,
                copies=copies if each.shares_tokens else 1,
            )
            for each in work.experts
        ),
        attention=tuple(
            AttentionCost(
                each,
                read_s=rates.read_s(each.token_bytes, values.cache_read),
                decode_s=each.decode_flops / (attention_rate * values.decode_attention_flops),
                prompt_s=each.prompt_flops / (attention_rate * values.prompt_attention_flops),
            )
            for each in work.attention
        ),
        state_s=rates.read_s(work.state_bytes + work.sequence_bytes, values.cache_read),
        sequence_s=engine.sequence_s,
        pass_s=rates.read_s(passes * residual, values.activation_read),
        fixed_s=fixed,
        prompt_fixed_s=fixed * engine.prompt_step,
        all_reduces=work.all_reduces,
        all_reduce=all_reduce_,
        exchanges=work.exchanges,
        exchange=exchange,
        copies=copies,
        residual_bytes=residual,
    )


def blocks_s(blocks: Blocks, rates: Rates, engine: Engine) -> float:
    """Seconds of launches and small kernels of a stage."""
    values = rates.parameters
    quantised = sum(
        count
        for computes, count in blocks.quantised
        if any(rates.computes_in(compute) is not Compute.SIXTEEN_BIT for compute in computes)
    )
    seconds = (
        blocks.mixers * values.mixer_s
        + blocks.mlps * values.mlp_s
        + blocks.experts * values.experts_s
        + quantised * values.quantised_s
        + blocks.states * values.state_s
        + blocks.indexers * values.indexer_s
    )
    return seconds * (engine.blackwell if rates.major == DATA_CENTRE_BLACKWELL_MAJOR else engine.hopper)
