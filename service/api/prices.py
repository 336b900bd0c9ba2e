"""What is known of rentable machines, their prices, and those of hosted models."""

import base64
import binascii
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, TypeVar

from litestar import Request, Response
from pydantic import Field

from service.api import responding
from service.api.contract import PriceKindName, Text
from service.api.operation import Operation
from service.api.paging import PageQuery, read_parameters
from service.api.problems import unknown
from service.catalogue.importers.gpu_names import provider_slug
from service.catalogue.records.price import HostedPrice, InstanceType, Price, hosted_model_key
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing.pricing import plain
from service.sizing.quantities import Doc

Item = TypeVar("Item")
Key = tuple[str, ...]

CURSOR_SEPARATOR = "\0"
MAX_CURSOR = 4000


class CursorQuery(PageQuery):
    """Which part of a long list."""

    after: Annotated[str, Field(min_length=1, max_length=MAX_CURSOR, pattern=r"^[A-Za-z0-9_=-]*$")] | None = Field(
        default=None, description="`next` of the page before; null: from the start"
    )


class PriceQuery(CursorQuery):
    """Which prices."""

    gpu: Text | None = Field(default=None, description="slug, name or alias of a GPU", examples=["h100-sxm"])
    provider: Text | None = Field(default=None, description="who rents the machine", examples=["aws"])
    kind: PriceKindName | None = Field(default=None, description="kind of price")
    region: Text | None = Field(default=None, description="as the provider spells it", examples=["us-east-1"])
    instance: Text | None = Field(default=None, description="machine type", examples=["p5.48xlarge"])
    as_of: date | None = Field(default=None, description="prices seen up to this day")


class InstanceQuery(CursorQuery):
    """Which machines."""

    gpu: Text | None = Field(default=None, description="slug, name or alias of a GPU", examples=["h100-sxm"])
    provider: Text | None = Field(default=None, description="who rents the machine", examples=["aws"])


class HostedQuery(CursorQuery):
    """Which hosted prices."""

    provider: Text | None = Field(default=None, description="who serves the model", examples=["deepinfra"])
    model: Text | None = Field(
        default=None, description="a model, however the provider spells its name", examples=["Llama-3.3-70B-Instruct"]
    )
    family: Text | None = Field(default=None, description="family of models", examples=["llama"])
    as_of: date | None = Field(default=None, description="prices seen up to this day")


@dataclass(frozen=True, slots=True)
class PriceView:
    """What a machine was to be rented for on a day."""

    provider: Annotated[str, Doc("who rents it", example="aws")]
    region: Annotated[str | None, Doc("where; null: not stated, or everywhere", example="us-east-1")]
    zone: Annotated[str | None, Doc("where in the region, if the price is for a zone")]
    instance_type: Annotated[str | None, Doc("the machine; null where GPUs are sold one by one", example="p5.48xlarge")]
    gpu: Annotated[str | None, Doc("catalogue slug; null where the source does not tell which", example="h100-sxm")]
    gpu_name: Annotated[str, Doc("the card as the source spells it", example="H100")]
    ambiguous: Annotated[tuple[str, ...], Doc("slugs it may be, where the source does not tell")]
    gpu_count: Annotated[int, Doc("GPUs of the machine", example=8)]
    gpu_fraction: Annotated[str | None, Doc("share of one GPU, where less than a whole one is rented")]
    kind: Annotated[str, Doc("terms", example="on_demand")]
    currency: Annotated[str, Doc("of the amounts", example="USD")]
    per_hour: Annotated[str, Doc("the whole machine", "currency/h", "55.04")]
    per_gpu_hour: Annotated[str, Doc("by whole GPU", "currency/h", "6.88")]
    host_included: Annotated[bool, Doc("false: processors and memory are billed on top", example=True)]
    observed_on: Annotated[str, Doc("when it was seen", example="2026-07-20")]
    source: Annotated[str, Doc("where it was seen")]
    note: Annotated[str | None, Doc("what else the source says")]


