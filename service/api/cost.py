"""POST /cost: what carrying a traffic costs."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from litestar import Request, Response
from pydantic import Field

from service.api import responding
from service.api.contract import INTEGRAL, MAX_NAMES, Contract, Count, Number, PlanRequest, Text
from service.api.operation import Operation
from service.api.plans import question_of
from service.api.pricing import offers_of, other_currencies_of, wanted_of
from service.api.problems import FieldError, invalid, unknown
from service.api.reading import read_body, read_bytes, require_json
from service.catalogue.records.price import HostedPrice, PriceKind, hosted_model_key
from service.catalogue.snapshot import Snapshot
from service.sizing.cost import (
    HostedRate,
    InvalidCostInput,
    OwnedHardware,
    Traffic,
    is_exchangeable,
    steady_traffic,
    traffic_of_volume,
)
from service.sizing.cost.offer import Offer
from service.sizing.cost_answers import CostComparison
from service.sizing.costing import HostedModel, Load, cost
from service.sizing.judge import Feasible
from service.sizing.question import Machine, Question

MOST_MONEY = 1_000_000_000_000

Money = Annotated[Decimal, Field(ge=0, le=MOST_MONEY, allow_inf_nan=False, max_digits=24, strict=False)]
Share = Annotated[Number, Field(gt=0, le=1)]


class TrafficRequest(Contract):
    """How much is asked of the deployment; give either a rate or a volume."""

    requests_per_second: Annotated[Number, Field(ge=1e-9, le=1_000_000)] | None = Field(
        default=None, description="requests in each busy hour (1/s)", examples=[2.5]
    )
    output_tokens_per_month: Annotated[Number, Field(ge=1, le=1e18)] | None = Field(
        default=None, description="tokens generated in a month of 730 hours", examples=[1_000_000_000]
    )
    hours_per_day: Annotated[int, Field(ge=1, le=24), INTEGRAL] = Field(
        default=24, description="busy hours of each day; none in the others", examples=[10]
    )
    cached_fraction: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=0, description="share of prompt tokens that a hosted provider's cache already holds"
    )
    growth_per_month: Annotated[Number, Field(gt=-1, le=10)] = Field(
        default=0, description="0.05: five per cent more each month"
    )


class OwnedRequest(Contract):
    """A machine one buys; sums are in USD, or in the currency of `prices.exchange_rate`."""

    capital: Money = Field(description="price of the machine with its share of the network", examples=["280000"])
    gpu_count: Count | None = Field(
        default=None, description="GPUs of the machine, which copies share; null: those of one copy", examples=[8]
    )
    years: Annotated[Number, Field(ge=0.1, le=50)] = Field(description="over which it is written off", examples=[4])
    price_per_kwh: Money = Field(description="electricity (per kWh)", examples=["0.12"])
    pue: Annotated[Number, Field(ge=1, le=10)] = Field(
        default=1.3, description="power of the whole hall over that of its machines"
    )
    gpu_tdp_w: Annotated[Number, Field(gt=0, le=100_000)] | None = Field(
        default=None, description="rated power of one GPU (W); null: the catalogue's", examples=[700]
    )
    host_w: Annotated[Number, Field(ge=0, le=1_000_000)] = Field(
        default=0, description="power of the rest of the machines (W)", examples=[2000]
    )
    power_fraction: Share = Field(default=1, description="mean draw as a share of that power")
    residual: Money = Field(default=Decimal(0), description="what the hardware is worth at the end")
    upkeep_per_year: Money = Field(default=Decimal(0), description="support, space, staff")


class CostRequest(PlanRequest):
    """A plan request, and the traffic that copies of the plan carry."""

    traffic: TrafficRequest = Field(description="how much is asked of it")
    utilisation: Share = Field(
        default=0.7, description="share of a copy's throughput it is planned for; the rest takes bursts"
    )
    floor: Annotated[int, Field(ge=0, le=1_000_000), INTEGRAL] = Field(
        default=1, description="copies kept without load; 0: the first request waits for a start"
    )
    months: Annotated[int, Field(ge=0, le=120), INTEGRAL] = Field(
        default=0, description="how far ahead to look with the growth given"
    )
    output_weight: Annotated[Number, Field(gt=0, le=1000)] = Field(
        default=4, description="prompt tokens that an output token weighs where cost is split"
    )
    hosted: Annotated[list[Text], Field(max_length=MAX_NAMES)] | None = Field(
        default=None,
        description="hosted models to set beside it, however providers spell them; null: the model of the plan",
        examples=[["Llama-3.3-70B-Instruct"]],
    )
    owned: OwnedRequest | None = Field(default=None, description="hardware one buys, as a further kind of price")


async def post_cost(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answer a cost request."""
    require_json(request)
    snapshot: Snapshot = request.app.state.snapshot
    asked = read_body(await read_bytes(request), CostRequest)
    question = question_of(asked, snapshot)
    load = load_of(asked, question)
    try:
        priced = cost(
            question,
            load,
            kind=asked.prices.kind,
            offers_of=lambda machine: offers_by_kind(machine, asked, snapshot),
            owned_for=lambda found: owned_of(found, asked, snapshot),
            hosted=tuple(hosted_models(asked, question, snapshot)),
            left_out=left_out(asked, question, snapshot),
        )
    except InvalidCostInput as error:
        raise invalid((_at_fault(asked.traffic, error),)) from None
    return responding.answer(responding.ENCODER.encode(priced), snapshot.revision)


