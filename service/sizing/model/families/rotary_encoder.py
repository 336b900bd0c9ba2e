"""Encoders with rotary positions: Nomic, GTE, Jina."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.assembly import build_layers
from service.sizing.model.families.encoder import (
    Encoder,
    encode,
    pooler_and_classifier,
    read_encoder,
    table,
)
from service.sizing.model.families.llama import attention_buffers, table_buffer
from service.sizing.model.modules import Experts, Module, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source
from service.sizing.quantities import round_up

TABLE_ROWS = 8
"""Jina's rotary table is padded to a multiple of this."""


NOMIC_POSITIONS = 2048
"""Positions of a Nomic encoder that names none in today's spelling (transformers 5.20)."""


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
    """Nomic: GPT-2's field names, a SwiGLU or a plain MLP, experts in some layers.

    `n_positions` may promise more than the engine serves: its class fills in a shorter length beside it.
    """
    source = source.with_defaults({"max_position_embeddings": NOMIC_POSITIONS}).respelled(
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


READERS: dict[str, Callable[[Source], ModelShape]] = {
    "NomicBertModel": read_nomic,
    "GteModel": read_gte,
    "GteNewModel": read_gte,
    "GteNewForSequenceClassification": partial(read_gte, heads=pooler_and_classifier, prefix="new."),
}
