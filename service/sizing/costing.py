"""What carrying a traffic costs: copies of a plan, at each kind of price, owned, and beside hosted APIs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Annotated

from service.sizing.answer import ExchangeRateAnswer, Plan, PriceAnswer, Rejection
from service.sizing.cost import (
    HOURS_PER_MONTH,
    ExchangeRate,
    Fleet,
    HostedRate,
    KindCost,
    OwnedHardware,
    Replica,
    Traffic,
    break_even,
    cents,
    currency_of,
    exchanged_rate,
    fleet,
    grown,
    hosted_per_million_output_tokens,
    hosted_per_month,
    kinds_side_by_side,
    owned_per_hour,
    per_million_input_and_output,
    per_month,
    replica_requests_per_second,
    requests_per_month,
    tokens_per_month,
)
from service.sizing.cost.money import SECONDS_PER_HOUR
from service.sizing.cost.offer import Offer
from service.sizing.pricing import exchange_answer, plain, price_answer, shown
from service.sizing.quantities import Doc

OWNED = "owned"


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A hosted model and what it asks, in a currency of its own."""

    provider: str
    model: str
    currency: str
    rate: HostedRate
    observed_on: str
    source: str


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
    """

    traffic: Traffic
    utilisation: Decimal
    floor: int
    months: int
    output_weight: Decimal


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """The copies that the traffic needs."""

    replicas_peak: Annotated[int, Doc("most copies at once", example=4)]
    replicas_floor: Annotated[int, Doc("fewest copies at once", example=1)]
    replicas_by_hour: Annotated[tuple[int, ...], Doc("copies in each hour of a day")]
    gpus_at_peak: Annotated[int, Doc("GPUs of the most copies", example=16)]
    replica_requests_per_second: Annotated[str, Doc("requests one copy carries at the utilisation asked", "1/s", "1.2")]
    requests_per_month: Annotated[str, Doc("requests served", example="2190000")]
    output_tokens_per_month: Annotated[str, Doc("tokens generated", "tokens", "1095000000")]
    utilisation: Annotated[str, Doc("share of the copies' throughput used when scaled by the hour", example="0.52")]


@dataclass(frozen=True, slots=True)
class KindAnswer:
    """The fleet at one kind of price."""

    kind: Annotated[str, Doc("on_demand, spot, reserved_1y, ..., or owned", example="on_demand")]
    price: Annotated[PriceAnswer | None, Doc("the price used; null for owned hardware")]
    per_hour: Annotated[str, Doc("one copy", "`currency`/h", "55.04")]
    paid_hours_per_month: Annotated[str, Doc("copy-hours: all at the peak where committed, else scaled", example="730")]
    per_month: Annotated[str, Doc("the fleet", "`currency`", "40179.20")]
    per_year: Annotated[str, Doc("twelve such months", "`currency`", "482150.40")]
    per_million_output_tokens: Annotated[str | None, Doc("all cost on the output", "`currency`", "6.1150")]
    per_million_input: Annotated[str | None, Doc("prompt tokens, cost split by weight", "`currency`", "0.3000")]
    per_million_output: Annotated[str | None, Doc("output tokens, cost split by weight", "`currency`", "1.2000")]


@dataclass(frozen=True, slots=True)
class BreakEvenAnswer:
    """Where the cheapest kind of one's own copies is no dearer than a hosted model."""

    first_output_tokens_per_month: Annotated[
        str | None, Doc("volume from which one copy is; null: it is dearer even full", "tokens", "1000000000")
    ]
    lasting_output_tokens_per_month: Annotated[
        str | None, Doc("volume from which it stays so however many copies are added; null: never", "tokens")
    ]
    utilisation: Annotated[str, Doc("share of a copy's tokens that must be sold; above 1 it cannot", example="0.8")]


