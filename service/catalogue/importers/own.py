"""Our own price lists, as CSV, as a JSON array of objects, or as one JSON object a line.

Columns (order free, others ignored): `provider`, `region`, `zone`, `instance_type`, `gpu_slug` (a catalogue slug, or
any known name of the card), `gpu_count`, `price_per_instance_hour_usd` and `price_per_gpu_hour_usd` (either may be
empty; without the `_usd` they are in `currency`), `kind`, `host_included`, `observed_on` (YYYY-MM-DD, or YYYY-MM),
`source`, `note`.
Hosted prices: `provider`, `api_model_id`, `model_family`, `input_usd_per_mtok`, `output_usd_per_mtok`,
`cached_input_usd_per_mtok` (or, in `currency`, `input_per_mtok`, `output_per_mtok`, `cached_input_per_mtok`),
`context_tokens`, `deprecation_date`, `observed_on`, `source`, `note`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache

from service.catalogue.importers import gpu_names, rows
from service.catalogue.importers.building import HostedLedger, Ledger, refusal, share
from service.catalogue.importers.gpu_match import Match, Verdict, match_gpu
from service.catalogue.importers.outcome import Quarantined, Skipped
from service.catalogue.records.price import HostedPrice, Price, PriceKind
from service.sizing.cost.exchange import USD

REQUIRED = ("provider", "gpu_slug", "gpu_count", "kind")
HOSTED_REQUIRED = ("provider", "api_model_id")

KINDS: Mapping[str, PriceKind] = {kind.value: kind for kind in PriceKind} | {"on_demand_community": PriceKind.COMMUNITY}
PLACEHOLDER = "placeholder"

_TOKENS = re.compile(r"[1-9][0-9]{0,8}")
_CURRENCY = re.compile(r"[A-Z]{3}")

ROUNDING = Decimal("0.00001")
"""Largest difference between a stated price per GPU and the machine's price shared out, as a part of the price."""


def read_price_csv(
    lines: Iterable[str] | Iterable[bytes],
    observed_on: date | None,
    source: str,
    *,
    typical: Mapping[str, Decimal] | None = None,
    latest: date | None = None,
) -> Iterator[Price | Skipped | Quarantined]:
    """Prices of a CSV in our own shape, streaming.

    Parameters
    ----------
    observed_on, source : date or None, str
        What holds for rows that do not say; without a date such rows are quarantined.
    typical : mapping of str to Decimal or None
        Usual USD per GPU and hour by slug, to find outliers.
    latest : date or None
        The last day on which a price can have been seen; None: any.

    Raises
    ------
    WrongFormat
        If a needed column is missing.
    """
    ledger = Ledger(typical or {}, latest)
    for row in rows.read_csv(lines, REQUIRED):
        yield _price(row, observed_on, source, ledger)


def read_price_json(
    chunks: Iterable[str] | Iterable[bytes],
    observed_on: date | None,
    source: str,
    *,
    typical: Mapping[str, Decimal] | None = None,
    latest: date | None = None,
) -> Iterator[Price | Skipped | Quarantined]:
    """Prices of a JSON array or of JSON Lines with the fields of our CSV, streaming; else as `read_price_csv`."""
    ledger = Ledger(typical or {}, latest)
    for row in rows.read_json(chunks):
        yield _price(row, observed_on, source, ledger)


def _price(
    row: rows.Row | rows.BadRow, observed_on: date | None, source: str, ledger: Ledger
) -> Price | Skipped | Quarantined:
    if isinstance(row, rows.BadRow):
        return Quarantined(row.number, "malformed", row.why)
    name = row.text("gpu_slug")
    provider = gpu_names.provider_slug(row.text("provider"))
    kind = row.text("kind").casefold()
    if kind == PLACEHOLDER:
        return Quarantined(row.number, "placeholder", f"{provider} {row.text('instance_type')} is marked as one")
    try:
        if not provider or not name:
            raise rows.BadValue("provider and gpu_slug may not be empty")
        if kind not in KINDS:
            raise rows.BadValue(f"kind is {kind[:40]!r}; one of {', '.join(KINDS)} was expected")
        gpus = rows.count(row.text("gpu_count"), "gpu_count")
        currency, per_machine, per_gpu = _amounts(row)
        day = rows.day(text, "observed_on") if (text := row.text("observed_on")) else observed_on
        host_included = rows.flag(row.text("host_included") or "true", "host_included")
    except rows.BadValue as bad:
        return Quarantined(row.number, "malformed", str(bad))
    if day is None:
        return Quarantined(row.number, "undated", f"{provider} {row.text('instance_type')} has no observed_on")
    if per_machine is None and per_gpu is None:
        return Skipped(row.number, "no_price", f"{provider} {row.text('instance_type')} has no price")
    machine = per_machine if per_machine is not None else (per_gpu or Decimal(0)) * gpus
    if per_gpu is not None and abs(machine - per_gpu * gpus) > max(machine * ROUNDING, Decimal("0.00001") * gpus):
        what = f"{machine} per hour for {gpus} GPUs is not {per_gpu} for each"
        return Quarantined(row.number, "contradiction", what)
    verdict = _match(name, provider, row.text("instance_type"))
    if not isinstance(verdict, Match):
        return refusal(row.number, name, verdict)
    parts = share(verdict, gpus)
    if parts is None:
        return Quarantined(row.number, "malformed", f"gpu_count {gpus} is neither whole nor below one")
    price = Price(
        provider=provider,
        region=row.text("region"),
        zone=row.text("zone"),
        instance_type=row.text("instance_type"),
        gpu=verdict.gpu,
        gpu_name=name,
        ambiguous=verdict.ambiguous,
        gpu_count=parts[0],
        gpu_fraction=parts[1],
        kind=KINDS[kind],
        currency=currency,
        amount_per_hour=machine,
        host_included=host_included,
        observed_on=day,
        source=row.text("source") or source,
        note=row.text("note"),
    )
    return ledger.enter(row.number, price)


