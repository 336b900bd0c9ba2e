"""What the engine itself built and planned for models of `tests/data/models`, and our reading of the same."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from service.sizing.engine.options import EngineOptions
from service.sizing.engine.refusal import Refusal
from service.sizing.kv_cache.planner import CachePlan, cache_layout, plan_cache
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.model.shape import ModelShape
from service.sizing.weights import stage_weights
from tests.sizing.cache_models import DEVICES

FOLDER = Path(__file__).parents[2] / "data" / "models"
ROUTER_KERNEL_CARDS = frozenset({"H100", "H200", "B200"})


@dataclass(frozen=True)
class Fact:
    """One model on one layout: bytes of parameters and buffers of each stage, and the printed size of its cache."""

    family: str
    model: str
    gpu: str
    layout: Layout
    stages: tuple[tuple[int, int | None], ...]
    available_bytes: int | None
    blocks: int | None
    tokens: int | None
    max_model_len: int | None


@cache
def family(name: str) -> dict[str, dict[str, Any]]:
    """Models of one file, by name."""
    return {entry["name"]: entry for entry in json.loads((FOLDER / f"{name}.json").read_text())["models"]}


@cache
def shape(family_name: str, model: str) -> ModelShape:
    """Our reading of a model."""
    entry = family(family_name)[model]
    return read_model(model, entry["config"], entry.get("hf_quant_config"))


def config(family_name: str, model: str, **changed: Any) -> dict[str, Any]:
    """A model's configuration with some fields changed, or dropped where None."""
    whole = {**family(family_name)[model]["config"], **changed}
    return {name: value for name, value in whole.items() if value is not None or name not in changed}


def facts() -> list[Any]:
    """Every fact of every file, as parameters of a test."""
    return [
        pytest.param(_fact(path.stem, name, layout), id=f"{name}-{number}")
        for path in sorted(FOLDER.glob("*.json"))
        for name, entry in family(path.stem).items()
        for number, layout in enumerate(entry["layouts"])
    ]


def counts() -> list[Any]:
    """Family, model and published parameters of every model that names them."""
    return [
        pytest.param(path.stem, name, entry["parameters"], id=name)
        for path in sorted(FOLDER.glob("*.json"))
        for name, entry in family(path.stem).items()
        if "parameters" in entry
    ]


def _fact(family_name: str, model: str, given: dict[str, Any]) -> Fact:
    return Fact(
        family=family_name,
        model=model,
        gpu=given["gpu"],
        layout=Layout(
            given["tensor"], len(given["stages"]), given.get("data", 1), given.get("experts_spread", False), 1
        ),
        stages=tuple((parameters, buffers) for parameters, buffers in given["stages"]),
        available_bytes=given.get("available_bytes"),
        blocks=given.get("blocks"),
        tokens=given.get("tokens"),
        max_model_len=given.get("max_model_len"),
    )


def stage_bytes(fact: Fact) -> tuple[tuple[int, int | None], ...]:
    """Our bytes of parameters and buffers of each stage; buffers only where the engine's are known."""
    weights = stage_weights(shape(fact.family, fact.model), fact.layout, fact.gpu in ROUTER_KERNEL_CARDS)
    return tuple(
        (stage.parameter_bytes, None if known is None else stage.buffer_bytes)
        for stage, (_, known) in zip(weights, fact.stages, strict=True)
    )


def planned(fact: Fact) -> CachePlan | Refusal:
    """Our plan of the cache in the memory the engine had."""
    options = EngineOptions(version="0.33.0", max_model_len=fact.max_model_len)
    layout = cache_layout(shape(fact.family, fact.model), fact.layout, DEVICES[fact.gpu], options)
    if isinstance(layout, Refusal):
        return layout
    return plan_cache(layout, [fact.available_bytes or 0] * len(fact.stages))
