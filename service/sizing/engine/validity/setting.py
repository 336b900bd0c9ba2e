"""What a rule judges."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps

from service.sizing.engine.options import EngineOptions
from service.sizing.engine.refusal import Refusal
from service.sizing.hardware import Gpu
from service.sizing.layouts import Layout
from service.sizing.model.modules import Module
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import TOWERS


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on a layout of one GPU type under the caller's engine options.

    `release` is the vLLM version as numbers.
    """

    model: ModelShape
    layout: Layout
    gpu: Gpu
    options: EngineOptions
    release: tuple[int, ...]


Rule = Callable[[Setting], Refusal | None]


def by_layout(rule: Callable[[ModelShape, Layout], Refusal | None]) -> Rule:
    """A rule about a model and its layout alone: worked out once for all cards and options."""
    remembered = lru_cache(maxsize=4096)(rule)

    @wraps(rule)
    def judge(setting: Setting) -> Refusal | None:
        return remembered(setting.model, setting.layout)

    return judge


def built_first(model: ModelShape) -> Iterator[Module]:
    """Towers, then the embedding and what else stands before the layers."""
    outside = (*model.first_stage, *model.every_stage)
    yield from (module for module in outside if module.tensor_class in TOWERS)
    yield from (module for module in outside if module.tensor_class not in TOWERS)


def built_later(model: ModelShape) -> Iterator[Module]:
    """Each distinct layer once, then norm and head."""
    for layer in model.distinct:
        yield from layer.modules
    yield from model.last_stage


def in_build_order(model: ModelShape) -> Iterator[Module]:
    """Modules as the engine builds them: towers, embedding, each distinct layer once, norm and head."""
    yield from built_first(model)
    yield from built_later(model)
