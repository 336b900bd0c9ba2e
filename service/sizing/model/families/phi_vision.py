"""Phi-3 and Phi-3.5 Vision: Phi-3 behind CLIP, whose embedding the engine builds twice; Phi-4 behind SigLIP 2.

Source: vLLM 0.33 `model_executor/models/phi3v.py`, `phi4siglip.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.families.dense import READERS as DENSE
from service.sizing.model.families.llava import projector
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.source import Source
from service.sizing.model.towers.clip import clip_tower
from service.sizing.model.towers.parts import PROJECTOR
from service.sizing.model.towers.siglip import SIGLIP2, siglip2_tower

CLIP_LARGE_336: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""The only tower."""

MERGED_PATCHES = 4


def phi3_vision_tower(source: Source) -> tuple[Module, ...]:
    """CLIP up to a layer, separators, two linear layers, and a second embedding for the merging of inputs."""
    root, quantization = source.root, source.quantization
    images = root.child("img_processor")
    if images is None:
        raise source.invalid("img_processor", "img_processor is missing: give an object with image_dim_out")
    depth = CLIP_LARGE_336["num_hidden_layers"]
    selected = images.integer("layer_idx", default=-2, minimum=-depth)
    merged = images.integer("image_dim_out") * MERGED_PATCHES
    hidden, vocabulary = root.integer("hidden_size"), root.integer("vocab_size")
    second = blocks.embedding(quantization, "model.embed_tokens", vocabulary, hidden)
    return (
        replace(second, tensor_class=TensorClass.TOWER, counted=False),
        *clip_tower(
            quantization,
            Fields(CLIP_LARGE_336, "img_processor"),
            path="model.vision_embed_tokens.img_processor.vision_model",
            layers=depth + selected + 1 if selected < 0 else selected + 1,
        ),
        Tensor("separators", PROJECTOR, (Units(2 * merged),)),
        Linear("img_projection.0", PROJECTOR, Units(merged), (Units(hidden),), Split.REPLICATED, True),
        Linear("img_projection.2", PROJECTOR, Units(hidden), (Units(hidden),), Split.REPLICATED, True),
    )


def phi4_vision_tower(source: Source) -> tuple[Module, ...]:
    """SigLIP 2 up to its last layer but one, and two linear layers."""
    vision = tower_config(source).completed(SIGLIP2)
    depth, hidden = vision.layers("num_hidden_layers"), source.root.integer("hidden_size")
    inputs = source.root.integer("mm_hidden_size")
    return (
        *siglip2_tower(source.quantization, vision, path="vision_tower.vision_model", layers=depth - 1),
        *projector(source.quantization, inputs, hidden, bias=True),
    )


READERS = {
    "Phi4ForCausalLMV": behind(phi4_vision_tower, DENSE["Phi3ForCausalLM"], tied=Tied.TEXT),
    "Phi3VForCausalLM": behind(phi3_vision_tower, DENSE["Phi3ForCausalLM"], tied=Tied.TEXT),
}
