"""`ingest`: configurations of models from files into the catalogue."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from service.api.models import ModelUpload, record_of, shape_of, sizing_changes, weights_check
from service.api.problems import Problem
from service.api.reading import read_body
from service.catalogue.records.model import ModelRecord
from service.settings import Settings, StartupError
from service.sizing.checkpoint import Verdict
from service.sizing.weights import total_parameters
from service.storage import provision
from service.storage.engine import create_engine
from service.storage.models import StoredModel, store_models

CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
CACHE = "models--"
"""How a hub's local cache begins the folder of a model: `models--owner--name/snapshots/COMMIT`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A model found in a file, as a body for `POST /models`."""

    label: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a model was not taken."""

    label: str
    reason: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help=f"a {CONFIG}, a folder with such files at any depth, a file with bodies for POST /models (one, a list, or "
        "one a line), or - for standard input",
    )
    parser.add_argument(
        "--name",
        help="the model's name, where there is one; else folders named owner/name, "
        "owner--name or as a hub's cache names them give it",
    )
    parser.add_argument("--source", help="where the files come from")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Read every file, put what can be read into one new revision, and report."""
    found = [each for path in arguments.paths for each in find(path, arguments.name)]
    if arguments.name and len(found) > 1:
        raise StartupError(f"--name names one model, and {len(found)} were found.")
    records, refused = read(found, arguments.source or "command line")
    report(store(records, settings) if records else (), refused)
    return 1 if refused else 0


def find(path: str, name: str | None) -> Iterator[Found | Refused]:
    """The models in a file or a folder.

    Raises
    ------
    StartupError
        There is no such file, or no configuration in the folder.
    """
    if path == "-":
        yield from in_text("standard input", sys.stdin.buffer.read(), name)
        return
    place = Path(path)
    try:
        if place.is_dir():
            configs = sorted(outermost(place))
            if not configs:
                raise StartupError(f"There is no {CONFIG} in {path}.")
            for config in configs:
                yield in_folder(config.parent, place, name)
        elif place.name == CONFIG:
            yield in_folder(place.parent, place.parent, name)
        else:
            yield from in_text(path, place.read_bytes(), name or named_by(place.stem))
    except OSError as error:
        raise StartupError(f"{error.filename or path} cannot be read ({error.strerror}).") from None


def outermost(place: Path) -> Iterator[Path]:
    """Every configuration below a folder; those below another one are of the parts of that model."""
    for folder, below, files in os.walk(place):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if CONFIG in files:
            below.clear()
            yield Path(folder) / CONFIG


def in_folder(folder: Path, root: Path, name: str | None) -> Found | Refused:
    """The model whose files lie in a folder, named by the folders from `root` on."""
    label = str(folder / CONFIG)
    own, revision = name_of(folder, root)
    body: dict[str, Any] = {"name": name or own}
    if revision:
        body["revision"] = revision
    for file, field in ((CONFIG, "config"), (QUANTIZATION, "hf_quant_config"), (INDEX, "weights_index")):
        if field != "config" and not (folder / file).is_file():
            continue
        try:
            body[field] = json.loads((folder / file).read_bytes())
        except (ValueError, RecursionError) as error:
            return Refused(label, f"{file} is not JSON: {error}")
    # The names of all tensors, which the rest of an index are, say nothing that is asked here.
    match body.pop("weights_index", None):
        case {"metadata": {"total_size": total}}:
            body["weights_bytes"] = total
        case _:
            pass
    return Found(label, body)


def name_of(folder: Path, root: Path) -> tuple[str, str | None]:
    """The name that a folder gives its model, and the commit where it lies in a hub's cache."""
    whole = Path(os.path.abspath(folder))
    above = whole.parent.parent.name
    if whole.parent.name == "snapshots" and above.startswith(CACHE):
        return above.removeprefix(CACHE).replace("--", "/", 1), whole.name
    if named := named_by(whole.name):
        return named, None
    return "/".join(folder.relative_to(root).parts[-2:]) or whole.name, None


