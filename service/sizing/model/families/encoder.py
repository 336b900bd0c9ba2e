"""Encoders: embedding models and classifiers, whose layers keep no cache.

Source: vLLM 0.33 `model_executor/models/` (`bert.py`, `roberta.py`, `bert_with_rope.py`, `modernbert.py`, `config.py`).
"""

from dataclasses import dataclass

from service.sizing.model.assembly import Ends, assemble
from service.sizing.model.families.llama import FLOAT32_BYTES, even_head_size
from service.sizing.model.modules import Embedding, Module, Tensor, TensorClass, Units
from service.sizing.model.shape import LayerShape, ModelShape
from service.sizing.model.source import Source


@dataclass(frozen=True, slots=True)
class Encoder:
    """Sizes of an encoder."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int

    @property
    def head_size(self) -> int:
        """Size of a head."""
        return self.hidden // self.heads


def read_encoder(source: Source) -> Encoder:
    """Sizes of an encoder; hidden size by heads is whole."""
    text = source.text
    heads = text.integer("num_attention_heads")
    size = even_head_size(source, heads)
    return Encoder(
        hidden=size * heads,
        layers=text.layers("num_hidden_layers"),
        heads=heads,
        intermediate=text.integer("intermediate_size"),
        vocabulary=text.integer("vocab_size"),
    )


def float32_linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Tensor:
    """A dense layer of a head, which the engine keeps in float32."""
    rows = (Units(outputs),)
    return Tensor(name, TensorClass.OTHER, rows, inputs + bias, element_bytes=FLOAT32_BYTES)


def unbuilt_linear(name: str, inputs: int, outputs: int) -> Tensor:
    """A dense layer with bias that the checkpoint holds and the engine's class does not build."""
    return Tensor(name, TensorClass.OTHER, (Units(outputs),), inputs + 1, built=False)


def table(name: str, rows: int, hidden: int) -> Embedding:
    """One of the tables that are added up to the embedding; all are split by rows."""
    return Embedding(name, TensorClass.EMBEDDING, rows, hidden)


def encode(source: Source, sizes: Encoder, layers: tuple[LayerShape, ...], around: tuple[Module, ...]) -> ModelShape:
    """An encoder: everything outside the layers on its one stage."""
    return assemble(
        source,
        layers,
        Ends(first=around),
        hidden=sizes.hidden,
        vocabulary=sizes.vocabulary,
        heads=sizes.heads,
        kv_heads=sizes.heads,
    )


def pooler_and_classifier(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """Pooler and classifier of a sequence, in float32."""
    return (
        float32_linear("pooler.dense", sizes.hidden, sizes.hidden),
        float32_linear("classifier", sizes.hidden, source.labels()),
    )
