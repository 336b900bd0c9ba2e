"""Enumerate, judge, rank; a reason and a fix for everything left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from service.sizing.answer import Answer, CurvePoint, Rejection
from service.sizing.cost import currency_of
from service.sizing.engine.profile import profile_for
from service.sizing.fixes import with_fix
from service.sizing.judge import Feasible, layout_answer
from service.sizing.present import model_answer, present
from service.sizing.pricing import hourly, offer_for
from service.sizing.promises import are_asked
from service.sizing.quantities import GIB
from service.sizing.question import Question, RankBy
from service.sizing.searched import Counted, Searched, counts_of, forced
from service.sizing.times import token_ms, tokens_per_second

MOST_ALTERNATIVES = 10

DIMINISHING_GAIN = 1.25
"""Doubling the GPUs is worth it while it makes a token at least this much faster or holds as much more."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Every GPU type and count that a question allows, each judged as far as it is asked for."""

    searched: Searched
    counted: tuple[Counted, ...]

    @property
    def copies(self) -> list[Feasible]:
        """Every layout that serves of every GPU type and count that may be copied, the best first.

        Copies that span machines lose time between them, so of a GPU type that serves within one machine none is
        copied that does not, unless counts were named.
        """
        named, kept = self.searched.question.gpu_counts is not None, list[Counted]()
        for each in sorted(self.counted, key=lambda each: each.gpu_count):
            spans = each.gpu_count > each.machine.gpus_per_node
            if spans and not named and any(other.machine is each.machine for other in kept):
                continue
            if each.serves:
                kept.append(each)
        return sorted((layout for each in kept for layout in each.feasible), key=self.searched.order)

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """Why not, of every GPU type and count that does not serve."""
        return tuple(with_fix(self.searched, each) for each in self.counted if each.refused)


def tried(question: Question) -> Tried:
    """What may carry the workload."""
    searched = Searched(question)
    if question.layout is not None:
        return Tried(searched, tuple(forced(question, machine, question.layout) for machine in question.machines))
    return Tried(
        searched,
        tuple(
            searched.at_count(machine, count) for machine in question.machines for count in counts_of(question, machine)
        ),
    )


def plan(question: Question) -> Answer:
    """The deployment that carries the workload, its alternatives, and a reason for everything left out."""
    profile, version_warning = profile_for(question.engine.version)
    found = tried(question)
    searched, counted = found.searched, found.counted
    order, leading = searched.order, searched.leading(counted, MOST_ALTERNATIVES + 1)
    best = sorted((each.feasible[0] for each in leading), key=order)
    others = [
        other
        for each in leading
        for other in each.feasible[1:]
        if each.gpu_count == 2 and other.layout.pipeline_parallel_size != each.feasible[0].layout.pipeline_parallel_size
    ]
    following = sorted((*best[1:], *others), key=order)[:MOST_ALTERNATIVES]
    curve = _curve([each for each in counted if best and each.machine is best[0].machine and each.serves])
    return Answer(
        catalogue_revision=question.catalogue_revision,
        rules_version=question.rules_version,
        engine_version=profile.version,
        model=model_answer(question),
        recommended=present(best[0], reasons_for(question, best, counted)) if best else None,
        alternatives=tuple(present(each, _difference(each, best[0])) for each in following),
        rejected=found.rejected,
        curve=curve,
        diminishing_returns_at=_diminishing_returns(curve),
        assumptions=_assumptions(question),
        warnings=(version_warning,) if version_warning else (),
    )


def reasons_for(question: Question, best: Sequence[Feasible], counted: Sequence[Counted]) -> tuple[str, ...]:
    """Why the first of `best` is recommended."""
    chosen = best[0]
    if question.layout is not None:
        kept = " and keeps what is promised" if are_asked(question) else ""
        return (f"the layout was given; it starts{',' if kept else ' and'} holds the workload{kept}",)
    reasons = list[str]()
    smaller = [
        each
        for each in counted
        if each.machine is chosen.machine and each.gpu_count < chosen.layout.gpu_count and each.refused
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
        assert last.refused is not None
        verb = "does" if last.gpu_count == 1 else "do"
        reasons.append(f"{last.gpu_count} {chosen.machine.gpu.name} {verb} not serve: {last.refused.refusal.message}")
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
        currency = currency_of(best.question.exchange_rate)
        changes.append(f"costs {hourly(costs[0][1])} {currency} an hour instead of {hourly(costs[1][1])}")
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
