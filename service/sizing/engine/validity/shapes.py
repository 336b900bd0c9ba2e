"""Rules met while the model is built: every dimension that is split must divide.

Source: vLLM 0.33 `model_executor/layers/linear.py`, `vocab_parallel_embedding.py`, `fused_moe/layer.py`, and the model
classes named below.
"""

from collections.abc import Iterable
from typing import TypeGuard

from service.sizing.engine.profile import NEWEST
from service.sizing.engine.refusal import Fix, Refusal
from service.sizing.engine.validity.setting import Rule, Setting, built_first, built_later, by_layout
from service.sizing.errors import Indivisible
from service.sizing.layouts import Layout
from service.sizing.model.modules import Embedding, Experts, Linear, Module, TensorClass
from service.sizing.model.shape import AttentionCache, InputsCache, ModelShape, StateCache, StateKind
from service.sizing.weights import held_whole, rank_bytes, stage_bounds, vocabulary_on_rank

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


EXPERTS_AT_LEAST_RANKS = frozenset(
    {
        "AliceAIForCausalLM",
        "Cohere2MoeForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "Ernie4_5_VLMoeForConditionalGeneration",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "HYV3ForCausalLM",
        "InternS1ProForConditionalGeneration",
        "InternS2MobiusForConditionalGeneration",
        "K2HorizonForCausalLM",
        "LagunaForCausalLM",
        "Lfm2MoeForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2OmniForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Step3TextForCausalLM",
        "Step3VLForConditionalGeneration",
        "Step3p5ForCausalLM",
        "Step5ForCausalLM",
        "Step5ForConditionalGeneration",
    }
)
"""Architectures whose expert layers refuse more tensor ranks than experts."""

KV_HEADS_AT_LEAST_RANKS = frozenset({"GptOssForCausalLM"})
"""Architectures that divide by KV heads // ranks, and so crash where that is 0."""


SUMMARISED_QUERIES = (4, 8, 16)
"""Query heads to a KV head that kernels of attention by summaries know."""

SUMMARISED_SIZE = 192
"""Elements of a head that those kernels know."""

SUMMARISED_SIZES = (128, SUMMARISED_SIZE)
"""Elements of a head that their layers are built with."""

TIE_IN_VAIN = {
    "Ernie4_5_MoeForCausalLM": "tie_weights",
    "Ernie4_5_VLMoeForConditionalGeneration": "tie_weights",
    "FalconH1ForCausalLM": "weight",
}
"""Architectures that crash on a pipeline where the head is tied, and what they miss: a head on every stage, or the
embedding on the last one."""


STAGE_WITHOUT_EXPERTS = {
    "AfmoeForCausalLM": "No AfmoeMoE layer found in model.layers.",
    "Glm4MoeForCausalLM": "No Glm4MoE layer found in model.layers.",
    "Glm4MoeLiteForCausalLM": "No Glm4MoE layer found in model.layers.",
    "HYV3ForCausalLM": "No MoE layer found in model.layers.",
    "InternS1ProForConditionalGeneration": "No InternS1ProMoe layer found in the language_model.",
    "Lfm2MoeForCausalLM": "No Lfm2MoeSparseMoeBlock layer found in the model.layers.",
    "NemotronHForCausalLM": "AssertionError",
    "NemotronHPuzzleForCausalLM": "AssertionError",
    "NemotronH_Nano_Omni_Reasoning_V3": "AssertionError",
    "NemotronH_Nano_VL_V2": "AssertionError",
    "NemotronH_Omni_Reasoning_V3": "AssertionError",
    "NemotronH_Super_Omni_Reasoning_V3": "AssertionError",
    "PanguProMoEV2ForCausalLM": "No MOE layer found in model.layers.",
    "PanguUltraMoEForCausalLM": "No MOE layer found in model.layers.",
    "Param2MoEForCausalLM": "No Param2MoEMoEBlock found in model.layers. "
    "Check first_k_dense_replace and num_experts in config.",
    "Qwen3MoeForCausalLM": "No Qwen3MoE layer found in the model.layers.",
    "Qwen3NextForCausalLM": "No Qwen3Next layer found in the model.layers.",
    "Qwen3VLMoeForConditionalGeneration": "No Qwen3Moe layer found in the language_model.",
    "SarvamMLAForCausalLM": "No SarvamMLAMoE layer found in model.layers.",
    "Step3p5ForCausalLM": "No MoE layers found in the model.",
}
"""What architectures say of a pipeline stage without expert layers, where others take it.

Nemotron-H says nothing but the name of its error.
"""


def class_builds(setting: Setting) -> Refusal | None:
    """The class takes what the configuration asks of it."""
    words = setting.model.build_refusal
    if words is None or setting.release < NEWEST.first:
        return None
    return Refusal(
        "configuration_not_built",
        f"vLLM fails to build {setting.model.architecture} from this configuration",
        words,
        (Fix("choose another model"), Fix("use a release that takes this configuration")),
    )


