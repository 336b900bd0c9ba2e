"""Models of shipped startups whose published configuration the catalogue does not hold.

Their configurations (`data/startup_models.jsonl`, see `data/NOTICE.md`) were composed: good enough to compare
predictions with what was measured, not to plan by, so no plan is about one of them.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from service.sizing.model.reader import read_model
from service.sizing.model.shape import ModelShape


def startup_model(name: str) -> ModelShape | None:
    """The composed model of this name, in any case; None: there is none."""
    return _read(name.casefold()) if name.casefold() in _configs() else None


@cache
def _read(name: str) -> ModelShape:
    return read_model(name, _configs()[name])


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    text = files("service.catalogue").joinpath("data", "startup_models.jsonl").read_text("utf-8")
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return {row["model"].casefold(): row["config"] for row in rows}