def load_of(asked: CostRequest, question: Question) -> Load:
    """The load that a request describes.

    Raises
    ------
    Problem
        400: neither or both of rate and volume, or a traffic that cannot be computed with.
    """
    given = asked.traffic
    if (given.requests_per_second is None) == (given.output_tokens_per_month is None):
        raise invalid((FieldError("traffic", "give either requests_per_second or output_tokens_per_month"),))
    return Load(
        traffic=_traffic(given, question),
        utilisation=Decimal(str(asked.utilisation)),
        floor=asked.floor,
        months=asked.months,
        output_weight=Decimal(str(asked.output_weight)),
        fills_copies=not says_load(asked),
    )


def says_load(asked: CostRequest) -> bool:
    """Whether a request says, itself or by the times it promises, how many requests a copy is to carry at once."""
    given, workload = asked.objectives, asked.workload
    return (
        "concurrent_sequences" in workload.model_fields_set
        or workload.requests_per_second is not None
        or workload.people is not None
        or given.ttft_ms is not None
        or given.tpot_ms is not None
    )


def _traffic(given: TrafficRequest, question: Question) -> Traffic:
    workload = question.workload
    try:
        if given.requests_per_second is not None:
            return steady_traffic(
                given.requests_per_second,
                workload.prompt_tokens,
                workload.output_tokens,
                hours_per_day=given.hours_per_day,
                cached_fraction=given.cached_fraction,
                growth_per_month=given.growth_per_month,
            )
        return traffic_of_volume(
            given.output_tokens_per_month or 0,
            workload.prompt_tokens,
            workload.output_tokens,
            hours_per_day=given.hours_per_day,
            cached_fraction=given.cached_fraction,
            growth_per_month=given.growth_per_month,
        )
    except InvalidCostInput as error:
        raise invalid((_at_fault(given, error),)) from None


def _at_fault(given: TrafficRequest, error: InvalidCostInput) -> FieldError:
    """The field of the request behind a traffic that cannot be computed with."""
    volume = error.field == "requests_per_second" and given.requests_per_second is None
    field = "output_tokens_per_month" if volume else error.field
    return FieldError(f"traffic.{field}", str(error).removeprefix(f"{error.field}: "))


def offers_by_kind(machine: Machine, asked: CostRequest, snapshot: Snapshot) -> Mapping[str, tuple[Offer, ...]]:
    """For each kind of price the offers of a machine, the cheapest of each size."""
    wanted = wanted_of(asked.prices, snapshot)
    return {kind.value: offers_of(replace(wanted, kind=kind), machine, snapshot) for kind in PriceKind}


def owned_of(found: Feasible, asked: CostRequest, snapshot: Snapshot) -> OwnedHardware | None:
    """The machine that a request describes, as large as one copy unless it says.

    Raises
    ------
    Problem
        400: the catalogue does not know the power of the GPU, and the request does not say.
    """
    given = asked.owned
    if given is None:
        return None
    gpu, tdp = found.machine.gpu, given.gpu_tdp_w
    if tdp is None:
        figure = snapshot.gpu(gpu.slug).figures.get("tdp_w")
        tdp = None if figure is None else figure.value
    if tdp is None:
        raise invalid((FieldError("owned.gpu_tdp_w", f"is missing: the power of {gpu.name} is not known"),))
    if given.residual > given.capital:
        message = f"{given.residual} is above the capital of {given.capital}"
        raise invalid((FieldError("owned.residual", message),))
    return OwnedHardware(
        capital=given.capital,
        years=given.years,
        gpu_count=given.gpu_count or found.layout.gpu_count,
        gpu_tdp_w=tdp,
        price_per_kwh=given.price_per_kwh,
        pue=given.pue,
        host_w=given.host_w,
        power_fraction=given.power_fraction,
        residual=given.residual,
        upkeep_per_year=given.upkeep_per_year,
    )


