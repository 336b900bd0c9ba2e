"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen decoders behind vision towers; other decoders behind the same towers.

Source: vLLM 0.33 `model_executor/models/qwen2_vl.py`, `qwen2_5_vl.py`, `qwen3_vl.py`, `qwen3_vl_moe.py`,
`exaone4_5.py`, `hyperclovax_vision_v2.py`, `opencua.py`, `cosmos3.py`, `interns1_pro.py`,
`layers/rotary_embedding/fope.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import pi
from typing import Any

from service.sizing.model.families import dense, expert_layers, experts
from service.sizing.model.families.language import language
from service.sizing.model.families.llama import read, read_attention
from service.sizing.model.families.mixture import Mixture
from service.sizing.model.families.multimodal import Tied, Tower, behind, tower_config
from service.sizing.model.families.qwen3_next import VISION
from service.sizing.model.families.recipe import Recipe
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, whole_linear
from service.sizing.model.towers.qwen import qwen2_5_vl_tower, qwen2_vl_tower, qwen3_vl_tower

QWEN2_VL: Mapping[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 80,
}
QWEN3_VL: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 128000,
}
QWEN3_VL_MOE: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 128000,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_experts": 60,
}

EXAONE4: Mapping[str, Any] = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}

QWEN3_VISION: Mapping[str, Any] = {**VISION, "deepstack_visual_indexes": [8, 16, 24]}

QWEN3 = replace(dense.RECIPES["Qwen3ForCausalLM"], section_factor=1)
QWEN3_MOE = replace(experts.MIXTURES["Qwen3MoeForCausalLM"], section_factor=1)


def decoder(source: Source, recipe: Recipe, defaults: Mapping[str, Any]) -> ModelShape:
    """The decoder of a recipe with the defaults of its configuration class."""
    return read(source.with_defaults(defaults), recipe)


def reader(tower: Tower, recipe: Recipe, defaults: Mapping[str, Any]) -> Any:
    """A reader of a decoder behind a tower."""
    return behind(tower, lambda source: decoder(source, recipe, defaults), tied=Tied.ROOT_ELSE_SEPARATE)


def qwen2_tower(source: Source) -> tuple[Module, ...]:
    """The tower of Qwen2-VL."""
    return qwen2_vl_tower(source.quantization, tower_config(source))


def qwen2_5_tower(source: Source) -> tuple[Module, ...]:
    """The tower of Qwen2.5-VL."""
    return qwen2_5_vl_tower(source.quantization, tower_config(source))


def qwen3_tower(source: Source) -> tuple[Module, ...]:
    """The tower of Qwen3-VL."""
    return qwen3_vl_tower(source.quantization, tower_config(source), QWEN3_VISION)


def exaone_tower(source: Source) -> tuple[Module, ...]:
    """The tower of EXAONE 4.5: that of Qwen2.5-VL with fewer key than query heads."""
    vision = tower_config(source)
    return qwen2_5_vl_tower(source.quantization, vision, kv_heads=vision.integer("num_key_value_heads", default=8))


def hyperclova_tower(source: Source) -> tuple[Module, ...]:
    """The tower of Qwen2.5-VL and one linear layer."""
    vision = tower_config(source)
    output = vision.integer("out_hidden_size", default=3584)
    width = source.text.integer("hidden_size")
    return (
        *qwen2_5_vl_tower(source.quantization, vision),
        whole_linear("mm_projector", output, width, tensor_class=PROJECTOR),
    )


def unquantised_routers(source: Source) -> Mixture:
    """Qwen's experts, whose routers are never quantised."""
    return replace(expert_layers.qwen(source, always_gated=False), quantised_router=False)


INTERN_S1_PRO = replace(QWEN3_MOE, rotary=False, experts=unquantised_routers)


def intern_tower(source: Source) -> tuple[Module, ...]:
    """The tower of Qwen3-VL, never quantised."""
    return qwen3_vl_tower(NotQuantised(), tower_config(source), VISION)


def fourier_rotary(source: Source) -> tuple[Module, ...]:
    """Rotary positions with mixed frequencies: two square matrices for each KV head, the frequencies and a table.

    Frequencies that turn less than once over the context are left out, unless their number is given.
    """
    rope, sizes = source.rope(), read_attention(source)
    fields = ("fope_init_factor", "fope_sep_head", "num_inv_freq")
    if rope is None or all(rope.raw(field)[1] is None for field in fields):
        raise source.refuse("rope_scaling", because="rotary positions without mixed frequencies are not known")
    if source.rope_type() != "default" or "mrope_section" in rope:
        raise source.unknown_rope()
    positions = source.text.integer("max_position_embeddings", default=32768)
    base = rope.number("rope_theta", default=source.text.number("rope_theta", default=10000.0))
    turning = [
        2 * index for index in range(sizes.head_size // 2) if base ** (2 * index / sizes.head_size) * 2 * pi < positions
    ]
    count = min(rope.optional_integer("num_inv_freq") or len(turning), sizes.head_size // 2)
    heads = Units(sizes.kv_heads, replicated=True)
    if not rope.flag("fope_sep_head", default=False):
        raise source.refuse(rope.named("fope_sep_head"), because="mixtures that KV heads share are not known")
    return (
        Tensor("rotary_emb.coefficients", TensorClass.ATTENTION, (heads,), columns=2 * count**2, split=True),
        Tensor("rotary_emb.inv_freq", TensorClass.OTHER, (Units(count),), element_bytes=4, buffer=True),
        Tensor(
            "rotary_emb.cos_sin_cache",
            TensorClass.OTHER,
            (heads,),
            columns=positions * 2 * sizes.head_size,
            split=True,
            buffer=True,
        ),
    )


def read_intern_s1_pro(source: Source) -> ModelShape:
    """Intern-S1-Pro: Qwen3 with experts and rotary positions of mixed frequencies, on every stage."""
    model = read(source, INTERN_S1_PRO)
    return replace(model, every_stage=(*model.every_stage, *fourier_rotary(source)))


QWEN2 = dense.RECIPES["Qwen2ForCausalLM"]

READERS = {
    "Exaone4_5_ForConditionalGeneration": reader(exaone_tower, dense.RECIPES["Exaone4ForCausalLM"], EXAONE4),
    "HCXVisionV2ForCausalLM": behind(hyperclova_tower, language("hyperclovax"), tied=Tied.ROOT_IF_NAMED),
    "Cosmos3ForConditionalGeneration": reader(qwen3_tower, QWEN3, QWEN3_VL),
    "InternS1ProForConditionalGeneration": behind(intern_tower, read_intern_s1_pro, tied=Tied.TEXT),
    "OpenCUAForConditionalGeneration": behind(
        qwen2_5_tower, partial(decoder, recipe=QWEN2, defaults={}), tied=Tied.ROOT_IF_NAMED
    ),
    "Qwen2VLForConditionalGeneration": reader(qwen2_tower, QWEN2, QWEN2_VL),
    "Qwen2_5_VLForConditionalGeneration": reader(qwen2_5_tower, QWEN2, QWEN2_VL),
    "Qwen3VLForConditionalGeneration": reader(qwen3_tower, QWEN3, QWEN3_VL),
    "Qwen3VLMoeForConditionalGeneration": reader(qwen3_tower, QWEN3_MOE, QWEN3_VL_MOE),
}
