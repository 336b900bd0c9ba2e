"""Gemma 2 and Gemma 3: sliding windows between full layers, four norms a layer, tied heads; Rnj-1, without windows.

Source: vLLM 0.33 `model_executor/models/gemma2.py`, `gemma3.py`, `gemma3_mm.py`, `rnj1.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from service.sizing.model.families.dense import ATTENTION_BIAS, EVERYWHERE, NORMALISER
from service.sizing.model.families.llama import read, table_buffer
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.families.recipe import HeadNorms, Recipe
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.resolution import without_head
from service.sizing.model.rope import rotary_table, settings_key, used_by
from service.sizing.model.shape import ModelShape, RopeTable
from service.sizing.model.source import SLIDING_ATTENTION, Source
from service.sizing.model.towers import layer_norm, siglip_tower
from service.sizing.model.towers.parts import PROJECTOR

COMMON: Mapping[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
GEMMA2_DEFAULTS = {**COMMON, "vocab_size": 256000, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0}
GEMMA3_DEFAULTS = {**COMMON, "vocab_size": 262208, "max_position_embeddings": 131072}

GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0
"""Rotary bases of full and sliding layers where a configuration names none."""

LOOKBACK_REFUSAL = "FlashAttentionImpl.__init__() got an unexpected keyword argument 'chunk_lookback'"
"""What the kernels that the engine chooses say to Rnj-1's class."""

GEMMA3_PATTERN = 6
"""Every how many layers a full one stands where a configuration names no pattern."""


def alternating_layers(source: Source) -> Source:
    """Gemma 2's layers: every other one slides."""
    source = source.with_defaults(GEMMA2_DEFAULTS)
    layers = range(source.text.layers("num_hidden_layers"))
    return source.with_defaults(
        {"layer_types": ["full_attention" if index % 2 else SLIDING_ATTENTION for index in layers]}
    )


def gemma3_layers(source: Source) -> Source:
    """Gemma 3's layers: a full one after every few sliding ones, whose window both-way attention halves."""
    source = source.with_defaults(GEMMA3_DEFAULTS)
    text = source.text
    every = text.integer("sliding_window_pattern", default=GEMMA3_PATTERN)
    window = text.optional_integer("sliding_window")
    if text.flag("use_bidirectional_attention", default=False):
        if window is None:
            raise source.invalid(text.named("sliding_window"), "sliding_window is missing: give a whole number")
        source = source.overridden({"sliding_window": window // 2 + 1})
    layers = range(text.layers("num_hidden_layers"))
    return source.with_defaults(
        {"layer_types": ["full_attention" if (index + 1) % every == 0 else SLIDING_ATTENTION for index in layers]}
    )


GEMMA2 = Recipe(
    query_bias=ATTENTION_BIAS[:1],
    output_bias=ATTENTION_BIAS[:1],
    norms=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    tied=True,
    reads_tied=False,
    quantised_embedding=False,
    mixed_windows=True,
    buffers=(NORMALISER,),
    everywhere=EVERYWHERE,
    prepare=alternating_layers,
)
GEMMA3 = replace(
    GEMMA2,
    head_norms=HeadNorms.HEAD,
    reads_tied=True,
    quantised_embedding=True,
    may_encode=True,
    prepare=gemma3_layers,
)


def read_gemma2(source: Source) -> ModelShape:
    """Gemma 2: attention logits are capped unless the configuration says null."""
    model = read(source, GEMMA2)
    text = source.text.completed(GEMMA2_DEFAULTS)
    return replace(model, logit_softcap=bool(text.values["attn_logit_softcapping"]))


def rotary_settings(source: Source, kind: str, base_field: str, base: float) -> Fields:
    """Rotary settings of the layers of one kind; the old `rope_scaling` is about full layers."""
    text = source.text
    given = text.child("rope_parameters")
    settings = (given.child(kind) if given else None) or Fields({}, text.named("rope_parameters"))
    scaling = text.child("rope_scaling") if kind == "full_attention" else None
    values = {"rope_theta": text.number(base_field, default=base), **settings.values}
    return Fields({**values, **scaling.values}, scaling.path) if scaling else Fields(values, settings.path)


def rotary_tables(source: Source, head_size: int, kinds: Sequence[str]) -> tuple[RopeTable, ...]:
    """Tables of full and of sliding layers, which are one where their settings are the same."""
    fields = {"full_attention": ("rope_theta", GLOBAL_BASE), SLIDING_ATTENTION: ("rope_local_base_freq", LOCAL_BASE)}
    tables = dict[str, tuple[object, RopeTable]]()
    for kind in dict.fromkeys(kinds):
        settings = rotary_settings(source, kind, *fields[kind])
        table = rotary_table(source, head_size, settings=settings)
        if table is None:
            raise source.refuse(settings.path, because="its rotary scaling is not understood")
        tables[kind] = settings_key(settings), table
    return used_by(kinds, tables)


def read_gemma3(source: Source, *, causal: bool = True) -> ModelShape:
    """Gemma 3, text only; without causal attention it is an encoder, which keeps no cache."""
    source = gemma3_layers(source)
    model = read(source.overridden({"is_causal": causal}), replace(GEMMA3, rotary=False))
    tables = rotary_tables(source, source.text.integer("head_dim"), source.text.texts("layer_types") or ())
    if causal:
        return replace(model, rope_tables=tables)
    return replace(model, every_stage=(*model.every_stage, *(table_buffer(table) for table in tables)))


def read_gemma3_encoder(source: Source) -> ModelShape:
    """Gemma 3 as an embedding model, which has no head and looks both ways where the configuration says so."""
    both_ways = source.text.flag("use_bidirectional_attention", default=False)
    return without_head(read_gemma3(source, causal=not both_ways))


def read_rnj1(source: Source) -> ModelShape:
    """Rnj-1: Gemma 3 whose layers all attend to every token; the engine's own choice of kernels fails to build it."""
    kinds = source.text.texts("layer_types")
    if kinds is None or set(kinds) != {"full_attention"}:
        field = source.text.named("layer_types")
        raise source.refuse(field, because=f"{field} must call every layer full_attention")
    return replace(read_gemma3(source), build_refusal=LOOKBACK_REFUSAL)


def gemma3_tower(source: Source) -> tuple[Module, ...]:
    """A whole SigLIP, and one matrix into the language model after a norm."""
    vision = tower_config(source)
    hidden = vision.integer("hidden_size", default=768)
    text_hidden = source.text.integer("hidden_size", default=COMMON["hidden_size"])
    return (
        *siglip_tower(source.quantization, vision),
        Tensor("mm_input_projection_weight", PROJECTOR, (Units(hidden),), columns=text_hidden),
        layer_norm("mm_soft_emb_norm", hidden, bias=False, tensor_class=PROJECTOR),
    )


READERS = {
    "Gemma3TextModel": read_gemma3_encoder,
    "Gemma2ForCausalLM": read_gemma2,
    "Gemma3ForCausalLM": read_gemma3,
    "Rnj1ForCausalLM": read_rnj1,
    "Gemma3ForConditionalGeneration": behind(gemma3_tower, read_gemma3, tied=Tied.ROOT_ELSE_TIED, image_prefix=True),
}
