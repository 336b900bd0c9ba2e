"""SkyPilot's catalogue: one `vms.csv` for each cloud (schemas v5 to v9).

Column order differs by cloud, columns come and go: everything is read by name. `Price` and `SpotPrice` are USD per
hour of the whole machine; either may be empty. The cloud is not in the file, nor is a date.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache

from service.catalogue.importers import gpu_names, rows
from service.catalogue.importers.building import Ledger, refusal, share
from service.catalogue.importers.gpu_match import Match, Readings, Verdict, match_gpu
from service.catalogue.importers.outcome import Quarantined, Skipped
from service.catalogue.records.price import MARKETPLACES, Price, PriceKind
from service.sizing.cost.exchange import USD

REQUIRED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")

HELD_FOR_PLACEHOLDERS = 1000


def read_skypilot(
    lines: Iterable[str] | Iterable[bytes],
    observed_on: date,
    source: str,
    *,
    provider: str,
    typical: Mapping[str, Decimal] | None = None,
    latest: date | None = None,
) -> Iterator[Price | Skipped | Quarantined]:
    """Prices of one cloud's `vms.csv`, streaming.

    Parameters
    ----------
    observed_on : date
        Day of the file, as of its commit.
    provider : str
        The cloud's folder name in the catalogue, or our own name of it.
    typical : mapping of str to Decimal or None
        Usual USD per GPU and hour by slug, to find outliers.
    latest : date or None
        The last day on which a price can have been seen; None: any.

    Raises
    ------
    WrongFormat
        If the columns are not those of a `vms.csv`.
    """
    cloud = gpu_names.provider_slug(provider)
    yield from _without_placeholder_lists(_outcomes(lines, observed_on, source, cloud, Ledger(typical or {}, latest)))


def _outcomes(
    lines: Iterable[str] | Iterable[bytes], observed_on: date, source: str, cloud: str, ledger: Ledger
) -> Iterator[tuple[int, Price | Skipped | Quarantined]]:
    for row in rows.read_csv(lines, REQUIRED):
        if isinstance(row, rows.BadRow):
            yield row.number, Quarantined(row.number, "malformed", row.why)
            continue
        name = row.text("acceleratorname")
        counted = row.text("acceleratorcount")
        if not name or counted in ("0", "0.0"):
            yield row.number, Skipped(row.number, "no_gpu", f"{row.text('instancetype')} has no accelerator")
            continue
        instance_type = row.text("instancetype")
        try:
            gpus = rows.count(counted, "AcceleratorCount")
            asked = [
                (kind, rows.amount(text, column))
                for column, kind in (("Price", _kind(cloud, instance_type)), ("SpotPrice", PriceKind.SPOT))
                if (text := row.text(column.casefold()))
            ]
        except rows.BadValue as bad:
            yield row.number, Quarantined(row.number, "malformed", str(bad))
            continue
        if not asked:
            yield (
                row.number,
                Skipped(row.number, "no_price", f"{instance_type or name} is not priced"),
            )
            continue
        verdict = _match(cloud, name, instance_type, row.text("upstreamcloudid"), row.text("gpuinfo"), gpus)
        if not isinstance(verdict, Match):
            yield row.number, refusal(row.number, name, verdict)
            continue
        parts = share(verdict, gpus)
        if parts is None:
            yield (
                row.number,
                Quarantined(row.number, "malformed", f"AcceleratorCount is {gpus}, not whole"),
            )
            continue
        for kind, amount in asked:
            price = Price(
                provider=cloud,
                region=row.text("region"),
                zone=row.text("availabilityzone"),
                instance_type=instance_type,
                gpu=verdict.gpu,
                gpu_name=name,
                ambiguous=verdict.ambiguous,
                gpu_count=parts[0],
                gpu_fraction=parts[1],
                kind=kind,
                currency=USD,
                amount_per_hour=amount,
                host_included=bool(instance_type),
                observed_on=observed_on,
                source=source,
                note="" if instance_type else "the accelerator alone: its machine is billed on top",
            )
            yield row.number, ledger.enter(row.number, price)


def _kind(cloud: str, instance_type: str) -> PriceKind:
    if cloud in MARKETPLACES:
        return PriceKind.MARKETPLACE
    if instance_type.endswith("_COMMUNITY"):
        return PriceKind.COMMUNITY
    return PriceKind.ON_DEMAND


_SIZE = re.compile(r"SizeInMiB\W{1,4}([0-9]+(?:\.[0-9]+)?)")
_TOTAL = re.compile(r"TotalGpuMemoryInMiB\W{1,4}([0-9]+(?:\.[0-9]+)?)")
_NAME = re.compile(r"Name\W{1,6}([A-Za-z0-9][^'\"]{0,60})")


@lru_cache(maxsize=4096)
def _match(cloud: str, name: str, instance_type: str, upstream: str, info: str, gpus: Decimal) -> Verdict:
    described = _NAME.search(info)
    return match_gpu(
        gpu_names.SKYPILOT,
        name,
        provider=cloud,
        instance_type=instance_type,
        description=described[1] if described else "",
        hints=upstream,
        memory=_memory(info, gpus) or _usual_memory(name),
    )


def _memory(info: str, gpus: Decimal) -> Readings:
    """What `GpuInfo` may say of one GPU's memory.

    The text is a Python or JSON object or neither, so the figures are picked out of it. `SizeInMiB` is one GPU's
    memory or all GPUs', in MiB or in GB; `TotalGpuMemoryInMiB` is count x size, or size again. Where the two agree
    that the size is one GPU's, that reading comes first.
    """
    size = _SIZE.search(info)
    if size is None or (one := _gigabytes(size[1])) == 0:
        return ()
    if gpus == 1:
        return ((one,),)
    total = _TOTAL.search(info)
    if total is not None and Decimal(total[1]) == Decimal(size[1]):
        return ((one, one / gpus),)
    return ((one,), (one / gpus,))


def _usual_memory(name: str) -> Readings:
    usual = gpu_names.USUAL_MEMORY_GB.get(gpu_names.key(name))
    return ((Decimal(usual),),) if usual else ()


def _gigabytes(text: str) -> Decimal:
    size = Decimal(text)
    return size / 1024 if size >= 1024 else size


def _without_placeholder_lists(
    outcomes: Iterator[tuple[int, Price | Skipped | Quarantined]],
) -> Iterator[Price | Skipped | Quarantined]:
    """Hold back a list that asks one price per GPU whatever the card, on demand and spot alike.

    Auctions publish such lists (1.00 USD for an H100 and for an H200): the figure is where bidding starts.
    """
    held: list[tuple[int, Price]] = []
    for row, outcome in outcomes:
        if not isinstance(outcome, Price):
            yield outcome
            continue
        held.append((row, outcome))
        if len(held) >= HELD_FOR_PLACEHOLDERS or held[0][1].amount_per_gpu_hour != outcome.amount_per_gpu_hour:
            yield from (price for _, price in held)
            yield from (outcome for _, outcome in outcomes)
            return
    cards = {price.gpu or price.ambiguous for _, price in held}
    kinds = {price.kind for _, price in held}
    placeholders = len(cards) > 1 and PriceKind.SPOT in kinds and len(kinds) > 1
    for row, price in held:
        what = f"{price.amount_per_gpu_hour} per GPU and hour whatever the card: where an auction starts"
        yield Quarantined(row, "placeholder", what, price) if placeholders else price
