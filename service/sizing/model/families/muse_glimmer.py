"""Muse Glimmer: sliding and full attention with a gate on its output, behind a tower that may be absent.

Source: vLLM 0.33 `model_executor/models/muse_glimmer.py`; transformers 5.20
`models/muse_glimmer/configuration_muse_glimmer.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.families.llama import read
from service.sizing.model.families.multimodal import tower_config
from service.sizing.model.families.recipe import Part, Recipe
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import SLIDING_ATTENTION, Source
from service.sizing.model.towers.parts import (
    PROJECTOR,
    TOWER,
    even_head_size,
    layer_norm,
    tower_linear,
    tower_query_key_value,
    whole_linear,
)

TEXT: Mapping[str, Any] = {
    "vocab_size": 202048,
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 2048,
}
VISION: Mapping[str, Any] = {
    "patch_size": 14,
    "patch_temporal": 2,
    "pos_emb_height": 32,
    "pos_emb_width": 32,
    "num_attention_heads": 16,
    "num_hidden_layers": 50,
    "hidden_size": 1536,
    "intermediate_size": 8960,
}
GROUP = 4
"""Layers of which the last attends fully without rotary positions, counted from the end, where nothing is named."""


def output_gate(source: Source, path: str) -> tuple[Module, ...]:
    """The gate on attention's output."""
    text = source.text
    units = Units(text.integer("num_attention_heads"), text.integer("head_dim"))
    return (
        blocks.column(source.quantization, f"{path}.self_attn", "output_gate_proj", text.integer("hidden_size"), units),
    )


RECIPE = Recipe(
    norms=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    reads_tied=False,
    quantised_embedding=False,
    mixed_windows=True,
    extra=output_gate,
    everywhere=frozenset((Part.EMBEDDING, Part.NORM, Part.HEAD)),
)


def tower(source: Source) -> tuple[Module, ...]:
    """The tower, of which only attention is split, and three linear layers; nothing of it is quantised."""
    vision, root, plain = tower_config(source).completed(VISION), source.root, NotQuantised()
    hidden, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    width, size = vision.integer("intermediate_size"), even_head_size(vision, hidden, heads)
    pixels = 3 * vision.integer("patch_temporal") * vision.integer("patch_size") ** 2
    output = root.integer("out_hidden_size", default=6144)
    inner = root.integer("projector_hidden_size", default=4096)
    layer = (
        tower_query_key_value(plain, "", "qkv_proj", hidden, heads, size, bias=True, split_units=heads),
        tower_linear(plain, "", "o_proj", Units(heads, size), hidden, Split.ROW, bias=True, split_units=heads),
        whole_linear("mlp.c_fc", hidden, width),
        whole_linear("mlp.c_proj", width, hidden),
        layer_norm("norms", 2 * hidden),
    )
    positions = vision.integer("pos_emb_height") * vision.integer("pos_emb_width")
    return (
        whole_linear("conv1_linear", pixels, hidden, bias=False),
        Tensor("positional_embedding_vlm", TOWER, (Units(positions),), columns=hidden),
        layer_norm("ln_pre/ln_post", 2 * hidden),
        *layer * vision.layers("num_hidden_layers"),
        whole_linear("vision_adapter.c_fc", output, inner, bias=False, tensor_class=PROJECTOR),
        whole_linear("vision_adapter.c_proj", inner, inner, bias=False, tensor_class=PROJECTOR),
        whole_linear(
            "vision_projection", inner, source.text.integer("hidden_size"), bias=False, tensor_class=PROJECTOR
        ),
    )


def read_glimmer(source: Source) -> ModelShape:
    """The decoder, and the tower if there is one."""
    source = source.with_defaults(TEXT)
    text = source.text
    layers = text.layers("num_hidden_layers")
    closing = [(layers - 1 - index) % GROUP == 0 for index in range(layers)]
    kinds = text.texts("layer_types") or ["full_attention" if closes else SLIDING_ATTENTION for closes in closing]
    bases = text.items("layer_rope_theta") or [not closes for closes in closing]
    if len(bases) < layers:
        field = text.named("layer_rope_theta")
        raise source.invalid(field, f"{field} must have a number for each of {layers} layers")
    rotated = frozenset(index for index in range(layers) if bases[index])
    source = source.overridden({"layer_types": kinds})
    model = read(source, RECIPE)
    seen = "vision_config" in source.root or source.text is not source.root
    return replace(
        model,
        first_stage=(*model.first_stage, *(tower(source) if seen else ())),
        rope_tables=tuple(replace(table, layers=rotated) for table in model.rope_tables),
        logit_softcap=False,
    )


READERS = dict.fromkeys(("MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration"), read_glimmer)
