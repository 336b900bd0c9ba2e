"""Embedding models and rankers of a Llama that looks both ways behind a SigLIP.

Source: vLLM 0.33 `model_executor/models/nemotron_vl.py`.
"""

from dataclasses import replace
from functools import partial

from service.sizing.model.families import pooling
from service.sizing.model.families.internvl import merged_patches, projector
from service.sizing.model.families.llama import FLOAT32_BYTES
from service.sizing.model.families.multimodal import tower_config
from service.sizing.model.modules import Tensor, TensorClass, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.siglip import SIGLIP, siglip_tower

EMBEDDED, RANKED = "LlamaBidirectionalModel", "LlamaBidirectionalForSequenceClassification"
"""Classes of the language models inside."""

NORMALISER = Tensor("input_norm", TensorClass.TOWER, (Units(6),), element_bytes=FLOAT32_BYTES, buffer=True)
"""Mean and deviation of the three colours of an image."""


def read_llama_nemotron_vl(source: Source, *, language: str) -> ModelShape:
    """A pooled Llama of the class `language`; a ranker's head is built on the model and again around it."""
    text = source.text
    named = text.texts("architectures") or []
    if text is source.root or language not in named:
        shown = ", ".join(named) or "none"
        raise source.refuse(text.named("architectures"), because=f"it is read with {language} inside, not {shown}")
    if source.quantization.method is not None:
        raise source.refuse("quantization_config", because="quantised attention without a cache is not understood")
    inner = replace(source, root=text)
    model = pooling.READERS[language](inner)
    vision = tower_config(source).completed(SIGLIP)
    inputs, width = vision.integer("hidden_size") * merged_patches(source), text.integer("hidden_size")
    front = (
        *siglip_tower(source.quantization, vision, path="vision_model.vision_model", final_norm=True),
        *projector(NotQuantised(), inputs, width, width),
    )
    around = pooling.classifier(inner, width) if language == RANKED else ()
    return replace(
        model,
        first_stage=model.first_stage + front,
        every_stage=(*model.every_stage, *around, NORMALISER),
    )


READERS = {
    "LlamaNemotronVLModel": partial(read_llama_nemotron_vl, language=EMBEDDED),
    "LlamaNemotronVLForSequenceClassification": partial(read_llama_nemotron_vl, language=RANKED),
}
