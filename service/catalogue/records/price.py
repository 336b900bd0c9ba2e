"""Prices and rentable machines as dated observations, and what makes one doubtful.

Money is `Decimal`. A price is never corrected in place: a newer observation stands beside the older one.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from statistics import median

from service.sizing.cost.exchange import USD
from service.sizing.hardware import Link

MICRO = Decimal("0.000001")
"""Amounts are kept to a millionth: the finest step any list publishes, and coarser than float noise."""


def money(amount: Decimal) -> Decimal:
    """An amount rounded to a millionth (half to even), without trailing zeros."""
    text = format(amount.quantize(MICRO, ROUND_HALF_EVEN), "f")
    return Decimal(text.rstrip("0").rstrip("."))


class PriceKind(StrEnum):
    """On what terms the machine is rented."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED_1Y = "reserved_1y"
    RESERVED_3Y = "reserved_3y"
    MARKETPLACE = "marketplace"
    COMMUNITY = "community"


MARKETPLACES = frozenset({"vast-ai", "lium", "akash"})
"""Providers whose hosts each set their own price: two prices for one offer are two hosts, not a contradiction."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine a provider rents.

    Attributes
    ----------
    gpu : str or None
        Catalogue slug of the card; None if `gpu_name` fits more than one, then `ambiguous` names them.
    gpu_count : int
        GPUs the guest sees.
    gpu_fraction : Decimal or None
        Share of one GPU where the machine has less than a whole one; None for whole GPUs.
    link : Link or None
        What joins the GPUs of the machine; None with one GPU, or if not known.
    link_domain_gpus : int
        GPUs that reach each other over `link` at full speed (2 where NVLink bridges join pairs only).
    network, network_gbit_per_s : str, float or None
        Network between machines and its rate, Gbit/s per machine; None if not known.
    vcpu, memory_gib : int, float or None
        Host processors and memory (GiB; GB where the provider counts so); None if no usable source states them.
    confidence : str
        "high", "medium" or "low": how well the source supports the row.
    """

    provider: str
    instance_type: str
    gpu: str | None
    gpu_name: str
    gpu_count: int
    gpu_fraction: Decimal | None
    link: Link | None
    link_domain_gpus: int
    network: str
    network_gbit_per_s: float | None
    vcpu: int | None
    memory_gib: float | None
    observed_on: date
    source: str
    confidence: str = "high"
    note: str = ""
    ambiguous: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Price:
    """What one provider asked for one machine (or one bare GPU) on one day.

    Attributes
    ----------
    provider, region, zone : str
        Region and zone as the provider spells them; empty if not stated, or if the price holds in all of them.
    instance_type : str
        Machine type; empty if GPUs are sold bare.
    gpu : str or None
        Catalogue slug; None if `gpu_name` fits more than one card, then `ambiguous` names them.
    gpu_name : str
        The card as the source spells it.
    gpu_count : int
        GPUs of the machine, at least 1.
    gpu_fraction : Decimal or None
        Share of one GPU where less than a whole one is rented.
    amount_per_hour : Decimal
        Whole machine, per hour, in `currency`.
    host_included : bool
        False if processors and memory are billed on top.
    """

    provider: str
    region: str
    zone: str
    instance_type: str
    gpu: str | None
    gpu_name: str
    ambiguous: tuple[str, ...]
    gpu_count: int
    gpu_fraction: Decimal | None
    kind: PriceKind
    currency: str
    amount_per_hour: Decimal
    host_included: bool
    observed_on: date
    source: str
    note: str = ""

    @property
    def amount_per_gpu_hour(self) -> Decimal:
        """Per GPU and hour; a fraction is scaled up to the whole card."""
        gpus = self.gpu_count * (self.gpu_fraction or Decimal(1))
        return money(self.amount_per_hour / gpus)

    @property
    def is_set_by_host(self) -> bool:
        """Whether each host sets its own price, so that two of one day are two offers."""
        return self.kind is PriceKind.MARKETPLACE or self.provider in MARKETPLACES


@dataclass(frozen=True, slots=True)
class HostedPrice:
    """What one provider of a hosted model asks per million tokens.

    Attributes
    ----------
    provider, model : str
        The provider, and the model by the provider's own id.
    family : str
        Family of open-weights models it is likely to belong to ("llama", "qwen", ...); empty if not known.
    input_per_million, output_per_million : Decimal
        Prompt and completion tokens, in `currency` per million.
    cached_input_per_million : Decimal or None
        Prompt tokens found in the provider's cache; None if it sells no such discount.
    context_tokens : int or None
        Longest prompt and completion the provider serves.
    deprecated_on : date or None
        Day on which the provider stops serving it.
    """

    provider: str
    model: str
    family: str
    currency: str
    input_per_million: Decimal
    output_per_million: Decimal
    cached_input_per_million: Decimal | None
    context_tokens: int | None
    deprecated_on: date | None
    observed_on: date
    source: str
    note: str = ""