def hosted_models(asked: CostRequest, question: Question, snapshot: Snapshot) -> Iterator[HostedModel]:
    """The newest price of each provider of the hosted models named, seen up to the day asked.

    Left out is what its provider stopped serving by that day, or by the day of the newest price known.

    Raises
    ------
    Problem
        404: nobody is known to host a model that was named.
    """
    today = asked.prices.as_of or max((price.observed_on for price in snapshot.hosted_prices), default=date.min)
    newest: dict[tuple[str, str], HostedPrice] = {}
    for price in _hosted_prices(asked, question, snapshot):
        if not is_exchangeable(price.currency, question.exchange_rate) or price.observed_on > today:
            continue
        held = newest.get((price.provider, price.model))
        if held is None or price.observed_on > held.observed_on:
            newest[price.provider, price.model] = price
    for price in newest.values():
        if price.deprecated_on is not None and price.deprecated_on <= today:
            continue
        yield HostedModel(
            provider=price.provider,
            model=price.model,
            currency=price.currency,
            rate=HostedRate(price.input_per_million, price.output_per_million, price.cached_input_per_million),
            observed_on=price.observed_on.isoformat(),
            source=price.source,
            age_days=(today - price.observed_on).days,
            ends_on=price.deprecated_on.isoformat() if price.deprecated_on else None,
        )


def _hosted_prices(asked: CostRequest, question: Question, snapshot: Snapshot) -> Iterator[HostedPrice]:
    """Every price of the hosted models named; raises as `hosted_models`."""
    known = {hosted_model_key(price.model): price.model for price in snapshot.hosted_prices}
    for index, name in enumerate(asked.hosted or ()):
        if hosted_model_key(name) not in known:
            close = difflib.get_close_matches(hosted_model_key(name), known, n=3)
            raise unknown("hosted_model", name, tuple(known[key] for key in close), f"hosted.{index}")
    keys = {hosted_model_key(name) for name in ([question.model.name] if asked.hosted is None else asked.hosted)}
    yield from (price for price in snapshot.hosted_prices if hosted_model_key(price.model) in keys)


def left_out(asked: CostRequest, question: Question, snapshot: Snapshot) -> tuple[str, ...]:
    """Currencies of prices that are not set side by side, for want of a rate."""
    wanted = wanted_of(asked.prices, snapshot)
    currencies = {price.currency for price in _hosted_prices(asked, question, snapshot)}
    for kind in PriceKind:
        for machine in question.machines:
            currencies.update(other_currencies_of(replace(wanted, kind=kind), machine, snapshot))
    return tuple(sorted(each for each in currencies if not is_exchangeable(each, question.exchange_rate)))


EXAMPLES = {
    "Two requests a second in office hours": {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "precision": "fp8",
        "workload": {"context_tokens": 8192, "concurrent_sequences": 16, "prompt_tokens": 3000, "output_tokens": 500},
        "hardware": {"gpus": ["h100-sxm"]},
        "traffic": {"requests_per_second": 2, "hours_per_day": 10},
    },
}

OPERATIONS = (
    Operation(
        method="POST",
        path="/cost",
        name="cost",
        summary="Price a deployment for a traffic",
        description="A plan request with the traffic to carry: the plan whose copies carry it on the fewest GPUs (or, "
        "under `rank_by: cost`, for the least a month), how many that takes in each hour, on how many machines, what "
        "they cost by the hour, month, year and million tokens at every kind of price known, owned hardware and hosted "
        "models beside them, and the volume from which one's own machines are no dearer. Copies are planned for the "
        "load that the workload or its promises give; without either they are planned full.",
        tag="plans",
        handler=post_cost,
        answer=CostComparison,
        body=CostRequest,
        problems=(400, 404, 409, 413, 415),
        examples=EXAMPLES,
    ),
)
