"""Methods with few rules of their own: those quantised while loading, and those of other versions and projects.

Source: vLLM 0.33 `quantization/experts_int8.py`, `torchao.py`; vLLM 0.11 `quantization/bitsandbytes.py`, `gguf.py`.
"""

from collections.abc import Iterable

from service.sizing.errors import NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import names
from service.sizing.model.quantization.base import NotQuantised, Skip, Uniform
from service.sizing.model.schemes import Compute, Quantised, Scale, formats

METHODS_0_33 = [
    "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8",
    "modelopt_mixed", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors",
    "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online",
    "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "mxfp8",
]  # fmt: skip
"""What vLLM 0.33 lists when it meets a method it does not know."""

GGUF_BLOCKS = {
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q4_K": (256, 144), "Q5_0": (32, 22),
    "Q5_1": (32, 24), "Q5_K": (256, 176), "Q6_K": (256, 210), "Q8_0": (32, 34), "IQ4_XS": (256, 136),
    "IQ4_NL": (32, 18),
}  # fmt: skip
"""Weights and bytes of one block of each GGUF type (ggml `ggml-common.h`)."""


def unknown_method(method: str) -> str:
    """vLLM's words for a method it does not have."""
    return f"Unknown quantization method: {method}. Must be one of {METHODS_0_33}."


def read_experts_int8() -> NotQuantised:
    """Experts quantised to INT8 while loading, with a scale an output."""
    return Uniform(
        method="experts_int8",
        exact=False,
        stacks=formats.int8(channel=True),
        notes=("experts are quantised while loading: their bytes are those that remain",),
    )


def components(entries: Iterable[str], field: str) -> Skip:
    """Skips layers whose dotted name holds an entry as whole components."""
    wanted = tuple(f".{entry}." for entry in entries)

    def matches(name: str) -> bool:
        return any(entry in f".{spelling}." for spelling in names.spellings(name) for entry in wanted)

    return lambda parts: names.every_part(parts, matches, field)


def read_bitsandbytes(config: Fields) -> NotQuantised:
    """bitsandbytes in 4 or 8 bits: all linear layers but the head and `llm_int8_skip_modules`."""
    four, eight = (config.flag(f"load_in_{bits}bit", f"_load_in_{bits}bit", default=False) for bits in (4, 8))
    if four is eight:
        raise NotUnderstood(
            (config.named("load_in_4bit"), config.named("load_in_8bit")),
            f"{config.path} must set exactly one of load_in_4bit and load_in_8bit",
        )
    scheme = formats.bitsandbytes(4 if four else 8)
    field = config.named("llm_int8_skip_modules")
    return Uniform(
        method="bitsandbytes",
        refusal=unknown_method("bitsandbytes"),
        exact=False,
        linears=scheme,
        stacks=scheme,
        skips=components(config.texts("llm_int8_skip_modules") or (), field),
        notes=("bitsandbytes: sized for vLLM 0.8 to 0.32",),
    )


def read_gguf(config: Fields) -> NotQuantised:
    """GGUF of one block type for all linear layers; mixtures ("Q4_K_M") count as their main type."""
    kind = config.text("quant_type", "file_type", default="").upper()
    block = GGUF_BLOCKS.get(kind) or GGUF_BLOCKS.get(kind.rpartition("_")[0])
    if block is None:
        field = config.named("quant_type")
        raise NotUnderstood(
            (field,), f"{field} {kind!r} is not understood: give one of {', '.join(sorted(GGUF_BLOCKS))}"
        )
    weights, size = block
    bits = size * 8 // weights
    scale = Scale(columns=weights, element_bytes=size - weights * bits // 8, partial=True)
    scheme = Quantised(f"GGUF {kind}", bits, Compute.SIXTEEN_BIT, scales=(scale,))
    return Uniform(
        method="gguf",
        refusal=unknown_method("gguf"),
        exact=False,
        linears=scheme,
        stacks=scheme,
        heads=scheme,
        notes=("GGUF: sized for vLLM 0.8 to 0.32; blocks of other types in a mixture are not counted",),
    )


TORCHAO = {
    "Int8WeightOnlyConfig": Quantised("torchao INT8", 8, Compute.SIXTEEN_BIT, scales=(Scale(element_bytes=None),)),
    "Int8DynamicActivationInt8WeightConfig": Quantised(
        "torchao INT8", 8, Compute.INT8, scales=(Scale(element_bytes=None),)
    ),
    "Float8WeightOnlyConfig": Quantised("torchao FP8", 8, Compute.SIXTEEN_BIT, scales=(Scale(),)),
    "Float8DynamicActivationFloat8WeightConfig": Quantised("torchao FP8", 8, Compute.FP8, scales=(Scale(),)),
}
"""Weight bytes of torchao's configurations whose layout does not depend on the card."""


def read_torchao(config: Fields) -> NotQuantised:
    """torchao: one configuration for all linear layers but `modules_to_not_convert`; experts stay as they are."""
    kind = config.child("quant_type")
    default = kind.child("default") if kind else None
    name = default.text("_type", default="") if default else ""
    data = default.child("_data") if default else None
    if name == "Int4WeightOnlyConfig":
        group = data.integer("group_size", default=128) if data else 128
        scheme = Quantised(
            f"torchao INT4 in groups of {group}",
            4,
            Compute.SIXTEEN_BIT,
            scales=(Scale(columns=group, element_bytes=None), Scale(columns=group, element_bytes=None)),
        )
    elif name in TORCHAO:
        scheme = TORCHAO[name]
    else:
        field = config.named("quant_type.default._type")
        raise NotUnderstood(
            (field,),
            f"{field} {name!r} is not understood: no sizing rule covers it; "
            f"understood are Int4WeightOnlyConfig, {', '.join(TORCHAO)}",
        )
    field = config.named("modules_to_not_convert")
    return Uniform(
        method="torchao",
        exact=False,
        linears=scheme,
        skips=components(config.texts("modules_to_not_convert") or (), field),
        notes=("torchao: bytes of the packed weights and scales, not checked against the engine",),
    )
