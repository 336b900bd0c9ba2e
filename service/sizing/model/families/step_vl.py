"""Step 3, Step3-VL, Step 3.7 and Step 5 with their towers.

Source: vLLM 0.33 `model_executor/models/step3_vl.py`, `step_vl.py`, `step3p7.py`, `models/step5/nvidia/vl.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model.families.language import language
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.families.step3 import READERS as STEP3
from service.sizing.model.families.step3p5 import read_step3p5
from service.sizing.model.families.step5 import DEFAULTS as STEP5
from service.sizing.model.families.step5 import read_step5
from service.sizing.model.modules import Module, Split
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, tower_linear, whole_linear
from service.sizing.model.towers.perception import perception_tower, step3_tower

PERCEPTION: Mapping[str, Any] = {
    "width": 1536,
    "layers": 47,
    "heads": 16,
    "patch_size": 14,
    "image_size": 728,
    "mlp_ratio": 8960 / 1536,
    "ls_init_value": 0.1,
    "use_ln_post": False,
}
"""The tower of Step 5."""


def projector_bias(source: Source) -> bool:
    """Whether the projector has a bias."""
    return source.root.flag("projector_bias", default=True)


def step5_perception(source: Source) -> tuple[Module, ...]:
    """The same for Step 5, whose projector has no bias unless the configuration says so."""
    source = source.with_defaults({"hidden_size": STEP5["hidden_size"]})
    vision = {**PERCEPTION, **tower_config(source).values}
    root = source.root.completed({"projector_bias": False}).overridden({"vision_config": vision})
    return perception(replace(source, root=root))


def perception(source: Source) -> tuple[Module, ...]:
    """The perception encoder and one linear layer."""
    vision = tower_config(source)
    projector = tower_linear(
        source.quantization,
        "",
        "vit_large_projector",
        4 * vision.integer("width"),
        source.text.integer("hidden_size", default=4096),
        Split.COLUMN,
        bias=projector_bias(source),
        tensor_class=PROJECTOR,
    )
    return (*perception_tower(source.quantization, vision), projector)


def step3_towers(source: Source) -> tuple[Module, ...]:
    """The tower of Step 3 and one linear layer that every rank holds whole."""
    vision = tower_config(source)
    inputs = 2 * vision.integer("output_hidden_size", default=4096)
    hidden = source.text.integer("hidden_size", default=7168)
    return (
        *step3_tower(vision),
        whole_linear("vit_large_projector", inputs, hidden, bias=projector_bias(source), tensor_class=PROJECTOR),
    )


READERS = {
    "Step3VLForConditionalGeneration": behind(step3_towers, STEP3["Step3TextForCausalLM"], tied=Tied.TEXT),
    "StepVLForConditionalGeneration": behind(perception, language("qwen3"), tied=Tied.ROOT_IF_NAMED),
    "Step5ForConditionalGeneration": behind(step5_perception, read_step5, tied=Tied.TEXT),
    "Step3p7ForConditionalGeneration": behind(perception, read_step3p5, tied=Tied.ROOT_IF_NAMED),
}
