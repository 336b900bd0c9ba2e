"""Language models of any class behind CLIP, SigLIP or Pixtral towers.

Source: vLLM 0.33 `model_executor/models/llava.py`, `llava_next.py`, `llava_next_video.py`, `llava_onevision.py`,
`mistral3.py`, `lightonocr.py`, `paligemma.py`, `cohere2_vision.py`, `idefics3.py`, `smolvlm.py`,
`bee.py`, `rvl.py`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from service.sizing.model.families.language import language, text_width
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.source import Source
from service.sizing.model.towers.clip import clip_tower
from service.sizing.model.towers.parts import PROJECTOR, layer_norm, tower_linear, whole_linear
from service.sizing.model.towers.pixtral import pixtral_tower
from service.sizing.model.towers.siglip import siglip_tower

CLIP_336: Mapping[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
SIGLIP_384: Mapping[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 384,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
}
SIGLIP_224: Mapping[str, Any] = {
    **SIGLIP_384,
    "intermediate_size": 4096,
    "image_size": 224,
    "num_hidden_layers": 27,
    "projection_dim": 2048,
}
SIGLIP_512: Mapping[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "image_size": 512,
    "num_hidden_layers": 27,
    "num_attention_heads": 12,
}
PIXTRAL_1540: Mapping[str, Any] = {"model_type": "pixtral", "patch_size": 14, "image_size": 1540}
"""Towers of configurations that describe none."""

IDEFICS3: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
"""What Idefics 3 fills in for absent sizes of its tower."""

PALIGEMMA_TEXT: Mapping[str, Any] = {
    "model_type": "gemma",
    "vocab_size": 257152,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}
MISTRAL3_TEXT: Mapping[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 131072,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": None,
}
LIGHTON_OCR_TEXT: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
"""Language models of configurations that describe none."""


def vision_fields(source: Source, whole: Mapping[str, Any]) -> Fields:
    """The tower's configuration, or the one that its class fills in for an absent one."""
    vision = tower_config(source)
    return vision if vision.values else Fields(whole, vision.path)


def feature_layers(source: Source, depth: int, default: int) -> tuple[int, int]:
    """Layers of the tower that are needed, and how many of them feed the projector together.

    Negative numbers count from the end: -1 is the last layer.
    """
    listed = source.root.values.get("vision_feature_layer")
    if isinstance(listed, list | tuple):
        layers = source.root.integers("vision_feature_layer", minimum=-depth) or []
    else:
        layers = [source.root.integer("vision_feature_layer", default=default, minimum=-depth)]
    needed = [depth + layer + 1 if layer < 0 else layer for layer in layers]
    if not needed or max(needed) > depth:
        raise source.invalid("vision_feature_layer", f"vision_feature_layer must name layers of the {depth} there are")
    return max(needed), len(needed)


def tower_until(source: Source, vision: Fields, layers: int) -> tuple[Module, ...]:
    """The tower up to a layer, without its final norm."""
    quantization = source.quantization
    model_type = vision.text("model_type", default="clip_vision_model")
    match model_type:
        case "clip_vision_model":
            return clip_tower(quantization, vision, layers=layers, final_norm=False)
        case "siglip_vision_model":
            return siglip_tower(quantization, vision, layers=layers, final_norm=False)
        case "pixtral":
            return pixtral_tower(quantization, vision, layers=layers)
        case _:
            raise source.refuse(vision.named("model_type"), because=f"a tower of type {model_type!r} is not known")


def projector(
    quantization: Quantization, inputs: int, outputs: int, *, bias: bool, split: bool = True
) -> tuple[Module, ...]:
    """Two linear layers into the language model, split or held whole."""
    first, second = (Split.COLUMN, Split.ROW) if split else (Split.REPLICATED, Split.REPLICATED)
    return (
        tower_linear(
            quantization,
            "multi_modal_projector",
            "linear_1",
            inputs,
            outputs,
            first,
            bias=bias,
            tensor_class=PROJECTOR,
        ),
        tower_linear(
            quantization,
            "multi_modal_projector",
            "linear_2",
            outputs,
            outputs,
            second,
            bias=bias,
            tensor_class=PROJECTOR,
        ),
    )


