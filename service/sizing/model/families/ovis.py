"""Ovis: any language model behind a tower whose patches become words of a visual vocabulary.

Source: vLLM 0.33 `model_executor/models/ovis.py`, `ovis2_5.py`.
"""

from service.sizing.model.families.language import language
from service.sizing.model.families.multimodal import Tied, behind
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.source import Source
from service.sizing.model.towers.aimv2 import aimv2_tower
from service.sizing.model.towers.parts import PROJECTOR, layer_norm, whole_linear
from service.sizing.model.towers.siglip import NAVIT, siglip_navit_tower, siglip_tower

INDICATORS, LATER_INDICATORS = 5, 4
"""Words of the visual vocabulary that no patch becomes, in Ovis and from 2.5 on."""


def visual_words(source: Source, merged: int, vocabulary: int, indicators: int) -> tuple[Module, ...]:
    """The head over visual words, which is never quantised, its norm, and their embedding."""
    words = vocabulary - indicators
    return (
        whole_linear("head.0", merged, words, bias=False, tensor_class=PROJECTOR),
        layer_norm("head.1", words, tensor_class=PROJECTOR),
        Tensor("vte", PROJECTOR, (Units(vocabulary),), columns=source.root.integer("hidden_size")),
    )


def tower(source: Source) -> tuple[Module, ...]:
    """AIMv2 or SigLIP, and visual words."""
    tokenizer = source.root.child("visual_tokenizer_config")
    vision = tokenizer.child("backbone_config") if tokenizer else None
    if tokenizer is None or vision is None:
        raise source.invalid("visual_tokenizer_config", "visual_tokenizer_config.backbone_config is missing")
    path = "visual_tokenizer.backbone"
    match kind := vision.text("model_type"):
        case "aimv2" | "aimv2_vision_model":
            modules = aimv2_tower(source.quantization, vision, path=path)
        case "siglip_vision_model":
            modules = siglip_tower(source.quantization, vision, path=f"{path}.vision_model")
        case _:
            raise source.refuse(vision.named("model_type"), because=f"a tower of type {kind!r} is not known")
    merged = vision.integer("hidden_size") * tokenizer.integer("hidden_stride", default=1) ** 2
    vocabulary = tokenizer.integer("vocab_size", default=16384)
    return (*modules, *visual_words(source, merged, vocabulary, INDICATORS))


def later_tower(source: Source) -> tuple[Module, ...]:
    """SigLIP 2 with rotary positions, and visual words."""
    vision = (source.root.child("vit_config") or Fields({}, "vit_config")).completed(NAVIT)
    merged = vision.integer("hidden_size") * vision.integer("hidden_stride") ** 2
    return (
        *siglip_navit_tower(source.quantization, vision, path="visual_tokenizer.vit.vision_model"),
        *visual_words(source, merged, source.root.integer("visual_vocab_size", default=65536), LATER_INDICATORS),
    )


READERS = {
    "Ovis": behind(tower, language("qwen2"), tied=Tied.ROOT_IF_NAMED),
    **dict.fromkeys(
        ("Ovis2_5", "Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM"),
        behind(later_tower, language("qwen3"), tied=Tied.ROOT_IF_NAMED),
    ),
}
