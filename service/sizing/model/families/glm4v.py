"""GLM-4V: ChatGLM behind an EVA CLIP tower.

Source: vLLM 0.33 `model_executor/models/glm4v.py`.
"""

from dataclasses import replace

from service.sizing.model import blocks
from service.sizing.model.families.dense import CHATGLM, GLM4V
from service.sizing.model.families.llama import read
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import (
    PROJECTOR,
    TOWER,
    convolution,
    even_head_size,
    layer_norm,
    tower_linear,
    tower_query_key_value,
)

PATH = "transformer.vision"
MERGED = 2
"""Patches that a convolution merges in each direction."""


def tower(source: Source, vision: Fields) -> tuple[Module, ...]:
    """Patches and positions, layers, and the convolution that merges patches."""
    quantization = source.quantization
    hidden, width = vision.integer("hidden_size"), vision.integer("intermediate_size")
    heads, patch = vision.integer("num_heads"), vision.integer("patch_size")
    size = even_head_size(vision, hidden, heads)
    modules: list[Module] = [
        convolution("patch_embedding", vision.integer("in_channels"), hidden, patch * patch),
        Tensor("class_and_positions", TOWER, (Units(vision.integer("num_positions") + 1),), columns=hidden),
    ]
    for number in range(vision.layers("num_hidden_layers")):
        path = f"{PATH}.transformer.layers.{number}"
        modules += (
            layer_norm("norms", 2 * hidden),
            tower_query_key_value(quantization, f"{path}.attention", "query_key_value", hidden, heads, size, bias=True),
            tower_linear(quantization, f"{path}.attention", "dense", hidden, hidden, Split.ROW, bias=True),
            tower_linear(quantization, f"{path}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{path}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
        )
    outputs = source.text.integer("hidden_size")
    return (*modules, convolution("conv", hidden, outputs, MERGED * MERGED, tensor_class=PROJECTOR))


def projector(source: Source) -> tuple[Module, ...]:
    """A gated MLP as wide as the language model's, and the marks of an image's begin and end."""
    text, quantization, path = source.text, source.quantization, f"{PATH}.linear_proj"
    hidden, width = text.integer("hidden_size"), text.integer("ffn_hidden_size")
    scheme = quantization.linear(f"{path}.gate_proj", f"{path}.dense_h_to_4h")
    return (
        blocks.replicated(quantization, path, "linear_proj", hidden, hidden, tensor_class=PROJECTOR),
        layer_norm("norm1", hidden, tensor_class=PROJECTOR),
        Linear("merged_proj", PROJECTOR, Units(hidden), (Units(width), Units(width)), Split.COLUMN, scheme=scheme),
        tower_linear(quantization, path, "dense_4h_to_h", width, hidden, Split.ROW, bias=False, tensor_class=PROJECTOR),
        Tensor("image_ends", PROJECTOR, (Units(2),), columns=hidden),
    )


def read_glm4v(source: Source) -> ModelShape:
    """GLM-4V."""
    vision = source.root.child("vision_config")
    if vision is None:
        raise source.invalid("vision_config", "vision_config is missing: give the vision tower's configuration")
    model = read(source, CHATGLM)
    front = tower(source, vision) + projector(source)
    return replace(model, first_stage=model.first_stage + front)


READERS = {GLM4V: read_glm4v}
