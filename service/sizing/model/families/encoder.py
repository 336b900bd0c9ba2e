"""Encoders: embedding models and classifiers, whose layers keep no cache.

Source: vLLM 0.33 `model_executor/models/` (`bert.py`, `roberta.py`, `bert_with_rope.py`, `modernbert.py`, `config.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers
from service.sizing.model.defaults import CLASS_DEFAULTS
from service.sizing.model.families.llama import FLOAT32_BYTES, attention_buffers, even_head_size, table_buffer
from service.sizing.model.modules import Embedding, Experts, Module, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import LayerShape, ModelShape, RopeTable
from service.sizing.model.source import FULL_ATTENTION, SLIDING_ATTENTION, Source
from service.sizing.quantities import round_up

POSITION_ID_BYTES = 8
"""Bytes of one entry (int64) of the table of positions."""

TABLE_ROWS = 8
"""Jina's rotary table is padded to a multiple of this."""


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


def pooler_and_classifier(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """Pooler and classifier of a sequence, in float32."""
    return (
        float32_linear("pooler.dense", sizes.hidden, sizes.hidden),
        float32_linear("classifier", sizes.hidden, source.labels()),
    )


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


@dataclass(frozen=True, slots=True)
class Rotary:
    """How an encoder with rotary positions is built.

    `experts_every` puts experts into every such layer, from the second on (0: none).
    """

    prefix: str
    table: RopeTable
    gated: bool
    attention_bias: bool
    up_bias: bool
    down_bias: bool
    token_types: int
    experts_every: int = 0


def rotary_layer(source: Source, sizes: Encoder, kind: Rotary, index: int) -> LayerShape:
    """An encoder layer with rotary positions."""
    quantization, path, hidden = source.quantization, f"{kind.prefix}.{index}", sizes.hidden
    mlp: tuple[Module, ...]
    if has_experts(kind, index):
        mlp = nomic_experts(source, sizes)
    else:
        mlp = (
            blocks.gated_up(quantization, f"{path}.mlp", hidden, sizes.intermediate, bias=kind.up_bias)
            if kind.gated
            else blocks.column(
                quantization,
                f"{path}.mlp",
                "up_proj",
                hidden,
                sizes.intermediate,
                bias=kind.up_bias,
                tensor_class=TensorClass.MLP,
            ),
            blocks.row(
                quantization,
                f"{path}.mlp",
                "down_proj",
                sizes.intermediate,
                hidden,
                bias=kind.down_bias,
                tensor_class=TensorClass.MLP,
            ),
        )
    return LayerShape(
        (),
        (
            blocks.query_key_value(
                quantization,
                f"{path}.attention",
                hidden,
                sizes.heads,
                sizes.heads,
                sizes.head_size,
                bias=kind.attention_bias,
                names=("qkv_proj",),
            ),
            blocks.row(quantization, f"{path}.attention", "out_proj", hidden, hidden, bias=kind.attention_bias),
            *mlp,
            blocks.norm("attn_ln", hidden, bias=True),
            blocks.norm("mlp_ln", hidden, bias=True),
            attention_buffers(),
        ),
    )


def has_experts(kind: Rotary, index: int) -> bool:
    """Whether the layer at `index` has experts."""
    return kind.experts_every > 0 and index % kind.experts_every == 1


def nomic_experts(source: Source, sizes: Encoder) -> tuple[Module, ...]:
    """Nomic's experts: unquantised, without a gate, split over tensor ranks alone, one bias for all."""
    text, hidden = source.text, sizes.hidden
    count = text.integer("num_experts")
    return (
        blocks.plain_router(hidden, count, name="router"),
        Experts(
            "experts",
            count,
            text.integer("moe_top_k"),
            hidden,
            sizes.intermediate,
            gated=False,
            spread=False,
        ),
        Tensor("experts_bias", TensorClass.EXPERTS, (Units(hidden),)),
    )


def read_rotary(
    source: Source, sizes: Encoder, kind: Rotary, heads: Callable[[Source, Encoder], tuple[Module, ...]] | None = None
) -> ModelShape:
    """An encoder with rotary positions."""
    kinds = [has_experts(kind, index) for index in range(sizes.layers)]
    layers = build_layers(source, kinds, partial(rotary_layer, source, sizes, kind))
    types = (table("embeddings.token_type_embeddings", kind.token_types, sizes.hidden),) if kind.token_types else ()
    around: tuple[Module, ...] = (
        table("embeddings.word_embeddings", sizes.vocabulary, sizes.hidden),
        *types,
        blocks.norm("embeddings.LayerNorm", sizes.hidden, bias=True),
        table_buffer(kind.table),
    )
    model = encode(source, sizes, layers, around + (heads(source, sizes) if heads else ()))
    return replace(model, experts=source.text.integer("num_experts", default=0, minimum=0))


def encoder_table(source: Source, sizes: Encoder, *, positions: int | None = None) -> RopeTable:
    """The rotary table; a rotated part of the head may be given in elements."""
    rotated = source.text.integer("rotary_emb_dim", default=sizes.head_size)
    found = rotary_table(source, sizes.head_size, partial=rotated / sizes.head_size, positions=2048)
    if found is None:
        raise source.unknown_rope()
    return replace(found, positions=positions) if positions else found


def read_nomic(source: Source) -> ModelShape:
    """Nomic: GPT-2's field names, a SwiGLU or a plain MLP, experts in some layers."""
    source = source.respelled(
        hidden_size=("n_embd", "hidden_size"),
        num_attention_heads=("n_head", "num_attention_heads"),
        num_hidden_layers=("n_layer", "num_hidden_layers"),
        intermediate_size=("n_inner", "intermediate_size"),
    )
    text, sizes = source.text, read_encoder(source)
    activation = text.text("activation_function")
    if activation not in ("swiglu", "gelu"):
        raise source.refuse("activation_function", because=f"activation_function {activation!r} is not supported")
    biases = {name: text.flag(name, default=True) for name in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")}
    if len(set(biases.values())) > 1:
        raise source.refuse(*biases, because=f"{', '.join(biases)} must be alike")
    bias = biases["qkv_proj_bias"]
    return read_rotary(
        source,
        sizes,
        Rotary(
            prefix="encoder.layers",
            table=encoder_table(source, sizes, positions=source.context().default),
            gated=activation == "swiglu",
            attention_bias=bias,
            up_bias=bias,
            down_bias=bias,
            token_types=text.integer("type_vocab_size", default=2, minimum=0),
            experts_every=text.integer("moe_every_n_layers", default=0, minimum=0),
        ),
    )


def read_gte(
    source: Source, heads: Callable[[Source, Encoder], tuple[Module, ...]] | None = None, prefix: str = ""
) -> ModelShape:
    """GTE: a gated MLP without a bias on its way up."""
    text, sizes = source.text, read_encoder(source)
    return read_rotary(
        source,
        sizes,
        Rotary(
            prefix=f"{prefix}encoder.layer",
            table=encoder_table(source, sizes),
            gated=True,
            attention_bias=True,
            up_bias=False,
            down_bias=True,
            token_types=text.integer("type_vocab_size", default=0, minimum=0),
        ),
        heads,
    )


def read_jina(source: Source) -> ModelShape:
    """Jina's XLM-RoBERTa with rotary positions; its adapters are merged into the weights."""
    text, sizes = source.text, read_encoder(source)
    positions = round_up(text.integer("max_position_embeddings"), TABLE_ROWS)
    return read_rotary(
        source,
        sizes,
        Rotary(
            prefix="roberta.encoder.layers",
            table=encoder_table(source, sizes, positions=positions),
            gated=False,
            attention_bias=True,
            up_bias=True,
            down_bias=True,
            token_types=text.integer("type_vocab_size", default=1, minimum=0),
        ),
    )


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
    "NomicBertModel": read_nomic,
    "GteModel": read_gte,
    "GteNewModel": read_gte,
    "GteNewForSequenceClassification": partial(read_gte, heads=pooler_and_classifier, prefix="new."),
    "ModernBertModel": read_modern,
    "ModernBertForSequenceClassification": partial(read_modern, heads=modern_classifier, prefix="model."),
    "ModernBertForTokenClassification": partial(read_modern, heads=modern_token_classifier, prefix="model."),
}
