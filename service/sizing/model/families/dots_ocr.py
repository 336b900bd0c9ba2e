"""dots.ocr: Qwen 2 behind a tower of its own.

Source: vLLM 0.33 `model_executor/models/dots_ocr.py`.
"""

from service.sizing.model.families.dense import READERS as DENSE
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.modules import Module
from service.sizing.model.source import Source
from service.sizing.model.towers.dots import dots_tower


def tower(source: Source) -> tuple[Module, ...]:
    """The vision tower."""
    return dots_tower(source.quantization, tower_config(source))


READERS = {"DotsOCRForCausalLM": behind(tower, DENSE["Qwen2ForCausalLM"], tied=Tied.TEXT)}
