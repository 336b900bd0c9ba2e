"""GLM-ASR: Llama behind an encoder of sound with rotary positions.

Source: vLLM 0.33 `model_executor/models/glmasr.py`; transformers 5.20 `models/glmasr/configuration_glmasr.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.families import dense
from service.sizing.model.families.language import described
from service.sizing.model.families.llama import read
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module, Split, Tensor, Units
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
from service.sizing.model.towers.whisper import FLOAT32_BYTES

TEXT: Mapping[str, Any] = {
    "vocab_size": 59264,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
AUDIO: Mapping[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "num_mel_bins": 128,
}
ROTARY_PART = 0.5
"""Part of a head that is turned."""


def tower(source: Source) -> tuple[Module, ...]:
    """Convolutions, layers, the rotary frequencies and a projector of neighbouring frames."""
    quantization, audio = source.quantization, tower_config(source, "audio_config").completed(AUDIO)
    hidden, heads = audio.integer("hidden_size"), audio.integer("num_attention_heads")
    width, size = audio.integer("intermediate_size"), even_head_size(audio, hidden, heads)
    kv_heads = audio.integer("num_key_value_heads", default=heads)
    rope = audio.child("rope_parameters", "rope_scaling") or audio
    turned = int(
        audio.integer("head_dim", default=size)
        * rope.number("partial_rotary_factor", default=audio.number("partial_rotary_factor", default=ROTARY_PART))
    )
    modules: list[Module] = [
        convolution("conv1", audio.integer("num_mel_bins"), hidden, 3),
        convolution("conv2", hidden, hidden, 3),
        Tensor("inv_freq", TOWER, (Units((turned + 1) // 2),), element_bytes=FLOAT32_BYTES, buffer=True),
    ]
    for number in range(audio.layers("num_hidden_layers")):
        block = f"audio_tower.layers.{number}"
        modules += (
            tower_query_key_value(
                quantization,
                f"{block}.self_attn",
                "qkv_proj",
                hidden,
                heads,
                size,
                bias=True,
                parts=("q_proj", "k_proj", "v_proj"),
                kv_heads=kv_heads,
            ),
            tower_linear(
                quantization, f"{block}.self_attn", "o_proj", Units(heads, size), hidden, Split.ROW, bias=True
            ),
            tower_linear(quantization, f"{block}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{block}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
            layer_norm("norms", 2 * hidden),
        )
    text_width = source.text.integer("hidden_size", default=TEXT["hidden_size"])
    return (
        *modules,
        layer_norm("norm", hidden),
        tower_linear(
            quantization,
            "multi_modal_projector",
            "linear_1",
            width,
            2 * text_width,
            Split.COLUMN,
            bias=True,
            tensor_class=PROJECTOR,
        ),
        tower_linear(
            quantization,
            "multi_modal_projector",
            "linear_2",
            2 * text_width,
            text_width,
            Split.ROW,
            bias=True,
            tensor_class=PROJECTOR,
        ),
    )


def read_glm_asr(source: Source) -> ModelShape:
    """GLM-ASR."""
    source = described(source, "llama").with_defaults(TEXT)
    return behind(tower, lambda inner: read(inner, dense.RECIPES["LlamaForCausalLM"]), tied=Tied.ROOT_ELSE_TIED)(source)


READERS = {"GlmAsrForConditionalGeneration": read_glm_asr}
