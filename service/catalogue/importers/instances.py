"""Rentable machines as CSV.

Columns (order free, others ignored): `provider`, `instance_type`, `gpu_slug`, `gpu_count` (a share below 1 counts as
one card's share), `link` (nvlink, pcie, xgmi or empty), `link_domain_gpus`, `network`, `network_gbit_per_s`, `vcpu`,
`memory_gib`, `observed_on` (YYYY-MM-DD), `source`, `confidence` (high, medium, low), `note`.
"""

from collections.abc import Iterable, Iterator
from datetime import date

from service.catalogue.importers import gpu_names, rows
from service.catalogue.importers.building import refusal, share
from service.catalogue.importers.gpu_match import Match, match_gpu
from service.catalogue.importers.outcome import Quarantined, Skipped
from service.catalogue.records.price import InstanceType
from service.sizing.hardware import Link

REQUIRED = ("provider", "instance_type", "gpu_slug", "gpu_count")
CONFIDENCES = ("high", "medium", "low")


def read_instances_csv(
    lines: Iterable[str] | Iterable[bytes], observed_on: date | None, source: str
) -> Iterator[InstanceType | Skipped | Quarantined]:
    """Machines of a CSV in our own shape, streaming; a machine named twice is a contradiction.

    Parameters
    ----------
    observed_on, source : date or None, str
        What holds for rows that do not say; without a date such rows are quarantined.

    Raises
    ------
    WrongFormat
        If a needed column is missing.
    """
    seen: set[tuple[str, str, date]] = set()
    for row in rows.read_csv(lines, REQUIRED):
        if isinstance(row, rows.BadRow):
            yield Quarantined(row.number, "malformed", row.why)
            continue
        try:
            outcome = _instance(row, observed_on, source)
        except rows.BadValue as bad:
            outcome = Quarantined(row.number, "malformed", str(bad))
        if isinstance(outcome, InstanceType):
            key = (outcome.provider, outcome.instance_type, outcome.observed_on)
            if key in seen:
                outcome = Quarantined(row.number, "contradiction", f"{' '.join(key[:2])} was there before", outcome)
            seen.add(key)
        yield outcome


def _instance(row: rows.Row, observed_on: date | None, source: str) -> InstanceType | Skipped | Quarantined:
    provider, name = gpu_names.provider_slug(row.text("provider")), row.text("gpu_slug")
    instance_type = row.text("instance_type")
    if not provider or not name or not instance_type:
        raise rows.BadValue("provider, instance_type and gpu_slug may not be empty")
    day = rows.day(text, "observed_on") if (text := row.text("observed_on")) else observed_on
    if day is None:
        return Quarantined(row.number, "undated", f"{provider} {instance_type} has no observed_on")
    verdict = match_gpu(gpu_names.OWN, name, provider=provider, instance_type=instance_type)
    if not isinstance(verdict, Match):
        return refusal(row.number, name, verdict)
    gpus = rows.count(row.text("gpu_count"), "gpu_count")
    parts = share(verdict, gpus)
    if parts is None:
        raise rows.BadValue(f"gpu_count {gpus} is neither whole nor below one")
    network_rate, vcpu = _number(row, "network_gbit_per_s"), _number(row, "vcpu")
    return InstanceType(
        provider=provider,
        instance_type=instance_type,
        gpu=verdict.gpu,
        gpu_name=name,
        ambiguous=verdict.ambiguous,
        gpu_count=parts[0],
        gpu_fraction=parts[1],
        link=Link(_choice(row, "link", tuple(Link))) if row.text("link") else None,
        link_domain_gpus=int(rows.count(row.text("link_domain_gpus") or "1", "link_domain_gpus")),
        network=row.text("network"),
        network_gbit_per_s=network_rate,
        vcpu=None if vcpu is None else int(vcpu),
        memory_gib=_number(row, "memory_gib"),
        observed_on=day,
        source=row.text("source") or source,
        confidence=_choice(row, "confidence", CONFIDENCES) if row.text("confidence") else "medium",
        note=row.text("note"),
    )


def _number(row: rows.Row, column: str) -> float | None:
    return float(rows.amount(text, column)) if (text := row.text(column)) else None


def _choice(row: rows.Row, column: str, choices: tuple[str, ...]) -> str:
    value = row.text(column).casefold()
    if value not in choices:
        raise rows.BadValue(f"{column} is {value[:40]!r}; one of {', '.join(choices)} was expected")
    return value
