"""gpuhunt's catalogue: one CSV for each provider (catalogue v2, published under `v3/<provider>/`).

`price` is USD per hour of the whole machine; a spot offer is a row of its own. `gpu_memory` (GB of one GPU) tells
the 40 GB A100 from the 80 GB one, and a share of a card from a whole one. The provider is not in the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache

from service.catalogue.importers import gpu_names, rows
from service.catalogue.importers.building import Ledger, refusal
from service.catalogue.importers.gpu_match import Match, Verdict, match_gpu
from service.catalogue.importers.outcome import Quarantined, Skipped
from service.catalogue.records.price import MARKETPLACES, Price, PriceKind
from service.sizing.cost.exchange import USD

REQUIRED = ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")


def read_gpuhunt(
    lines: Iterable[str] | Iterable[bytes],
    observed_on: date,
    source: str,
    *,
    provider: str,
    typical: Mapping[str, Decimal] | None = None,
    latest: date | None = None,
) -> Iterator[Price | Skipped | Quarantined]:
    """Prices of one provider's `<provider>.csv`, streaming.

    Parameters
    ----------
    observed_on : date
        Day of the catalogue version ("20260818-42" is 2026-08-18).
    provider : str
        gpuhunt's name of the provider (the file's name), or our own.
    typical : mapping of str to Decimal or None
        Usual USD per GPU and hour by slug, to find outliers.
    latest : date or None
        The last day on which a price can have been seen; None: any.

    Raises
    ------
    WrongFormat
        If the columns are not those of a gpuhunt catalogue.
    """
    cloud = gpu_names.provider_slug(provider)
    ledger = Ledger(typical or {}, latest)
    for row in rows.read_csv(lines, REQUIRED):
        if isinstance(row, rows.BadRow):
            yield Quarantined(row.number, "malformed", row.why)
            continue
        instance, counted, name = row.text("instance_name"), row.text("gpu_count"), row.text("gpu_name")
        if counted in ("0", "0.0"):
            yield Skipped(row.number, "no_gpu", f"{instance} has no GPU")
            continue
        try:
            if not instance or not name:
                raise rows.BadValue("instance_name and gpu_name may not be empty where there are GPUs")
            gpus = rows.count(counted, "gpu_count")
            if gpus != int(gpus):
                raise rows.BadValue(f"gpu_count is {counted}; a whole number was expected")
            asked = rows.amount(row.text("price"), "price")
            spot = rows.flag(row.text("spot"), "spot")
            memory = rows.amount(text, "gpu_memory") if (text := row.text("gpu_memory")) else Decimal(0)
        except rows.BadValue as bad:
            yield Quarantined(row.number, "malformed", str(bad))
            continue
        verdict = _match(cloud, name, instance, memory)
        if not isinstance(verdict, Match):
            yield refusal(row.number, name, verdict)
            continue
        price = Price(
            provider=cloud,
            region=row.text("location"),
            zone="",
            instance_type=instance,
            gpu=verdict.gpu,
            gpu_name=name,
            ambiguous=verdict.ambiguous,
            gpu_count=int(gpus),
            gpu_fraction=verdict.fraction,
            kind=_kind(cloud, spot),
            currency=USD,
            amount_per_hour=asked,
            host_included=True,
            observed_on=observed_on,
            source=source,
        )
        yield ledger.enter(row.number, price)


def _kind(cloud: str, spot: bool) -> PriceKind:
    if spot:
        return PriceKind.SPOT
    return PriceKind.MARKETPLACE if cloud in MARKETPLACES else PriceKind.ON_DEMAND


@lru_cache(maxsize=4096)
def _match(cloud: str, name: str, instance: str, memory: Decimal) -> Verdict:
    proves_nothing = memory == 0 or gpu_names.WRONG_MEMORY_GB.get(gpu_names.key(name)) == memory
    readings = () if proves_nothing else ((memory,),)
    return match_gpu(
        gpu_names.GPUHUNT, name, provider=cloud, instance_type=instance, memory=readings, may_be_share=True
    )
