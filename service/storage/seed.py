"""Putting the shipped catalogue into the database."""

import hashlib
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from service.catalogue.measurement import SHIPPED_BY
from service.settings import CHECKOUT
from service.storage.url import CONNECT_TIMEOUT_S, libpq_url

if TYPE_CHECKING:
    import sqlalchemy as sa

DATA = CHECKOUT / "service" / "catalogue" / "data"
AUTHOR = SHIPPED_BY
TAKEN = b"gpus, models, machines, prices, startups, load tests"


def fingerprint() -> str:
    """Short digest of every shipped file, and of what is taken from them."""
    digest = hashlib.sha256(TAKEN)
    for file in _files():
        digest.update(str(file.relative_to(DATA)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def summary() -> str:
    """What a revision made from the shipped files says of itself; it names them, so that they are seeded once."""
    return f"Shipped catalogue {fingerprint()}"


def is_seeded(database_url: str) -> bool:
    """Whether these very files were seeded before."""
    with psycopg.connect(libpq_url(database_url), connect_timeout=CONNECT_TIMEOUT_S) as connection:
        query = "SELECT FROM catalogue_revisions WHERE author = %s AND summary = %s"
        return connection.execute(query, (AUTHOR, summary())).fetchone() is not None


def shipped() -> Iterator[object]:
    """The shipped files' records."""
    from service.catalogue.records.source import SourceRecord
    from service.catalogue.seed_calibrations import load_serving, load_startups
    from service.catalogue.servings import ServingRecord
    from service.catalogue.shipped import shipped_hosted_prices, shipped_instance_types, shipped_prices
    from service.catalogue.startups import StartupRecord
    from service.storage import catalogue

    gpus = json.loads((DATA / "gpus.json").read_text())
    as_of = date.fromisoformat(gpus["as_of"])
    for key, title in gpus["sources"].items():
        yield SourceRecord(key, title)
    for row in gpus["gpus"]:
        yield catalogue.gpu_from_row(row | {"source": "shipped catalogue; each figure names its own", "as_of": as_of})
    for file in sorted((DATA / "models").glob("*.json")):
        row: dict[str, Any] = json.loads(file.read_text())
        defaults = {"hf_quant_config": None, "weights_bytes": None}
        yield catalogue.model_from_row(defaults | row | {"as_of": date.fromisoformat(row["as_of"])})
    yield from shipped_instance_types()
    yield from shipped_prices()
    yield from shipped_hosted_prices()
    startups = (StartupRecord(measurement, AUTHOR, as_of) for measurement in load_startups())
    yield from {startup.id: startup for startup in startups}.values()
    yield from (ServingRecord(measurement, AUTHOR, as_of) for measurement in load_serving())


def seed(connection: "sa.Connection") -> int:
    """Publish the shipped catalogue, in the caller's transaction, unless these files were seeded before.

    So a record that somebody replaced since stays replaced. Measurements that are held already stay as they are in any
    case: somebody may have withdrawn one.

    Returns
    -------
    int
        The newest revision.
    """
    from service.storage import calibrations, catalogue

    title = summary()
    if any(revision.author == AUTHOR and revision.summary == title for revision in catalogue.revisions(connection)):
        return catalogue.current_revision(connection)
    return catalogue.publish(connection, calibrations.without_held(connection, shipped()), author=AUTHOR, summary=title)


def _files() -> list[Path]:
    return sorted(file for file in DATA.rglob("*") if file.is_file() and file.suffix != ".md")
