"""Language models behind towers.

Source: vLLM 0.33 `config/vllm.py: with_hf_config`, `model_executor/models/interfaces.py: _mark_tower_model`.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

Tower = Callable[[Source], tuple[Module, ...]]


def tower_config(source: Source, name: str = "vision_config") -> Fields:
    """The configuration of a tower, of which every field may be absent."""
    return source.root.child(name) or Fields({}, name)


class Tied(StrEnum):
    """Which part of a multimodal configuration says whether the head is the embedding.

    The engine copies the root's word into the text part where the root's class (transformers 5.20) has the field, which
    then is true (`ROOT_ELSE_TIED`) or false (`ROOT_ELSE_SEPARATE`) unless named; without such a field the root's word
    counts if named (`ROOT_IF_NAMED`). With `EITHER` one true of the two is enough. Under `ROOT_WITH_CLASS` the root's
    word counts only where the text part names its class, under `TEXT` never.
    """

    ROOT_ELSE_TIED = "root_else_tied"
    ROOT_ELSE_SEPARATE = "root_else_separate"
    ROOT_IF_NAMED = "root_if_named"
    EITHER = "either"
    ROOT_WITH_CLASS = "root_with_class"
    TEXT = "text"


def with_tie(source: Source, tied: Tied) -> Source:
    """The configuration with the word that counts in the text part."""
    root = source.root
    if root is source.text:
        return source
    if tied is Tied.ROOT_IF_NAMED and "tie_word_embeddings" not in root:
        return source.overridden({"tie_word_embeddings": source.text.flag("tie_word_embeddings", default=False)})
    if tied is Tied.TEXT or (tied is Tied.ROOT_WITH_CLASS and "architectures" not in source.text):
        return source.overridden({"tie_word_embeddings": source.text.flag("tie_word_embeddings", default=False)})
    value = root.flag("tie_word_embeddings", default=tied is Tied.ROOT_ELSE_TIED)
    if tied is Tied.EITHER and not value:
        value = source.text.flag("tie_word_embeddings", default=False)
    return source.overridden({"tie_word_embeddings": value})


def behind(
    tower: Tower,
    language: Callable[[Source], ModelShape],
    *,
    tied: Tied,
    image_prefix: bool = False,
    beside: Tower | None = None,
) -> Callable[[Source], ModelShape]:
    """A reader of a language model behind a tower, which the first stage holds.

    Parameters
    ----------
    tower : callable
        Weights of towers and projectors.
    language : callable
        Reader of the language model.
    tied : Tied
        What decides whether the head is the embedding.
    image_prefix : bool
        Whether the tokens of an image attend to each other both ways.
    beside : callable, optional
        Further weights, which every stage holds.
    """

    def read(source: Source) -> ModelShape:
        model = language(with_tie(source, tied))
        return replace(
            model,
            first_stage=model.first_stage + tower(source),
            every_stage=model.every_stage + (beside(source) if beside else ()),
            image_prefix=image_prefix or model.image_prefix,
        )

    return read
