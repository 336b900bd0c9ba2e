"""What a cost request is answered with."""

from dataclasses import dataclass
from typing import Annotated

from service.sizing.answer import ExchangeRateAnswer, LayoutAnswer, Plan, PriceAnswer, Rejection
from service.sizing.quantities import Doc


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """The copies that the traffic needs."""

    replicas_peak: Annotated[int, Doc("most copies at once", example=4)]
    replicas_floor: Annotated[int, Doc("fewest copies at once", example=1)]
    replicas_by_hour: Annotated[tuple[int, ...], Doc("copies in each hour of a day")]
    gpus_at_peak: Annotated[int, Doc("GPUs of the most copies", example=16)]
    replica_concurrent_sequences: Annotated[int, Doc("requests at once that one copy is planned for", example=32)]
    replica_requests_per_second: Annotated[str, Doc("requests one copy carries at the utilisation asked", "1/s", "1.2")]
    requests_per_month: Annotated[str, Doc("requests served", example="2190000")]
    output_tokens_per_month: Annotated[str, Doc("tokens generated", "tokens", "1095000000")]
    utilisation: Annotated[str, Doc("share of the copies' throughput used when scaled by the hour", example="0.52")]


@dataclass(frozen=True, slots=True)
class KindAnswer:
    """The fleet at one kind of price, on the machines of that kind that carry it for the least."""

    kind: Annotated[str, Doc("on_demand, spot, reserved_1y, ..., or owned", example="on_demand")]
    price: Annotated[PriceAnswer | None, Doc("the price used; null for owned hardware")]
    machines_at_peak: Annotated[int, Doc("machines at once, each with as many copies as fit", example=2)]
    per_hour: Annotated[str, Doc("those machines", "`currency`/h", "110.08")]
    machine_hours_per_month: Annotated[
        str, Doc("machine-hours paid: all at the peak where committed, else scaled by the hour", example="912.5")
    ]
    per_month: Annotated[str, Doc("the fleet", "`currency`", "50224.00")]
    per_year: Annotated[str, Doc("twelve such months", "`currency`", "602688.00")]
    per_million_output_tokens: Annotated[str | None, Doc("all cost on the output", "`currency`", "6.1150")]
    per_million_input: Annotated[str | None, Doc("prompt tokens, cost split by weight", "`currency`", "0.3000")]
    per_million_output: Annotated[str | None, Doc("output tokens, cost split by weight", "`currency`", "1.2000")]


@dataclass(frozen=True, slots=True)
class BreakEvenAnswer:
    """Where machines of the cheapest kind, full of copies all month, are no dearer than a hosted model."""

    first_output_tokens_per_month: Annotated[
        str | None, Doc("volume from which one machine is; null: it is dearer even full", "tokens", "1000000000")
    ]
    lasting_output_tokens_per_month: Annotated[
        str | None, Doc("volume from which it stays so however many machines are added; null: never", "tokens")
    ]
    utilisation: Annotated[str, Doc("share of a machine's tokens that must be sold; above 1 it cannot", example="0.8")]


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
    ends_on: Annotated[str | None, Doc("when its provider stops serving it; null: not known", example="2027-01-15")]


@dataclass(frozen=True, slots=True)
class LaterAnswer:
    """The same after some months of growth."""

    months: Annotated[int, Doc("months from now", example=12)]
    replicas_peak: Annotated[int, Doc("most copies at once", example=7)]
    kind: Annotated[str | None, Doc("the cheapest kind then; null without a price", example="reserved_1y")]
    per_month: Annotated[str | None, Doc("the fleet at that kind", "`currency`", "70000.00")]


@dataclass(frozen=True, slots=True)
class OtherFleetAnswer:
    """Another plan, and its copies that carry the same traffic."""

    gpu: Annotated[str, Doc("slug of the GPU", example="h200-sxm")]
    gpu_count: Annotated[int, Doc("GPUs of one copy", example=4)]
    layout: Annotated[LayoutAnswer, Doc("of one copy")]
    replicas_peak: Annotated[int, Doc("most copies at once", example=2)]
    gpus_at_peak: Annotated[int, Doc("GPUs of the most copies", example=8)]
    per_month: Annotated[
        str | None, Doc("the fleet at the kind of price asked; null without one", "`currency`", "50224.00")
    ]
    tpot_ms: Annotated[float, Doc("time per output token at the load a copy is planned for", "ms", 21.5)]


@dataclass(frozen=True, slots=True)
class CostComparison:
    """The answer to a cost request; its sums are in `currency`."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    rules_version: Annotated[int, Doc("version of the sizing rules", example=1)]
    currency: Annotated[str, Doc("of all sums: USD, unless an exchange rate was given", example="USD")]
    exchange_rate: Annotated[ExchangeRateAnswer | None, Doc("at which USD were converted; null: they were not")]
    plan: Annotated[Plan | None, Doc("one copy, under the load it is planned for; null when nothing serves")]
    rejected: Annotated[tuple[Rejection, ...], Doc("why not, where nothing serves")]
    fleet: Annotated[FleetAnswer | None, Doc("copies of the plan that carry the traffic")]
    kinds: Annotated[tuple[KindAnswer, ...], Doc("the fleet at each kind of price known, the cheapest first")]
    hosted: Annotated[tuple[HostedAnswer, ...], Doc("the traffic at hosted models, the cheapest first")]
    later: Annotated[LaterAnswer | None, Doc("after the months asked; null where none were")]
    alternatives: Annotated[
        tuple[OtherFleetAnswer, ...], Doc("other plans that carry the traffic, in the order of `rank_by`")
    ]
    warnings: Annotated[tuple[str, ...], Doc("what to know")]
