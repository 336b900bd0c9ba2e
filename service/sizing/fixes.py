"""The nearest fixes of what is refused: each is asked, with all that it changes together, before it is named."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil

from service.sizing.answer import Rejection
from service.sizing.changes import applied, with_context
from service.sizing.engine.refusal import Changes, Fix, Refusal
from service.sizing.judge import Feasible, rejection, shorter_conversations
from service.sizing.layouts import Layout
from service.sizing.promises import CODES, Missed, carried_by_copy, refusal_of, side_by_side
from service.sizing.quantities import ceil_div, round_up
from service.sizing.question import MOST_GPUS, Machine, Question, Workload
from service.sizing.remedies import (
    other_sizes,
    remedy,
    shorter_context,
    smaller_load,
    without_several,
)
from service.sizing.searched import (
    MEMORY,
    Counted,
    LastResort,
    Searched,
    Verdict,
    counts_of_last_resort,
    forced,
    most_on,
    verdict_on,
)

MOST_NAMED = 3
"""Ways out that a rejection names."""

MOST_COMPARED = 2
"""Ways on from a change, of which the shorter is named."""

MOST_STEPS = 4
"""Changes that follow from one another before they are given up."""

LEAVE_VERSION_OUT = Fix("leave engine.version out", (("engine.version", None),))
LEAVE_OBJECTIVES_OUT = Fix("leave objectives out", (("objectives.ttft_ms", None), ("objectives.tpot_ms", None)))

MORE_MEMORY = "choose a GPU with more memory, or a checkpoint of fewer bytes"
ANOTHER = "choose another GPU or another model"


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a question; `layout` takes the place of the count, or of the layout, that was refused."""

    words: str
    changes: Changes = ()
    layout: Layout | None = None


Way = tuple[Step, ...]
"""Changes that serve together."""


def with_fix(searched: Searched, counted: Counted) -> Rejection:
    """A refused count or layout as it is answered, with the nearest ways out that serve."""
    refused = counted.refused
    assert refused is not None
    ways = list(islice(_ways(searched, counted, MOST_STEPS), MOST_NAMED))
    words = list(dict.fromkeys(_said(searched.asked.workload, way) for way in ways))
    if not words:
        words = _elsewhere_advised(searched.question, refused.refusal)
    if not words and (way := _together(searched, counted)):
        words = [_said(searched.asked.workload, way)]
    return rejection(counted.machine.gpu, refused, ", or ".join(words) or _nothing(searched, counted))


def _said(asked: Workload, way: Way) -> str:
    """Changes that belong together, for a sentence."""
    *before, last = (_worded(asked, step) for step in way)
    return f"{', '.join(before)} and {last}" if before else last


def _worded(asked: Workload, step: Step) -> str:
    """A change; of a shorter conversation also its prompt and answer, where they were given."""
    tokens = dict(step.changes).get("workload.context_tokens")
    if not isinstance(tokens, int) or not asked.split_given:
        return step.words
    shorter = with_context(asked, tokens)
    split = f" (prompt_tokens {shorter.prompt_tokens}, output_tokens {shorter.output_tokens})"
    return step.words.replace(f"{tokens} tokens", f"{tokens} tokens{split}", 1)


def _elsewhere_advised(question: Question, refusal: Refusal) -> list[str]:
    """Other cards, models, releases or precisions that a rule would have."""
    words = [fix.words for fix in refusal.fixes if not fix.changes]
    if words and question.precision != "checkpoint" and refusal.code.startswith("quantization"):
        words.append("choose another precision")
    return words


def _nothing(searched: Searched, counted: Counted) -> str:
    """What is said where no count, layout or setting of a GPU serves even a short conversation, and why."""
    machine, least = counted.machine, searched.lesser()[-1]
    most = counts_of_last_resort(machine)[-1]
    last = least.at_count(machine, most).refused
    assert last is not None
    advice = _elsewhere_advised(searched.question, last.refusal)
    if not advice:
        advice = [MORE_MEMORY if last.code in MEMORY else ANOTHER]
    gpus = f"{most} GPUs" if most > 1 else "1 GPU"
    return f"no setting and no count up to {gpus} serves ({last.refusal.message}): {', or '.join(advice)}"


