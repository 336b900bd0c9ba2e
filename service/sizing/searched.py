"""The layouts of each GPU type and count: judged as far as an answer needs them, ranked, with a reason and a fix."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import ceil

from service.sizing.answer import Rejection
from service.sizing.demand import People
from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity import SPLITTING
from service.sizing.judge import Feasible, judge, rejection
from service.sizing.layouts import Layout, candidates, counts_to_try, narrower
from service.sizing.model.summary import is_latent, routed_experts
from service.sizing.peopled import demand_on, loaded
from service.sizing.pricing import cost_of, cost_per_hour
from service.sizing.promises import CODES, Missed, carried_by_copy, judged, refusal_of, side_by_side
from service.sizing.quantities import ceil_div, round_up
from service.sizing.question import MOST_GPUS, Machine, Question, RankBy
from service.sizing.remedies import MORE_MEMORY, remedy
from service.sizing.times import state, token_ms, tokens_per_second

DEFAULT_MOST_GPUS = 16

NODES_SEARCHED_FOR_A_FIX = 4
"""A fix may name more GPUs than were allowed, up to this many whole nodes."""

FUNDAMENTAL = (
    "no_rules_for_this_gpu",
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

Verdict = Feasible | Missed | Rejection
Order = Callable[[Feasible], tuple[float, ...]]


def ranking(rank_by: RankBy) -> Order:
    """What makes one feasible layout better than another, as a sort key; times are the performance model's."""

    def by_count(each: Feasible) -> tuple[float, ...]:
        return each.layout.gpu_count, token_ms(each), -each.capacity

    def by_latency(each: Feasible) -> tuple[float, ...]:
        return token_ms(each), each.layout.gpu_count, -each.capacity

    def by_throughput(each: Feasible) -> tuple[float, ...]:
        return -tokens_per_second(each), each.layout.gpu_count, token_ms(each)

    def by_cost(each: Feasible) -> tuple[float, ...]:
        return cost_per_hour(each), each.layout.gpu_count, token_ms(each)

    keys = {RankBy.LATENCY: by_latency, RankBy.THROUGHPUT: by_throughput, RankBy.COST: by_cost}
    return keys.get(rank_by, by_count)


def counts_of(question: Question, machine: Machine) -> tuple[int, ...]:
    """GPU counts to judge, as asked or up to the most allowed."""
    if question.gpu_counts is not None:
        return tuple(dict.fromkeys(question.gpu_counts))
    return counts_to_try(machine.gpus_per_node, question.max_gpus or DEFAULT_MOST_GPUS)


def verdict_on(question: Question, machine: Machine, layout: Layout) -> Verdict:
    """Whether a layout starts, holds the workload and keeps what is promised."""
    found = judge(question, machine, layout)
    if isinstance(found, Feasible) and question.workload.people is not None:
        found = _with_people(found, question.workload.people)
    elif isinstance(found, Feasible) and question.workload.requests_per_second is not None:
        found = _with_rate(found)
    if not isinstance(found, Feasible):
        return found
    kept = judged(found)
    return kept if isinstance(kept, Feasible | Missed) else rejection(machine.gpu, layout, kept)


def _with_people(found: Feasible, people: People) -> Verdict:
    """A layout judged at the busy moments of the people who use it."""
    demand = demand_on(found, people)
    if isinstance(demand, Refusal):
        return rejection(found.machine.gpu, found.layout, demand)
    question = loaded(found.question, demand)
    held = judge(question, found.machine, found.layout)
    if isinstance(held, Feasible):
        return replace(held, demand=demand)
    if held.code != "cache_too_small":
        return held
    sequences = ceil_div(demand.peak, found.layout.data_parallel_size)
    short = replace(found, question=question, sequences=sequences, demand=demand)
    return Missed(short, held.code, held.message, demand.peak / max(1, found.capacity))


def _with_rate(found: Feasible) -> Feasible | Rejection:
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
        if layout not in self._judged:
            self._judged[layout] = verdict_on(self._question, self.machine, layout)
        return self._judged[layout]

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

    def _are_cut_badly(self, layouts: Sequence[Layout]) -> bool:
        """Whether one copy over all GPUs cannot be cut as the links would have it: refused, or no size fits."""
        whole = [
            self._verdict(layout) for layout in layouts if layout.data_parallel_size == 1 and not layout.expert_parallel
        ]
        return all(isinstance(verdict, Rejection) and verdict.code in SPLITTING for verdict in whole)

    @cached_property
    def first(self) -> Feasible | None:
        """A layout that serves, found first: copies as large as a node are the likeliest, then larger ones."""
        node = self.machine.gpus_per_node
        for layouts in self._stages():
            within = [each for each in layouts if each.gpu_count <= node * each.data_parallel_size]
            beyond = [each for each in layouts if each.gpu_count > node * each.data_parallel_size]
            for layout in (*reversed(within), *reversed(beyond)):
                if isinstance(verdict := self._verdict(layout), Feasible):
                    return verdict
        return None

    @property
    def serves(self) -> bool:
        """Whether a layout serves."""
        return self.first is not None

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        """Of every layout, up to the first stage in which one serves."""
        found = list[Verdict]()
        for layouts in self._stages():
            found += [self._verdict(layout) for layout in layouts]
            if any(isinstance(verdict, Feasible) for verdict in found):
                break
        return found

    @cached_property
    def feasible(self) -> tuple[Feasible, ...]:
        """Layouts that serve, the best first."""
        serving = [verdict for verdict in self.verdicts if isinstance(verdict, Feasible)]
        return tuple(sorted(serving, key=ranking(self._question.rank_by)))

    @cached_property
    def missed(self) -> Missed | None:
        """Where none serves: of those that only break a promise, the one that comes closest to it."""
        if self.serves:
            return None
        return min((each for each in self.verdicts if isinstance(each, Missed)), key=lambda each: each.by, default=None)

    @cached_property
    def rejection(self) -> Rejection | None:
        """The most fundamental reason against the count; None where a layout serves."""
        if self.serves:
            return None
        refused = [verdict for verdict in self.verdicts if isinstance(verdict, Rejection)]
        worst = min(refused, key=_severity, default=None)
        if self.missed is not None and (worst is None or worst.code not in FUNDAMENTAL):
            return rejection(self.machine.gpu, self.missed.found.layout, refusal_of(self.missed))
        return worst


