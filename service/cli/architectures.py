"""`architectures`: what is understood, as a page."""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from service.catalogue.records.model import ModelRecord
from service.settings import CHECKOUT, Settings, StartupError
from service.sizing.errors import SizingError
from service.sizing.model import families
from service.sizing.model.architectures import BASE_CLASSES, LAST_SERVED, WITHOUT_PIPELINE
from service.sizing.model.families import POOLING, READERS
from service.sizing.model.resolution import SUFFIXES, Conversion
from service.sizing.weights import total_parameters
from service.storage.seed import shipped

FILE = CHECKOUT / "docs" / "architectures.md"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--output", type=Path, default=FILE, help="where to write it (default: docs/architectures.md)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file differs")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Write the page, or compare it."""
    written = "\n".join(page()) + "\n"
    if arguments.check:
        if not arguments.output.is_file() or arguments.output.read_text() != written:
            raise StartupError(f"{arguments.output} is not what is understood; run `python -m service architectures`.")
        return 0
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(written)
    return 0


def page() -> Iterator[str]:
    """The lines of the page."""
    models = sorted((record for record in shipped() if isinstance(record, ModelRecord)), key=lambda each: each.name)
    refused = sum(isinstance(record.reading, SizingError) for record in models)
    yield "# Architectures"
    yield ""
    yield "Written by `python -m service architectures`, from the readers themselves."
    yield ""
    yield f"{len(READERS)} architectures are understood, by the class that `architectures` in `config.json` names."
    yield "A configuration of any other is refused, and so is one of these with a field that changes memory and that"
    yield "its reader does not know: nothing is guessed."
    yield ""
    yield from architectures()
    yield ""
    yield "## Served as something else"
    yield ""
    yield from conversions()
    yield ""
    yield "## The shipped models"
    yield ""
    yield f"{len(models)} models come with the service; {refused} of them cannot be sized yet, and say why."
    yield "`exact` means that every rule used is vLLM's own, restated; `estimated` that a formula stands in for one."
    yield ""
    yield "| Model | Architecture | Parameters | Status |"
    yield "|---|---|---:|---|"
    for record in models:
        yield model_row(record)


def architectures() -> Iterator[str]:
    """The table of architectures."""
    yield "| Architecture | Family | Pipeline stages | Served by vLLM |"
    yield "|---|---|---|---|"
    family_of = {
        name: family
        for family, module in sorted(vars(families).items())
        if isinstance(module, ModuleType)
        for name in getattr(module, "READERS", ())
        if name in READERS
    }
    for name, family in sorted(family_of.items()):
        stages = "no" if name in WITHOUT_PIPELINE else "yes"
        served = "for pooling" if name in POOLING else "yes"
        if name in LAST_SERVED:
            served = f"up to {LAST_SERVED[name]}"
        yield f"| `{name}` | {family} | {stages} | {served} |"


def conversions() -> Iterator[str]:
    """What the endings of class names mean for decoders."""
    endings: dict[Conversion, list[str]] = defaultdict(list)
    for suffix, conversion in SUFFIXES.items():
        endings[conversion].append(f"`{suffix}`")
    yield "A decoder above is understood under other endings of its name too, as vLLM serves it then:"
    yield f"as an embedding model with {', '.join(endings[Conversion.EMBED])};"
    yield f"as a classifier with {', '.join(endings[Conversion.CLASSIFY])}."
    yield ""
    yield "Where a configuration names no class, its `model_type` decides, and the model is served for embeddings:"
    yield f"{', '.join(f'`{model_type}`' for model_type in sorted(BASE_CLASSES))}."


def model_row(record: ModelRecord) -> str:
    """A model in the table."""
    shape = record.reading
    if isinstance(shape, SizingError):
        named = record.config.get("architectures") or ["none"]
        return f"| {record.name} | `{named[0]}` | | refused: {str(shape).replace('|', '/')} |"
    refusal = shape.architecture_refusal or shape.quantization_refusal
    status = shape.status.value + (f"; vLLM 0.33 does not start it: {refusal}" if refusal else "")
    return f"| {record.name} | `{shape.architecture}` | {total_parameters(shape):,} | {status} |"
