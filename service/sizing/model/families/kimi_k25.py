"""Kimi K2.5 to K2.7: Kimi K2 behind a 3-D MoonViT.

Source: vLLM 0.33 `model_executor/models/kimi_k25.py`, `kimi_k25_vit.py`.
"""

from service.sizing.model.families.deepseek import read_deepseek
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers import MOON_VIT, moon_vit_tower

PUBLISHED = {
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
}
"""Names in published files, which the engine's configuration class does not read, and the ones it does."""


def tower_quantization(source: Source) -> Quantization:
    """The tower's quantisation: a checkpoint in the compressed-tensors format never quantises it."""
    return NotQuantised() if source.quantization.method == "compressed-tensors" else source.quantization


def read_kimi_k25(source: Source) -> ModelShape:
    """Kimi K2.5 and its successors; published tower sizes must be the ones the engine assumes."""
    given = source.root.child("vision_config") or Fields({}, "vision_config")
    vision = Fields({**MOON_VIT, **given.values}, given.path)
    for published, read in PUBLISHED.items():
        if published in given and given.integer(published) != vision.integer(read):
            raise source.refuse(
                given.named(published), because=f"a tower whose {published} is not {vision.integer(read)} is not known"
            )
    hidden = source.text.integer("hidden_size", default=7168)
    tower = moon_vit_tower(tower_quantization(source), vision, hidden)
    return read_deepseek(source, prefix="language_model.model", head="language_model.lm_head", tower=tower)


READERS = {"KimiK25ForConditionalGeneration": read_kimi_k25}
