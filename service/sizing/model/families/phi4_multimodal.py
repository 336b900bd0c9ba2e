"""Phi-4 Multimodal: Phi-4 mini, which sees with SigLIP and hears with a conformer, neither of them quantised.

The checkpoint brings the adapters of both senses; the engine takes those as LoRA, not as weights.

Source: vLLM 0.33 `model_executor/models/phi4mm.py`, `phi4mm_audio.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.families.dense import READERS as DENSE
from service.sizing.model.families.multimodal import Tied, behind
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.source import Source
from service.sizing.model.towers.conformer import conformer
from service.sizing.model.towers.parts import PROJECTOR, TOWER, left_out, whole_linear
from service.sizing.model.towers.siglip import pooling, siglip_tower

SIGLIP_448: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
}
"""The only tower."""


def projection(name: str, inputs: int, outputs: int) -> tuple[Module, ...]:
    """Two linear layers into the language model."""
    return (
        whole_linear(f"{name}.0", inputs, outputs, tensor_class=PROJECTOR),
        whole_linear(f"{name}.2", outputs, outputs, tensor_class=PROJECTOR),
    )


def image_encoder(source: Source, hidden: int) -> tuple[Module, ...]:
    """SigLIP up to a layer, two separators and the projection; the checkpoint has a pooling head besides."""
    images = source.root.child("img_processor") or Fields({}, "img_processor")
    depth, width = SIGLIP_448["num_hidden_layers"], SIGLIP_448["hidden_size"]
    selected = images.integer("layer_idx", default=-2, minimum=-depth)
    return (
        *siglip_tower(
            NotQuantised(),
            Fields(SIGLIP_448, "img_processor"),
            layers=depth + selected + 1 if selected < 0 else selected + 1,
            final_norm=False,
            numbered=False,
            any_width=True,
        ),
        *left_out(pooling(NotQuantised(), "img_processor", width, SIGLIP_448["intermediate_size"])),
        Tensor("separators", PROJECTOR, (Units(2 * width),)),
        *projection("img_projection", width, hidden),
    )


def audio_encoder(source: Source, hidden: int) -> tuple[Module, ...]:
    """The conformer, and a projection for speech alone and one for speech beside images."""
    processor = source.root.child("audio_processor")
    encoder = processor.child("config") if processor else None
    if encoder is None:
        raise source.invalid("audio_processor", "audio_processor.config is missing: give the conformer's sizes")
    layers = source.root.child("embd_layer")
    embedding = (layers.child("audio_embd_layer") if layers else None) or Fields({}, "embd_layer.audio_embd_layer")
    for field in ("use_qformer", "use_conv_downsample"):
        if embedding.flag(field, default=False):
            name = embedding.named(field)
            raise InvalidConfig(name, f"{name} must be false")
    inputs = encoder.integer("attention_dim", default=256)
    if embedding.text("projection_cls", default="linear") == "linear":
        return (*conformer(encoder), whole_linear("audio_projection", inputs, hidden, tensor_class=PROJECTOR))
    merged = inputs * embedding.integer("downsample_rate", default=1)
    return (
        *conformer(encoder),
        *projection("audio_projection", merged, hidden),
        *projection("audio_projection_for_vision", merged, hidden),
    )


def adapters(source: Source, hidden: int) -> tuple[Module, ...]:
    """Adapters of every linear layer of the decoder, one for each sense."""
    root = source.root
    ranks = [lora.integer("r") for name in ("vision_lora", "speech_lora") if (lora := root.child(name))]
    heads, width = root.integer("num_attention_heads"), root.integer("intermediate_size")
    kv = root.integer("num_key_value_heads", default=heads) * (hidden // heads)
    sides = (hidden + hidden + 2 * kv) + (hidden + hidden) + (hidden + 2 * width) + (width + hidden)
    count = sum(ranks) * sides * root.layers("num_hidden_layers")
    return (Tensor("lora", TOWER, (Units(count),), built=False),) if count else ()


def phi4_towers(source: Source) -> tuple[Module, ...]:
    """Both encoders with their projections, and the adapters of the checkpoint."""
    hidden = source.root.integer("hidden_size")
    return (*image_encoder(source, hidden), *audio_encoder(source, hidden), *adapters(source, hidden))


READERS = {"Phi4MMForCausalLM": behind(phi4_towers, DENSE["Phi3ForCausalLM"], tied=Tied.TEXT)}