@lru_cache(maxsize=4096)
def _match(name: str, provider: str, instance_type: str) -> Verdict:
    return match_gpu(gpu_names.OWN, name, provider=provider, instance_type=instance_type)


def _amounts(row: rows.Row) -> tuple[str, Decimal | None, Decimal | None]:
    """Currency, price of the machine, price of one GPU."""

    def read(column: str) -> Decimal | None:
        return rows.amount(text, column) if (text := row.text(column)) else None

    currency = _currency(row)
    in_usd = read("price_per_instance_hour_usd"), read("price_per_gpu_hour_usd")
    stated = read("price_per_instance_hour"), read("price_per_gpu_hour")
    if in_usd != (None, None) and (stated != (None, None) or currency != USD):
        raise rows.BadValue(f"columns in USD and in {currency} in one row")
    return currency, *(in_usd if in_usd != (None, None) else stated)


def _currency(row: rows.Row) -> str:
    currency = (row.text("currency") or USD).upper()
    if not _CURRENCY.fullmatch(currency):
        raise rows.BadValue(f"currency is {currency[:40]!r}; three letters such as USD were expected")
    return currency


def read_hosted_csv(
    lines: Iterable[str] | Iterable[bytes], observed_on: date | None, source: str, *, latest: date | None = None
) -> Iterator[HostedPrice | Skipped | Quarantined]:
    """Hosted prices of a CSV in our own shape, streaming.

    Parameters
    ----------
    observed_on, source, latest : date or None, str, date or None
        As of `read_price_csv`.

    Raises
    ------
    WrongFormat
        If a needed column is missing.
    """
    return _hosted_prices(rows.read_csv(lines, HOSTED_REQUIRED), observed_on, source, latest)


def read_hosted_json(
    chunks: Iterable[str] | Iterable[bytes], observed_on: date | None, source: str, *, latest: date | None = None
) -> Iterator[HostedPrice | Skipped | Quarantined]:
    """Hosted prices of a JSON array or of JSON Lines with the fields of our CSV; else as `read_hosted_csv`."""
    return _hosted_prices(rows.read_json(chunks), observed_on, source, latest)


def _hosted_prices(
    found: Iterable[rows.Row | rows.BadRow], observed_on: date | None, source: str, latest: date | None
) -> Iterator[HostedPrice | Skipped | Quarantined]:
    ledger = HostedLedger(latest)
    for row in found:
        if isinstance(row, rows.BadRow):
            yield Quarantined(row.number, "malformed", row.why)
            continue
        try:
            price = _hosted(row, observed_on, source)
        except rows.BadValue as bad:
            yield Quarantined(row.number, "malformed", str(bad))
            continue
        if price is None:
            yield Quarantined(row.number, "undated", f"{row.text('api_model_id')} has no observed_on")
            continue
        yield ledger.enter(row.number, price)


def _hosted(row: rows.Row, observed_on: date | None, source: str) -> HostedPrice | None:
    provider, model = row.text("provider").casefold(), row.text("api_model_id")
    if not provider or not model:
        raise rows.BadValue("provider and api_model_id may not be empty")
    day = rows.day(text, "observed_on") if (text := row.text("observed_on")) else observed_on
    if day is None:
        return None
    currency, (read, write, cached) = _hosted_amounts(row)
    context = row.text("context_tokens")
    ends = row.text("deprecation_date")
    if context and not _TOKENS.fullmatch(context):
        raise rows.BadValue(f"context_tokens is {context[:40]!r}; a whole number above 0 was expected")
    return HostedPrice(
        provider=provider,
        model=model,
        family=row.text("model_family"),
        currency=currency,
        input_per_million=read,
        output_per_million=write,
        cached_input_per_million=cached,
        context_tokens=int(context) if context else None,
        deprecated_on=rows.day(ends, "deprecation_date") if ends else None,
        observed_on=day,
        source=row.text("source") or source,
        note=row.text("note"),
    )


def _hosted_amounts(row: rows.Row) -> tuple[str, tuple[Decimal, Decimal, Decimal | None]]:
    """Currency, and the price of a million prompt, output and cached prompt tokens."""
    currency = _currency(row)
    names = "input{}_per_mtok", "output{}_per_mtok", "cached_input{}_per_mtok"
    in_usd, stated = ([name.format(unit) for name in names] for unit in ("_usd", ""))
    if any(row.text(column) for column in stated):
        if any(row.text(column) for column in in_usd):
            raise rows.BadValue(f"columns in USD and in {currency} in one row")
        columns = stated
    elif currency != USD:
        raise rows.BadValue(f"columns in USD in a row in {currency}; {', '.join(stated)} are in its currency")
    else:
        columns = in_usd
    read, write = (rows.amount(row.text(column), column) for column in columns[:2])
    return currency, (read, write, rows.amount(text, columns[2]) if (text := row.text(columns[2])) else None)
