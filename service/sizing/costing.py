"""What carrying a traffic costs: copies of a plan, at each kind of price, owned, and beside hosted APIs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TypeVar

from service.sizing.answer import Rejection
from service.sizing.cost import (
    HOURS_PER_MONTH,
    OWNED,
    ExchangeRate,
    Fleet,
    HostedRate,
    KindCost,
    MachineRate,
    OwnedHardware,
    Replica,
    Traffic,
    break_even,
    cents,
    copies_on_one,
    currency_of,
    exchanged_rate,
    fleet,
    grown,
    hosted_per_million_output_tokens,
    hosted_per_month,
    kinds_side_by_side,
    machines_needed,
    owned_per_hour,
    per_million_input_and_output,
    per_month,
    rented,
    replica_requests_per_second,
    requests_per_month,
    tokens_per_month,
)
from service.sizing.cost.money import SECONDS_PER_HOUR
from service.sizing.cost.offer import Offer, holding
from service.sizing.cost_answers import (
    BreakEvenAnswer,
    CostComparison,
    FleetAnswer,
    HostedAnswer,
    KindAnswer,
    LaterAnswer,
    OtherFleetAnswer,
)
from service.sizing.engine.refusal import Refusal
from service.sizing.judge import Feasible, Refused, judge, layout_answer, rejection
from service.sizing.present import present
from service.sizing.pricing import OLD_DAYS, exchange_answer, plain, price_answer, seen_long_ago, shown
from service.sizing.promises import are_asked, objectives_answer
from service.sizing.question import Machine, Question, RankBy
from service.sizing.search import MOST_ALTERNATIVES, tried
from service.sizing.searched import verdict_on
from service.sizing.times import copy, token_ms, tokens_per_second


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A hosted model and what it asks, in a currency of its own.

    Attributes
    ----------
    age_days : int
        Days from the price to the day asked for, or to the newest price known.
    ends_on : str or None
        Day (YYYY-MM-DD) on which its provider stops serving it; None if not known.
    """

    provider: str
    model: str
    currency: str
    rate: HostedRate
    observed_on: str
    source: str
    age_days: int
    ends_on: str | None


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be carried, and how.

    Attributes
    ----------
    traffic : Traffic
        A day of requests.
    utilisation : Decimal
        Share of a copy's throughput that it is planned for.
    floor : int
        Copies kept without load.
    months : int
        How far ahead to look.
    output_weight : Decimal
        Prompt tokens that an output token weighs where cost is split.
    fills_copies : bool
        Whether a copy is loaded with as many requests at once as it runs: nothing says how many it is to carry.
    """

    traffic: Traffic
    utilisation: Decimal
    floor: int
    months: int
    output_weight: Decimal
    fills_copies: bool


UNPRICED = Decimal("Infinity")

BY_COPIES = (RankBy.COST, RankBy.FEWEST_GPUS)
"""Rankings that the copies a traffic needs decide; the others are of one copy."""

Each = TypeVar("Each")

OffersOf = Callable[[Machine], Mapping[str, Sequence[Offer]]]
OwnedFor = Callable[[Feasible], OwnedHardware | None]


@dataclass(frozen=True, slots=True, eq=False)
class Carrier:
    """A plan with the copies of it that carry a load.

    Attributes
    ----------
    found : Feasible
        One copy, judged under the load it is planned for.
    kinds : tuple of KindCost
        The fleet at each kind of price, the cheapest first.
    """

    found: Feasible
    replica: Replica
    needed: Fleet
    kinds: tuple[KindCost, ...]

    @property
    def gpus_at_peak(self) -> int:
        """GPUs of the most copies at once."""
        return self.needed.peak * self.found.layout.gpu_count

    def per_month(self, kind: str) -> Decimal | None:
        """The fleet at a kind of price; None without one."""
        return next((row.per_month for row in self.kinds if row.kind == kind), None)


def cost(
    question: Question,
    load: Load,
    *,
    kind: str,
    offers_of: OffersOf,
    owned_for: OwnedFor,
    hosted: Sequence[HostedModel],
    left_out: Sequence[str] = (),
) -> CostComparison:
    """What carrying a load on copies of a plan costs.

    The copies are those of the layout that carries it best, of every GPU type and count (`Tried.copies`): on the fewest
    GPUs at the peak, or for the least a month under `rank_by: cost`; under `latency` and `throughput` those of the plan
    that is recommended without a traffic. Of each GPU type and count the best is compared.

    Parameters
    ----------
    kind : str
        Kind of price that `rank_by: cost` goes by.
    offers_of : callable
        Machine -> kind of price -> offers of it.
    owned_for : callable
        One copy -> the hardware one owns to run it, or None.
    left_out : sequence of str
        Currencies of prices that no rate was given for.

    Raises
    ------
    InvalidCostInput
        The traffic cannot be computed with.
    """
    found, rate = tried(question), question.exchange_rate
    copies = [each for each in found.copies if copy(each) is not None]
    untimed = first_of_counts([each for each in found.copies if copy(each) is None], lambda each: each)
    if not copies:
        return CostComparison(
            catalogue_revision=question.catalogue_revision,
            rules_version=question.rules_version,
            currency=currency_of(rate),
            exchange_rate=exchange_answer(rate),
            plan=None,
            rejected=(*map(_no_speed, untimed), *found.rejected),
            fleet=None,
            kinds=(),
            hosted=(),
            later=None,
            alternatives=(),
            warnings=("no plan serves the workload, so there is nothing to price",),
        )
    if question.rank_by not in BY_COPIES:
        copies = first_of_counts(copies, lambda each: each)
    weighed = [carrier_of(filled(each) if load.fills_copies else each, load, offers_of) for each in copies]
    offered = first_of_counts(sorted(weighed, key=_order(question, kind)), lambda each: each.found)
    chosen, *others = (replace(each, found=at_most_promised(each.found)) for each in offered[: MOST_ALTERNATIVES + 1])
    owned = owned_for(chosen.found)
    best = carrier_of(chosen.found, load, offers_of, owned)
    return CostComparison(
        catalogue_revision=question.catalogue_revision,
        rules_version=question.rules_version,
        currency=currency_of(rate),
        exchange_rate=exchange_answer(rate),
        plan=present(best.found, _why(question, best, len(offered))),
        rejected=(),
        fleet=_fleet_answer(best, load),
        kinds=tuple(_kind_answer(each, load, best.needed) for each in best.kinds),
        hosted=_hosted_answers(hosted, rate, load, best),
        later=_later(best, load, offers_of, owned),
        alternatives=tuple(_other(each, kind) for each in others),
        warnings=(*_untimed_warning(untimed), *_warnings(best, load, hosted, left_out)),
    )


def first_of_counts(ranked: Iterable[Each], found_of: Callable[[Each], Feasible]) -> list[Each]:
    """The first of each GPU type and count, in the order given."""
    kept = dict[tuple[int, int], Each]()
    for each in ranked:
        found = found_of(each)
        kept.setdefault((id(found.machine), found.layout.gpu_count), each)
    return list(kept.values())


def at_most_promised(found: Feasible) -> Feasible:
    """A layout judged with the most arrivals that keep what is promised; as it is where nothing is, or for people."""
    promised, workload = objectives_answer(found), found.question.workload
    if promised is None or workload.people is not None or not promised.requests_per_second:
        return found
    most = replace(workload, requests_per_second=promised.requests_per_second)
    held = verdict_on(replace(found.question, workload=most), found.machine, found.layout)
    return held if isinstance(held, Feasible) else found


def filled(found: Feasible) -> Feasible:
    """A layout judged with as many requests at once as it holds and runs."""
    one, workload = copy(found), found.question.workload
    assert one is not None, found
    full = max(workload.concurrent_sequences, int(one.limit) * found.layout.data_parallel_size)
    question = replace(found.question, workload=replace(workload, concurrent_sequences=full))
    held = judge(question, found.machine, found.layout)
    assert isinstance(held, Feasible), held
    return held


def carrier_of(found: Feasible, load: Load, offers_of: OffersOf, owned: OwnedHardware | None = None) -> Carrier:
    """The copies of a plan that carry a load, at each kind of price."""
    size, machine = found.layout.gpu_count, found.machine
    rates: dict[str, Iterable[MachineRate]] = {
        kind: rented(holding(offers, size, machine.gpus_per_node)) for kind, offers in offers_of(machine).items()
    }
    if owned is not None:
        rates[OWNED] = (MachineRate(owned.gpu_count, owned_per_hour(owned)),)
    replica = Replica(copy_tokens_per_second(found))
    needed = fleet(load.traffic, replica, target_utilisation=load.utilisation, floor=load.floor)
    return Carrier(found, replica, needed, kinds_side_by_side(needed, size, rates))


def copy_tokens_per_second(found: Feasible) -> float:
    """Output tokens a second that one copy of a plan makes: within what is promised, else at the workload's load."""
    promised = objectives_answer(found)
    if promised is not None and promised.requests_per_second:
        return promised.requests_per_second * found.question.workload.output_tokens
    return tokens_per_second(found)


