"""Enumerate, judge, rank; a reason and a fix for everything left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from service.sizing.answer import Answer, CurvePoint, Rejection
from service.sizing.engine.profile import profile_for
from service.sizing.judge import Feasible, judge, layout_answer
from service.sizing.layouts import Layout, candidates, counts_to_try
from service.sizing.model.summary import is_latent, routed_experts
from service.sizing.present import model_answer, present
from service.sizing.pricing import cost_per_hour, offer_for, plain
from service.sizing.quantities import GIB
from service.sizing.question import Machine, Question, RankBy
from service.sizing.times import token_ms, tokens_per_second

DEFAULT_MOST_GPUS = 16
MOST_ALTERNATIVES = 10

NODES_SEARCHED_FOR_A_FIX = 4
"""A fix may name more GPUs than were allowed, up to this many whole nodes."""

DIMINISHING_GAIN = 1.25
"""Doubling the GPUs is worth it while it makes a token at least this much faster or holds as much more."""

FUNDAMENTAL = (
    "no_rules_for_this_gpu",
    "architecture_not_served",
    "configuration_not_built",
    "max_model_len_exceeds_model",
    "context_too_long",
    "float16_not_supported",
)
"""Reasons that no other layout of the same GPUs removes, the most fundamental first."""

MEMORY = ("does_not_fit", "context_does_not_fit", "cache_too_small", "sequences_exceed_state_blocks")
"""Reasons that more memory removes: a layout refused for one of these starts but for that."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one GPU type gives at one count."""

    machine: Machine
    gpu_count: int
    feasible: tuple[Feasible, ...]
    rejection: Rejection | None


def plan(question: Question) -> Answer:
    """The deployment that carries the workload, its alternatives, and a reason for everything left out."""
    profile, version_warning = profile_for(question.engine.version)
    searched = Searched(question)
    if question.layout is not None:
        counted = [forced(question, machine, question.layout) for machine in question.machines]
    else:
        counted = [
            searched.at_count(machine, count) for machine in question.machines for count in counts_of(question, machine)
        ]
    order = ranking(question.rank_by)
    best = sorted((each.feasible[0] for each in counted if each.feasible), key=order)
    others = [
        other
        for each in counted
        for other in each.feasible[1:]
        if each.gpu_count == 2 and other.layout.pipeline_parallel_size != each.feasible[0].layout.pipeline_parallel_size
    ]
    following = sorted((*best[1:], *others), key=order)[:MOST_ALTERNATIVES]
    curve = _curve([each for each in counted if best and each.machine is best[0].machine and each.feasible])
    return Answer(
        catalogue_revision=question.catalogue_revision,
        rules_version=question.rules_version,
        engine_version=profile.version,
        model=model_answer(question),
        recommended=present(best[0], reasons_for(question, best, counted)) if best else None,
        alternatives=tuple(present(each, _difference(each, best[0])) for each in following),
        rejected=tuple(with_fix(searched, each, each.rejection) for each in counted if each.rejection is not None),
        curve=curve,
        diminishing_returns_at=_diminishing_returns(curve),
        assumptions=_assumptions(question),
        warnings=(version_warning,) if version_warning else (),
    )


def ranking(rank_by: RankBy) -> Callable[[Feasible], tuple[float, ...]]:
    """What makes one feasible layout better than another, as a sort key."""

    def by_count(each: Feasible) -> tuple[float, ...]:
        return each.layout.gpu_count, each.step_ms, -each.capacity

    def by_latency(each: Feasible) -> tuple[float, ...]:
        return each.step_ms, each.layout.gpu_count, -each.capacity

    def by_throughput(each: Feasible) -> tuple[float, ...]:
        return -each.tokens_per_second, each.layout.gpu_count, each.step_ms

    def by_cost(each: Feasible) -> tuple[float, ...]:
        return cost_per_hour(each), each.layout.gpu_count, each.step_ms

    keys = {RankBy.LATENCY: by_latency, RankBy.THROUGHPUT: by_throughput, RankBy.COST: by_cost}
    return keys.get(rank_by, by_count)