@dataclass(frozen=True, slots=True)
class PricePage:
    """Prices by provider, machine and place, the earliest first."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    items: Annotated[tuple[PriceView, ...], Doc("prices")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


@dataclass(frozen=True, slots=True)
class InstanceView:
    """A machine a provider rents."""

    name: Annotated[str, Doc("how `hardware.instances` names it", example="aws/p5.48xlarge")]
    provider: Annotated[str, Doc("who rents it", example="aws")]
    instance_type: Annotated[str, Doc("as the provider names it", example="p5.48xlarge")]
    gpu: Annotated[str | None, Doc("catalogue slug; null where the source does not tell which", example="h100-sxm")]
    ambiguous: Annotated[tuple[str, ...], Doc("slugs it may be, where the source does not tell")]
    gpu_count: Annotated[int, Doc("GPUs", example=8)]
    gpu_fraction: Annotated[str | None, Doc("share of one GPU, where it has less than a whole one")]
    link: Annotated[str | None, Doc("what joins the GPUs; null with one, or where not known", example="nvlink")]
    link_domain_gpus: Annotated[int, Doc("GPUs that reach each other over it at full speed", example=8)]
    network: Annotated[str | None, Doc("network between machines", example="EFA")]
    network_gbit_per_s: Annotated[float | None, Doc("its rate by machine", "Gbit/s", 3200)]
    vcpu: Annotated[int | None, Doc("host processors", example=192)]
    memory_gib: Annotated[float | None, Doc("host memory", "GiB", 2048)]
    observed_on: Annotated[str, Doc("when it was seen", example="2026-11-30")]
    source: Annotated[str, Doc("where it was seen")]
    confidence: Annotated[str, Doc("how well the source supports it: high, medium or low", example="high")]
    note: Annotated[str | None, Doc("what else to know")]


@dataclass(frozen=True, slots=True)
class InstancePage:
    """Machines by provider and type."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    items: Annotated[tuple[InstanceView, ...], Doc("machines")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


@dataclass(frozen=True, slots=True)
class HostedPriceView:
    """What a hosted model was to cost on a day."""

    provider: Annotated[str, Doc("who serves it", example="deepinfra")]
    model: Annotated[str, Doc("by the provider's own name", example="meta-llama/Llama-3.3-70B-Instruct")]
    family: Annotated[str | None, Doc("family of models it most likely belongs to", example="llama")]
    currency: Annotated[str, Doc("of the amounts", example="USD")]
    input_per_million: Annotated[str, Doc("a million prompt tokens", "currency", "0.23")]
    output_per_million: Annotated[str, Doc("a million output tokens", "currency", "0.4")]
    cached_input_per_million: Annotated[str | None, Doc("a million prompt tokens found in its cache", "currency")]
    context_tokens: Annotated[int | None, Doc("longest context it serves", "tokens", 131072)]
    deprecated_on: Annotated[str | None, Doc("when it stops")]
    observed_on: Annotated[str, Doc("when it was seen", example="2026-11-01")]
    source: Annotated[str, Doc("where it was seen")]
    note: Annotated[str | None, Doc("what else the source says")]


@dataclass(frozen=True, slots=True)
class HostedPricePage:
    """Hosted prices by provider and model, the earliest first."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    items: Annotated[tuple[HostedPriceView, ...], Doc("hosted prices")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


def price_view(price: Price) -> PriceView:
    """A price as it is answered."""
    return PriceView(
        provider=price.provider,
        region=price.region or None,
        zone=price.zone or None,
        instance_type=price.instance_type or None,
        gpu=price.gpu,
        gpu_name=price.gpu_name,
        ambiguous=price.ambiguous,
        gpu_count=price.gpu_count,
        gpu_fraction=None if price.gpu_fraction is None else plain(price.gpu_fraction),
        kind=price.kind.value,
        currency=price.currency,
        per_hour=plain(price.amount_per_hour),
        per_gpu_hour=plain(price.amount_per_gpu_hour),
        host_included=price.host_included,
        observed_on=price.observed_on.isoformat(),
        source=price.source,
        note=price.note or None,
    )


def instance_view(instance: InstanceType) -> InstanceView:
    """A machine as it is answered."""
    return InstanceView(
        name=f"{instance.provider}/{instance.instance_type}",
        provider=instance.provider,
        instance_type=instance.instance_type,
        gpu=instance.gpu,
        ambiguous=instance.ambiguous,
        gpu_count=instance.gpu_count,
        gpu_fraction=None if instance.gpu_fraction is None else plain(instance.gpu_fraction),
        link=None if instance.link is None else instance.link.value,
        link_domain_gpus=instance.link_domain_gpus,
        network=instance.network or None,
        network_gbit_per_s=instance.network_gbit_per_s,
        vcpu=instance.vcpu,
        memory_gib=instance.memory_gib,
        observed_on=instance.observed_on.isoformat(),
        source=instance.source,
        confidence=instance.confidence,
        note=instance.note or None,
    )


def hosted_view(price: HostedPrice) -> HostedPriceView:
    """A hosted price as it is answered."""
    return HostedPriceView(
        provider=price.provider,
        model=price.model,
        family=price.family or None,
        currency=price.currency,
        input_per_million=plain(price.input_per_million),
        output_per_million=plain(price.output_per_million),
        cached_input_per_million=None
        if price.cached_input_per_million is None
        else plain(price.cached_input_per_million),
        context_tokens=price.context_tokens,
        deprecated_on=price.deprecated_on.isoformat() if price.deprecated_on else None,
        observed_on=price.observed_on.isoformat(),
        source=price.source,
        note=price.note or None,
    )


def list_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A page of prices."""
    snapshot: Snapshot = request.app.state.snapshot
    query = read_parameters(request, PriceQuery)
    slug = _gpu(snapshot, query.gpu)
    provider = None if query.provider is None else provider_slug(query.provider)
    wanted = [
        price
        for price in snapshot.prices
        if (slug is None or price.gpu == slug)
        and (provider is None or price.provider == provider)
        and (query.kind is None or price.kind.value == query.kind)
        and (query.region is None or price.region == query.region)
        and (query.instance is None or price.instance_type == query.instance)
        and (query.as_of is None or price.observed_on <= query.as_of)
    ]
    chosen, following = after_cursor(wanted, price_key, query)
    views = tuple(price_view(price) for price in chosen)
    return responding.conditional(request, PricePage(snapshot.revision, views, following), snapshot.revision)


