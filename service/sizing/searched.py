"""The layouts of each GPU type and count: judged as far as an answer needs them, ranked, with a reason and a fix."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil

from service.sizing.changes import applied, with_context
from service.sizing.demand import People
from service.sizing.engine.refusal import Changes, Fix, Refusal
from service.sizing.engine.validity import SPLITTING
from service.sizing.judge import Feasible, Refused, judge
from service.sizing.layouts import Layout, candidates, counts_to_try, narrower, paired
from service.sizing.model.summary import is_latent, routed_experts
from service.sizing.peopled import demand_on, loaded
from service.sizing.pricing import cost_of, cost_per_hour
from service.sizing.promises import Missed, judged, refusal_of
from service.sizing.quantities import ceil_div
from service.sizing.question import Machine, Objectives, Question, RankBy
from service.sizing.remedies import without_settings
from service.sizing.times import state, token_ms, tokens_per_second

DEFAULT_MOST_GPUS = 16

NODES_SEARCHED_FOR_A_FIX = 4
"""A fix may name more GPUs than were allowed, up to this many whole nodes."""

MOST_GPUS_OF_LAST_RESORT = 128
"""Or up to this many, where nothing else serves."""

SHORT_TOKENS = 1024
"""A conversation that any deployment worth having holds."""

FUNDAMENTAL = (
    "no_rules_for_this_gpu",
    "more_gpus_than_pasted",
    "architecture_not_served",
    "configuration_not_built",
    "max_model_len_exceeds_model",
    "context_too_long",
    "float16_not_supported",
    "no_time_predicted",
)
"""Reasons that no other layout of the same GPUs removes, the most fundamental first."""

MEMORY = ("does_not_fit", "context_does_not_fit", "cache_too_small", "sequences_exceed_state_blocks")
"""Reasons that more memory removes: a layout refused for one of these starts but for that."""

Verdict = Feasible | Missed | Refused
Order = Callable[[Feasible], tuple[float, ...]]


def _by_count(each: Feasible) -> tuple[float, ...]:
    return each.layout.gpu_count, token_ms(each), -each.capacity


def _by_latency(each: Feasible) -> tuple[float, ...]:
    return token_ms(each), each.layout.gpu_count, -each.capacity


def _by_throughput(each: Feasible) -> tuple[float, ...]:
    return -tokens_per_second(each), each.layout.gpu_count, token_ms(each)


def _by_cost(each: Feasible) -> tuple[float, ...]:
    return cost_per_hour(each), each.layout.gpu_count, token_ms(each)


ORDERS: Mapping[RankBy, Order] = {
    RankBy.FEWEST_GPUS: _by_count,
    RankBy.COST: _by_cost,
    RankBy.LATENCY: _by_latency,
    RankBy.THROUGHPUT: _by_throughput,
}
"""What makes one feasible layout better than another, as a sort key; times are the performance model's."""


def counts_of(question: Question, machine: Machine) -> tuple[int, ...]:
    """GPU counts to judge, as asked or up to the most allowed."""
    if question.gpu_counts is not None:
        return tuple(dict.fromkeys(question.gpu_counts))
    return counts_to_try(machine.gpus_per_node, most_on(machine, question.max_gpus or DEFAULT_MOST_GPUS))


def counts_of_a_fix(machine: Machine) -> tuple[int, ...]:
    """GPU counts that a fix may name."""
    return counts_to_try(machine.gpus_per_node, most_on(machine, NODES_SEARCHED_FOR_A_FIX * machine.gpus_per_node))


def counts_of_last_resort(machine: Machine) -> tuple[int, ...]:
    """GPU counts that a fix may name where nothing else serves: many nodes, each time twice as many."""
    counts = [*counts_of_a_fix(machine)]
    while counts[-1] % machine.gpus_per_node == 0 and counts[-1] * 2 <= most_on(machine, MOST_GPUS_OF_LAST_RESORT):
        counts.append(counts[-1] * 2)
    return tuple(counts)