def _ways(searched: Searched, counted: Counted, steps: int) -> Iterator[Way]:
    """What serves instead, the nearest first: more GPUs, what the rule advises, another setting, load or layout."""
    assert counted.refused is not None
    refusal, given, named = counted.refused.refusal, searched.asked.layout, False
    if refusal.fixes and not any(fix.changes for fix in refusal.fixes):
        return
    short = refusal.code in MEMORY or refusal.code in CODES
    step = _larger(searched, counted) if short else None
    if step is None and steps == MOST_STEPS:
        # The load shared out must be the one asked for.
        step = _side_by_side(searched, counted)
    if step is not None:
        named = True
        yield (step,)
    own = False
    for fix in refusal.fixes:
        if fix.changes and (way := _followed(searched, counted, fix, steps)):
            named = own = True
            yield way
    if not own:
        for fix in _changed(searched, counted, sizes=not short):
            named = True
            yield (_step(fix),)
    if refusal.code == "more_gpus_than_pasted" and (step := _elsewhere(searched, counted)):
        yield (step,)
    if named and not (given and _has_several_sizes(given)):
        return
    if given:
        if other := searched.smallest_serving(counted.machine, 0):
            yield (Step(f"leave the layout out: {_described(other.layout)} would serve", layout=other.layout),)
    elif other := _another_count(searched, counted):
        yield (Step(f"use {_described(other.layout)}", layout=other.layout),)


def _another_count(searched: Searched, counted: Counted) -> Feasible | None:
    """The nearest count that serves where the reason is not that there are too few GPUs."""
    above = searched.smallest_serving(counted.machine, counted.gpu_count)
    return above or searched.largest_serving(counted.machine, counted.gpu_count)


def _step(fix: Fix) -> Step:
    return Step(fix.words, fix.changes)


def _followed(searched: Searched, counted: Counted, fix: Fix, steps: int) -> Way | None:
    """What a rule advises, with what the next rule then wants, until the question serves."""
    changed = searched.after(fix.changes)
    if changed.asked == searched.asked:
        return None
    inner = changed.like(counted)
    if inner.serves:
        return (_step(fix),)
    assert counted.refused is not None
    assert inner.refused is not None
    if steps == 1 or inner.refused.refusal == counted.refused.refusal:
        return None
    ways = [_joined(searched, counted, fix, rest) for rest in islice(_ways(changed, inner, steps - 1), MOST_COMPARED)]
    return min(ways, key=len, default=None)


def _joined(searched: Searched, counted: Counted, fix: Fix, rest: Way) -> Way:
    """What a rule advises and what has to follow, without the former where it is not needed or is put right after."""
    again = {path for step in rest for path, _ in step.changes}
    if all(path in again for path, _ in fix.changes) or _serves(searched, counted, rest):
        return rest
    return (_step(fix), *rest)


def _serves(searched: Searched, counted: Counted, way: Way) -> bool:
    """Whether a question serves with changes, all of them together."""
    question = searched.asked
    for step in way:
        question = applied(question, step.changes)
    layout = next((step.layout for step in reversed(way) if step.layout), question.layout)
    if layout is None:
        return Counted(question, counted.machine, counted.gpu_count).serves
    return isinstance(verdict_on(question, counted.machine, layout), Feasible)


def _changed(searched: Searched, counted: Counted, *, sizes: bool) -> Iterator[Fix]:
    """Other sizes of a given layout, or else other settings or a smaller load, that serve on the same GPUs."""
    assert counted.refused is not None

    def serves(question: Question) -> Feasible | None:
        return Counted(question, counted.machine, counted.gpu_count).first

    named = False
    if sizes and searched.asked.layout is not None:
        for fix in other_sizes(searched.asked, serves, widest=counted.machine.gpus_per_node):
            named = True
            yield fix
    if not named and (fix := remedy(searched.asked, serves, code=counted.refused.code)):
        yield fix


def _has_several_sizes(layout: Layout) -> bool:
    """Whether a layout splits in more than one way: the change of a single size may then not be enough."""
    sizes = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size
    return sum(size > 1 for size in sizes) > 1


