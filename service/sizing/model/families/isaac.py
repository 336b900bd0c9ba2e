"""Isaac: Qwen3 behind a SigLIP 2 of packed patches.

Source: vLLM 0.33 `model_executor/models/isaac.py`, `transformers_utils/configs/isaac.py`.
"""

from service.sizing.model.families import dense
from service.sizing.model.families.language import SIZES
from service.sizing.model.families.llama import read
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.fields import Json
from service.sizing.model.modules import Module, Split
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, tower_linear
from service.sizing.model.towers.siglip import SIGLIP2, siglip2_tower

PATH = "model.vision_embedding"

SECTIONS = "mrope_section"
"""What splits the rotary positions of an image, in the settings of the rope."""


def tower(source: Source) -> tuple[Module, ...]:
    """The tower, and two linear layers over shuffled pixels."""
    vision = tower_config(source).completed(SIGLIP2)
    merged = vision.integer("hidden_size") * vision.integer("pixel_shuffle_scale_factor", default=1) ** 2
    quantization, width = source.quantization, source.root.integer("hidden_size", default=SIZES["qwen3"]["hidden_size"])
    return (
        *siglip2_tower(quantization, vision, path=f"{PATH}.0"),
        tower_linear(quantization, PATH, "1", merged, 4 * merged, Split.COLUMN, bias=False, tensor_class=PROJECTOR),
        tower_linear(quantization, PATH, "3", 4 * merged, width, Split.ROW, bias=False, tensor_class=PROJECTOR),
    )


def read_isaac(source: Source) -> ModelShape:
    """Isaac; the engine fills in the sections of its rotary positions.

    Raises
    ------
    InvalidConfig
        When root and text part differ in the sizes of the head, which the engine builds from the root.
    NotUnderstood
        When the rotary positions are scaled.
    """
    for name in ("vocab_size", "hidden_size"):
        outer, inner = (part.integer(name, default=SIZES["qwen3"][name]) for part in (source.root, source.text))
        if outer != inner:
            raise source.invalid(name, f"{name} ({outer}) must be {source.text.named(name)} ({inner})")
    if source.rope_type() != "default":
        raise source.unknown_rope()
    rope = source.rope()
    sections: Json = {SECTIONS: [], **(rope.values if rope and SECTIONS in rope else {})}
    unused = {"max_sequence_length": None} if source.text is source.root else {}
    source = source.overridden({"rope_scaling": sections, **unused}).with_defaults(SIZES["qwen3"])
    return behind(tower, lambda inner: read(inner, dense.RECIPES["Qwen3ForCausalLM"]), tied=Tied.ROOT_ELSE_SEPARATE)(
        source
    )


READERS = {"IsaacForConditionalGeneration": read_isaac}
