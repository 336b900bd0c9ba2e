"""The formats that lists of prices come in, by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import IO

from service.catalogue.importers.gpuhunt import read_gpuhunt
from service.catalogue.importers.litellm import read_litellm
from service.catalogue.importers.outcome import Quarantined, Skipped
from service.catalogue.importers.own import read_hosted_csv, read_price_csv, read_price_json
from service.catalogue.importers.skypilot import read_skypilot
from service.catalogue.records.price import HostedPrice, Price

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
    LITELLM = "litellm"


class MissingSetting(ValueError):
    """A format needs something that its files do not say.

    Attributes
    ----------
    name : str
        `provider`, `observed_on` or `source`.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class Origin:
    """What holds for the rows of a file that do not say it themselves; formats without such columns need it."""

    source: str
    observed_on: date | None = None
    provider: str | None = None


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
    MissingSetting
        At once: the format needs a day or a provider.
    WrongFormat
        While reading: the file is of another format.
    """
    if form is PriceFormat.CSV:
        return read_price_csv(stream, origin.observed_on, origin.source, typical=typical)
    if form is PriceFormat.JSON:
        return read_price_json(_chunks(stream), origin.observed_on, origin.source, typical=typical)
    readers: Mapping[PriceFormat, Callable[..., Iterator[Price | Skipped | Quarantined]]] = {
        PriceFormat.SKYPILOT: read_skypilot,
        PriceFormat.GPUHUNT: read_gpuhunt,
    }
    if origin.provider is None:
        raise MissingSetting("provider", f"{form.value} files do not name their provider")
    day = _day(origin, form.value)
    return readers[form](stream, day, origin.source, provider=origin.provider, typical=typical)


def read_hosted_prices(
    stream: IO[bytes], form: HostedFormat, origin: Origin
) -> Iterator[HostedPrice | Skipped | Quarantined]:
    """What becomes of each row of a list of hosted prices; raises as `read_prices`."""
    if form is HostedFormat.CSV:
        return read_hosted_csv(stream, origin.observed_on, origin.source)
    return read_litellm(stream, _day(origin, form.value), origin.source)


def _day(origin: Origin, form: str) -> date:
    if origin.observed_on is None:
        raise MissingSetting("observed_on", f"{form} files have no dates")
    return origin.observed_on


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk
