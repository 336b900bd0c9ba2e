"""Rules met while the model is built: every dimension that is split must divide.

Source: vLLM 0.33 `model_executor/layers/linear.py`, `vocab_parallel_embedding.py`, `fused_moe/layer.py`, and the model
classes named below.
"""

from collections.abc import Iterator

from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity.setting import Rule, Setting
from service.sizing.errors import Indivisible
from service.sizing.model.modules import Embedding, Experts, Module, TensorClass
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import TOWERS
from service.sizing.weights import rank_bytes

WHAT = {
    TensorClass.EMBEDDING: "the padded vocabulary",
    TensorClass.HEAD: "the padded vocabulary",
    TensorClass.ATTENTION: "an attention dimension",
    TensorClass.STATE: "a state dimension",
    TensorClass.MLP: "the MLP width",
    TensorClass.EXPERTS: "the expert width",
    TensorClass.SHARED_EXPERTS: "the shared experts' width",
    TensorClass.TOWER: "an encoder dimension",
    TensorClass.PROJECTOR: "a projector dimension",
}


def in_build_order(model: ModelShape) -> Iterator[Module]:
    """Modules as the engine builds them: towers, embedding, each distinct layer once, norm and head."""
    towers = [module for module in model.first_stage if module.tensor_class in TOWERS]
    yield from towers
    yield from (module for module in model.first_stage if module.tensor_class not in TOWERS)
    yield from model.every_stage
    for layer in model.distinct:
        yield from layer.modules
    yield from model.last_stage


def dimensions_divide(setting: Setting) -> Refusal | None:
    """Vocabulary, heads, widths and groups divide by the ranks they are split over."""
    for module in in_build_order(setting.model):
        try:
            rank_bytes(module, setting.layout, setting.model.element_bytes)
        except Indivisible as error:
            return Refusal(
                "dimension_not_divisible",
                f"{WHAT.get(module.tensor_class, 'a dimension')} of {module.name} ({error.dimension}) does not split "
                f"evenly over {error.ranks} GPUs",
                None if isinstance(module, Experts) else str(error),
                f"choose a tensor parallel size that divides {error.dimension}"
                if isinstance(module, Embedding | Experts)
                else "choose a smaller tensor parallel size",
            )
    return None


RULES: tuple[Rule, ...] = (dimensions_divide,)
