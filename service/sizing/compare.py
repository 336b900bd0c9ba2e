"""One workload over many models, precisions and machines: a row for each, and which is best for what."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from service.sizing.answer import Plan, PriceAnswer, Rejection
from service.sizing.cost import Flip, flip_price, pareto
from service.sizing.fixes import with_fix
from service.sizing.present import present
from service.sizing.pricing import shown
from service.sizing.quantities import Doc
from service.sizing.question import Machine, Question, RankBy
from service.sizing.search import reasons_for
from service.sizing.searched import Counted, Searched, counts_of, forced

MOST_FLIPS = 10


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
    price_per_hour: Annotated[str, Doc("today's price of one machine, as listed", "`currency`/h", "55.04")]
    flips_at: Annotated[
        str, Doc("price, of every such machine, at which both rows cost the same", "`currency`/h", "27.5200")
    ]
    currency: Annotated[str, Doc("of that list", example="USD")]
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


@dataclass(frozen=True, slots=True)
class Summary:
    """What is left to say when the rows of a comparison have been streamed."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    rules_version: Annotated[int, Doc("version of the sizing rules", example=1)]
    rows: Annotated[int, Doc("rows streamed; fewer lines than this were cut short", example=48)]
    best: Annotated[BestRows, Doc("the best row in each respect")]
    pareto: Annotated[ParetoSets, Doc("rows worth a look when two respects matter")]
    flips: Annotated[tuple[PriceFlip, ...], Doc("price moves that would change the cheapest row, the nearest first")]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a row with a plan is ranked by: little enough to keep of every row of a sweep."""

    index: int
    model: str
    precision: str
    gpu: str
    gpu_count: int
    cost_per_hour: Decimal | None
    currency: str
    price: PriceAnswer | None
    time_per_token_ms: float | None
    tokens_per_second: float | None

    @classmethod
    def of(cls, index: int, row: Row, plan: Plan) -> "Standing":
        """The standing of a row."""
        speed = plan.throughput.output_tokens_per_second
        return cls(
            index=index,
            model=row.model,
            precision=row.precision,
            gpu=row.gpu,
            gpu_count=plan.gpu_count,
            cost_per_hour=Decimal(plan.cost.per_hour) if plan.cost else None,
            currency=plan.cost.currency if plan.cost else "",
            price=plan.cost.price if plan.cost else None,
            time_per_token_ms=None if plan.latency.tpot_ms is None else plan.latency.tpot_ms.value,
            tokens_per_second=None if speed is None else speed.value,
        )


class Standings:
    """The rows of a comparison as they come, and what is best among them."""

    def __init__(self) -> None:
        self.rows = 0
        self._held = list[Standing]()

    def add(self, row: Row) -> None:
        """Take note of the next row."""
        if row.plan is not None:
            self._held.append(Standing.of(self.rows, row, row.plan))
        self.rows += 1

    def best(self) -> BestRows:
        """The best row in each respect."""
        return best_rows(self._held)

    def pareto(self) -> ParetoSets:
        """Priced rows that no other row beats in both respects."""
        return ParetoSets(
            cost_latency=_pareto(self._held, lambda each: each.time_per_token_ms),
            cost_throughput=_pareto(self._held, lambda each: _negative(each.tokens_per_second)),
        )

    def flips(self) -> tuple[PriceFlip, ...]:
        """Price moves that would change the cheapest row."""
        return price_flips(self._held)

    def summary(self, *, catalogue_revision: int, rules_version: int) -> Summary:
        """All of it, for the end of a stream."""
        return Summary(catalogue_revision, rules_version, self.rows, self.best(), self.pareto(), self.flips())


def compare(questions: Iterable[Question | Unsizable], *, catalogue_revision: int, rules_version: int) -> Comparison:
    """All rows of the questions, each question one model at one precision, and the best of them."""
    standings = Standings()
    compared = list[Row]()
    for cell in cells(questions):
        compared.append(cell.row())
        standings.add(compared[-1])
    return Comparison(
        catalogue_revision=catalogue_revision,
        rules_version=rules_version,
        rows=tuple(compared),
        best=standings.best(),
        pareto=standings.pareto(),
        flips=standings.flips(),
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One row that is asked for and not worked out yet."""

    question: Question | Unsizable
    machine: Machine
    gpu_count: int | None
    searched: Searched | None

    def row(self) -> Row:
        """The row."""
        question, machine, count = self.question, self.machine, self.gpu_count
        if isinstance(question, Unsizable):
            return self.refused(question.code, question.message)
        searched = self.searched
        assert searched is not None
        if question.layout is not None:
            counted = forced(question, machine, question.layout)
            return _row(question, searched, [counted], counted.gpu_count if question.gpu_counts else None)
        if count is not None:
            return _row(question, searched, [searched.at_count(machine, count)], count)
        return _row(question, searched, _tried(question, searched, machine, counts_of(question, machine)), None)

    def refused(self, code: str, message: str) -> Row:
        """The row where there is no answer but why."""
        question, machine, count = self.question, self.machine, self.gpu_count
        name = question.model if isinstance(question, Unsizable) else question.model.name
        refusal = Rejection(machine.gpu.slug, count, None, code, message, None, None)
        return Row(name, question.precision, machine.gpu.slug, machine.instance, count, None, (refusal,))