def most_on(machine: Machine, most: int) -> int:
    """Up to `most` GPUs, of which a pasted machine has only its own: what joins it to others was not pasted."""
    return most if machine.topology is None else min(most, machine.topology.gpu_count)


def verdict_on(question: Question, machine: Machine, layout: Layout) -> Verdict:
    """Whether a layout starts, holds the workload and keeps what is promised."""
    if layout.gpu_count > (most := most_on(machine, layout.gpu_count)):
        return Refused(layout, _beyond_paste(layout, most))
    found = judge(question, machine, layout)
    if isinstance(found, Feasible) and question.workload.people is not None:
        found = _with_people(found, question.workload.people)
    elif isinstance(found, Feasible) and question.workload.requests_per_second is not None:
        found = _with_rate(found)
    if not isinstance(found, Feasible):
        return found
    kept = judged(found)
    return kept if isinstance(kept, Feasible | Missed) else Refused(layout, kept)


def _beyond_paste(layout: Layout, most: int) -> Refusal:
    return Refusal(
        "more_gpus_than_pasted",
        f"{layout.gpu_count} GPUs are asked for, and the pasted machine has {most}: a topology describes one machine, "
        "not what joins it to others",
    )


def _with_people(found: Feasible, people: People) -> Verdict:
    """A layout judged at the busy moments of the people who use it."""
    demand = demand_on(found, people)
    if isinstance(demand, Refusal):
        return Refused(found.layout, demand)
    question = loaded(found.question, demand)
    held = judge(question, found.machine, found.layout)
    if isinstance(held, Feasible):
        return replace(held, demand=demand)
    if held.code != "cache_too_small":
        return held
    sequences = ceil_div(demand.peak, found.layout.data_parallel_size)
    short = replace(found, question=question, sequences=sequences, demand=demand)
    return Missed(short, held.code, held.refusal.message, demand.peak / max(1, found.capacity))


def _with_rate(found: Feasible) -> Feasible | Refused:
    """A layout judged at the concurrency that its arrivals settle at, where that is more than was asked for."""
    settled, workload = state(found), found.question.workload
    in_flight = 0 if settled is None else ceil(settled.concurrency * found.layout.data_parallel_size)
    if in_flight <= workload.concurrent_sequences:
        return found
    more = replace(found.question, workload=replace(workload, concurrent_sequences=in_flight))
    return judge(more, found.machine, found.layout)