def _order(question: Question, kind: str) -> Callable[[Carrier], Decimal]:
    """What makes one carrier better than another; equal ones stay in the order of their plans."""
    if question.rank_by is RankBy.COST:
        return lambda each: UNPRICED if (month := each.per_month(kind)) is None else month
    if question.rank_by is RankBy.FEWEST_GPUS:
        return lambda each: Decimal(each.gpus_at_peak)
    return lambda _: Decimal(0)


def _no_speed(found: Feasible) -> Rejection:
    """Why no copies of a layout are counted that no time is predicted of."""
    name = found.machine.gpu.name
    message = f"the rated speed of {name} is not known, so how much a copy carries is not"
    refused = Refused(found.layout, Refusal("no_time_predicted", message))
    return rejection(found.machine.gpu, refused, "choose a GPU whose speed is known")


def _untimed_warning(untimed: Sequence[Feasible]) -> tuple[str, ...]:
    names = dict.fromkeys(each.machine.gpu.name for each in untimed)
    return tuple(
        f"{name} is left out: its rated speed is not known, so how much a copy carries is not" for name in names
    )


def _why(question: Question, best: Carrier, compared: int) -> tuple[str, ...]:
    copies = "1 copy carries" if best.needed.peak == 1 else f"{best.needed.peak} copies carry"
    if compared == 1 or question.rank_by not in BY_COPIES:
        return (f"{copies} the traffic at its peak",)
    what = "for the least a month" if question.rank_by is RankBy.COST else "on the fewest GPUs"
    return (f"{copies} the traffic at its peak, {what} of {compared} plans",)