def cells(questions: Iterable[Question | Unsizable]) -> Iterator[Cell]:
    """The rows to work out one after the other, in the order of questions, machines and counts."""
    for question in questions:
        searched = None if isinstance(question, Unsizable) else Searched(question)
        given = isinstance(question, Question) and question.layout is not None
        for machine in question.machines:
            for count in (None,) if given else dict.fromkeys(question.gpu_counts or (None,)):
                yield Cell(question, machine, count, searched)


def _tried(question: Question, searched: Searched, machine: Machine, counts: Sequence[int]) -> list[Counted]:
    """What the counts give; where the fewest GPUs win, none beyond the first that serves."""
    tried = list[Counted]()
    for count in counts:
        tried.append(searched.at_count(machine, count))
        if tried[-1].serves and question.rank_by is RankBy.FEWEST_GPUS:
            break
    return tried


def _row(question: Question, searched: Searched, tried: Sequence[Counted], gpu_count: int | None) -> Row:
    serving = sorted((each.feasible[0] for each in searched.leading(tried, 1)), key=searched.order)
    return Row(
        model=question.model.name,
        precision=question.precision,
        gpu=tried[0].machine.gpu.slug,
        instance=tried[0].machine.instance,
        gpu_count=gpu_count,
        plan=present(serving[0], reasons_for(question, serving, tried)) if serving else None,
        rejected=tuple(with_fix(searched, each) for each in tried if each.refused is not None),
    )


def best_rows(standings: Sequence[Standing]) -> BestRows:
    """The best row in each respect."""

    def best(
        key: Callable[[Standing], tuple[float | Decimal | None, ...]], why: Callable[[Standing], str]
    ) -> Best | None:
        known = [(measures, each.index, each) for each in standings if None not in (measures := key(each))]
        if not known:
            return None
        _, index, found = min(known, key=lambda each: each[:2])
        others = f" of {len(known)} rows" if len(known) > 1 else ", the only one"
        return Best(index, found.model, found.precision, found.gpu, found.gpu_count, why(found) + others)

    return BestRows(
        fewest_gpus=best(
            lambda each: (each.gpu_count, each.time_per_token_ms or 0.0), lambda each: f"{_gpus(each)}, the fewest"
        ),
        cost=best(
            lambda each: (each.cost_per_hour, each.time_per_token_ms or 0.0),
            lambda each: f"{each.cost_per_hour} {each.currency} an hour, the least",
        ),
        latency=best(
            lambda each: (each.time_per_token_ms, each.gpu_count),
            lambda each: f"a token takes {each.time_per_token_ms:.1f} ms, the least",
        ),
        throughput=best(
            lambda each: (_negative(each.tokens_per_second), each.gpu_count),
            lambda each: f"{each.tokens_per_second:.0f} output tokens a second, the most",
        ),
    )


def _gpus(each: Standing) -> str:
    return f"{each.gpu_count} GPU{'s' if each.gpu_count > 1 else ''}"


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _pareto(standings: Sequence[Standing], other: Callable[[Standing], float | None]) -> tuple[int, ...]:
    options = [
        (each.index, each.cost_per_hour, measure)
        for each in standings
        if each.cost_per_hour is not None and (measure := other(each)) is not None
    ]
    return tuple(option[0] for option in pareto(options, lambda option: option[1], lambda option: option[2]))


def price_flips(standings: Sequence[Standing]) -> tuple[PriceFlip, ...]:
    """Price moves that would change the cheapest row, the nearest first: each rival's fall, and the cheapest's rise.

    Rows at one price move together, so it decides nothing between them.
    """
    priced = [(each.cost_per_hour, each.index, each) for each in standings if each.cost_per_hour is not None]
    ordered = [each for _, _, each in sorted(priced, key=lambda each: each[:2])]
    if not ordered:
        return ()
    cheapest = ordered[0]
    rivals = [each for each in ordered if each.price != cheapest.price]
    found = [_flip(rival, cheapest, _fall) for rival in rivals]
    if rivals:
        found.insert(0, _flip(cheapest, rivals[0], _rise))
    known = [flip for flip in found if flip is not None]
    return tuple(sorted(known, key=lambda flip: abs(flip.change or 0.0))[:MOST_FLIPS])


def _fall(price: PriceAnswer, flips_at: str) -> str:
    return f"the price of {price.provider} fell from {price.per_hour} to {flips_at} {price.currency}"


def _rise(price: PriceAnswer, flips_at: str) -> str:
    # Where one provider alone became dearer, the plan would move to the next.
    return (
        f"no such machine were to be had for less than {flips_at} {price.currency} ({price.provider}: {price.per_hour})"
    )


def _flip(mover: Standing, level: Standing, moves: Callable[[PriceAnswer, str], str]) -> PriceFlip | None:
    price, cost, target = mover.price, mover.cost_per_hour, level.cost_per_hour
    if price is None or cost is None or target is None:
        return None
    listed = Decimal(price.per_hour)
    flip: Flip | None = flip_price(listed, cost / listed, target) if listed else None
    if flip is None:
        return None
    share = "" if flip.change is None else f" ({flip.change:+.0%})"
    return PriceFlip(
        row=mover.index,
        against=level.index,
        price_per_hour=price.per_hour,
        flips_at=shown(flip.price),
        currency=price.currency,
        change=None if flip.change is None else float(flip.change),
        message=f"{_gpus(mover)} of {mover.gpu} cost as much as {_gpus(level)} of {level.gpu} if "
        f"{moves(price, shown(flip.price))} an hour{share}",
    )
