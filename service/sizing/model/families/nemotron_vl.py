"""Nemotron-H behind a RADIO tower.

Source: vLLM 0.33 `model_executor/models/nano_nemotron_vl.py`.
"""

from service.sizing.model.families.nemotron_h import read_nemotron_h
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, layer_norm
from service.sizing.model.towers.radio import radio_tower


def projector(source: Source) -> tuple[Module, ...]:
    """A norm over merged patches and two replicated layers; a final norm of the tower beside draft layers."""
    root = source.root
    hidden, middle = root.integer("vit_hidden_size"), root.integer("projector_hidden_size")
    merged = hidden * round(1 / root.number("downsample_ratio")) ** 2
    text_hidden = source.text.integer("hidden_size")
    final = (
        (layer_norm("vision_final_layernorm", hidden),)
        if source.text.integer("num_nextn_predict_layers", default=0, minimum=0)
        else ()
    )
    return (
        *final,
        Tensor("mlp1.0", TensorClass.PROJECTOR, (Units(merged),)),
        Linear("mlp1.1", PROJECTOR, Units(merged), (Units(middle),), Split.REPLICATED),
        Linear("mlp1.3", PROJECTOR, Units(middle), (Units(text_hidden),), Split.REPLICATED),
    )


def read_nemotron_vl(source: Source) -> ModelShape:
    """Nemotron Nano VL; variants that hear are refused."""
    if "sound_config" in source.root:
        raise source.refuse("sound_config", because="a sound encoder is not known")
    vision = source.root.child("vision_config")
    if vision is None:
        raise source.invalid("vision_config", "vision_config is missing: give the vision tower's configuration")
    tower = radio_tower(vision) + projector(source)
    return read_nemotron_h(source, prefix="language_model.backbone", head="language_model.lm_head", tower=tower)


READERS = dict.fromkeys(
    (
        "NemotronH_Nano_VL_V2",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "NemotronH_Omni_Reasoning_V3",
    ),
    read_nemotron_vl,
)