def list_instances(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A page of machines."""
    snapshot: Snapshot = request.app.state.snapshot
    query = read_parameters(request, InstanceQuery)
    slug = _gpu(snapshot, query.gpu)
    provider = None if query.provider is None else provider_slug(query.provider)
    wanted = [
        each
        for each in snapshot.instance_types
        if (slug is None or each.gpu == slug) and (provider is None or each.provider == provider)
    ]
    chosen, following = after_cursor(wanted, lambda each: (each.provider, each.instance_type), query)
    views = tuple(instance_view(each) for each in chosen)
    return responding.conditional(request, InstancePage(snapshot.revision, views, following), snapshot.revision)


def list_hosted_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A page of hosted prices."""
    snapshot: Snapshot = request.app.state.snapshot
    query = read_parameters(request, HostedQuery)
    model = None if query.model is None else hosted_model_key(query.model)
    wanted = [
        price
        for price in snapshot.hosted_prices
        if (query.provider is None or price.provider == query.provider.casefold())
        and (model is None or hosted_model_key(price.model) == model)
        and (query.family is None or price.family == query.family)
        and (query.as_of is None or price.observed_on <= query.as_of)
    ]
    chosen, following = after_cursor(wanted, hosted_key, query)
    views = tuple(hosted_view(price) for price in chosen)
    return responding.conditional(request, HostedPricePage(snapshot.revision, views, following), snapshot.revision)


def price_key(price: Price) -> Key:
    """What prices are listed by; no two have the same."""
    return (
        price.provider,
        price.instance_type,
        price.gpu_name,
        price.region,
        price.zone,
        price.kind.value,
        price.observed_on.isoformat(),
        price.source,
        f"{price.gpu_count:06} {price.gpu_fraction} {price.currency} {price.host_included} {price.amount_per_hour:f}",
    )


def hosted_key(price: HostedPrice) -> Key:
    """What hosted prices are listed by; no two have the same."""
    return price.provider, price.model, price.observed_on.isoformat(), price.source


def after_cursor(
    items: Sequence[Item], key: Callable[[Item], Key], query: CursorQuery
) -> tuple[Sequence[Item], str | None]:
    """The entries after the cursor in key order, and the next cursor; None at the end.

    Raises
    ------
    Problem
        404: the cursor is not one of ours.
    """
    keyed = ((key(item), index) for index, item in enumerate(items))
    if query.after is not None:
        seen = _read_cursor(query.after)
        keyed = (each for each in keyed if each[0] > seen)
    # Keys are long and entries many, so only those of the page are kept.
    first = heapq.nsmallest(query.limit + 1, keyed)
    chosen = first[: query.limit]
    following = _cursor(chosen[-1][0]) if len(chosen) < len(first) else None
    return [items[index] for _, index in chosen], following


def _cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(CURSOR_SEPARATOR.join(key).encode()).decode()


def _read_cursor(cursor: str) -> Key:
    try:
        return tuple(base64.urlsafe_b64decode(cursor).decode().split(CURSOR_SEPARATOR))
    except (binascii.Error, UnicodeDecodeError):
        raise unknown("cursor", cursor[:80], (), "after") from None


def _gpu(snapshot: Snapshot, name: str | None) -> str | None:
    try:
        return None if name is None else snapshot.gpu(name).slug
    except UnknownName as error:
        raise unknown("gpu", error.name, error.nearest, "gpu") from None


OPERATIONS = (
    Operation(
        method="GET",
        path="/instances",
        name="list_instances",
        summary="List rentable machines",
        description="Machines that providers rent, with their cards, what joins them, and where that was read.",
        tag="catalogue",
        handler=list_instances,
        answer=InstancePage,
        query=InstanceQuery,
        problems=(400, 404),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/prices",
        name="list_prices",
        summary="List prices of machines",
        description="What machines were to be rented for, each price with its day and source. A newer observation "
        "stands beside the older one.",
        tag="catalogue",
        handler=list_prices,
        answer=PricePage,
        query=PriceQuery,
        problems=(400, 404),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/hosted-prices",
        name="list_hosted_prices",
        summary="List prices of hosted models",
        description="What providers of hosted models ask per million tokens, each price with its day and source.",
        tag="catalogue",
        handler=list_hosted_prices,
        answer=HostedPricePage,
        query=HostedQuery,
        problems=(400, 404),
        cacheable=True,
    ),
)