def llava_tower(
    source: Source,
    *,
    whole: Mapping[str, Any] = CLIP_336,
    text_type: str = "llama",
    feature: int = -2,
    joined: bool = False,
    split: bool = True,
) -> tuple[Module, ...]:
    """Tower and projector of LLaVA and its successors.

    Parameters
    ----------
    whole, text_type, feature
        The tower, the language model's type and the tower's layer where the configuration does not say.
    joined : bool
        Whether several layers of the tower enter the projector side by side.
    split : bool
        Whether the projector is split over ranks; one held whole is never quantised.
    """
    vision = vision_fields(source, whole)
    depth, hidden = vision.layers("num_hidden_layers", default=24), vision.integer("hidden_size", default=1024)
    built, count = feature_layers(source, depth, feature)
    width = text_width(source, text_type)
    bias = source.root.flag("multimodal_projector_bias", default=True)
    return (
        *tower_until(source, vision, built),
        *projector(
            source.quantization if split else NotQuantised(),
            hidden * (count if joined else 1),
            width,
            bias=bias,
            split=split,
        ),
    )


def built_tower(source: Source) -> tuple[Module, ...]:
    """The tower of Bee and R, up to the layer that is needed."""
    vision = vision_fields(source, SIGLIP_384)
    built, _ = feature_layers(source, vision.layers("num_hidden_layers"), -1)
    return tower_until(source, vision, built)


def normed_projector(source: Source, *, times: int) -> tuple[Module, ...]:
    """The end of a line, and Bee's and R's projector, `times` as wide as the language model and never quantised."""
    hidden = vision_fields(source, SIGLIP_384).integer("hidden_size")
    width = text_width(source, "qwen3")
    return (
        *newline(source, "qwen3"),
        layer_norm("pre_norm", hidden, tensor_class=PROJECTOR),
        whole_linear("linear_1", hidden, times * width, tensor_class=PROJECTOR),
        whole_linear("linear_2", times * width, width, tensor_class=PROJECTOR),
    )


def newline(source: Source, text_type: str) -> tuple[Module, ...]:
    """The learned end of a line of patches."""
    return (Tensor("image_newline", PROJECTOR, (Units(text_width(source, text_type)),)),)


def mistral3_tower(source: Source, whole: Mapping[str, Any]) -> tuple[Module, ...]:
    """Pixtral's tower, a merger of patches and the projector; `whole` is the language model of an empty text part."""
    vision = vision_fields(source, PIXTRAL_1540)
    depth, hidden = vision.layers("num_hidden_layers", default=24), vision.integer("hidden_size", default=1024)
    built, _ = feature_layers(source, depth, -1)
    merged = hidden * source.root.integer("spatial_merge_size", default=2) ** 2
    width = source.text.integer("hidden_size", default=whole["hidden_size"])
    bias = source.root.flag("multimodal_projector_bias", default=False)
    return (
        *pixtral_tower(source.quantization, vision, layers=built),
        layer_norm("norm", hidden, bias=False, tensor_class=PROJECTOR),
        Linear("merging_layer", PROJECTOR, Units(merged), (Units(hidden),), Split.REPLICATED),
        *projector(source.quantization, hidden, width, bias=bias),
    )


def paligemma_tower(source: Source) -> tuple[Module, ...]:
    """A whole SigLIP and one linear layer."""
    vision = vision_fields(source, SIGLIP_224)
    width = source.root.integer("projection_dim", default=2048)
    hidden = vision.integer("hidden_size", default=768)
    return (
        *siglip_tower(source.quantization, vision),
        Linear("linear", PROJECTOR, Units(hidden), (Units(width),), Split.REPLICATED, bias=True),
    )