class Counted:
    """What one GPU type gives at one count, or of the layout given, found out as far as it is asked for."""

    def __init__(self, question: Question, machine: Machine, gpu_count: int) -> None:
        self.machine = machine
        self.gpu_count = gpu_count
        self._question = question
        self._judged = dict[Layout, Verdict]()

    def _verdict(self, layout: Layout) -> Verdict:
        verdict = self._judged.get(layout)
        if verdict is None:
            verdict = self._judged[layout] = verdict_on(self._question, self.machine, layout)
        return verdict

    def _stages(self) -> Iterator[Sequence[Layout]]:
        """Layouts to judge; each stage is for where none of those before serves."""
        if self._question.layout is not None:
            yield (self._question.layout,)
            return
        model, machine = self._question.model, self.machine
        domain, experts = machine.gpus_per_domain, routed_experts(model) is not None
        layouts = candidates(
            self.gpu_count, gpus_per_node=machine.gpus_per_node, gpus_per_domain=domain, has_experts=experts
        )
        yield layouts
        if self._are_cut_badly(layouts):
            layouts = narrower(
                self.gpu_count, gpus_per_node=machine.gpus_per_node, gpus_per_domain=domain, has_experts=experts
            )
            yield layouts
        if is_latent(model):
            # One latent cache is copied to every tensor rank; sharing it by tokens makes room.
            yield [
                replace(layout, decode_context_parallel_size=layout.tensor_parallel_size)
                for layout in layouts
                if layout.tensor_parallel_size > 1 and not layout.expert_parallel
            ]
        if domain == 1:
            yield paired(self.gpu_count, gpus_per_node=machine.gpus_per_node, has_experts=experts)

    def _are_cut_badly(self, layouts: Sequence[Layout]) -> bool:
        """Whether one copy over all GPUs cannot be cut as the links would have it: refused, or no size fits."""
        whole = [
            self._verdict(layout) for layout in layouts if layout.data_parallel_size == 1 and not layout.expert_parallel
        ]
        return all(isinstance(verdict, Refused) and verdict.code in SPLITTING for verdict in whole)

    @cached_property
    def _looked_at(self) -> tuple[Sequence[Layout], Feasible | None]:
        """Layouts up to the first stage in which one serves, and one that does.

        Copies as large as a node are the likeliest to serve, then larger ones.
        """
        looked_at, node = list[Layout](), self.machine.gpus_per_node
        for layouts in self._stages():
            looked_at += layouts
            likeliest = list(reversed(layouts))
            likeliest.sort(key=lambda each: self.gpu_count > node * each.data_parallel_size)
            for layout in likeliest:
                if isinstance(verdict := self._verdict(layout), Feasible):
                    return looked_at, verdict
        return looked_at, None

    @cached_property
    def first(self) -> Feasible | None:
        """A layout that serves, found without judging them all."""
        return self._looked_at[1]

    @property
    def serves(self) -> bool:
        """Whether a layout serves."""
        return self.first is not None

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        """Of every layout, up to the first stage in which one serves."""
        return [self._verdict(layout) for layout in self._looked_at[0]]

    @cached_property
    def feasible(self) -> tuple[Feasible, ...]:
        """Layouts that serve, the best first."""
        serving = [verdict for verdict in self.verdicts if isinstance(verdict, Feasible)]
        return tuple(sorted(serving, key=ORDERS[self._question.rank_by]))

    @cached_property
    def missed(self) -> Missed | None:
        """Where none serves: of those that only break a promise, the one that comes closest to it."""
        if self.serves:
            return None
        return min((each for each in self.verdicts if isinstance(each, Missed)), key=lambda each: each.by, default=None)

    @cached_property
    def refused(self) -> Refused | None:
        """The most fundamental reason against the count; None where a layout serves."""
        if self.serves:
            return None
        refused = [verdict for verdict in self.verdicts if isinstance(verdict, Refused)]
        worst = min(refused, key=_severity, default=None)
        if self.missed is not None and (worst is None or worst.code not in FUNDAMENTAL):
            return Refused(self.missed.found.layout, refusal_of(self.missed))
        return worst


def forced(question: Question, machine: Machine, layout: Layout) -> Counted:
    """The one layout that the caller gave."""
    return Counted(question, machine, layout.gpu_count)


@dataclass(frozen=True, slots=True)
class LastResort:
    """The least that has to be given up of a question for a machine to serve it, and the layout that then does."""

    machine: Machine
    layout: Layout
    given_up: tuple[Fix, ...]