def named_by(text: str) -> str | None:
    """A name written as owner--name; None: it is not."""
    return text.replace("--", "/", 1) if "--" in text else None


def in_text(label: str, text: bytes, name: str | None) -> Iterator[Found | Refused]:
    """The models in a text: one configuration or body, a list of them, or one a line."""
    try:
        whole: object = json.loads(text)
        given = cast("list[object]", whole) if isinstance(whole, list) else [whole]
        lines = [(label if len(given) == 1 else f"{label}: {number}", each) for number, each in enumerate(given, 1)]
    except (ValueError, RecursionError) as error:
        if b"\n" not in text.strip():
            yield Refused(label, f"it is not JSON: {error}")
            return
        lines = [(f"{label}: {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for place, each in lines:
        yield in_value(place, each, name)


def in_value(label: str, value: object, name: str | None) -> Found | Refused:
    """The model that a JSON value, or a line of text, describes."""
    if isinstance(value, bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            return Refused(label, f"it is not JSON: {error}")
    if not isinstance(value, dict):
        return Refused(label, "it is not a JSON object")
    body = cast("dict[str, Any]", value)
    if "config" not in body or "architectures" in body:
        body = {"config": body}
    if name:
        body = {**body, "name": name}
    return Found(label, body) if "name" in body else Refused(label, "it says no name: give one with --name")


def read(found: Sequence[Found | Refused], source: str) -> tuple[list[ModelRecord], list[Refused]]:
    """The records of the models that can be read, and why the others cannot."""
    records: dict[str, ModelRecord] = {}
    refused: list[Refused] = []
    console = Console(stderr=True)
    today = datetime.now(UTC).date()
    for each in track(found, "Reading", console=console, transient=True, disable=not console.is_terminal):
        if isinstance(each, Refused):
            refused.append(each)
            continue
        try:
            record = record_of(read_body(json.dumps(each.body).encode(), ModelUpload), source, today)
            shape_of(record)
        except Problem as problem:
            refused.append(Refused(each.label, problem.details.detail))
            continue
        if records.setdefault(record.name.casefold(), record) != record:
            refused.append(Refused(each.label, f"{record.name} is given twice, with other files"))
    return list(records.values()), refused


def store(records: Sequence[ModelRecord], settings: Settings) -> tuple[StoredModel, ...]:
    """Put models into the catalogue, all or none, as one revision."""
    with provision.database(settings) as provided:
        provision.migrate(provided)
        provision.fill(provided)
        with create_engine(provided, pooled=False).begin() as connection:
            summary = f"Model {records[0].name}" if len(records) == 1 else f"{len(records)} models"
            _, stored = store_models(connection, records, author="ingest", summary=summary)
    return stored


def report(stored: Sequence[StoredModel], refused: Sequence[Refused]) -> None:
    """Print what became of every model; of those that were held already, how many."""
    table = Table("Model", "", "What it is", box=box.SIMPLE_HEAD)
    for each in stored:
        if each.is_changed:
            table.add_row(each.after.name, "changed" if each.before else "added", told(each))
    for each in refused:
        table.add_row(each.label, "refused", each.reason)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    if table.row_count:
        console.print(table)
    taken = sum(each.is_changed for each in stored)
    console.print(f"{taken} taken, {len(stored) - taken} held already, {len(refused)} refused.")


def told(stored: StoredModel) -> str:
    """What a model was read as, or what changed of it, and a size that is not explained."""
    shape = stored.after.shape
    changed = (f"{change.figure}: {change.before} -> {change.after}" for change in sizing_changes(stored))
    read_as = f"{total_parameters(shape):,} parameters, {shape.max_context_tokens:,} tokens, {shape.status.value}"
    text = "; ".join(changed) or read_as
    check = weights_check(stored.after)
    if check and check.verdict is Verdict.UNEXPLAINED:
        text += f"; weights of {check.given_bytes:,} bytes: {'; '.join(check.explanations)}"
    return text
