"""Which reader an architecture has, and what the engine turns the model into.

vLLM serves a decoder as an embedding model or a classifier when the class name ends that way and only the decoder is
registered.

Source: vLLM 0.33 `model_executor/models/registry.py: _normalize_arch`, `config/model.py: _SUFFIX_TO_DEFAULTS`,
`models/adapters.py`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from service.sizing.model.modules import Linear, Split, TensorClass, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source


class Conversion(StrEnum):
    """What a registered decoder is served as."""

    NONE = "none"
    EMBED = "embed"
    CLASSIFY = "classify"


SUFFIXES = {
    "ForCausalLM": Conversion.NONE,
    "ForConditionalGeneration": Conversion.NONE,
    "ChatModel": Conversion.NONE,
    "LMHeadModel": Conversion.NONE,
    "ForTextEncoding": Conversion.EMBED,
    "EmbeddingModel": Conversion.EMBED,
    "ForSequenceClassification": Conversion.CLASSIFY,
    "ForTokenClassification": Conversion.CLASSIFY,
    "ForAudioClassification": Conversion.CLASSIFY,
    "ForImageClassification": Conversion.CLASSIFY,
    "ForVideoClassification": Conversion.CLASSIFY,
    "ClassificationModel": Conversion.CLASSIFY,
    "ForRewardModeling": Conversion.EMBED,
    "RewardModel": Conversion.EMBED,
    "Model": Conversion.EMBED,
}
"""Endings of class names, the first that fits deciding."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The class whose reader covers an architecture, and what it is served as."""

    architecture: str
    conversion: Conversion


def resolve(architecture: str, known: Collection[str]) -> Resolution | None:
    """How an architecture is served by one of the `known` classes; None: not at all."""
    if architecture in known:
        return Resolution(architecture, Conversion.NONE)
    suffix = next((suffix for suffix in SUFFIXES if architecture.endswith(suffix)), None)
    if suffix is None or SUFFIXES[suffix] is Conversion.NONE:
        return None
    stem = architecture.removesuffix(suffix)
    base = next((stem + other for other in SUFFIXES if stem + other in known), None)
    return Resolution(base, SUFFIXES[suffix]) if base else None


def without_head(model: ModelShape) -> ModelShape:
    """The model without its output head: a tied one stays in the embedding."""
    return replace(
        model,
        last_stage=tuple(m for m in model.last_stage if m.tensor_class is not TensorClass.HEAD),
        every_stage=tuple(m for m in model.every_stage if m.tensor_class is not TensorClass.HEAD),
    )


def score(source: Source, hidden: int) -> Linear:
    """The float32 head of a classifier, which quantisation covers."""
    return Linear(
        "score",
        TensorClass.OTHER,
        Units(hidden),
        (Units(source.labels()),),
        Split.REPLICATED,
        scheme=source.quantization.linear("score"),
        element_bytes=4,
    )


def converted(reader: Callable[[Source], ModelShape], conversion: Conversion, source: Source) -> ModelShape:
    """A decoder as it is served."""
    model = reader(source)
    if conversion is Conversion.NONE:
        return model
    model = without_head(model)
    if conversion is Conversion.EMBED:
        return model
    return replace(model, every_stage=(*model.every_stage, score(source, model.hidden_size)))