def experts_at_least_ranks(setting: Setting) -> Refusal | None:
    """Some architectures refuse more tensor ranks than experts."""
    model, tensor = setting.model, setting.layout.tensor_parallel_size
    if not model.experts or tensor <= model.experts or model.architecture not in EXPERTS_AT_LEAST_RANKS:
        return None
    return Refusal(
        "more_ranks_than_experts",
        f"{tensor} tensor ranks are more than the model's {model.experts} experts",
        f"Tensor parallel size {tensor} is greater than the number of experts {model.experts}.",
    )


def kv_heads_at_least_ranks(setting: Setting) -> Refusal | None:
    """Some architectures crash where there are more tensor ranks than KV heads."""
    model, tensor = setting.model, setting.layout.tensor_parallel_size
    if tensor <= model.kv_heads or model.architecture not in KV_HEADS_AT_LEAST_RANKS:
        return None
    return Refusal(
        "more_ranks_than_kv_heads",
        f"{model.architecture} crashes on more tensor ranks ({tensor}) than KV heads ({model.kv_heads})",
        "integer modulo by zero",
    )


def inputs_have_heads(setting: Setting) -> Refusal | None:
    """The cache of a convolution's inputs has at least one whole KV head on every rank."""
    tensor = setting.layout.tensor_parallel_size
    for layer in setting.model.distinct:
        for cache in layer.caches:
            if isinstance(cache, InputsCache) and tensor > cache.heads:
                return Refusal(
                    "more_ranks_than_kv_heads",
                    f"the inputs of convolutions of {cache.heads} KV heads do not split over {tensor} GPUs",
                    f"sconv SWA cache supports tp_size <= num_kv_heads ({cache.heads}), got {tensor}",
                )
    return None


@by_layout
def summaries_have_kernels(model: ModelShape, layout: Layout) -> Refusal | None:
    """Attention that picks regions by summaries has kernels for few shapes, and every stage has such a layer.

    Source: vLLM 0.33 `models/step5/nvidia/model.py: _validate_step5_dsa_parallel_geometry`, `sparse_attention.py`,
    `v1/attention/backends/utils.py: resolve_kv_cache_layout`.
    """
    tensor, stages = layout.tensor_parallel_size, layout.pipeline_parallel_size
    picking = [any(_summarised(cache) for cache in layer.caches) for layer in model.layers]
    for cache in filter(_summarised, (cache for layer in model.distinct for cache in layer.caches)):
        shared = cache.heads // tensor // max(1, cache.kv_heads // tensor)
        if cache.heads % tensor == 0 and shared not in SUMMARISED_QUERIES:
            return Refusal(
                "no_attention_backend",
                f"no kernel of attention by summaries has {shared} query heads to a KV head",
                "Step5 DSA kernels require 4, 8, or 16 local query heads per KV group, got "
                f"{shared} (num_heads={cache.heads}, tp_size={tensor}).",
            )
        if cache.head_size != SUMMARISED_SIZE:
            known = cache.head_size in SUMMARISED_SIZES
            return Refusal(
                "no_attention_backend",
                f"no kernel of attention by summaries has heads of {cache.head_size}",
                f"Step5 DSA kernels require head_size {SUMMARISED_SIZE}, got {cache.head_size}."
                if known
                else f"Step5 DSA supports attention head dimensions 128 or 192, got {cache.head_size}.",
                (Fix("choose another model"),),
            )
    held = {any(picking[start:end]) for start, end in stage_bounds(len(picking), stages)}
    if len(held) == 1:
        return None
    return Refusal(
        "stages_disagree",
        "some pipeline stages have no layer that picks regions by summaries, and the stages lay their caches out apart",
        "Workers disagree on supported KV cache layouts: ",
    )


def _summarised(cache: object) -> TypeGuard[AttentionCache]:
    return isinstance(cache, AttentionCache) and cache.summarised


def state_divides(setting: Setting) -> Refusal | None:
    """The heads of a Mamba-2 state divide over the ranks, and its groups, or there is one, which is copied."""
    tensor = setting.layout.tensor_parallel_size
    for layer in setting.model.distinct:
        for cache in layer.caches:
            if not isinstance(cache, StateCache) or cache.kind is not StateKind.MAMBA2:
                continue
            groups, heads = cache.tensors[0].rows[1].count, cache.tensors[1].rows[0].count
            if heads % tensor:
                return Refusal(
                    "state_heads_not_divisible",
                    f"{heads} state heads do not split evenly over {tensor} GPUs",
                    "Tensor parallel world size must divide num heads.",
                )
            if groups > 1 and groups % tensor:
                return Refusal(
                    "state_groups_not_divisible",
                    f"{groups} state groups do not split evenly over {tensor} GPUs",
                    "If tensor parallel world size does not divide num_groups, then num_groups must equal 1.",
                )
    return None