def cohere2_vision_tower(source: Source) -> tuple[Module, ...]:
    """A whole SigLIP and a gated projector of merged patches, which is never quantised."""
    vision = vision_fields(source, SIGLIP_512)
    merged = vision.integer("hidden_size", default=768) * source.root.integer("downsample_factor", default=2) ** 2
    half = source.root.integer("alignment_intermediate_size", default=36864) // 2
    width = text_width(source, "cohere2")
    return (
        *siglip_tower(source.quantization, vision),
        Linear("linear_1", PROJECTOR, Units(merged), (Units(half), Units(half)), Split.COLUMN, bias=True),
        Linear("linear_2", PROJECTOR, Units(half), (Units(width),), Split.ROW, bias=True),
    )


def idefics3_tower(source: Source) -> tuple[Module, ...]:
    """A SigLIP over patches of any grid, and a projection of shuffled pixels."""
    vision = tower_config(source).completed(IDEFICS3)
    merged = vision.integer("hidden_size") * source.root.integer("scale_factor", default=2) ** 2
    return (
        *siglip_tower(
            source.quantization,
            vision,
            path="model.vision_model",
            final_norm=True,
            numbered=False,
            any_width=True,
        ),
        tower_linear(
            source.quantization,
            "model.connector.modality_projection",
            "proj",
            merged,
            text_width(source, "llama"),
            Split.REPLICATED,
            bias=False,
            tensor_class=PROJECTOR,
        ),
    )


LLAMA = language("llama")

READERS = {
    "BeeForConditionalGeneration": behind(
        built_tower,
        language("qwen3"),
        tied=Tied.ROOT_ELSE_SEPARATE,
        beside=partial(normed_projector, times=4),
    ),
    "RForConditionalGeneration": behind(
        built_tower,
        language("qwen3"),
        tied=Tied.ROOT_ELSE_SEPARATE,
        beside=partial(normed_projector, times=1),
    ),
    "LlavaForConditionalGeneration": behind(llava_tower, LLAMA, tied=Tied.EITHER),
    "LlavaNextForConditionalGeneration": behind(
        partial(llava_tower, joined=True),
        LLAMA,
        tied=Tied.ROOT_ELSE_SEPARATE,
        beside=partial(newline, text_type="llama"),
    ),
    "LlavaNextVideoForConditionalGeneration": behind(partial(llava_tower, split=False), LLAMA, tied=Tied.EITHER),
    "LlavaOnevisionForConditionalGeneration": behind(
        partial(llava_tower, whole=SIGLIP_384, text_type="qwen2", feature=-1, split=False),
        language("qwen2"),
        tied=Tied.EITHER,
        beside=partial(newline, text_type="qwen2"),
    ),
    "Mistral3ForConditionalGeneration": behind(
        partial(mistral3_tower, whole=MISTRAL3_TEXT),
        language("mistral", MISTRAL3_TEXT),
        tied=Tied.ROOT_ELSE_TIED,
    ),
    "LightOnOCRForConditionalGeneration": behind(
        partial(mistral3_tower, whole=LIGHTON_OCR_TEXT),
        language("qwen3", LIGHTON_OCR_TEXT),
        tied=Tied.ROOT_ELSE_TIED,
    ),
    "PaliGemmaForConditionalGeneration": behind(
        paligemma_tower, language("gemma", PALIGEMMA_TEXT), tied=Tied.ROOT_ELSE_TIED, image_prefix=True
    ),
    "Cohere2VisionForConditionalGeneration": behind(
        cohere2_vision_tower, language("cohere2"), tied=Tied.ROOT_ELSE_TIED
    ),
    **dict.fromkeys(
        ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        behind(idefics3_tower, LLAMA, tied=Tied.ROOT_WITH_CLASS),
    ),
}
