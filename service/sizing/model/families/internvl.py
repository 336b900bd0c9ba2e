"""Language models behind InternViT, and behind SigLIP with the same projector.

Source: vLLM 0.33 `model_executor/models/internvl.py`, `h2ovl.py`, `skyworkr1v.py`, `nvlm_d.py`, `eagle2_5_vl.py`,
`interns1.py`, `qianfan_ocr.py`.
"""

from functools import partial

from service.sizing.model.families.language import language, text_width
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module, Split
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.source import Source
from service.sizing.model.towers.intern_vit import (
    INTERN_S1_VIT,
    INTERN_VIT,
    intern_s1_tower,
    intern_vit_tower,
    pair,
)
from service.sizing.model.towers.parts import PROJECTOR, layer_norm, tower_linear
from service.sizing.model.towers.siglip import SIGLIP, siglip_tower

NVLM_DUMMY_HEADS = 7


def merged_patches(source: Source) -> int:
    """Patches that enter the projector as one."""
    ratio = source.root.number("downsample_ratio", default=0.5)
    if not 0 < ratio <= 1:
        raise source.invalid("downsample_ratio", f"downsample_ratio must be above 0 and at most 1, not {ratio}")
    return int(1 / ratio) ** 2


def selected_layers(source: Source, depth: int) -> int:
    """Layers of the tower up to the selected one; -1 is the last."""
    selected = source.root.integer("select_layer", default=-1, minimum=-depth)
    layers = depth + selected + 1 if selected < 0 else selected + 1
    if layers > depth:
        raise source.invalid("select_layer", f"select_layer must name one of the {depth} layers, not {selected}")
    return layers


def projector(
    quantization: Quantization, inputs: int, middle: int, outputs: int, *, bias: bool = True
) -> tuple[Module, ...]:
    """A norm and two linear layers, which every rank holds whole."""
    return (
        layer_norm("mlp1.0", inputs, tensor_class=PROJECTOR),
        *(
            tower_linear(quantization, "mlp1", name, width, height, Split.REPLICATED, bias=bias, tensor_class=PROJECTOR)
            for name, width, height in (("1", inputs, middle), ("3", middle, outputs))
        ),
    )


def intern_tower(
    source: Source, *, quantised_projector: bool = False, dummy_heads: int = 0, wide: bool = False
) -> tuple[Module, ...]:
    """InternViT and the projector, which goes through the language model's MLP width if `wide`, without biases."""
    vision = tower_config(source).completed(INTERN_VIT)
    inputs = vision.integer("hidden_size") * merged_patches(source)
    width = text_width(source, "llama")
    return (
        *intern_vit_tower(
            source.quantization,
            vision,
            layers=selected_layers(source, vision.layers("num_hidden_layers")),
            dummy_heads=dummy_heads,
        ),
        *projector(
            source.quantization if quantised_projector else NotQuantised(),
            inputs,
            source.text.integer("intermediate_size") if wide else width,
            width,
            bias=not wide,
        ),
    )


def eagle_tower(source: Source) -> tuple[Module, ...]:
    """SigLIP up to the selected layer, and the projector."""
    vision = tower_config(source).completed(SIGLIP)
    width = text_width(source, "qwen2")
    return (
        *siglip_tower(
            source.quantization,
            vision,
            path="vision_model.vision_model",
            layers=selected_layers(source, vision.layers("num_hidden_layers")),
        ),
        *projector(NotQuantised(), vision.integer("hidden_size") * merged_patches(source), width, width),
    )


def intern_s1(source: Source) -> tuple[Module, ...]:
    """InternViT in transformers' shape, and the projector."""
    vision = tower_config(source)
    inputs = vision.integer("hidden_size", default=1024) * merged_patches(source)
    width = text_width(source, "qwen2")
    return (*intern_s1_tower(vision), *projector(NotQuantised(), inputs, width, width))


def qianfan_tower(source: Source) -> tuple[Module, ...]:
    """InternViT under the names that transformers has for its fields, whole and never quantised, and the projector."""
    if source.quantization.method not in (None, "fp8"):
        raise source.refuse("quantization_config", because="a tower under any quantisation but FP8 is not understood")
    given = tower_config(source).completed({**INTERN_S1_VIT, "attention_bias": True})
    vision = given.overridden(
        {
            "image_size": pair(given, "image_size")[0],
            "patch_size": pair(given, "patch_size")[0],
            "qkv_bias": given.flag("attention_bias", default=True),
            "qk_normalization": given.flag("use_qk_norm", default=False),
        }
    )
    width = text_width(source, "qwen3")
    layers = selected_layers(source, vision.layers("num_hidden_layers"))
    return (
        *intern_vit_tower(NotQuantised(), vision, layers=layers),
        *projector(NotQuantised(), vision.integer("hidden_size") * merged_patches(source), width, width),
    )


READERS = {
    "QianfanOCRForConditionalGeneration": behind(qianfan_tower, language("qwen3"), tied=Tied.ROOT_ELSE_SEPARATE),
    **dict.fromkeys(("InternVLChatModel", "H2OVLChatModel"), behind(intern_tower, language("llama"), tied=Tied.TEXT)),
    "SkyworkR1VChatModel": behind(partial(intern_tower, quantised_projector=True), language("qwen2"), tied=Tied.TEXT),
    "NVLM_D": behind(partial(intern_tower, dummy_heads=NVLM_DUMMY_HEADS, wide=True), language("qwen2"), tied=Tied.TEXT),
    "Eagle2_5_VLForConditionalGeneration": behind(eagle_tower, language("qwen2"), tied=Tied.TEXT),
    **dict.fromkeys(
        ("InternVLForConditionalGeneration", "InternS1ForConditionalGeneration"),
        behind(intern_s1, language("qwen2"), tied=Tied.ROOT_ELSE_TIED),
    ),
}
