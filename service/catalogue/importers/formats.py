"""The formats that lists of prices come in, by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import IO

from service.catalogue.importers.gpuhunt import read_gpuhunt
from service.catalogue.importers.litellm import read_litellm
from service.catalogue.importers.outcome import Quarantined, Skipped
from service.catalogue.importers.own import read_hosted_csv, read_hosted_json, read_price_csv, read_price_json
from service.catalogue.importers.skypilot import read_skypilot
from service.catalogue.records.price import HostedPrice, Price, check_day

CHUNK_BYTES = 1 << 16


class PriceFormat(StrEnum):
    """What a list of machine prices is written in."""

    CSV = "csv"
    JSON = "json"
    SKYPILOT = "skypilot"
    GPUHUNT = "gpuhunt"


class HostedFormat(StrEnum):
    """What a list of hosted prices is written in."""

    CSV = "csv"
    JSON = "json"
    LITELLM = "litellm"


class BadSetting(ValueError):
    """A format needs something that its files do not say, or what was said cannot be.

    Attributes
    ----------
    name : str
        `provider` or `observed_on`.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class Origin:
    """What holds for the rows of a file that do not say it themselves; formats without such columns need it.

    Attributes
    ----------
    latest : date or None
        The last day on which a price can have been seen; None: any.
    """

    source: str
    observed_on: date | None = None
    provider: str | None = None
    latest: date | None = None


def latest_day() -> date:
    """The day it is where the day begins first (UTC+14): no price can have been seen on a later one."""
    return (datetime.now(UTC) + timedelta(hours=14)).date()


def read_prices(
    stream: IO[bytes], form: PriceFormat, origin: Origin, typical: Mapping[str, Decimal]
) -> Iterator[Price | Skipped | Quarantined]:
    """What becomes of each row of a list of machine prices, streaming.

    Parameters
    ----------
    typical : mapping of str to Decimal
        Usual USD per GPU and hour by slug, to find outliers.

    Raises
    ------
    BadSetting
        At once: the format needs a day or a provider, or the day given has not come yet.
    WrongFormat
        While reading: the file is of another format.
    """
    _require_past(origin)
    if form is PriceFormat.CSV:
        return read_price_csv(stream, origin.observed_on, origin.source, typical=typical, latest=origin.latest)
    if form is PriceFormat.JSON:
        return read_price_json(
            _chunks(stream), origin.observed_on, origin.source, typical=typical, latest=origin.latest
        )
    readers: Mapping[PriceFormat, Callable[..., Iterator[Price | Skipped | Quarantined]]] = {
        PriceFormat.SKYPILOT: read_skypilot,
        PriceFormat.GPUHUNT: read_gpuhunt,
    }
    if origin.provider is None:
        raise BadSetting("provider", f"is missing: {form.value} files do not name their provider")
    day = _day(origin, form.value)
    return readers[form](stream, day, origin.source, provider=origin.provider, typical=typical, latest=origin.latest)


def read_hosted_prices(
    stream: IO[bytes], form: HostedFormat, origin: Origin
) -> Iterator[HostedPrice | Skipped | Quarantined]:
    """What becomes of each row of a list of hosted prices; raises as `read_prices`."""
    _require_past(origin)
    if form is HostedFormat.CSV:
        return read_hosted_csv(stream, origin.observed_on, origin.source, latest=origin.latest)
    if form is HostedFormat.JSON:
        return read_hosted_json(_chunks(stream), origin.observed_on, origin.source, latest=origin.latest)
    return read_litellm(stream, _day(origin, form.value), origin.source, latest=origin.latest)


def _require_past(origin: Origin) -> None:
    if origin.observed_on is not None and (doubt := check_day(origin.observed_on, origin.latest)):
        raise BadSetting("observed_on", doubt.message)


def _day(origin: Origin, form: str) -> date:
    if origin.observed_on is None:
        raise BadSetting("observed_on", f"is missing: {form} files have no dates")
    return origin.observed_on


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk
