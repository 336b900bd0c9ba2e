"""Does a layout that starts and holds the workload keep the promised times, and how much of it could it carry?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from service.sizing.corrections import used_for
from service.sizing.engine.refusal import Fix, Refusal
from service.sizing.judge import Feasible, once
from service.sizing.load_answers import LoadPoint, ObjectivesAnswer, PromiseAnswer
from service.sizing.peopled import most_people
from service.sizing.performance.objectives import (
    TPOT_MARGINS,
    TTFT_MARGINS,
    Margin,
    curve_of,
    highest_rate,
    most_at_once,
    rounded_down,
    state_keeps,
)
from service.sizing.performance.serving import MOST_UTILISATION, Copy, State
from service.sizing.question import LONGEST_PROMISE_MS, Objectives, Question
from service.sizing.times import copy, state

CODES = ("rate_too_high", "tpot_missed", "ttft_missed")
"""Reasons that a smaller load, more copies or a looser promise removes."""


@dataclass(frozen=True, slots=True, eq=False)
class Missed:
    """A layout that starts, but is too slow for what is promised, or holds too little for the people who use it.

    Attributes
    ----------
    code, message : str
        The first promise that it breaks.
    by : float
        How many times longer than promised the worst time is with its margin; of a rate, arrivals over what can be
        promised; of people, how many wait at a busy moment over how many are held.
    """

    found: Feasible
    code: str
    message: str
    by: float


def are_asked(question: Question) -> bool:
    """Whether times or a rate are to be promised."""
    return question.objectives != Objectives() or question.workload.requests_per_second is not None


def judged(found: Feasible) -> Feasible | Missed | Refusal:
    """A layout that holds the workload, if it keeps what is promised."""
    if not are_asked(found.question):
        return found
    one = copy(found)
    if one is None:
        return _no_time(found)
    rate, now = found.question.workload.requests_per_second, state(found)
    if now is None:
        assert rate is not None
        most = MOST_UTILISATION * one.at(one.limit).requests_per_second * found.layout.data_parallel_size
        message = (
            f"{rate:g} requests arrive a second and {_copies(found)} can be promised to complete {rounded_down(most):g}"
        )
        return Missed(found, "rate_too_high", message, rate / most)
    token, first = margins(found)
    promised = found.question.objectives
    over = [
        (code, name, value, margin, most)
        for code, name, value, margin, most in (
            ("tpot_missed", "an output token", now.tpot_s * 1000, token, promised.tpot_ms),
            ("ttft_missed", "the first token", now.ttft_s * 1000, first, promised.ttft_ms),
        )
        if most is not None and value * margin.factor > most
    ]
    if not over:
        return found
    code, name, value, margin, most = over[0]
    message = (
        f"{name} is predicted to take {value:.1f} ms {_at(found)}; with the margin of {margin.factor:g} that is "
        f"{value * margin.factor:.1f} ms, and {most:g} ms are promised"
    )
    by = max(value * margin.factor / most for _, _, value, margin, most in over)
    return Missed(found, code, message, by)


def _no_time(found: Feasible) -> Refusal:
    """Nothing can be promised of a card whose speed is not known: what is promised must be left out."""
    question = found.question
    asked = {
        "workload.requests_per_second": question.workload.requests_per_second,
        "objectives.ttft_ms": question.objectives.ttft_ms,
        "objectives.tpot_ms": question.objectives.tpot_ms,
    }
    given = [name for name, value in asked.items() if value is not None]
    return Refusal(
        "no_time_predicted",
        f"the rated speed of {found.machine.gpu.name} is not known, so no time can be promised",
        fixes=(Fix(f"leave {', '.join(given)} out", tuple((name, None) for name in given)),),
    )


def margins(found: Feasible) -> tuple[Margin, Margin]:
    """On the time per output token, and on the time to first token."""
    tier = used_for(found).correction.tier
    return TPOT_MARGINS[tier], TTFT_MARGINS[tier]


def _keeps(one: Copy, promised: Objectives) -> Callable[[State], bool]:
    tier = one.correction.tier
    return lambda each: state_keeps(each, tier, ttft_ms=promised.ttft_ms, tpot_ms=promised.tpot_ms)


@lru_cache(maxsize=256)
def _most_at_once(one: Copy, promised: Objectives) -> int:
    return most_at_once(one, _keeps(one, promised))


@lru_cache(maxsize=256)
def _highest_rate(one: Copy, promised: Objectives) -> float:
    return highest_rate(one, _keeps(one, promised))


def carried_at_once(found: Feasible, one: Copy) -> int:
    """Most requests at once over all copies that run and keep the promises."""
    return _most_at_once(one, found.question.objectives) * found.layout.data_parallel_size


def carried_a_second(found: Feasible, one: Copy) -> float:
    """Most requests a second over all copies that keep the promises, rounded down."""
    return rounded_down(_highest_rate(one, found.question.objectives) * found.layout.data_parallel_size)


def carried_by_copy(found: Feasible) -> float:
    """What one copy carries of what is asked: requests a second where a rate is, else requests at once."""
    one, copies = copy(found), found.layout.data_parallel_size
    if one is None:
        return 0.0
    if found.question.workload.requests_per_second is not None:
        return carried_a_second(found, one) / copies
    return carried_at_once(found, one) / copies


def side_by_side(found: Feasible) -> int:
    """Deployments of a layout that carry what is asked together; 0 where one carries nothing.

    People are shared out over them: the fewer share one, the more of them wait for it at a busy moment.
    """
    carried, workload = carried_by_copy(found) * found.layout.data_parallel_size, found.question.workload
    if workload.people is not None:
        fewer = most_people(found, workload.people, int(carried))
        return ceil(workload.people.people / fewer) if fewer else 0
    asked = workload.requests_per_second or workload.concurrent_sequences
    return ceil(asked / carried) if carried else 0


def _copies(found: Feasible) -> str:
    copies = found.layout.data_parallel_size
    return f"{copies} copies" if copies > 1 else "one copy"


def _at(found: Feasible) -> str:
    workload, copies = found.question.workload, found.layout.data_parallel_size
    spread = f", spread over {copies} copies" if copies > 1 else ""
    if workload.requests_per_second is not None:
        return f"at {workload.requests_per_second:g} requests a second{spread}"
    return f"with {workload.concurrent_sequences} requests at once{spread}"


def refusal_of(missed: Missed) -> Refusal:
    """The refusal, with the largest load of the same layout that keeps the promises, and those that this load keeps."""
    looser = _looser_promises(missed.found) if missed.code in CODES else ()
    return Refusal(missed.code, missed.message, fixes=(*_smaller_loads(missed.found), *looser))


def slower(rate: float) -> Fix:
    """To send fewer requests."""
    return Fix(f"send at most {rate:g} requests a second", (("workload.requests_per_second", rate),))


def fewer_people(most: int) -> Fix:
    """To plan for fewer people."""
    return Fix(f"plan for at most {most} people", (("workload.people", most),))


def _smaller_loads(found: Feasible) -> Iterator[Fix]:
    one, workload = copy(found), found.question.workload
    if workload.requests_per_second is not None:
        if one is not None and (rate := carried_a_second(found, one)):
            yield slower(rate)
        return
    carried = found.capacity if one is None else carried_at_once(found, one)
    if workload.people is None:
        if carried:
            words = f"ask for at most {carried} concurrent sequences"
            yield Fix(words, (("workload.concurrent_sequences", carried),))
    elif fewer := most_people(found, workload.people, carried):
        yield fewer_people(fewer)


def _looser_promises(found: Feasible) -> Iterator[Fix]:
    now, (token, first), promised = state(found), margins(found), found.question.objectives
    if now is None:
        return
    kept = [
        (name, _rounded_up(value))
        for name, value, most in (
            ("tpot_ms", now.tpot_s * 1000 * token.factor, promised.tpot_ms),
            ("ttft_ms", now.ttft_s * 1000 * first.factor, promised.ttft_ms),
        )
        if most is not None and value > most
    ]
    if kept and all(value <= LONGEST_PROMISE_MS for _, value in kept):
        words = " and ".join(f"a {name} of {value}" for name, value in kept)
        yield Fix(f"promise {words}", tuple((f"objectives.{name}", value) for name, value in kept))


def _rounded_up(ms: float) -> float:
    """Up to a tenth, or, where that is one or it is long, to a whole number."""
    tenths = ceil(ms * 10)
    return tenths / 10 if ms < 1000 and tenths % 10 else ceil(tenths / 10)


@once
def objectives_answer(found: Feasible) -> ObjectivesAnswer | None:
    """What was promised, by which margins, and what the layout carries within it; None where nothing was asked."""
    one, now, workload = copy(found), state(found), found.question.workload
    if not are_asked(found.question) or one is None or now is None:
        return None
    token, first = margins(found)
    promised, copies, rate = found.question.objectives, found.layout.data_parallel_size, workload.requests_per_second
    full = one.at(one.limit).requests_per_second * copies
    return ObjectivesAnswer(
        tpot=_promise(promised.tpot_ms, now.tpot_s, token),
        ttft=_promise(promised.ttft_ms, now.ttft_s, first),
        requests_in_flight=workload.concurrent_sequences if rate is None else rate * now.answer_s(one.output_tokens),
        concurrent_sequences=carried_at_once(found, one),
        requests_per_second=carried_a_second(found, one),
        utilisation=None if rate is None else rate / full,
    )


def _promise(promised_ms: float | None, predicted_s: float, margin: Margin) -> PromiseAnswer | None:
    if promised_ms is None:
        return None
    return PromiseAnswer(
        promised_ms=promised_ms,
        predicted_ms=predicted_s * 1000,
        margin=margin.factor,
        with_margin_ms=predicted_s * 1000 * margin.factor,
        over_promised_percent=margin.over_promised_percent,
        measured_on=margin.measured_on,
    )


def load_curve(found: Feasible) -> tuple[LoadPoint, ...]:
    """Times and throughput over the loads that run at once; empty where not asked for or not predicted."""
    one, copies, asked = copy(found), found.layout.data_parallel_size, found.question.curve_points
    if one is None or not asked:
        return ()
    promised = found.question.objectives
    kept = _keeps(one, promised) if promised != Objectives() else None
    return tuple(
        LoadPoint(
            concurrent_sequences=round(each.concurrency) * copies,
            tpot_ms=each.tpot_s * 1000,
            ttft_ms=each.ttft_s * 1000,
            output_tokens_per_second=each.requests_per_second * copies * one.output_tokens,
            keeps_objectives=None if kept is None else kept(each),
        )
        for each in curve_of(one, asked)
    )
