"""What people make of a layout: how many wait for it at once, which it must then hold and be timed at."""

from dataclasses import replace

from service.sizing.demand import Demand, People, active_people, demand_of
from service.sizing.engine.refusal import Fix, Refusal
from service.sizing.judge import Feasible, once
from service.sizing.load_answers import PeopleAnswer
from service.sizing.performance.serving import Copy
from service.sizing.question import Question
from service.sizing.times import copy


def demand_on(found: Feasible, people: People) -> Demand | Refusal:
    """The load that people make of a layout, whose answers take as long as predicted unless they say how long."""
    one, copies = copy(found), found.layout.data_parallel_size
    if one is None and people.answer_s is None:
        return Refusal(
            "no_time_predicted",
            f"the rated speed of {found.machine.gpu.name} is not known, so how long an answer takes is not either",
            fixes=(Fix("give workload.people.answer_seconds"),),
        )
    return demand_of(people, lambda concurrency: answer_s(one, concurrency / copies) if one else 0.0)


def answer_s(one: Copy, concurrency: float) -> float:
    """Seconds from a question to the end of its answer, with `concurrency` requests in a copy."""
    return one.at(concurrency).answer_s(one.output_tokens)


def loaded(question: Question, demand: Demand) -> Question:
    """The question with the people's busy moment as its concurrency."""
    return replace(question, workload=replace(question.workload, concurrent_sequences=demand.peak))


def most_people(found: Feasible, people: People, carried: int) -> int:
    """The most people whose busy moments a layout carries; 0 where there are none."""
    low, high = 0, people.people
    while low < high:
        middle = (low + high + 1) // 2
        demand = demand_on(found, replace(people, people=middle))
        if isinstance(demand, Demand) and demand.peak <= carried:
            low = middle
        else:
            high = middle - 1
    return low


@once
def people_answer(found: Feasible) -> PeopleAnswer | None:
    """The load that the people given make of a layout; None without people."""
    people, demand = found.question.workload.people, found.demand
    if people is None or demand is None:
        return None
    active = active_people(people.people, people.share_active)
    given = "as given" if people.answer_s is not None else "as predicted for this plan"
    return PeopleAnswer(
        people=people.people,
        active=active,
        answer_seconds=demand.answer_s,
        think_seconds=people.think_s,
        mean_concurrency=demand.mean,
        peak_concurrency=demand.peak,
        requests_per_second=demand.requests_per_second,
        how=f"of {people.people} people {active:g} are active; each waits {demand.answer_s:.1f} s for an answer "
        f"({given}) and takes {people.think_s:g} s to the next question, so {demand.mean:.1f} wait on average; more "
        f"than {demand.peak} wait in {people.peak_chance * 100:g} % of the busy hour (binomial), and the plan is for "
        f"{demand.peak}",
    )