def forced(question: Question, machine: Machine, layout: Layout) -> Counted:
    """The one layout that the caller gave."""
    return Counted(question, machine, layout.gpu_count)


class Searched:
    """The counts of one question that were looked at, each once."""

    def __init__(self, question: Question) -> None:
        self.asked = question
        self.question = replace(question, layout=None) if question.layout is not None else question
        self.order = ranking(question.rank_by)
        self.known = dict[tuple[int, int], Counted]()

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

    @cached_property
    def for_one_conversation(self) -> "Searched":
        """The same question asked of a single conversation."""
        alone = replace(self.question.workload, concurrent_sequences=1, requests_per_second=None, people=None)
        return Searched(replace(self.question, workload=alone))

    def changed(self, counted: Counted, question: Question) -> Feasible | None:
        """What another question gives on the same GPUs; None where it is refused."""
        return Counted(question, counted.machine, counted.gpu_count).first

    def smallest_serving(self, machine: Machine, above: int) -> Feasible | None:
        """A layout of the smallest count above `above` that serves; None within a few nodes."""
        for count in counts_to_try(machine.gpus_per_node, NODES_SEARCHED_FOR_A_FIX * machine.gpus_per_node):
            if count > above and (found := self.at_count(machine, count).first):
                return found
        return None

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


def _severity(rejection: Rejection) -> tuple[int, ...]:
    """Sort key: what no layout removes first, then what only memory removes, then what another layout removes.

    Of several alike the layout that splits a copy most, without sharing its cache, came closest.
    """
    layout = rejection.layout
    shape = (layout.decode_context_parallel_size, layout.data_parallel_size) if layout else (0, 0)
    if rejection.code in FUNDAMENTAL:
        return 0, FUNDAMENTAL.index(rejection.code), *shape
    if rejection.code in MEMORY:
        # The layout that came closest tells most: one that lacks room for the cache holds the weights already.
        return 1, -MEMORY.index(rejection.code), *shape
    return 2, 0, *shape


def with_fix(searched: Searched, counted: Counted, rejection: Rejection) -> Rejection:
    """A rejection with the nearest fix: for lack of memory or speed a count that serves, and what else would do."""
    fixes = list[str]()
    if larger := _larger(searched, counted, rejection):
        fixes.append(f"use {_described(larger)}")
    elif rejection.code in CODES and counted.missed and (number := side_by_side(counted.missed.found)):
        fixes.append(f"run {number} deployments of {counted.gpu_count} GPUs side by side")
    if own := _own_fix(searched, counted, rejection):
        fixes.append(own)
    wants_another = searched.given_layout and (not fixes or _has_several_sizes(searched.asked.layout))
    if wants_another and (other := searched.smallest_serving(counted.machine, 0)):
        fixes.append(f"leave the layout out: {_described(other.layout)} would serve")
    if not fixes and rejection.code in MEMORY:
        alone = searched.for_one_conversation.smallest_serving(counted.machine, counted.gpu_count)
        fixes.append(f"use {_described(alone.layout)} for fewer conversations" if alone else MORE_MEMORY)
    return replace(rejection, fix=", or ".join(fixes) or None)


def _has_several_sizes(layout: Layout | None) -> bool:
    """Whether a layout splits in more than one way: the change of a single size may then not be enough."""
    if layout is None:
        return False
    sizes = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size
    return sum(size > 1 for size in sizes) > 1


def _larger(searched: Searched, counted: Counted, rejection: Rejection) -> Layout | None:
    """A layout of more GPUs that serves, where they would help."""
    if rejection.code not in MEMORY and rejection.code not in CODES:
        return None
    serving = searched.smallest_serving(counted.machine, counted.gpu_count)
    return serving.layout if serving is not None else _enough_copies(searched, counted)


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
    return remedy(searched.asked, partial(searched.changed, counted), code=rejection.code)


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


def _enough_copies(searched: Searched, counted: Counted) -> Layout | None:
    """As many copies of a layout as keep the promises together, in whole nodes; None where one copy cannot keep them.

    Copies of a model with experts are one group, whose speed does not follow from one of them.
    """
    if searched.question.model.experts:
        return None
    node, found = counted.machine.gpus_per_node, list[Layout]()
    for verdict in counted.verdicts:
        if isinstance(verdict, Missed) and (carried := carried_by_copy(verdict.found)):
            layout, workload = verdict.found.layout, verdict.found.question.workload
            asked = workload.requests_per_second or workload.concurrent_sequences
            size = layout.gpu_count // layout.data_parallel_size
            gpus = ceil(asked / carried) * size
            gpus = round_up(gpus, node) if gpus > node else gpus
            if gpus % size == 0 and gpus <= MOST_GPUS:
                found.append(replace(layout, data_parallel_size=gpus // size))
    return min(found, key=lambda layout: layout.gpu_count, default=None)
