"""BERT and RoBERTa: learned positions, token types, and the heads of their tasks."""

from collections.abc import Callable
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.assembly import build_layers
from service.sizing.model.defaults import CLASS_DEFAULTS
from service.sizing.model.families.encoder import (
    Encoder,
    encode,
    float32_linear,
    pooler_and_classifier,
    read_encoder,
    table,
    unbuilt_linear,
)
from service.sizing.model.families.llama import attention_buffers
from service.sizing.model.families.rotary_encoder import read_jina
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.shape import LayerShape, ModelShape
from service.sizing.model.source import Source

POSITION_ID_BYTES = 8
"""Bytes of one entry (int64) of the table of positions."""


def bert_layer(source: Source, sizes: Encoder, prefix: str, index: int) -> LayerShape:
    """BERT: biases everywhere, a norm after each half."""
    quantization, path = source.quantization, f"{prefix}encoder.layer.{index}"
    names = ("query", "key", "value")
    return LayerShape(
        (),
        (
            blocks.query_key_value(
                quantization,
                f"{path}.attention.self",
                sizes.hidden,
                sizes.heads,
                sizes.heads,
                sizes.head_size,
                bias=True,
                names=names,
            ),
            blocks.row(quantization, f"{path}.attention.output", "dense", sizes.hidden, sizes.hidden, bias=True),
            blocks.norm("attention.output.LayerNorm", sizes.hidden, bias=True),
            *blocks.plain_mlp(
                quantization,
                path,
                sizes.hidden,
                sizes.intermediate,
                bias=True,
                names=("intermediate.dense", "output.dense"),
            ),
            blocks.norm("output.LayerNorm", sizes.hidden, bias=True),
            attention_buffers(),
        ),
    )


def read_bert(
    source: Source, prefix: str = "", heads: Callable[[Source, Encoder], tuple[Module, ...]] | None = None
) -> ModelShape:
    """BERT and RoBERTa: learned positions and token types.

    Parameters
    ----------
    prefix : str
        Where the checkpoint keeps the encoder.
    heads : callable, optional
        What stands on top.
    """
    source = source.with_defaults(CLASS_DEFAULTS.get(source.model_type, {}))
    text = source.text
    kind = text.text("position_embedding_type", default="absolute")
    if kind == "rotary" and source.model_type == "xlm-roberta":
        return read_jina(source)
    if kind != "absolute":
        raise source.refuse("position_embedding_type", because=f"position_embedding_type {kind!r} is not supported")
    sizes = read_encoder(source)
    positions = text.integer("max_position_embeddings")
    layers = build_layers(source, [None] * sizes.layers, partial(bert_layer, source, sizes, prefix))
    around: tuple[Module, ...] = (
        table("embeddings.word_embeddings", sizes.vocabulary, sizes.hidden),
        table("embeddings.position_embeddings", positions, sizes.hidden),
        table("embeddings.token_type_embeddings", text.integer("type_vocab_size"), sizes.hidden),
        blocks.norm("embeddings.LayerNorm", sizes.hidden, bias=True),
        Tensor("position_ids", TensorClass.OTHER, (Units(positions),), element_bytes=POSITION_ID_BYTES, buffer=True),
    )
    return encode(source, sizes, layers, around + (heads(source, sizes) if heads else ()))


def unused_pooler(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """The pooler of a published encoder, which an embedding model does without."""
    return (unbuilt_linear("pooler.dense", sizes.hidden, sizes.hidden),)


def dense_and_classifier(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """RoBERTa's classifier of a sequence, in float32."""
    return (
        float32_linear("classifier.dense", sizes.hidden, sizes.hidden),
        float32_linear("classifier.out_proj", sizes.hidden, source.labels()),
    )


def token_classifier(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """Classifier of each token, in float32."""
    return (float32_linear("classifier", sizes.hidden, source.labels()),)


def masked_head(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """Head for masked words, whole on every rank; its decoder is the embedding in the checkpoint."""
    hidden = sizes.hidden
    return (
        Tensor("mlm_head.dense", TensorClass.OTHER, (Units(hidden),), hidden + 1),
        blocks.norm("mlm_head.layer_norm", hidden, bias=True),
        Tensor("mlm_head.decoder", TensorClass.HEAD, (Units(sizes.vocabulary),), hidden, counted=False),
        Tensor("mlm_head.decoder_bias", TensorClass.HEAD, (Units(sizes.vocabulary),)),
    )


def unused_masked_head(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """The head for masked words of a published RoBERTa, which an embedding model does without."""
    return (
        unbuilt_linear("lm_head.dense", sizes.hidden, sizes.hidden),
        Tensor("lm_head.layer_norm", TensorClass.NORM, (Units(sizes.hidden),), 2, built=False),
        Tensor("lm_head.bias", TensorClass.HEAD, (Units(sizes.vocabulary),), built=False),
    )


def bge_heads(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """The sparse and the multi-vector heads of BGE-M3, in float32."""
    return (
        float32_linear("sparse_linear", sizes.hidden, 1),
        float32_linear("colbert_linear", sizes.hidden, sizes.hidden),
    )


READERS: dict[str, Callable[[Source], ModelShape]] = {
    "BertModel": partial(read_bert, heads=unused_pooler),
    "BertForMaskedLM": partial(read_bert, prefix="bert.", heads=masked_head),
    "BertSpladeSparseEmbeddingModel": partial(read_bert, prefix="bert.", heads=masked_head),
    "BertForSequenceClassification": partial(read_bert, prefix="bert.", heads=pooler_and_classifier),
    "BertForTokenClassification": partial(read_bert, prefix="bert.", heads=token_classifier),
    "RobertaModel": partial(read_bert, heads=unused_pooler),
    "XLMRobertaModel": partial(read_bert, heads=unused_pooler),
    "RobertaForMaskedLM": partial(read_bert, prefix="roberta.", heads=unused_masked_head),
    "RobertaForSequenceClassification": partial(read_bert, prefix="roberta.", heads=dense_and_classifier),
    "XLMRobertaForSequenceClassification": partial(read_bert, prefix="roberta.", heads=dense_and_classifier),
    "RobertaForTokenClassification": partial(read_bert, prefix="roberta.", heads=token_classifier),
    "XLMRobertaForTokenClassification": partial(read_bert, prefix="roberta.", heads=token_classifier),
    "BgeM3EmbeddingModel": partial(read_bert, heads=bge_heads),
}
