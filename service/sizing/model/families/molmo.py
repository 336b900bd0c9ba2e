"""Molmo and Molmo 2: decoders of their own behind a ViT, whose patches attention pools.

Source: vLLM 0.33 `model_executor/models/molmo.py`, `molmo2.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.families.llama import read
from service.sizing.model.families.multimodal import Tied, behind
from service.sizing.model.families.recipe import HeadNorms, Part, Recipe
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import (
    PROJECTOR,
    TOWER,
    layer_norm,
    tower_linear,
    tower_query_key_value,
    whole_linear,
)

EVERYWHERE = frozenset((Part.EMBEDDING, Part.NORM, Part.HEAD))

FURTHER_WORDS = 128
"""Rows of the embedding that the head has not."""

VIT: Mapping[str, int] = {
    "hidden": 1024,
    "width": 4096,
    "depth": 23,
    "heads": 16,
    "patch": 14,
    "positions": 577,
    "joined": 2,
}
"""The only tower of Molmo; `joined` layers of it feed the projector side by side."""

VIT2: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "image_patch_size": 14,
    "image_num_pos": 577,
}
ADAPTER2: Mapping[str, Any] = {
    "vit_layers": [-3, -9],
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "intermediate_size": 18944,
    "text_hidden_size": 3584,
}
TEXT2: Mapping[str, Any] = {
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 152064,
    "additional_vocab_size": FURTHER_WORDS,
    "qkv_bias": True,
    "num_hidden_layers": 48,
    "intermediate_size": 18944,
    "max_position_embeddings": 4096,
    "rope_theta": 1000000.0,
}
"""What the second Molmo fills in."""


POOLING, PROJECTION = "vision_backbone.image_pooling_2d", "vision_backbone.image_projector"


def column(quantization: Quantization, path: str, name: str, inputs: int, outputs: int) -> Linear:
    """A linear layer with a bias, split over ranks by outputs."""
    return tower_linear(quantization, path, name, inputs, outputs, Split.COLUMN, bias=True)


def around_pooling(quantization: Quantization, hidden: int, inner: int, width: int, output: int) -> tuple[Module, ...]:
    """What follows the attention that pools patches: its output, and a gated MLP into the language model."""
    return (
        tower_linear(quantization, POOLING, "wo", inner, hidden, Split.ROW, bias=True),
        blocks.gated_up(
            quantization, PROJECTION, hidden, width, tensor_class=PROJECTOR, names=("merged_linear", "merged_linear")
        ),
        tower_linear(
            quantization, PROJECTION, "down_proj", width, output, Split.ROW, bias=False, tensor_class=PROJECTOR
        ),
    )


def mlp(quantization: Quantization, path: str, hidden: int, width: int) -> tuple[Module, ...]:
    """The MLP of a tower's layer."""
    return (
        column(quantization, path, "w1", hidden, width),
        tower_linear(quantization, path, "w2", width, hidden, Split.ROW, bias=True),
    )