def counts_of(question: Question, machine: Machine) -> tuple[int, ...]:
    """GPU counts to judge, as asked or up to the most allowed."""
    if question.gpu_counts is not None:
        return tuple(dict.fromkeys(question.gpu_counts))
    return counts_to_try(machine.gpus_per_node, question.max_gpus or DEFAULT_MOST_GPUS)


def forced(question: Question, machine: Machine, layout: Layout) -> Counted:
    """The one layout that the caller gave."""
    verdict = judge(question, machine, layout)
    if isinstance(verdict, Feasible):
        return Counted(machine, layout.gpu_count, (verdict,), None)
    return Counted(machine, layout.gpu_count, (), verdict)


class Searched:
    """The counts of one question that were looked at, each judged once."""

    def __init__(self, question: Question) -> None:
        self.question = replace(question, layout=None) if question.layout is not None else question
        self.order = ranking(question.rank_by)
        self.known: dict[tuple[int, int], Counted] = {}

    def at_count(self, machine: Machine, gpu_count: int) -> Counted:
        """The best layouts of one count, or the most fundamental reason against it."""
        key = id(machine), gpu_count
        if key not in self.known:
            self.known[key] = self._judged(machine, gpu_count)
        return self.known[key]

    def smallest_serving(self, machine: Machine, above: int) -> Feasible | None:
        """The best layout of the smallest count above `above` that serves; None within a few nodes."""
        for count in counts_to_try(machine.gpus_per_node, NODES_SEARCHED_FOR_A_FIX * machine.gpus_per_node):
            if count > above and (found := self.at_count(machine, count).feasible):
                return found[0]
        return None

    def _judged(self, machine: Machine, gpu_count: int) -> Counted:
        model = self.question.model
        layouts = candidates(
            gpu_count,
            gpus_per_node=machine.gpus_per_node,
            gpus_per_domain=machine.gpus_per_domain,
            has_experts=routed_experts(model) is not None,
        )
        verdicts = [judge(self.question, machine, layout) for layout in layouts]
        feasible = [verdict for verdict in verdicts if isinstance(verdict, Feasible)]
        if not feasible and is_latent(model):
            # One latent cache is copied to every tensor rank; sharing it by tokens makes room.
            verdicts += [
                judge(self.question, machine, replace(layout, decode_context_parallel_size=layout.tensor_parallel_size))
                for layout in layouts
                if layout.tensor_parallel_size > 1 and not layout.expert_parallel
            ]
            feasible = [verdict for verdict in verdicts if isinstance(verdict, Feasible)]
        if feasible:
            return Counted(machine, gpu_count, tuple(sorted(feasible, key=self.order)), None)
        refused = (verdict for verdict in verdicts if isinstance(verdict, Rejection))
        return Counted(machine, gpu_count, (), min(refused, key=_severity))


def _severity(rejection: Rejection) -> tuple[int, int]:
    """Sort key: what no layout removes first, then what only memory removes, then what another layout removes."""
    if rejection.code in FUNDAMENTAL:
        return 0, FUNDAMENTAL.index(rejection.code)
    if rejection.code in MEMORY:
        # The layout that came closest tells most: one that lacks room for the cache holds the weights already.
        return 1, -MEMORY.index(rejection.code)
    return 2, 0


def with_fix(searched: Searched, counted: Counted, rejection: Rejection) -> Rejection:
    """A rejection with the nearest fix; for lack of memory that is the smallest count that serves."""
    if rejection.code not in MEMORY:
        return rejection
    serving = searched.smallest_serving(counted.machine, counted.gpu_count)
    if serving is None:
        return rejection
    sizes = ", ".join(
        f"{name} {size}"
        for name, size in (
            ("tensor parallel size", serving.layout.tensor_parallel_size),
            ("pipeline parallel size", serving.layout.pipeline_parallel_size),
            ("data parallel size", serving.layout.data_parallel_size),
        )
        if size > 1
    )
    more = f"use {serving.layout.gpu_count} GPUs" + (f" ({sizes})" if sizes else "")
    return replace(rejection, fix=f"{more}, or {rejection.fix}" if rejection.fix else more)


