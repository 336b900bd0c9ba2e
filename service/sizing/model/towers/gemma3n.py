"""The towers of Gemma 3n, as transformers builds them: every rank holds them whole.

Source: transformers 5.20 `models/gemma3n/modeling_gemma3n.py`; timm 1.0 `models/mobilenetv5.py`; vLLM 0.33
`model_executor/models/gemma3n_mm.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Embedding, Linear, Module, Split, Tensor, Units
from service.sizing.model.towers.parts import PROJECTOR, TOWER, layer_norm

MOBILENET = "mobilenetv5_300m_enc"
MOBILENET_PARAMETERS = 294_126_912
"""The only vision tower known, counted on timm's class."""

VISION: Mapping[str, Any] = {"architecture": MOBILENET, "hidden_size": 2048, "vocab_size": 128}
AUDIO: Mapping[str, Any] = {
    "vocab_size": 128,
    "input_feat_size": 128,
    "hidden_size": 1536,
    "conf_attention_chunk_size": 12,
    "conf_attention_context_left": 13,
    "conf_attention_context_right": 0,
    "conf_num_attention_heads": 8,
    "conf_num_hidden_layers": 12,
    "conf_conv_kernel_size": 5,
    "sscp_conv_channel_size": [128, 32],
    "sscp_conv_kernel_size": [[3, 3], [3, 3]],
    "sscp_conv_stride_size": [[2, 2], [2, 2]],
}

FLOAT32_BYTES = 4


def embedder(name: str, fields: Fields, text_hidden: int) -> tuple[Module, ...]:
    """The tower's own vocabulary and the projection into the language model."""
    hidden = fields.integer("hidden_size")
    return (
        Embedding(f"{name}.embedding", PROJECTOR, fields.integer("vocab_size"), hidden),
        layer_norm(f"{name}.norms", 2 * hidden, bias=False, tensor_class=PROJECTOR),
        Linear(f"{name}.embedding_projection", PROJECTOR, Units(hidden), (Units(text_hidden),), Split.ROW),
    )


def vision_tower(vision: Fields, text_hidden: int) -> tuple[Module, ...]:
    """MobileNet v5 and its embedder."""
    vision = vision.completed(VISION)
    architecture = vision.text("architecture")
    if architecture != MOBILENET:
        raise NotUnderstood(
            (vision.named("architecture"),),
            f"{vision.named('architecture')} {architecture!r} is not understood: only {MOBILENET} is known",
        )
    return (
        Tensor(MOBILENET, TOWER, (Units(MOBILENET_PARAMETERS),)),
        *embedder("embed_vision", vision, text_hidden),
    )


def pair(fields: Fields, name: str) -> list[int]:
    """The second entry (frequency) of both pairs of a list."""
    pairs = fields.items(name) or ()
    rows = [Fields({str(number): row for number, row in enumerate(pairs)}, fields.named(name))]
    found = [each for number in range(len(pairs)) if (each := rows[0].integers(str(number), minimum=1))]
    if len(found) != 2 or any(len(each) != 2 for each in found):
        raise InvalidConfig(fields.named(name), f"{fields.named(name)} must be two pairs of whole numbers")
    return [number for each in found for number in each]


def subsampling(audio: Fields, hidden: int) -> tuple[Module, ...]:
    """Two convolutions over time and frequency, and a projection of what they leave."""
    kernels, strides = pair(audio, "sscp_conv_kernel_size"), pair(audio, "sscp_conv_stride_size")
    channels = audio.integers("sscp_conv_channel_size", minimum=1) or []
    if len(channels) != 2:
        field = audio.named("sscp_conv_channel_size")
        raise InvalidConfig(field, f"{field} must list two widths, not {len(channels)}")
    frequencies, inputs, modules = audio.integer("input_feat_size"), 1, list[Module]()
    for number, outputs in enumerate(channels):
        high, wide = kernels[2 * number : 2 * number + 2]
        modules.append(Tensor(f"conv_{number}", TOWER, (Units(outputs),), columns=inputs * high * wide + 1))
        frequencies, inputs = (frequencies + 2 - wide) // strides[2 * number + 1] + 1, outputs
    return (*modules, plain("input_proj_linear", inputs * frequencies, hidden))


def plain(name: str, inputs: int, outputs: int) -> Linear:
    """A linear layer without bias."""
    return Linear(name, TOWER, Units(inputs), (Units(outputs),), Split.REPLICATED)


def audio_tower(audio: Fields, text_hidden: int) -> tuple[Module, ...]:
    """The Conformer and its embedder."""
    audio = audio.completed(AUDIO)
    hidden, heads = audio.integer("hidden_size"), audio.integer("conf_num_attention_heads")
    size, chunk = hidden // heads, audio.integer("conf_attention_chunk_size")
    past = max(0, audio.integer("conf_attention_context_left", minimum=0) - 1)
    context = chunk + past + audio.integer("conf_attention_context_right", minimum=0)
    layer = (
        *(plain("ffw_layer_1", hidden, 4 * hidden), plain("ffw_layer_2", 4 * hidden, hidden)) * 2,
        *(plain(name, hidden, heads * size) for name in ("q_proj", "k_proj", "v_proj", "pos_proj")),
        plain("post", hidden, hidden),
        Tensor("per_dim_scale", TOWER, (Units(size),)),
        plain("lconv1d.linear_start", hidden, 2 * hidden),
        plain("lconv1d.linear_end", hidden, hidden),
        Tensor("depthwise_conv1d", TOWER, (Units(hidden),), columns=audio.integer("conf_conv_kernel_size")),
        Tensor("norms", TOWER, (Units(9 * hidden),)),
        Tensor("clipping_and_scale", TOWER, (Units(6),), buffer=True),
        Tensor("local_causal_valid_mask", TOWER, (Units(chunk),), columns=context, element_bytes=1, buffer=True),
        Tensor("timescales_and_softcap", TOWER, (Units(hidden // 2 + 1),), element_bytes=FLOAT32_BYTES, buffer=True),
    )
    return (
        *subsampling(audio, hidden),
        *(layer * audio.layers("conf_num_hidden_layers")),
        *embedder("embed_audio", audio, text_hidden),
    )