def tower(source: Source) -> tuple[Module, ...]:
    """A CLIP without fused projections, pooling over two of its layers, and the projector."""
    quantization, hidden = source.quantization, VIT["hidden"]
    modules: list[Module] = [
        Tensor("class_and_padding", TOWER, (Units((1 + 2 * VIT["joined"]) * hidden),)),
        Tensor("positional_embedding", TOWER, (Units(VIT["positions"]),), columns=hidden),
        whole_linear("patch_embedding", 3 * VIT["patch"] ** 2, hidden, bias=False),
        layer_norm("pre_ln", hidden),
    ]
    for number in range(VIT["depth"]):
        block = f"vision_backbone.image_vit.transformer.resblocks.{number}"
        attention = f"{block}.attention"
        modules += (
            *(column(quantization, attention, name, hidden, hidden) for name in ("wq", "wk", "wv")),
            tower_linear(
                quantization, attention, "wo", Units(VIT["heads"], hidden // VIT["heads"]), hidden, Split.ROW, bias=True
            ),
            *mlp(quantization, f"{block}.feed_forward", hidden, VIT["width"]),
            layer_norm("norms", 2 * hidden),
        )
    inputs, width = VIT["joined"] * hidden, source.root.integer("intermediate_size") // 2
    return (
        *modules,
        *(column(quantization, POOLING, name, inputs, hidden) for name in ("wq", "wk", "wv")),
        *around_pooling(quantization, hidden, hidden, width, source.root.integer("hidden_size")),
    )


def tower2(source: Source) -> tuple[Module, ...]:
    """A SigLIP up to the last layer that pooling sees, pooling over some of its layers, and the projector."""
    quantization = source.quantization
    vision = (source.root.child("vit_config") or Fields({}, "vit_config")).completed(VIT2)
    adapter = (source.root.child("adapter_config") or Fields({}, "adapter_config")).completed(ADAPTER2)
    hidden, depth = vision.integer("hidden_size"), vision.layers("num_hidden_layers")
    heads, kv_heads, size = (
        vision.integer(name) for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    pooled = [layer % depth for layer in adapter.integers("vit_layers", minimum=-depth) or []]
    if not pooled:
        raise source.invalid("adapter_config.vit_layers", "adapter_config.vit_layers must list layers")
    modules: list[Module] = [
        Tensor("positional_embedding", TOWER, (Units(vision.integer("image_num_pos")),), columns=hidden),
        whole_linear("patch_embedding", 3 * vision.integer("image_patch_size") ** 2, hidden),
    ]
    for number in range(min(depth, max(pooled) + 1)):
        block = f"vision_backbone.image_vit.transformer.resblocks.{number}"
        attention = f"{block}.attention"
        modules += (
            tower_query_key_value(
                quantization, attention, "merged_qkv", hidden, heads, size, bias=True, kv_heads=kv_heads
            ),
            tower_linear(quantization, attention, "wo", Units(heads, size), hidden, Split.ROW, bias=True),
            *mlp(quantization, f"{block}.feed_forward", hidden, vision.integer("intermediate_size")),
            layer_norm("norms", 2 * hidden),
        )
    inputs, inner = hidden * len(pooled), adapter.integer("hidden_size")
    outputs, keys = (
        adapter.integer(name) * adapter.integer("head_dim") for name in ("num_attention_heads", "num_key_value_heads")
    )
    return (
        *modules,
        column(quantization, POOLING, "q_proj", inputs, outputs),
        column(quantization, POOLING, "k_proj", inputs, keys),
        column(quantization, POOLING, "v_proj", inputs, keys),
        *around_pooling(
            quantization, inner, outputs, adapter.integer("intermediate_size"), adapter.integer("text_hidden_size")
        ),
    )


def with_further_words(source: Source, model: ModelShape, count: int) -> ModelShape:
    """The model with rows of the embedding beyond the vocabulary, which every stage holds."""
    words = blocks.embedding(source.quantization, "model.new_embedding", count, model.hidden_size)
    return replace(model, every_stage=(*model.every_stage, words))


def sizes(source: Source) -> Source:
    """The configuration with the width of one half of an MLP, and the words of the embedding."""
    text = source.text
    return source.overridden(
        {
            "intermediate_size": text.integer("intermediate_size") // 2,
            "vocab_size": text.optional_integer("embedding_size") or text.integer("vocab_size"),
        }
    )


RECIPE = Recipe(
    query_bias=("qkv_bias",),
    head_norms=HeadNorms.ALL_HEADS,
    head_norms_field="attention_layer_norm",
    reads_tied=False,
    quantised_embedding=True,
    prepare=sizes,
    refused=("weight_tying",),
    everywhere=EVERYWHERE,
)
RECIPE2 = Recipe(query_bias=("qkv_bias",), reads_tied=False, everywhere=EVERYWHERE)


def read_molmo(source: Source) -> ModelShape:
    """The decoder of Molmo."""
    return with_further_words(source, read(source, RECIPE), FURTHER_WORDS)


def read_molmo2(source: Source) -> ModelShape:
    """The decoder of Molmo 2; rotary scaling may be for some of its layers only."""
    source = source.with_defaults(TEXT2)
    text = source.text
    norms = HeadNorms.NONE
    if text.flag("use_qk_norm", default=False):
        norms = HeadNorms.HEAD if text.text("qk_norm_type", default="olmo") == "qwen3" else HeadNorms.ALL_HEADS
    model = read(source, replace(RECIPE2, head_norms=norms))
    scaled = text.integers("rope_scaling_layers")
    if scaled is not None and source.rope_type() != "default":
        plain = rotary_table(source, text.integer("head_dim"), settings=Fields({"rope_type": "default"}))
        unscaled = (plain,) if plain and len(scaled) < len(model.layers) else ()
        model = replace(model, rope_tables=(*(model.rope_tables if scaled else ()), *unscaled))
    return with_further_words(source, model, text.integer("additional_vocab_size"))


READERS = {
    "MolmoForCausalLM": behind(tower, read_molmo, tied=Tied.TEXT),
    "Molmo2ForConditionalGeneration": behind(tower2, read_molmo2, tied=Tied.TEXT, image_prefix=True),
}