def _larger(searched: Searched, counted: Counted) -> Step | None:
    """As many GPUs in another layout, where one was given, or more of them, or copies enough, that serve."""
    machine, count = counted.machine, counted.gpu_count
    found = searched.at_count(machine, count).first if searched.given_layout else None
    found = found or searched.smallest_serving(machine, count)
    layout = found.layout if found else _enough_copies(searched, counted)
    if layout is not None:
        return Step(f"use {_described(layout)}", layout=layout)
    if machine.topology is None:
        return None
    usual = searched.usual(machine)
    found = searched.smallest_serving(usual, count)
    return None if found is None else _unpasted(found.layout)


def _elsewhere(searched: Searched, counted: Counted) -> Step | None:
    """The count or the layout asked for on other machines than the one that was pasted."""
    usual, layout = searched.usual(counted.machine), searched.asked.layout
    found = (
        searched.at_count(usual, counted.gpu_count) if layout is None else forced(searched.asked, usual, layout)
    ).first
    return None if found is None else _unpasted(found.layout)


def _unpasted(layout: Layout) -> Step:
    return Step(f"leave hardware.topology out: {_described(layout)} of the usual machines would serve", layout=layout)


def _described(layout: Layout) -> str:
    """A count of GPUs and how they are used, for a sentence."""
    sizes = [
        f"{name} {size}"
        for name, size in (
            ("tensor parallel size", layout.tensor_parallel_size),
            ("pipeline parallel size", layout.pipeline_parallel_size),
            ("data parallel size", layout.data_parallel_size),
            ("decode context parallel size", layout.decode_context_parallel_size),
        )
        if size > 1
    ]
    if layout.expert_parallel:
        sizes.append("expert parallel")
    return f"{layout.gpu_count} GPU{'s' if layout.gpu_count > 1 else ''}" + (f" ({', '.join(sizes)})" if sizes else "")