def _fleet_answer(best: Carrier, load: Load) -> FleetAnswer:
    carries = replica_requests_per_second(best.replica, load.traffic.output_tokens, load.utilisation)
    return FleetAnswer(
        replicas_peak=best.needed.peak,
        replicas_floor=best.needed.floor,
        replicas_by_hour=best.needed.replicas,
        gpus_at_peak=best.gpus_at_peak,
        replica_concurrent_sequences=best.found.question.workload.concurrent_sequences,
        replica_requests_per_second=shown(carries),
        requests_per_month=_whole(requests_per_month(load.traffic)),
        output_tokens_per_month=_whole(best.needed.output_tokens_per_month),
        utilisation=shown(best.needed.utilisation),
    )


def _kind_answer(row: KindCost, load: Load, needed: Fleet) -> KindAnswer:
    split = None
    seconds = HOURS_PER_MONTH * SECONDS_PER_HOUR
    served = needed.output_tokens_per_month
    if served and load.traffic.prompt_tokens:
        prompts = requests_per_month(load.traffic) * load.traffic.prompt_tokens
        split = per_million_input_and_output(
            row.per_month / HOURS_PER_MONTH, prompts / seconds, served / seconds, output_weight=load.output_weight
        )
    each = row.per_million_output_tokens
    return KindAnswer(
        kind=row.kind,
        price=None if row.machine.offer is None else price_answer(row.machine.offer),
        machines_at_peak=row.machines,
        per_hour=shown(row.per_hour),
        machine_hours_per_month=shown(row.machine_hours_per_month),
        per_month=plain(cents(row.per_month)),
        per_year=plain(cents(row.per_month * 12)),
        per_million_output_tokens=None if each is None else shown(each),
        per_million_input=None if split is None else shown(split[0]),
        per_million_output=None if split is None else shown(split[1]),
    )


def _later(best: Carrier, load: Load, offers_of: OffersOf, owned: OwnedHardware | None) -> LaterAnswer | None:
    if not load.months:
        return None
    then = carrier_of(best.found, replace(load, traffic=grown(load.traffic, load.months)), offers_of, owned)
    kind = next(iter(then.kinds), None)
    return LaterAnswer(
        load.months, then.needed.peak, kind.kind if kind else None, plain(cents(kind.per_month)) if kind else None
    )


def _other(each: Carrier, kind: str) -> OtherFleetAnswer:
    month = each.per_month(kind)
    return OtherFleetAnswer(
        gpu=each.found.machine.gpu.slug,
        gpu_count=each.found.layout.gpu_count,
        layout=layout_answer(each.found.layout),
        replicas_peak=each.needed.peak,
        gpus_at_peak=each.gpus_at_peak,
        per_month=None if month is None else plain(cents(month)),
        tpot_ms=token_ms(each.found),
    )


