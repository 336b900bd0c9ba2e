"""LiteLLM's `model_prices_and_context_window.json`: hosted models and their prices per token.

One object: model id -> attributes. Prices are USD per token, here per million. The file has no dates; a few MB, it
is read whole.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import IO, Any, cast

from service.catalogue.importers import rows
from service.catalogue.importers.building import HostedLedger
from service.catalogue.importers.outcome import Quarantined, Skipped, WrongFormat
from service.catalogue.importers.rows import BadValue, day
from service.catalogue.records.price import HostedPrice, money
from service.sizing.cost.exchange import USD

TEXT_MODES = frozenset({"chat", "completion", "responses"})

_SIZE_CLASS = re.compile(r"(fireworks|together)-ai-(up-to-|above-|[0-9.]+b-)")
_STEP = re.compile(r"(?:input|output)_cost_per_token_above_(\w+)_tokens")

FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern))
    for family, pattern in (
        ("gpt-oss", r"gpt-oss"),
        ("deepseek", r"deepseek"),
        ("llama", r"llama-?[2-4]|llama-guard|llama-v[23]"),
        ("qwen", r"(?:qwen|qwq)-?[0-9]|qwq"),
        ("glm", r"glm-?[4-9]"),
        ("kimi", r"kimi"),
        ("minimax", r"minimax-m"),
        ("mixtral", r"mixtral"),
        ("gemma", r"gemma"),
        ("nemotron", r"nemotron"),
        ("phi", r"\bphi-?[3-5]"),
        ("granite", r"granite"),
    )
)
"""Families of open-weights models by what their ids contain. Likely, not proven: closed siblings share names."""


def read_litellm(
    stream: IO[str] | IO[bytes], observed_on: date, source: str, *, latest: date | None = None
) -> Iterator[HostedPrice | Skipped | Quarantined]:
    """Prices of the text models in the file.

    Entries for other media, aliases, size classes and the `sample_spec` that documents the format are skipped, as
    are models priced only in tiers or not at all. The row number counts the entries, the first being 1.

    Parameters
    ----------
    observed_on : date
        Day of the file.
    latest : date or None
        The last day on which a price can have been seen; None: any.

    Raises
    ------
    WrongFormat
        If the file is not one JSON object of objects.
    """
    try:
        entries = json.loads(stream.read(), parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise WrongFormat(f"not JSON: {error}"[:200]) from None
    if not isinstance(entries, dict):
        raise WrongFormat("one JSON object, model id -> attributes, was expected")
    ledger = HostedLedger(latest)
    for row, (key, entry) in enumerate(cast("dict[str, object]", entries).items(), start=1):
        if not rows.storable(key):
            yield Quarantined(row, "malformed", "the id holds characters that are no text")
            continue
        if not isinstance(entry, dict):
            yield Quarantined(row, "malformed", f"{key[:80]} is not an object")
            continue
        try:
            found = _entry(row, key, cast("dict[str, Any]", entry), observed_on, source)
        except BadValue as bad:
            yield Quarantined(row, "malformed", f"{key[:80]}: {bad}")
            continue
        yield ledger.enter(row, found) if isinstance(found, HostedPrice) else found


def _entry(row: int, key: str, entry: Mapping[str, Any], observed_on: date, source: str) -> HostedPrice | Skipped:
    if key == "sample_spec":
        return Skipped(row, "documentation", "sample_spec documents the format")
    if "alias_of" in entry:
        return Skipped(row, "alias", f"{key} is another name of {entry['alias_of']}")
    mode = entry.get("mode")
    if mode not in TEXT_MODES:
        return Skipped(row, "not_text", f"{key} is for {mode}")
    if _SIZE_CLASS.match(key):
        return Skipped(row, "size_class", f"{key} is a class of models, not one")
    read, write = _per_million(entry, "input_cost_per_token"), _per_million(entry, "output_cost_per_token")
    if read is None and write is None and "tiered_pricing" in entry:
        return Skipped(row, "tiered", f"{key} is priced by the length of the prompt")
    if read is None or write is None:
        return Skipped(row, "no_price", f"{key} has no price for {'input' if read is None else 'output'} tokens")
    provider = entry.get("litellm_provider")
    if not isinstance(provider, str) or not provider:
        raise BadValue("litellm_provider is missing")
    context, ends = entry.get("max_input_tokens"), entry.get("deprecation_date")
    told = entry.get("source")
    if not rows.storable(f"{provider}{told}"):
        raise BadValue("litellm_provider or source holds characters that are no text")
    return HostedPrice(
        provider=provider.casefold(),
        model=key.removeprefix(f"{provider}/"),
        family=family_of(key),
        currency=USD,
        input_per_million=read,
        output_per_million=write,
        cached_input_per_million=_per_million(entry, "cache_read_input_token_cost"),
        context_tokens=int(context) if isinstance(context, int | Decimal) and 0 < context < 10**9 else None,
        deprecated_on=day(str(ends), "deprecation_date") if ends else None,
        observed_on=observed_on,
        source=f"{source} <- {told}" if isinstance(told, str) else source,
        note=_note(entry),
    )


def family_of(model: str) -> str:
    """Family of open-weights models an id most likely belongs to; empty if none."""
    name = model.casefold()
    return next((family for family, pattern in FAMILIES if pattern.search(name)), "")


def _per_million(entry: Mapping[str, Any], field: str) -> Decimal | None:
    value = entry.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value <= 1:
        raise BadValue(f"{field} is {str(value)[:40]!r}; USD per token were expected")
    return money(Decimal(value) * 1_000_000)


def _note(entry: Mapping[str, Any]) -> str:
    steps = sorted({step[1] for field in entry if (step := _STEP.fullmatch(field))})
    notes = [f"dearer above {step} tokens" for step in steps]
    if "off_peak_pricing" in entry:
        notes.append("cheaper off peak")
    return "; ".join(notes)