@dataclass(frozen=True, slots=True)
class HostedAnswer:
    """The same traffic at a hosted model; the prices of its list are in its `list_currency`."""

    provider: Annotated[str, Doc("who serves it", example="deepinfra")]
    model: Annotated[str, Doc("by the provider's own name", example="meta-llama/Llama-3.3-70B-Instruct")]
    list_currency: Annotated[str, Doc("of the provider's list", example="USD")]
    input_per_million: Annotated[str, Doc("a million prompt tokens, as listed", "`list_currency`", "0.23")]
    output_per_million: Annotated[str, Doc("a million output tokens, as listed", "`list_currency`", "0.4")]
    per_month: Annotated[str, Doc("the traffic", "`currency`", "1949.10")]
    per_million_output_tokens: Annotated[str, Doc("a million output tokens with their prompts", "`currency`", "1.7800")]
    break_even: Annotated[BreakEvenAnswer | None, Doc("against the cheapest kind of one's own; null without one")]
    observed_on: Annotated[str, Doc("when the price was seen", example="2026-11-01")]
    source: Annotated[str, Doc("where it was seen")]


@dataclass(frozen=True, slots=True)
class LaterAnswer:
    """The same after some months of growth."""

    months: Annotated[int, Doc("months from now", example=12)]
    replicas_peak: Annotated[int, Doc("most copies at once", example=7)]
    kind: Annotated[str | None, Doc("the cheapest kind then; null without a price", example="reserved_1y")]
    per_month: Annotated[str | None, Doc("the fleet at that kind", "`currency`", "70000.00")]


@dataclass(frozen=True, slots=True)
class CostComparison:
    """The answer to a cost request; its sums are in `currency`."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    rules_version: Annotated[int, Doc("version of the sizing rules", example=1)]
    currency: Annotated[str, Doc("of all sums: USD, unless an exchange rate was given", example="USD")]
    exchange_rate: Annotated[ExchangeRateAnswer | None, Doc("at which USD were converted; null: they were not")]
    plan: Annotated[Plan | None, Doc("one copy; null when nothing serves")]
    rejected: Annotated[tuple[Rejection, ...], Doc("why not, where nothing serves")]
    fleet: Annotated[FleetAnswer | None, Doc("copies of the plan that carry the traffic")]
    kinds: Annotated[tuple[KindAnswer, ...], Doc("the fleet at each kind of price known, the cheapest first")]
    hosted: Annotated[tuple[HostedAnswer, ...], Doc("the traffic at hosted models, the cheapest first")]
    later: Annotated[LaterAnswer | None, Doc("after the months asked; null where none were")]
    warnings: Annotated[tuple[str, ...], Doc("what to know")]


def cost(
    plan: Plan,
    load: Load,
    *,
    offers: Mapping[str, tuple[Offer, Decimal]],
    owned: OwnedHardware | None,
    hosted: Sequence[HostedModel],
    exchange_rate: ExchangeRate | None,
    catalogue_revision: int,
    rules_version: int,
) -> CostComparison:
    """What carrying a load on copies of a plan costs.

    Parameters
    ----------
    offers : mapping of str to (Offer, Decimal)
        Kind -> the offer that carries one copy for the least, and the copy's cost per hour.
    owned : OwnedHardware, optional
        Hardware of one copy, in the currency of the answer, as the offers are.
    exchange_rate : ExchangeRate, optional
        From USD to that currency, where it is another.

    Raises
    ------
    InvalidCostInput
        The traffic cannot be computed with.
    """
    per_hour = {kind: paid for kind, (_, paid) in offers.items()}
    if owned is not None:
        per_hour[OWNED] = owned_per_hour(owned)
    replica = Replica(Decimal(0), copy_tokens_per_second(plan, load.traffic.output_tokens))
    needed = fleet(load.traffic, replica, target_utilisation=load.utilisation, floor=load.floor)
    kinds = kinds_side_by_side(needed, per_hour)
    later = None
    if load.months:
        then = fleet(grown(load.traffic, load.months), replica, target_utilisation=load.utilisation, floor=load.floor)
        best = next(iter(kinds_side_by_side(then, per_hour)), None)
        later = LaterAnswer(
            load.months, then.peak, best.kind if best else None, plain(cents(best.per_month)) if best else None
        )
    made = tokens_per_month(replica.output_tokens_per_s, load.utilisation)
    cheapest_copy = min(per_hour.values(), default=None)
    return CostComparison(
        catalogue_revision=catalogue_revision,
        rules_version=rules_version,
        currency=currency_of(exchange_rate),
        exchange_rate=exchange_answer(exchange_rate),
        plan=plan,
        rejected=(),
        fleet=_fleet_answer(plan, load, replica, needed),
        kinds=tuple(_kind_answer(each, load, needed, offers.get(each.kind)) for each in kinds),
        hosted=_hosted_answers(hosted, exchange_rate, load.traffic, cheapest_copy, made),
        later=later,
        warnings=_warnings(needed, kinds, hosted),
    )


def copy_tokens_per_second(plan: Plan, output_tokens: int) -> float:
    """Output tokens a second that one copy of a plan makes: within what is promised, else at the workload's load."""
    if plan.objectives is not None and plan.objectives.requests_per_second:
        return plan.objectives.requests_per_second * output_tokens
    speed = plan.throughput.output_tokens_per_second
    return speed.value if speed else 0.0