def _hosted_answers(
    hosted: Sequence[HostedModel], exchange_rate: ExchangeRate | None, load: Load, best: Carrier
) -> tuple[HostedAnswer, ...]:
    traffic, found = load.traffic, list[tuple[Decimal, HostedAnswer]]()
    for each in hosted:
        rate = exchanged_rate(each.rate, each.currency, exchange_rate)
        asked = hosted_per_million_output_tokens(
            rate, traffic.prompt_tokens, traffic.output_tokens, traffic.cached_fraction
        )
        month = hosted_per_month(rate, traffic)
        answer = HostedAnswer(
            provider=each.provider,
            model=each.model,
            list_currency=each.currency,
            input_per_million=plain(each.rate.input_per_million),
            output_per_million=plain(each.rate.output_per_million),
            per_month=plain(cents(month)),
            per_million_output_tokens=shown(asked),
            break_even=_break_even(best, load, asked),
            observed_on=each.observed_on,
            source=each.source,
            ends_on=each.ends_on,
        )
        found.append((month, answer))
    return tuple(answer for _, answer in sorted(found, key=lambda each: (each[0], each[1].provider, each[1].model)))


def _break_even(best: Carrier, load: Load, asked: Decimal) -> BreakEvenAnswer | None:
    """Machines of the cheapest kind against a hosted price per million output tokens; None without a price."""
    if not best.kinds:
        return None
    machine, size = best.kinds[0].machine, best.found.layout.gpu_count
    copies = copies_on_one(size, machine.gpu_count)
    made = tokens_per_month(best.replica.output_tokens_per_s, load.utilisation) * max(1, copies)
    paid = per_month(machine.per_hour * (1 if copies else machines_needed(size, machine.gpu_count)))
    even = break_even(paid, made, asked)
    return BreakEvenAnswer(
        None if even.first is None else _whole(even.first),
        None if even.lasting is None else _whole(even.lasting),
        shown(even.utilisation),
    )


def _warnings(best: Carrier, load: Load, hosted: Sequence[HostedModel], left_out: Sequence[str]) -> tuple[str, ...]:
    lines, needed, found = list[str](), best.needed, best.found
    if load.fills_copies:
        lines.append(
            f"no load of a copy is given, so each is planned full, with {found.question.workload.concurrent_sequences} "
            f"requests at once; a token then takes {token_ms(found):.1f} ms. Give objectives to hold times, or "
            "workload.concurrent_sequences"
        )
    elif fewer := _if_filled(best, load):
        lines.append(
            f"a copy is planned for {found.question.workload.concurrent_sequences} requests at once, as asked; full, "
            f"{fewer.needed.peak} would do where {needed.peak} are planned, and a token would take "
            f"{token_ms(fewer.found):.1f} ms instead of {token_ms(found):.1f} ms"
        )
    if not best.kinds:
        lines.append("no price of a machine that holds the plan is known, so only hosted models are priced")
    if needed.peak > needed.floor:
        lines.append("copies are scaled by the hour; a copy that starts takes minutes before it serves")
    if any(row.kind == "spot" for row in best.kinds):
        lines.append("spot machines are taken back at short notice; their interruptions are not counted")
    lines += [
        f"the {row.kind} price was {seen_long_ago(offer.observed_on, offer.age_days)}"
        for row in best.kinds
        if (offer := row.machine.offer) is not None and offer.age_days > OLD_DAYS
    ]
    lines += [
        f"the price of {each.model} at {each.provider} was {seen_long_ago(each.observed_on, each.age_days)}"
        for each in hosted
        if each.age_days > OLD_DAYS
    ]
    if left_out:
        lines.append(f"prices in {' and '.join(left_out)} are left out: give prices.exchange_rate to see them too")
    if hosted:
        lines.append("hosted models may be quantised or limited otherwise than the plan: compare their answers too")
    return tuple(lines)


def _if_filled(best: Carrier, load: Load) -> Carrier | None:
    """The same plan with its copies full, where that breaks no promise and fewer of them would do."""
    if are_asked(best.found.question) or best.found.question.workload.people is not None:
        return None
    full = carrier_of(filled(best.found), load, lambda _: {})
    return full if full.needed.peak < best.needed.peak else None


def _whole(value: Decimal) -> str:
    return plain(value.quantize(Decimal(1), ROUND_HALF_EVEN))