@by_layout
def tower_divides(model: ModelShape, layout: Layout) -> Refusal | None:
    """A tower, which is built before anything else, divides by the ranks, heads before all else of a layer."""
    tensor = layout.tensor_parallel_size
    for module in model.first_stage:
        if not isinstance(module, Linear) or module.tensor_class is not TensorClass.TOWER:
            continue
        counts = [
            units.count for units in module.outputs if units.size > 1 and units.count > 1 and not units.replicated
        ]
        heads = next((count for count in counts if count % tensor), None)
        if heads is not None and not held_whole(module, layout):
            return Refusal(
                "dimension_not_divisible",
                f"{heads} attention heads of the encoder do not split evenly over {tensor} GPUs",
                str(Indivisible(heads, tensor)),
            )
        if refusal := _first_indivisible(model, layout, (module,)):
            return refusal
    return None


@by_layout
def embedding_divides(model: ModelShape, layout: Layout) -> Refusal | None:
    """Towers and vocabulary, which are built first, divide by the ranks."""
    return _first_indivisible(model, layout, built_first(model))


@by_layout
def layers_divide(model: ModelShape, layout: Layout) -> Refusal | None:
    """Heads, widths, groups and all else that is split of what is built later divide by the ranks."""
    return _first_indivisible(model, layout, built_later(model))


def tied_head_divides(setting: Setting) -> Refusal | None:
    """A head tied to a plain embedding is still a vocabulary table, and its padded rows divide by the ranks."""
    model = setting.model
    if not model.tied_head or any(isinstance(module, Embedding) for module in built_first(model)):
        return None
    try:
        vocabulary_on_rank(model.vocab_size, setting.layout.tensor_parallel_size)
    except Indivisible as error:
        return Refusal(
            "dimension_not_divisible",
            f"the padded vocabulary ({error.dimension}) does not split evenly over {error.ranks} GPUs",
            str(error),
        )
    return None


def head_and_embedding_meet(setting: Setting) -> Refusal | None:
    """Some architectures tie their head on stages that lack it or the embedding."""
    model = setting.model
    missing = TIE_IN_VAIN.get(model.architecture)
    if setting.layout.pipeline_parallel_size == 1 or not model.tied_head or missing is None:
        return None
    return Refusal(
        "head_tied_across_stages",
        f"{model.architecture} ties its head to its embedding, and crashes where they are on different pipeline stages",
        f"'PPMissingLayer' object has no attribute '{missing}'",
    )


def stages_hold_experts(setting: Setting) -> Refusal | None:
    """Some architectures look on every pipeline stage for an expert layer."""
    model, stages = setting.model, setting.layout.pipeline_parallel_size
    words = STAGE_WITHOUT_EXPERTS.get(model.architecture)
    if words is None or stages == 1:
        return None
    routed = [any(isinstance(module, Experts) for module in layer.modules) for layer in model.layers]
    if not any(routed):
        return None
    for stage, (start, end) in enumerate(stage_bounds(len(routed), stages)):
        if not any(routed[start:end]):
            return Refusal(
                "stage_without_experts",
                f"pipeline stage {stage} of {stages} would hold no expert layer, which {model.architecture} looks for "
                "on every stage",
                words,
            )
    return None


def _first_indivisible(model: ModelShape, layout: Layout, modules: Iterable[Module]) -> Refusal | None:
    for module in modules:
        try:
            rank_bytes(module, layout, model.element_bytes)
        except Indivisible as error:
            return Refusal(
                "dimension_not_divisible",
                f"{WHAT.get(module.tensor_class, 'a dimension')} of {module.name} ({error.dimension}) does not split "
                f"evenly over {error.ranks} GPUs",
                None if isinstance(module, Experts) else str(error),
            )
    return None


@by_layout
def shared_caches_on_one_stage(model: ModelShape, layout: Layout) -> Refusal | None:
    """A layer that reuses another's cache sits on the stage of that layer."""
    for start, end in stage_bounds(len(model.layers), layout.pipeline_parallel_size):
        for index, layer in enumerate(model.layers[start:end], start):
            if layer.cache_of is None or layer.cache_of >= start:
                continue
            prefix = "language_model.model" if model.architecture.endswith("ForConditionalGeneration") else "model"
            return Refusal(
                "shared_cache_on_another_stage",
                f"layer {index} reuses the cache of layer {layer.cache_of}, which is on another pipeline stage",
                f"Specified KV sharing target layer for {prefix}.layers.{index}.self_attn.attn is not valid: target "
                f"layer {prefix}.layers.{layer.cache_of}.self_attn.attn is not a valid Attention layer in the model.",
            )
    return None


RULES: tuple[Rule, ...] = (
    class_builds,
    tower_divides,
    embedding_divides,
    experts_at_least_ranks,
    kv_heads_at_least_ranks,
    inputs_have_heads,
    summaries_have_kernels,
    state_divides,
    layers_divide,
    tied_head_divides,
    shared_caches_on_one_stage,
    head_and_embedding_meet,
    stages_hold_experts,
)