def _enough_copies(searched: Searched, counted: Counted) -> Layout | None:
    """As many copies of a layout as keep the promises together, in whole nodes; None where one copy cannot keep them.

    Copies of a model with experts are one group, whose speed does not follow from one of them.
    """
    if searched.question.model.experts:
        return None
    machine, found = counted.machine, list[Layout]()
    for verdict in counted.verdicts:
        if isinstance(verdict, Missed) and (carried := carried_by_copy(verdict.found)):
            layout, workload = verdict.found.layout, verdict.found.question.workload
            asked = workload.requests_per_second or workload.concurrent_sequences
            size = layout.gpu_count // layout.data_parallel_size
            gpus = ceil(asked / carried) * size
            gpus = round_up(gpus, machine.gpus_per_node) if gpus > machine.gpus_per_node else gpus
            if gpus % size == 0 and gpus <= most_on(machine, MOST_GPUS):
                found.append(replace(layout, data_parallel_size=gpus // size))
    found.sort(key=lambda layout: layout.gpu_count)
    serving = (each for each in found if isinstance(verdict_on(searched.question, machine, each), Feasible))
    return next(serving, None)


def _side_by_side(searched: Searched, counted: Counted) -> Step | None:
    """How many deployments of the layout that comes closest carry the load together."""
    missed = counted.missed
    if missed is None or missed.code not in CODES:
        return None
    number = side_by_side(missed.found)
    if number < 2:
        return None
    load, shared = searched.asked.workload, list[tuple[str, float]]()
    if load.people is not None:
        shared.append(("workload.people", ceil_div(load.people.people, number)))
    elif load.requests_per_second is not None:
        shared.append(("workload.requests_per_second", load.requests_per_second / number))
    else:
        shared.append(("workload.concurrent_sequences", ceil_div(load.concurrent_sequences, number)))
    each = searched.after(tuple(shared)).like(counted)
    gpus = f"{counted.gpu_count} GPU{'s' if counted.gpu_count > 1 else ''}"
    return Step(f"run {number} deployments of {gpus} side by side", tuple(shared)) if each.serves else None


def _together(searched: Searched, counted: Counted) -> Way | None:
    """Where no change of one kind serves: the fewest that do together, of settings, promises, load and length.

    What a caller wants served is given up last.
    """
    key = id(counted.machine)
    if key not in searched.last_resorts:
        searched.last_resorts[key] = _last_resort(searched, counted.machine)
    found = searched.last_resorts[key]
    if found is None:
        return None
    return (*_placed(searched, counted, found.machine, found.layout), *map(_step, found.given_up))


def _last_resort(searched: Searched, machine: Machine) -> LastResort | None:
    for each in (machine,) if machine.topology is None else (machine, searched.usual(machine)):
        counts = counts_of_last_resort(each)
        refused = searched.lesser()[-1].at_count(each, counts[-1]).refused
        # What even the least is refused for may have a setting for a cure: a cache that the checkpoint asks for.
        advised = [fix for fix in (refused.refusal.fixes if refused else ()) if fix.changes]
        for fix in (None, *advised):
            kept = fix.changes if fix else ()
            levels = searched.lesser(kept)
            # The least of the release that was asked for, and of the newest.
            if not any(level.smallest_serving(each, 0, counts) for level in levels[-2:]):
                continue
            lesser, found = next(
                (level, found) for level in levels if (found := level.smallest_serving(each, 0, counts))
            )
            given_up = _put_back(applied(searched.question, kept), lesser.question, kept, each, found.layout)
            return LastResort(each, found.layout, (*([fix] if fix else []), *given_up))
    return None


def _placed(searched: Searched, counted: Counted, machine: Machine, layout: Layout) -> Way:
    """The step to a layout of a machine; none where the count that was refused has it."""
    if machine is not counted.machine:
        return (_unpasted(layout),)
    if not searched.given_layout and layout.gpu_count == counted.gpu_count:
        return ()
    return (Step(f"use {_described(layout)}", layout=layout),)


def _put_back(asked: Question, lesser: Question, kept: Changes, machine: Machine, layout: Layout) -> list[Fix]:
    """What has to be given up of a question for a layout to serve it that serves a lesser one.

    The length is put back as far as it serves, then the load, the promises, the settings.
    """

    def verdict(question: Question) -> Verdict:
        return verdict_on(replace(question, layout=layout), machine, layout)

    def serves(question: Question) -> Feasible | None:
        found = verdict(question)
        return found if isinstance(found, Feasible) else None

    given_up = list[Fix]()
    now = replace(lesser, workload=with_context(lesser.workload, asked.workload.context_tokens))
    longest = now.workload.context_tokens
    if not serves(now):
        shorter = shorter_context(now, serves)
        longest = applied(now, shorter.changes).workload.context_tokens if shorter else lesser.workload.context_tokens
    # The longest conversation may leave no room for a second.
    for tokens in (longest, max(1, longest // 2)):
        now = replace(now, workload=with_context(asked.workload, tokens))
        load = None if serves(now) else smaller_load(now, serves) or _without_load(now)
        if load is None or load.changes[0][1] is not None:
            break
    if now.workload.context_tokens != asked.workload.context_tokens:
        given_up.append(shorter_conversations(now.workload.context_tokens))
    if load is not None:
        given_up.append(load)
        now = applied(now, load.changes)
    now = replace(now, objectives=asked.objectives)
    found = verdict(now)
    if not isinstance(found, Feasible):
        named = refusal_of(found).fixes if isinstance(found, Missed) else ()
        looser = next((fix for fix in named if _is_looser(fix) and serves(applied(now, fix.changes))), None)
        given_up.append(looser or LEAVE_OBJECTIVES_OUT)
        now = applied(now, given_up[-1].changes)
    now = replace(now, engine=replace(asked.engine, version=now.engine.version), assumptions=asked.assumptions)
    if not serves(now) and (fix := without_several(now, serves, kept)):
        given_up.append(fix)
        now = applied(now, fix.changes)
    if asked.engine.version != now.engine.version and not serves(
        applied(now, (("engine.version", asked.engine.version),))
    ):
        given_up.append(LEAVE_VERSION_OUT)
    return given_up


def _without_load(question: Question) -> Fix:
    """One conversation at a time, where even few people or requests are too many."""
    field = "people" if question.workload.people is not None else "requests_per_second"
    return Fix(f"leave workload.{field} out", ((f"workload.{field}", None),))


def _is_looser(fix: Fix) -> bool:
    return all(path.startswith("objectives.") for path, _ in fix.changes)
