"""Enumerate, judge, rank; a reason and a fix for everything left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from service.sizing.answer import Answer, CurvePoint, Rejection
from service.sizing.engine.profile import profile_for
from service.sizing.engine.validity import SPLITTING
from service.sizing.judge import Feasible, judge, layout_answer
from service.sizing.layouts import Layout, candidates, counts_to_try, narrower
from service.sizing.model.summary import is_latent, routed_experts
from service.sizing.present import model_answer, present
from service.sizing.pricing import cost_per_hour, offer_for, plain
from service.sizing.quantities import GIB
from service.sizing.question import Machine, Question, RankBy
from service.sizing.remedies import MORE_MEMORY, remedy
from service.sizing.times import token_ms, tokens_per_second

DEFAULT_MOST_GPUS = 16
MOST_ALTERNATIVES = 10

NODES_SEARCHED_FOR_A_FIX = 4
"""A fix may name more GPUs than were allowed, up to this many whole nodes."""

DIMINISHING_GAIN = 1.25
"""Doubling the GPUs is worth it while it makes a token at least this much faster or holds as much more."""

FUNDAMENTAL = (
    "no_rules_for_this_gpu",
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
        self.asked = question
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

    @property
    def given_layout(self) -> bool:
        """Whether the caller gave the layout."""
        return self.asked.layout is not None

    def for_one_conversation(self) -> "Searched":
        """The same question asked of a single conversation."""
        return Searched(replace(self.question, workload=replace(self.question.workload, concurrent_sequences=1)))

    def changed(self, counted: Counted, question: Question) -> Feasible | None:
        """What another question gives on the same GPUs; None where it is refused."""
        if question.layout is not None:
            verdict = judge(question, counted.machine, question.layout)
            return verdict if isinstance(verdict, Feasible) else None
        return next(iter(Searched(question).at_count(counted.machine, counted.gpu_count).feasible), None)

    def _judged(self, machine: Machine, gpu_count: int) -> Counted:
        model = self.question.model
        experts = routed_experts(model) is not None
        node, domain = machine.gpus_per_node, machine.gpus_per_domain
        layouts = candidates(gpu_count, gpus_per_node=node, gpus_per_domain=domain, has_experts=experts)
        verdicts = [judge(self.question, machine, layout) for layout in layouts]
        feasible = [verdict for verdict in verdicts if isinstance(verdict, Feasible)]
        if not feasible and _is_cut_badly(layouts, verdicts):
            layouts = narrower(gpu_count, gpus_per_node=node, gpus_per_domain=domain, has_experts=experts)
            verdicts += [judge(self.question, machine, layout) for layout in layouts]
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


def _is_cut_badly(layouts: Sequence[Layout], verdicts: Sequence[Feasible | Rejection]) -> bool:
    """Whether one copy over all GPUs cannot be cut as the links would have it: the engine refuses, or no size fits."""
    whole = [
        verdict
        for layout, verdict in zip(layouts, verdicts, strict=True)
        if layout.data_parallel_size == 1 and not layout.expert_parallel
    ]
    return all(isinstance(verdict, Rejection) and verdict.code in SPLITTING for verdict in whole)


def _severity(rejection: Rejection) -> tuple[int, int, int]:
    """Sort key: what no layout removes first, then what only memory removes, then what another layout removes.

    Of equal reasons the layout that came closest tells most: one whose copies are the largest.
    """
    layout = rejection.layout
    copy = layout.tensor_parallel_size * layout.pipeline_parallel_size if layout else 0
    if rejection.code in FUNDAMENTAL:
        return 0, FUNDAMENTAL.index(rejection.code), -copy
    if rejection.code in MEMORY:
        # One that lacks room for the cache holds the weights already.
        return 1, -MEMORY.index(rejection.code), -copy
    return 2, 0, 0


def with_fix(searched: Searched, counted: Counted, rejection: Rejection) -> Rejection:
    """A rejection with the nearest fix: for lack of memory the smallest count that serves, and what else would do."""
    fixes = list[str]()
    if rejection.code in MEMORY and (larger := searched.smallest_serving(counted.machine, counted.gpu_count)):
        fixes.append(f"use {_described(larger.layout)}")
    if own := _own_fix(searched, counted, rejection):
        fixes.append(own)
    if not fixes and searched.given_layout and (other := searched.smallest_serving(counted.machine, 0)):
        fixes.append(f"leave the layout out: {_described(other.layout)} would serve")
    if not fixes and rejection.code in MEMORY:
        alone = searched.for_one_conversation().smallest_serving(counted.machine, counted.gpu_count)
        fixes.append(f"use {_described(alone.layout)} for fewer conversations" if alone else MORE_MEMORY)
    return replace(rejection, fix=", or ".join(fixes) or None)


def _own_fix(searched: Searched, counted: Counted, rejection: Rejection) -> str | None:
    """What the refusing rule advises, or else a change of the caller's settings that serves on the same GPUs."""
    shortened = searched.asked.engine.max_model_len is not None and rejection.code == "context_does_not_fit"
    if rejection.fix is not None and not shortened:
        return rejection.fix
    if shortened and (found := searched.changed(counted, _without_length(searched.asked))):
        # What the rule advises may be shorter than the conversations.
        return f"use --max-model-len {found.settled.safe_length}"
    if rejection.code in FUNDAMENTAL:
        return None
    return remedy(searched.asked, partial(searched.changed, counted))


def _without_length(question: Question) -> Question:
    return replace(question, engine=replace(question.engine, max_model_len=None))


def _described(layout: Layout) -> str:
    """A count of GPUs and how they are used, for a sentence."""
    sizes = ", ".join(
        f"{name} {size}"
        for name, size in (
            ("tensor parallel size", layout.tensor_parallel_size),
            ("pipeline parallel size", layout.pipeline_parallel_size),
            ("data parallel size", layout.data_parallel_size),
        )
        if size > 1
    )
    return f"{layout.gpu_count} GPU{'s' if layout.gpu_count > 1 else ''}" + (f" ({sizes})" if sizes else "")


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
        verb = "does" if last.gpu_count == 1 else "do"
        reasons.append(f"{last.gpu_count} {chosen.machine.gpu.name} {verb} not serve: {last.rejection.message}")
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