class Searched:
    """The counts of one question that were looked at, each once."""

    def __init__(self, question: Question) -> None:
        self.asked = question
        self.question = replace(question, layout=None) if question.layout is not None else question
        self.order = ORDERS[question.rank_by]
        self.known = dict[tuple[int, int], Counted]()
        self._changed = dict[Changes, Searched]()
        self._usual = dict[str, Machine]()
        self._lesser = dict[Changes, tuple[Searched, ...]]()
        self.last_resorts = dict[int, LastResort | None]()

    def at_count(self, machine: Machine, gpu_count: int) -> Counted:
        """What one count gives."""
        key = id(machine), gpu_count
        if key not in self.known:
            self.known[key] = Counted(self.question, machine, gpu_count)
        return self.known[key]

    @property
    def given_layout(self) -> bool:
        """Whether the caller gave the layout."""
        return self.asked.layout is not None

    def after(self, changes: Changes) -> "Searched":
        """The question with some of its fields changed."""
        if changes not in self._changed:
            self._changed[changes] = Searched(applied(self.asked, changes))
        return self._changed[changes]

    def like(self, counted: Counted) -> Counted:
        """The same count, or the layout given, as this question has it."""
        if self.asked.layout is not None:
            return forced(self.asked, counted.machine, self.asked.layout)
        return self.at_count(counted.machine, counted.gpu_count)

    def lesser(self, kept: Changes = ()) -> "tuple[Searched, ...]":
        """The question with ever less asked: no settings but `kept`, no promises, no load, little text, any release."""
        if kept not in self._lesser:
            plain = applied(without_settings(self.question), kept)
            quiet = replace(plain, objectives=Objectives())
            workload = replace(quiet.workload, concurrent_sequences=1, requests_per_second=None, people=None)
            alone = replace(quiet, workload=workload)
            tokens = min(SHORT_TOKENS, workload.context_tokens, self.question.model.max_context_tokens)
            short = replace(alone, workload=with_context(workload, tokens))
            newest = replace(short, engine=replace(short.engine, version=None))
            levels = (plain, quiet, alone, short, newest)
            self._lesser[kept] = (
                Searched(plain),
                *(Searched(after) for before, after in pairwise(levels) if after != before),
            )
        return self._lesser[kept]

    def usual(self, machine: Machine) -> Machine:
        """The usual node of a machine's card."""
        gpu = machine.gpu
        return self._usual.setdefault(gpu.slug, Machine(gpu, gpu.link, gpu.gpus_per_node, gpu.gpus_per_domain))

    def largest_serving(self, machine: Machine, below: int) -> Feasible | None:
        """A layout of the largest count below `below` that serves."""
        for count in reversed(counts_to_try(machine.gpus_per_node, most_on(machine, below - 1))):
            if found := self.at_count(machine, count).first:
                return found
        return None

    def smallest_serving(self, machine: Machine, above: int, counts: Sequence[int] = ()) -> Feasible | None:
        """A layout of the smallest count above `above` that serves; None within a few nodes, or in `counts` if given.

        Whole nodes are looked at one after the other only where the most of them serve.
        """
        counts = [count for count in counts or counts_of_a_fix(machine) if count > above]
        within = [count for count in counts if count <= machine.gpus_per_node]
        beyond = counts[len(within) :]
        found = next((found for count in within if (found := self.at_count(machine, count).first)), None)
        if found or not beyond or not any(self.at_count(machine, count).serves for count in reversed(beyond[-2:])):
            return found
        return next(found for count in beyond if (found := self.at_count(machine, count).first))

    def shared_key(self, counted: Counted) -> tuple[float, ...]:
        """The part of the sort key that all layouts of a count have in common."""
        if self.question.rank_by is RankBy.FEWEST_GPUS:
            return (counted.gpu_count,)
        if self.question.rank_by is RankBy.COST:
            return cost_of(self.question, counted.machine, counted.gpu_count), counted.gpu_count
        return ()

    def leading(self, counted: Sequence[Counted], most: int) -> list[Counted]:
        """Counts that serve and of which the best `most` layouts come, whatever their layouts are."""
        serving = [each for each in counted if each.serves]
        if len(serving) <= most:
            return serving
        last = sorted(map(self.shared_key, serving))[most - 1]
        return [each for each in serving if self.shared_key(each) <= last]


def _severity(refused: Refused) -> tuple[int, ...]:
    """Sort key: what no layout removes first, then what only memory removes, then what another layout removes.

    Of several alike the layout that splits a copy most, without sharing its cache, came closest.
    """
    shape = refused.layout.decode_context_parallel_size, refused.layout.data_parallel_size
    if refused.code in FUNDAMENTAL:
        return 0, FUNDAMENTAL.index(refused.code), *shape
    if refused.code in MEMORY:
        # The layout that came closest tells most: one that lacks room for the cache holds the weights already.
        return 1, -MEMORY.index(refused.code), *shape
    return 2, 0, *shape