def _fleet_answer(plan: Plan, load: Load, replica: Replica, needed: Fleet) -> FleetAnswer:
    carries = replica_requests_per_second(replica, load.traffic.output_tokens, load.utilisation)
    return FleetAnswer(
        replicas_peak=needed.peak,
        replicas_floor=needed.floor,
        replicas_by_hour=needed.replicas,
        gpus_at_peak=needed.peak * plan.gpu_count,
        replica_requests_per_second=shown(carries),
        requests_per_month=_whole(requests_per_month(load.traffic)),
        output_tokens_per_month=_whole(needed.output_tokens_per_month),
        utilisation=shown(needed.utilisation),
    )


def _kind_answer(row: KindCost, load: Load, needed: Fleet, offer: tuple[Offer, Decimal] | None) -> KindAnswer:
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
        price=None if offer is None else price_answer(offer[0]),
        per_hour=shown(row.per_hour),
        paid_hours_per_month=shown(row.hours_per_month),
        per_month=plain(cents(row.per_month)),
        per_year=plain(cents(row.per_month * 12)),
        per_million_output_tokens=None if each is None else shown(each),
        per_million_input=None if split is None else shown(split[0]),
        per_million_output=None if split is None else shown(split[1]),
    )


def _hosted_answers(
    hosted: Sequence[HostedModel],
    exchange_rate: ExchangeRate | None,
    traffic: Traffic,
    copy_per_hour: Decimal | None,
    made: Decimal,
) -> tuple[HostedAnswer, ...]:
    found = list[tuple[Decimal, HostedAnswer]]()
    for each in hosted:
        rate = exchanged_rate(each.rate, each.currency, exchange_rate)
        asked = hosted_per_million_output_tokens(
            rate, traffic.prompt_tokens, traffic.output_tokens, traffic.cached_fraction
        )
        month = hosted_per_month(rate, traffic)
        meets = None
        if copy_per_hour is not None:
            even = break_even(per_month(copy_per_hour), made, asked)
            meets = BreakEvenAnswer(
                None if even.first is None else _whole(even.first),
                None if even.lasting is None else _whole(even.lasting),
                shown(even.utilisation),
            )
        answer = HostedAnswer(
            provider=each.provider,
            model=each.model,
            list_currency=each.currency,
            input_per_million=plain(each.rate.input_per_million),
            output_per_million=plain(each.rate.output_per_million),
            per_month=plain(cents(month)),
            per_million_output_tokens=shown(asked),
            break_even=meets,
            observed_on=each.observed_on,
            source=each.source,
        )
        found.append((month, answer))
    return tuple(answer for _, answer in sorted(found, key=lambda each: (each[0], each[1].provider, each[1].model)))


def _warnings(needed: Fleet, kinds: Sequence[KindCost], hosted: Sequence[HostedModel]) -> tuple[str, ...]:
    lines = list[str]()
    if not kinds:
        lines.append("no price of a machine that holds the plan is known, so only hosted models are priced")
    if needed.peak > needed.floor:
        lines.append("copies are scaled by the hour; a copy that starts takes minutes before it serves")
    if any(row.kind == "spot" for row in kinds):
        lines.append("spot machines are taken back at short notice; their interruptions are not counted")
    if hosted:
        lines.append("hosted models may be quantised or limited otherwise than the plan: compare their answers too")
    return tuple(lines)


def _whole(value: Decimal) -> str:
    return plain(value.quantize(Decimal(1), ROUND_HALF_EVEN))
