"""GLM-4.1V, GLM-4.5V and GLM-OCR: GLM decoders, dense or with experts, behind a vision tower.

Source: vLLM 0.33 `model_executor/models/glm4_1v.py`, `glm_ocr.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.families import dense, experts
from service.sizing.model.families.language import read_language
from service.sizing.model.families.llama import read
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.glm import glm_ocr_tower, glm_tower

DENSE: Mapping[str, Any] = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.5,
}
EXPERTS: Mapping[str, Any] = {
    "vocab_size": 151424,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "max_position_embeddings": 65536,
    "attention_bias": True,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
}


OCR: Mapping[str, Any] = {
    "vocab_size": 59392,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "partial_rotary_factor": 0.5,
}


def decoder(source: Source) -> ModelShape:
    """The decoder that goes with the root's model type."""
    match source.root.text("model_type", default=""):
        case "glm4v":
            return read(source.with_defaults(DENSE), dense.RECIPES["Glm4ForCausalLM"])
        case "glm_ocr":
            return read(source.with_defaults(OCR), dense.RECIPES["Glm4ForCausalLM"])
        case "glm4v_moe":
            return read(source.with_defaults(EXPERTS), experts.MIXTURES["Glm4MoeForCausalLM"])
        case _:
            return read_language(source, "glm4")


def tower(source: Source) -> tuple[Module, ...]:
    """The vision tower."""
    return glm_tower(source.quantization, tower_config(source))


def ocr_tower(source: Source) -> tuple[Module, ...]:
    """The tower of GLM-OCR."""
    width = source.text.integer("intermediate_size", default=OCR["intermediate_size"])
    return glm_ocr_tower(source.quantization, tower_config(source), width)


READERS = {
    **dict.fromkeys(
        ("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"), behind(tower, decoder, tied=Tied.EITHER)
    ),
    "GlmOcrForConditionalGeneration": behind(ocr_tower, decoder, tied=Tied.EITHER),
}
