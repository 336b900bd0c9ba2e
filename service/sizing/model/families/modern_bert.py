"""ModernBERT: rotary positions, windows around a token in most layers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.assembly import build_layers
from service.sizing.model.families.encoder import (
    Encoder,
    encode,
    float32_linear,
    read_encoder,
    table,
)
from service.sizing.model.families.llama import FLOAT32_BYTES, attention_buffers, table_buffer
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.shape import LayerShape, ModelShape, RopeTable
from service.sizing.model.source import FULL_ATTENTION, SLIDING_ATTENTION, Source

MODERN_DEFAULTS = {
    "max_position_embeddings": 8192,
    "global_attn_every_n_layers": 3,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
}


def modern_layer(source: Source, sizes: Encoder, prefix: str, index: int) -> LayerShape:
    """ModernBERT: a gated MLP; the first layer has no norm before attention."""
    text, quantization, path, hidden = source.text, source.quantization, f"{prefix}layers.{index}", sizes.hidden
    norm_bias, attention_bias = text.flag("norm_bias", default=False), text.flag("attention_bias", default=False)
    mlp_bias = text.flag("mlp_bias", default=False)
    return LayerShape(
        (),
        (
            *(() if index == 0 else (blocks.norm("attn_norm", hidden, bias=norm_bias),)),
            blocks.query_key_value(
                quantization,
                f"{path}.attn",
                hidden,
                sizes.heads,
                sizes.heads,
                sizes.head_size,
                bias=attention_bias,
                names=("Wqkv",),
            ),
            blocks.row(quantization, f"{path}.attn", "Wo", hidden, hidden, bias=attention_bias),
            blocks.norm("mlp_norm", hidden, bias=norm_bias),
            *blocks.gated_mlp(
                quantization,
                f"{path}.mlp",
                hidden,
                sizes.intermediate,
                bias=mlp_bias,
                names=("Wi", "Wi", "Wo"),
            ),
            attention_buffers(),
        ),
    )


def modern_bases(source: Source, layers: int) -> set[float]:
    """Distinct bases of the rotary tables: full and sliding layers have their own."""
    text = source.text
    every = text.integer("global_attn_every_n_layers", default=3)
    kinds = text.texts("layer_types") or [
        SLIDING_ATTENTION if index % every else "full_attention" for index in range(layers)
    ]
    rope = text.child("rope_parameters")
    bases = set[float]()
    for kind in set(kinds[:layers]):
        full = kind in FULL_ATTENTION
        settings = rope.child(kind) if rope else None
        old = ("global_rope_theta", 160000.0) if full else ("local_rope_theta", 10000.0)
        base = text.number(old[0], default=old[1])
        bases.add(settings.number("rope_theta", default=base) if settings else base)
    return bases


def read_modern(
    source: Source, heads: Callable[[Source, Encoder], tuple[Module, ...]] | None = None, prefix: str = ""
) -> ModelShape:
    """ModernBERT: full and sliding layers, each kind with a rotary table."""
    source = source.with_defaults(MODERN_DEFAULTS)
    text, sizes = source.text, read_encoder(source)
    layers = build_layers(
        source,
        [index == 0 for index in range(sizes.layers)],
        partial(modern_layer, source, sizes, prefix),
    )
    norm_bias = text.flag("norm_bias", default=False)
    rows = RopeTable(text.integer("max_position_embeddings"), sizes.head_size, 2)
    around: tuple[Module, ...] = (
        table("embeddings.tok_embeddings", sizes.vocabulary, sizes.hidden),
        blocks.norm("embeddings.norm", sizes.hidden, bias=norm_bias),
        blocks.norm("final_norm", sizes.hidden, bias=norm_bias),
        *(table_buffer(rows) for _ in modern_bases(source, sizes.layers)),
    )
    return encode(source, sizes, layers, around + (heads(source, sizes) if heads else ()))


def modern_classifier(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """Pooler and classifier of a sequence, in float32."""
    text, hidden = source.text, sizes.hidden
    norm_bias = text.flag("norm_bias", default=False)
    return (
        float32_linear("head.dense", hidden, hidden, bias=text.flag("classifier_bias", default=False)),
        replace(blocks.norm("head.norm", hidden, bias=norm_bias), element_bytes=FLOAT32_BYTES),
        float32_linear("classifier", hidden, source.labels()),
    )


def modern_token_classifier(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """Prediction head in the model's type, classifier of each token in float32."""
    text, hidden = source.text, sizes.hidden
    bias = text.flag("classifier_bias", default=False)
    return (
        Tensor("head.dense", TensorClass.OTHER, (Units(hidden),), hidden + bias),
        blocks.norm("head.norm", hidden, bias=text.flag("norm_bias", default=False)),
        float32_linear("classifier", hidden, source.labels()),
    )


READERS: dict[str, Callable[[Source], ModelShape]] = {
    "ModernBertModel": read_modern,
    "ModernBertForSequenceClassification": partial(read_modern, heads=modern_classifier, prefix="model."),
    "ModernBertForTokenClassification": partial(read_modern, heads=modern_token_classifier, prefix="model."),
}