def reasons_for(question: Question, best: Sequence[Feasible], counted: Sequence[Counted]) -> tuple[str, ...]:
    """Why the first of `best` is recommended."""
    chosen = best[0]
    if question.layout is not None:
        return ("the layout was given; it starts and holds the workload",)
    reasons = list[str]()
    smaller = [
        each
        for each in counted
        if each.machine is chosen.machine and each.gpu_count < chosen.layout.gpu_count and each.rejection
    ]
    if question.rank_by is RankBy.FEWEST_GPUS:
        reasons.append(f"{chosen.layout.gpu_count} is the smallest count that serves")
    elif question.rank_by is RankBy.LATENCY:
        reasons.append("no other count tried answers a token sooner")
    elif question.rank_by is RankBy.THROUGHPUT:
        reasons.append("no other count tried gives more tokens a second")
    elif offer_for(chosen) is not None:
        reasons.append("nothing else tried costs less an hour")
    if smaller:
        last = max(smaller, key=lambda each: each.gpu_count)
        assert last.rejection is not None
        reasons.append(f"{last.gpu_count} {chosen.machine.gpu.name} do not serve: {last.rejection.message}")
    return tuple(reasons)


def _difference(each: Feasible, best: Feasible) -> tuple[str, ...]:
    """What an alternative changes against the recommendation."""
    changes = list[str]()
    if each.layout.gpu_count != best.layout.gpu_count:
        changes.append(f"{each.layout.gpu_count} GPUs instead of {best.layout.gpu_count}")
    if each.machine is not best.machine:
        changes.append(f"{each.machine.gpu.name} instead of {best.machine.gpu.name}")
    changes.append(f"holds {each.capacity} conversations instead of {best.capacity}")
    costs = offer_for(each), offer_for(best)
    if costs[0] is not None and costs[1] is not None:
        changes.append(f"costs {plain(costs[0][1])} USD an hour instead of {plain(costs[1][1])}")
    ours, theirs = token_ms(each), token_ms(best)
    changes.append(f"a token takes {ours:.1f} ms instead of {theirs:.1f} ms ({theirs / ours:.2f}x the speed)")
    return tuple(changes)


def _curve(counted: Sequence[Counted]) -> tuple[CurvePoint, ...]:
    """Speed and capacity of one GPU type over its counts."""
    ordered = sorted(counted, key=lambda each: each.gpu_count)
    return tuple(
        CurvePoint(
            gpu_count=each.gpu_count,
            layout=layout_answer(each.feasible[0].layout),
            tpot_ms=token_ms(each.feasible[0]),
            output_tokens_per_second_per_gpu=tokens_per_second(each.feasible[0]) / each.gpu_count,
            concurrent_sequences=each.feasible[0].capacity,
        )
        for each in ordered
    )


def _diminishing_returns(curve: Sequence[CurvePoint]) -> int | None:
    """The first count after which the next one is hardly faster; None where every step still pays."""
    for here, after in pairwise(curve):
        if here.tpot_ms / after.tpot_ms < DIMINISHING_GAIN:
            return here.gpu_count
    return None


def _assumptions(question: Question) -> dict[str, float]:
    """The caller's own figures, under the names of the request."""
    given = question.assumptions
    found = dict[str, float]()
    if given.gpu_memory_bytes is not None:
        found["gpu_memory_gib"] = given.gpu_memory_bytes / GIB
    if given.working_space_bytes is not None:
        found["working_space_gib"] = given.working_space_bytes / GIB
    if given.memory_bandwidth_fraction is not None:
        found["memory_bandwidth_fraction"] = given.memory_bandwidth_fraction
    return found
