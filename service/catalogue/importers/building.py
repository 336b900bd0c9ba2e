"""What the price importers share: the card's verdict to an outcome, repeats and contradictions, placeholders."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from hashlib import blake2b

from service.catalogue.importers.gpu_match import Contradiction, Match, NotCatalogued, Unknown
from service.catalogue.importers.outcome import UNKNOWN_GPU, Quarantined, Skipped
from service.catalogue.records.price import HostedPrice, Price, PriceKind, check_hosted_price, check_price, usual


def refusal(row: int, name: str, verdict: NotCatalogued | Unknown | Contradiction) -> Skipped | Quarantined:
    """Why a row without a card of the catalogue is not taken."""
    match verdict:
        case NotCatalogued():
            return Skipped(row, "gpu_not_catalogued", f"{name} is not in the catalogue")
        case Unknown():
            return Skipped(row, UNKNOWN_GPU, f"{name!r} is not a name known here", gpu_name=name[:80])
        case Contradiction():
            return Quarantined(row, "contradiction", verdict.message)


def share(verdict: Match, gpus: Decimal) -> tuple[int, Decimal | None] | None:
    """(whole GPUs, share of one) from a count that may be a fraction; None if it is neither whole nor under one."""
    if gpus < 1:
        return 1, gpus
    if gpus != gpus.to_integral_value():
        return None
    return int(gpus), verdict.fraction


LONGEST_NAME_BYTES = 400
"""Of provider, place, machine, model and source: what an index of the database and an address of a page can hold."""


def _too_long(row: int, *names: str) -> Quarantined | None:
    for name in names:
        if len(name) > LONGEST_NAME_BYTES or len(name.encode()) > LONGEST_NAME_BYTES:
            return Quarantined(row, "malformed", f"a name is longer than {LONGEST_NAME_BYTES} bytes: {name[:40]}...")
    return None


class Ledger:
    """Passes the prices of one file on, once each, and holds back what is doubtful.

    Lists repeat one price for every zone of a region: the first is kept for the region and the others are skipped;
    a zone that asks another price is kept with its zone. Spot prices belong to their zone. Two prices for the same
    place contradict each other, except where hosts set their own. Memory: about 200 bytes for each price kept.
    """

    def __init__(self, typical: Mapping[str, Decimal], latest: date | None) -> None:
        self._typical = typical
        self._latest = latest
        self._seen: dict[bytes, Decimal] = {}

    def enter(self, row: int, price: Price) -> Price | Skipped | Quarantined:
        """What becomes of one price."""
        names = price.provider, price.region, price.zone, price.instance_type, price.gpu_name, price.source
        if refused := _too_long(row, *names):
            return refused
        if doubt := check_price(price, usual(price, self._typical), self._latest):
            return Quarantined(row, doubt.reason, doubt.message, price)
        asked = price.amount_per_hour
        in_region = _digest(price, "")
        place = _digest(price, price.zone) if price.zone else in_region
        before = self._seen.get(place)
        if before is None:
            self._seen[place] = asked
            if not price.zone or price.kind is PriceKind.SPOT:
                return price
            of_region = self._seen.setdefault(in_region, asked)
            if of_region is asked:
                return replace(price, zone="")
            return price if of_region != asked else _repeat(row, price)
        if before == asked:
            return _repeat(row, price)
        return Quarantined(row, "contradiction", f"{asked} per hour, but {before} for the same offer before", price)


class HostedLedger:
    """Passes the hosted prices of one file on, once each, and holds back what is doubtful."""

    def __init__(self, latest: date | None) -> None:
        self._latest = latest
        self._seen: dict[tuple[str, str, date, str], tuple[object, ...]] = {}

    def enter(self, row: int, price: HostedPrice) -> HostedPrice | Skipped | Quarantined:
        """What becomes of one price."""
        if refused := _too_long(row, price.provider, price.model, price.family, price.source):
            return refused
        if doubt := check_hosted_price(price, self._latest):
            return Quarantined(row, doubt.reason, f"{price.model}: {doubt.message}", price)
        asked = price.currency, price.input_per_million, price.output_per_million, price.cached_input_per_million
        before = self._seen.setdefault((price.provider, price.model, price.observed_on, price.source), asked)
        if before is asked:
            return price
        if before == asked:
            return Skipped(row, "repeat", f"{price.provider} {price.model} was there before")
        told = [" ".join(str(part) for part in each if part is not None) for each in (asked, before)]
        return Quarantined(row, "contradiction", f"{price.model} at {told[0]}, but {told[1]} before", price)


def _repeat(row: int, price: Price) -> Skipped:
    return Skipped(
        row, "repeat", f"{price.instance_type or price.gpu_name} at {price.amount_per_hour} was there before"
    )


def offer_key(price: Price) -> str:
    """Digest of all that makes an offer, hosts' own prices included where hosts set them: 32 hexadecimal digits."""
    return _digest(price, price.zone).hex()


def _digest(price: Price, zone: str) -> bytes:
    card = price.gpu or "/".join(price.ambiguous)
    offer = (
        f"{price.provider}\0{price.region}\0{zone}\0{price.instance_type}\0{card}\0{price.gpu_count}\0{price.gpu_fraction}\0"
        f"{price.kind}\0{price.currency}\0{price.host_included}\0{price.observed_on}\0{price.source}\0"
        f"{price.amount_per_hour if price.is_set_by_host else ''}"
    )
    return blake2b(offer.encode(), digest_size=16).digest()
