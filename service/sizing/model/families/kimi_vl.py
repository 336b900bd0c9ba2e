"""Kimi-VL: a DeepSeek V2 decoder behind a flat MoonViT, which is never quantised.

Source: vLLM 0.33 `model_executor/models/kimi_vl.py`, `transformers_utils/configs/kimi_vl.py`, `moonvit.py`.
"""

from dataclasses import replace

from service.sizing.model.families.deepseek import V2, read_deepseek
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers import MOON_VIT, moon_vit_tower


def read_kimi_vl(source: Source) -> ModelShape:
    """Kimi-VL; its text part is read as a DeepSeek V2 configuration whatever it calls itself."""
    given = source.root.child("vision_config") or Fields({}, "vision_config")
    vision = Fields({**MOON_VIT, **given.values}, given.path)
    hidden = source.text.integer("hidden_size", default=V2["hidden_size"])
    tower = moon_vit_tower(NotQuantised(), vision, hidden, flat=True)
    text = replace(source, model_type="deepseek_v2")
    return read_deepseek(text, prefix="language_model.model", head="language_model.lm_head", tower=tower)


READERS = {"KimiVLForConditionalGeneration": read_kimi_vl}
