"""What is asked: a model, a workload, machines, and what the caller fixes or assumes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from service.sizing.calibration import Neighbour, StartupPoint
from service.sizing.cost.exchange import ExchangeRate
from service.sizing.cost.offer import Offer
from service.sizing.demand import People
from service.sizing.engine.options import EngineOptions
from service.sizing.evidence import Kind, MeasuredError
from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from service.sizing.performance.link_tests import LinkTest
from service.sizing.performance.measured import ServingPoint
from service.sizing.topology import Topology

MOST_GPUS = 4096
"""Most GPUs that can be asked for."""

LONGEST_PROMISE_MS = 3_600_000
"""Longest time that can be promised."""


class RankBy(StrEnum):
    """What makes one feasible plan better than another."""

    FEWEST_GPUS = "fewest_gpus"
    COST = "cost"
    LATENCY = "latency"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class Workload:
    """What the deployment serves.

    Attributes
    ----------
    context_tokens : int
        Longest conversation kept in cache, prompt and answer.
    concurrent_sequences : int
        Conversations held at once; where people are given, those that their load needs of a layout.
    prompt_tokens, output_tokens : int
        Of a typical request.
    requests_per_second : float or None
        Arrival rate, for open-loop questions.
    people : People or None
        Who makes the load, in place of a concurrency.
    split_given : bool
        Whether the prompt or the answer was given rather than taken as a share of the context.
    """

    context_tokens: int
    concurrent_sequences: int
    prompt_tokens: int
    output_tokens: int
    requests_per_second: float | None = None
    people: People | None = None
    split_given: bool = False


@dataclass(frozen=True, slots=True)
class Objectives:
    """Promises the deployment must keep; None: not asked."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and how its node joins it, after the caller's overrides.

    `warnings` say which catalogue facts were overridden; `topology` is the machine's own, where it was pasted;
    `instance` is "provider/instance type" of a rentable machine, where one was named.
    """

    gpu: Gpu
    link: Link
    gpus_per_node: int
    gpus_per_domain: int
    warnings: tuple[str, ...] = ()
    topology: Topology | None = None
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Figures the caller gives instead of ours; None: ours."""

    gpu_memory_bytes: int | None = None
    working_space_bytes: int | None = None
    memory_bandwidth_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One request for a plan.

    `calibrations` are measured startups of the model by GPU slug, `neighbours` those of other models; `servings` are
    measured load tests of the model, `link_tests` those of links; `memory_errors` how far predictions of memory were
    off by kind of deployment; `offers` the prices that a plan may rest on, by `Machine.instance` or else GPU slug, the
    cheapest of each machine size, in USD or the other currency of `exchange_rate`; `other_currencies`, by the same
    keys, what is listed where there are none. `curve_points` are those of the curve over loads that each plan is given.
    `catalogue_revision` and `rules_version` are repeated in the answer, so that it can be computed again.
    """

    model: ModelShape
    precision: str
    workload: Workload
    machines: tuple[Machine, ...]
    engine: EngineOptions
    objectives: Objectives = Objectives()
    assumptions: Assumptions = Assumptions()
    layout: Layout | None = None
    gpu_counts: tuple[int, ...] | None = None
    max_gpus: int | None = None
    rank_by: RankBy = RankBy.FEWEST_GPUS
    calibrations: Mapping[str, tuple[StartupPoint, ...]] = field(default_factory=dict[str, tuple[StartupPoint, ...]])
    neighbours: Mapping[str, tuple[Neighbour, ...]] = field(default_factory=dict[str, tuple[Neighbour, ...]])
    memory_errors: Mapping[Kind, MeasuredError] = field(default_factory=dict[Kind, MeasuredError])
    servings: Mapping[str, tuple[ServingPoint, ...]] = field(default_factory=dict[str, tuple[ServingPoint, ...]])
    link_tests: Mapping[str, tuple[LinkTest, ...]] = field(default_factory=dict[str, tuple[LinkTest, ...]])
    offers: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict[str, tuple[Offer, ...]])
    other_currencies: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    exchange_rate: ExchangeRate | None = None
    curve_points: int = 0
    catalogue_revision: int = 0
    rules_version: int = 0
