"""Language models behind towers.

Source: vLLM 0.33 `config/vllm.py: with_hf_config`, `model_executor/models/interfaces.py: _mark_tower_model`.
"""

from collections.abc import Callable
from dataclasses import replace

from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

Tower = Callable[[Source], tuple[Module, ...]]


def tower_config(source: Source, name: str = "vision_config") -> Fields:
    """The configuration of a tower, of which every field may be absent."""
    return source.root.child(name) or Fields({}, name)


def tied_by_root(source: Source, default: bool | None) -> Source:
    """The configuration with the root's word on a tied head in the text part, as the engine copies it there.

    `default` is what the root's class fills in; None: the class has no such field, and the text part decides alone
    unless the root names one.
    """
    root = source.root
    if root is source.text or (default is None and "tie_word_embeddings" not in root):
        return source
    return source.overridden({"tie_word_embeddings": root.flag("tie_word_embeddings", default=bool(default))})


def behind(
    tower: Tower,
    language: Callable[[Source], ModelShape],
    *,
    tied: bool | None,
    image_prefix: bool = False,
) -> Callable[[Source], ModelShape]:
    """A reader of a language model behind a tower, which the first stage holds.

    Parameters
    ----------
    tower : callable
        Weights of towers and projectors.
    language : callable
        Reader of the language model.
    tied : bool or None
        Whether the head is the embedding where the root of the configuration does not say (see `tied_by_root`).
    image_prefix : bool
        Whether the tokens of an image attend to each other both ways.
    """

    def read(source: Source) -> ModelShape:
        model = language(tied_by_root(source, tied))
        return replace(
            model, first_stage=model.first_stage + tower(source), image_prefix=image_prefix or model.image_prefix
        )

    return read