def hosted_model_key(model: str) -> str:
    """What two providers' ids of one model have in common: letters and digits after the last slash.

    "meta-llama/Llama-3.3-70B-Instruct" and "Llama-3.3-70B-Instruct" are one; a provider's own variant ("-Turbo") and
    an id spelt by other rules ("meta.llama3-3-70b-instruct-v1:0") are not taken for it.
    """
    return re.sub(r"[^a-z0-9]", "", model.rpartition("/")[2].casefold())


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a record is kept out of the catalogue until somebody has looked at it."""

    reason: str
    message: str


HIGHEST_PER_GPU_HOUR = Decimal(250)
"""USD. The dearest card seen on any list asked 39.21 (GB200, 2026); six times that is a slip of the comma."""

LOWEST_SHARE_OF_TYPICAL = Decimal("0.05")
HIGHEST_MULTIPLE_OF_TYPICAL = Decimal(50)
"""Wide, because it must be: a hyperscaler asks thirty times a marketplace's price for the same old card."""
FEWEST_PROVIDERS_FOR_TYPICAL = 3

_LIST_KINDS = frozenset({PriceKind.ON_DEMAND, PriceKind.MARKETPLACE, PriceKind.COMMUNITY})
_NINES = re.compile(r"9{3,}(\.9*0*)?|9{2,}\.9{2,}0*")


def check_day(observed_on: date, latest: date | None) -> Doubt | None:
    """Why nothing can have been seen on a day: it has not come yet. None of a later day than `latest` is taken."""
    if latest is not None and observed_on > latest:
        return Doubt("future", f"{observed_on} has not come yet: nothing can have been seen on it")
    return None


def check_price(price: Price, typical_per_gpu_hour: Decimal | None = None, latest: date | None = None) -> Doubt | None:
    """Why a price is a placeholder, an outlier or of a day to come; None if nothing speaks against it.

    Parameters
    ----------
    typical_per_gpu_hour : Decimal or None
        What the card usually costs (`typical_per_gpu_hour`), in the price's currency; None if nothing is known.
    latest : date or None
        The last day on which it can have been seen; None: any.
    """
    if doubt := check_day(price.observed_on, latest):
        return doubt
    amount = price.amount_per_hour
    if amount <= 0:
        return Doubt("placeholder", f"a price of {amount} is no offer")
    if _NINES.fullmatch(format(amount, "f")):
        return Doubt("placeholder", f"{amount} stands for 'not for sale'")
    per_gpu = price.amount_per_gpu_hour
    if price.currency == USD and per_gpu > HIGHEST_PER_GPU_HOUR:
        return Doubt("outlier", f"{per_gpu} USD per GPU and hour is above {HIGHEST_PER_GPU_HOUR}")
    if typical_per_gpu_hour is None:
        return None
    if per_gpu < typical_per_gpu_hour * LOWEST_SHARE_OF_TYPICAL:
        return Doubt("outlier", f"{per_gpu} per GPU and hour is under 5 % of the usual {typical_per_gpu_hour}")
    if per_gpu > typical_per_gpu_hour * HIGHEST_MULTIPLE_OF_TYPICAL:
        return Doubt("outlier", f"{per_gpu} per GPU and hour is over 50 times the usual {typical_per_gpu_hour}")
    return None


def typical_per_gpu_hour(prices: Iterable[Price]) -> dict[str, Decimal]:
    """Usual USD per GPU and hour of each card: the median over providers of each provider's median.

    One vote for each provider, or those with many regions would decide alone. Spot and reserved prices have no
    vote, and cards sold by fewer than three providers no usual price.
    """
    by_provider: defaultdict[str, defaultdict[str, list[Decimal]]] = defaultdict(lambda: defaultdict(list))
    for price in prices:
        if price.gpu is not None and price.currency == USD and price.gpu_fraction is None and price.kind in _LIST_KINDS:
            by_provider[price.gpu][price.provider].append(price.amount_per_gpu_hour)
    return {
        gpu: money(median(median(amounts) for amounts in providers.values()))
        for gpu, providers in by_provider.items()
        if len(providers) >= FEWEST_PROVIDERS_FOR_TYPICAL
    }


def usual(price: Price, typical: Mapping[str, Decimal]) -> Decimal | None:
    """The usual price to hold `price` against; None in another currency or for a card without one."""
    return typical.get(price.gpu) if price.gpu is not None and price.currency == USD else None


LOWEST_PER_MILLION = Decimal("0.002")
HIGHEST_PER_MILLION = Decimal(1000)


def check_hosted_price(price: HostedPrice, latest: date | None = None) -> Doubt | None:
    """Why a hosted price is a placeholder, an outlier or of a day to come; None if nothing speaks against it.

    Prompt tokens that cost more than completion tokens are doubted: generating takes more work than reading, and
    the few such rows seen (2 of 3,700) had one price off by a power of ten. The bounds are of sums in USD.

    Parameters
    ----------
    latest : date or None
        The last day on which it can have been seen; None: any.
    """
    if doubt := check_day(price.observed_on, latest):
        return doubt
    read, write, cached = price.input_per_million, price.output_per_million, price.cached_input_per_million
    if read <= 0 or write <= 0:
        return Doubt("placeholder", f"input {read} and output {write} per million: free, or not known")
    for amount in (read, write) if price.currency == USD else ():
        if amount < LOWEST_PER_MILLION:
            return Doubt("placeholder", f"{amount} per million tokens is under {LOWEST_PER_MILLION}")
        if amount > HIGHEST_PER_MILLION:
            return Doubt("outlier", f"{amount} per million tokens is over {HIGHEST_PER_MILLION}: per token, perhaps")
    if read > write:
        return Doubt("contradiction", f"input {read} is dearer than output {write} per million")
    if cached is not None and cached > read:
        return Doubt("contradiction", f"cached input {cached} is dearer than input {read} per million")
    return None
