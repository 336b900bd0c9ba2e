"""One workload over many models, precisions and machines: a row for each, and which is best for what."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from service.sizing.answer import Plan, Rejection
from service.sizing.cost import Flip, flip_price, pareto
from service.sizing.present import present
from service.sizing.quantities import Doc
from service.sizing.question import Machine, Question, RankBy
from service.sizing.search import reasons_for
from service.sizing.searched import Counted, Searched, counts_of, forced, with_fix

MOST_FLIPS = 10
SHOWN = Decimal("0.0001")
"""Step that prices are shown in."""


@dataclass(frozen=True, slots=True)
class Unsizable:
    """A model at a precision that cannot be sized, and why; it gives a refused row for every machine."""

    model: str
    precision: str
    machines: tuple[Machine, ...]
    gpu_counts: tuple[int, ...] | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """One model at one precision on one GPU."""

    model: Annotated[str, Doc("name as asked", example="meta-llama/Llama-3.1-70B-Instruct")]
    precision: Annotated[str, Doc("what the weights are quantised to", example="fp8")]
    gpu: Annotated[str, Doc("catalogue slug", example="h100-sxm")]
    instance: Annotated[str | None, Doc("the rentable machine, where one was named", example="aws/p5.48xlarge")]
    gpu_count: Annotated[int | None, Doc("the count judged, where counts were given", example=4)]
    plan: Annotated[Plan | None, Doc("the best plan by `rank_by`; null when nothing serves")]
    rejected: Annotated[tuple[Rejection, ...], Doc("one reason for each count tried that does not serve")]


@dataclass(frozen=True, slots=True)
class Best:
    """The row that is best in one respect."""

    row: Annotated[int, Doc("index into `rows`", example=0)]
    model: Annotated[str, Doc("its model")]
    precision: Annotated[str, Doc("its precision", example="fp8")]
    gpu: Annotated[str, Doc("its GPU", example="h200-sxm")]
    gpu_count: Annotated[int, Doc("its GPUs", example=1)]
    why: Annotated[str, Doc("in a sentence")]


@dataclass(frozen=True, slots=True)
class BestRows:
    """The best row in each respect; null where no row can be judged by it."""

    fewest_gpus: Annotated[Best | None, Doc("fewest GPUs, then the shorter time per token")]
    cost: Annotated[Best | None, Doc("lowest cost per hour, then the shorter time per token")]
    latency: Annotated[Best | None, Doc("shortest time per token, then fewer GPUs")]
    throughput: Annotated[Best | None, Doc("most output tokens a second, then fewer GPUs")]


@dataclass(frozen=True, slots=True)
class ParetoSets:
    """Priced rows that no other row beats in both respects, the cheapest first."""

    cost_latency: Annotated[tuple[int, ...], Doc("indices into `rows`: cost per hour against time per token")]
    cost_throughput: Annotated[tuple[int, ...], Doc("indices into `rows`: cost per hour against tokens a second")]


@dataclass(frozen=True, slots=True)
class PriceFlip:
    """How far one price must move before the cheapest row is another."""

    row: Annotated[int, Doc("index of the row whose price moves", example=1)]
    against: Annotated[int, Doc("index of the row it draws level with", example=0)]
    price_per_hour: Annotated[str, Doc("today's price of one machine", "USD/h", "55.04")]
    flips_at: Annotated[str, Doc("price at which both rows cost the same", "USD/h", "27.5200")]
    change: Annotated[float | None, Doc("the move as a share of today's price; -0.25: a quarter less", example=-0.5)]
    message: Annotated[str, Doc("in a sentence")]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer to a comparison."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    rules_version: Annotated[int, Doc("version of the sizing rules", example=1)]
    rows: Annotated[tuple[Row, ...], Doc("one for each model, precision and GPU (and count, where counts were given)")]
    best: Annotated[BestRows, Doc("the best row in each respect")]
    pareto: Annotated[ParetoSets, Doc("rows worth a look when two respects matter")]
    flips: Annotated[tuple[PriceFlip, ...], Doc("price moves that would change the cheapest row, the nearest first")]


def compare(questions: Iterable[Question | Unsizable], *, catalogue_revision: int, rules_version: int) -> Comparison:
    """All rows of the questions, each question one model at one precision, and the best of them."""
    compared = tuple(rows(questions))
    priced = [(index, row.plan) for index, row in enumerate(compared) if row.plan is not None and row.plan.cost]
    return Comparison(
        catalogue_revision=catalogue_revision,
        rules_version=rules_version,
        rows=compared,
        best=best_rows(compared),
        pareto=ParetoSets(
            cost_latency=_pareto(priced, time_per_token_ms),
            cost_throughput=_pareto(priced, lambda plan: _negative(tokens_per_second(plan))),
        ),
        flips=price_flips(priced),
    )


def rows(questions: Iterable[Question | Unsizable]) -> Iterator[Row]:
    """The rows of the questions one after the other, in the order of questions, machines and counts."""
    for question in questions:
        if isinstance(question, Unsizable):
            yield from _refused(question)
            continue
        searched = Searched(question)
        for machine in question.machines:
            counts = counts_of(question, machine)
            if question.layout is not None:
                counted = forced(question, machine, question.layout)
                yield _row(question, searched, [counted], counted.gpu_count if question.gpu_counts else None)
            elif question.gpu_counts is not None:
                for count in counts:
                    yield _row(question, searched, [searched.at_count(machine, count)], count)
            else:
                yield _row(question, searched, _tried(question, searched, machine, counts), None)


def _refused(question: Unsizable) -> Iterator[Row]:
    for machine in question.machines:
        for count in question.gpu_counts or (None,):
            refusal = Rejection(machine.gpu.slug, count, None, question.code, question.message, None, None)
            yield Row(question.model, question.precision, machine.gpu.slug, machine.instance, count, None, (refusal,))


def _tried(question: Question, searched: Searched, machine: Machine, counts: Sequence[int]) -> list[Counted]:
    """What the counts give; where the fewest GPUs win, none beyond the first that serves."""
    tried = list[Counted]()
    for count in counts:
        tried.append(searched.at_count(machine, count))
        if tried[-1].serves and question.rank_by is RankBy.FEWEST_GPUS:
            break
    return tried


def _row(question: Question, searched: Searched, tried: Sequence[Counted], gpu_count: int | None) -> Row:
    serving = sorted((each.feasible[0] for each in tried if each.serves), key=searched.order)
    return Row(
        model=question.model.name,
        precision=question.precision,
        gpu=tried[0].machine.gpu.slug,
        instance=tried[0].machine.instance,
        gpu_count=gpu_count,
        plan=present(serving[0], reasons_for(question, serving, tried)) if serving else None,
        rejected=tuple(with_fix(searched, each, each.rejection) for each in tried if each.rejection is not None),
    )


def cost_per_hour(plan: Plan) -> Decimal | None:
    """What the plan costs an hour; None without a price."""
    return None if plan.cost is None else Decimal(plan.cost.per_hour)


def time_per_token_ms(plan: Plan) -> float | None:
    """Predicted time per output token; None where it is not predicted."""
    return None if plan.latency.tpot_ms is None else plan.latency.tpot_ms.value


def tokens_per_second(plan: Plan) -> float | None:
    """Predicted output tokens a second of the whole plan; None where they are not predicted."""
    found = plan.throughput.output_tokens_per_second
    return None if found is None else found.value


def best_rows(compared: Sequence[Row]) -> BestRows:
    """The best row in each respect."""
    plans = [(index, row.plan) for index, row in enumerate(compared) if row.plan is not None]

    def best(key: Callable[[Plan], tuple[float | Decimal | None, ...]], why: Callable[[Plan], str]) -> Best | None:
        judged = [(key(plan), index, plan) for index, plan in plans]
        known = [(measures, index, plan) for measures, index, plan in judged if None not in measures]
        if not known:
            return None
        _, index, plan = min(known, key=lambda each: each[:2])
        row = compared[index]
        others = f" of {len(known)} rows" if len(known) > 1 else ", the only one"
        return Best(index, row.model, row.precision, row.gpu, plan.gpu_count, why(plan) + others)

    return BestRows(
        fewest_gpus=best(
            lambda plan: (plan.gpu_count, time_per_token_ms(plan) or 0.0), lambda plan: f"{_gpus(plan)}, the fewest"
        ),
        cost=best(
            lambda plan: (cost_per_hour(plan), time_per_token_ms(plan) or 0.0),
            lambda plan: f"{cost_per_hour(plan)} USD an hour, the least",
        ),
        latency=best(
            lambda plan: (time_per_token_ms(plan), plan.gpu_count),
            lambda plan: f"a token takes {time_per_token_ms(plan):.1f} ms, the least",
        ),
        throughput=best(
            lambda plan: (_negative(tokens_per_second(plan)), plan.gpu_count),
            lambda plan: f"{tokens_per_second(plan):.0f} output tokens a second, the most",
        ),
    )


def _gpus(plan: Plan) -> str:
    return f"{plan.gpu_count} GPU{'s' if plan.gpu_count > 1 else ''}"


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _pareto(priced: Sequence[tuple[int, Plan]], other: Callable[[Plan], float | None]) -> tuple[int, ...]:
    options = [
        (index, cost, measure)
        for index, plan in priced
        if (cost := cost_per_hour(plan)) is not None and (measure := other(plan)) is not None
    ]
    return tuple(option[0] for option in pareto(options, lambda option: option[1], lambda option: option[2]))


def price_flips(priced: Sequence[tuple[int, Plan]]) -> tuple[PriceFlip, ...]:
    """Price moves that would change the cheapest row, the nearest first: each rival's fall, and the cheapest's rise."""
    ordered = sorted(priced, key=lambda each: (cost_per_hour(each[1]) or Decimal(0), each[0]))
    if len(ordered) < 2:
        return ()
    cheapest, *rivals = ordered
    found = [_flip(cheapest, rivals[0], "rose"), *(_flip(rival, cheapest, "fell") for rival in rivals)]
    known = [flip for flip in found if flip is not None]
    return tuple(sorted(known, key=lambda flip: abs(flip.change or 0.0))[:MOST_FLIPS])


def _flip(mover: tuple[int, Plan], level: tuple[int, Plan], how: str) -> PriceFlip | None:
    (index, plan), (other, rival) = mover, level
    assert plan.cost is not None
    assert rival.cost is not None
    price = Decimal(plan.cost.price.per_hour)
    machines = Decimal(plan.cost.per_hour) / price
    flip: Flip | None = flip_price(price, machines, Decimal(rival.cost.per_hour))
    if flip is None:
        return None
    share = "" if flip.change is None else f" ({flip.change:+.0%})"
    return PriceFlip(
        row=index,
        against=other,
        price_per_hour=plan.cost.price.per_hour,
        flips_at=format(flip.price.quantize(SHOWN), "f"),
        change=None if flip.change is None else float(flip.change),
        message=f"{_gpus(plan)} of {plan.gpu} cost as much as {_gpus(rival)} of {rival.gpu} if the price of "
        f"{plan.cost.price.provider} {how} from {price} to {flip.price.quantize(SHOWN)} USD an hour{share}",
    )
