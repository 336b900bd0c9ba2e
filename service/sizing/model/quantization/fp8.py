"""FP8 checkpoints: one scale a matrix, an output or a block; DeepSeek-V4 with experts in four bits.

Source: vLLM 0.33 `quantization/fp8.py`, `quantization/fbgemm_fp8.py`, `models/deepseek_v41/quant_config.py`.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import names
from service.sizing.model.quantization.base import GATED_PROJECTIONS, NotQuantised, Uniform
from service.sizing.model.schemes import UNQUANTISED, Compute, Scheme, formats
from service.sizing.model.shape import AttentionScales

CACHE_SCALES = AttentionScales(attention_bytes=8)
"""Four scales (query, key, value, probability) in the model's type of each attention over keys and values."""

DEPRECATED = (
    "The quantization method {method} is deprecated and will be removed in future versions of vLLM. "
    "To bypass, set `--allow-deprecated-quantization`."
)

EXPERTS_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.ffn\.experts$")


def _skipped(config: Fields) -> tuple[str, list[str]]:
    """The list of layers left alone, and the field it is in: `ignored_layers`, or else `modules_to_not_convert`."""
    for field in ("ignored_layers", "modules_to_not_convert"):
        if entries := config.texts(field):
            return config.named(field), entries
    return config.named("ignored_layers"), []


def _block(config: Fields) -> tuple[int, int] | None:
    block = config.integers("weight_block_size", minimum=1)
    if block is None:
        return None
    if len(block) != 2:
        raise InvalidConfig(
            config.named("weight_block_size"),
            f"{config.named('weight_block_size')} must hold two sizes (outputs, inputs), not {len(block)}",
        )
    return block[0], block[1]


def _static(config: Fields) -> bool:
    scheme = config.text("activation_scheme")
    if scheme not in ("static", "dynamic"):
        raise InvalidConfig(
            config.named("activation_scheme"),
            f"{config.named('activation_scheme')} must be static or dynamic, not {scheme!r}",
        )
    if scheme == "static" and config.raw("weight_block_size")[1] is not None:
        raise InvalidConfig(
            config.named("activation_scheme"),
            f"{config.named('activation_scheme')} must be dynamic with weight_block_size, not static",
        )
    return scheme == "static"


def read_fp8(config: Fields) -> NotQuantised:
    """Native FP8: block scales with `weight_block_size`, else one scale a matrix.

    `patterns_to_not_convert` is no field of the engine's: what-if configurations name exceptions by pattern there.
    """
    static, block = _static(config), _block(config)
    field, entries = _skipped(config)
    if block:
        linears, stacks = formats.fp8_block(*block), formats.fp8_block(*block, refined=True)
    else:
        linears = formats.fp8_tensor(static_inputs=static)
        stacks = formats.fp8_tensor_experts(static_inputs=static)
    if config.text("store_dtype", default="") == "mxfp4":
        stacks = formats.mx(4, compute=Compute.SIXTEEN_BIT, padding=formats.MARLIN_PADDING)
    skips = names.listed(entries, field)
    if patterns := config.texts("patterns_to_not_convert"):
        skips = names.matching(patterns, config.named("patterns_to_not_convert"))
    return Uniform(method="fp8", attention=CACHE_SCALES, linears=linears, stacks=stacks, skips=skips)


def read_fbgemm_fp8(config: Fields) -> NotQuantised:
    """FBGEMM FP8: a scale an output and a bound on the inputs for linear layers; experts in the model's own type."""
    config.number("activation_scale_ub")
    field = config.named("modules_to_not_convert")
    return Uniform(
        method="fbgemm_fp8",
        refusal=DEPRECATED.format(method="fbgemm_fp8"),
        linears=formats.fp8_channel(layer_bytes=formats.FLOAT32_BYTES),
        skips=names.listed(config.texts("modules_to_not_convert") or (), field),
    )


@dataclass(frozen=True, kw_only=True)
class DeepseekV4(Uniform):
    """FP8 with experts in MXFP4, or in NVFP4 but for layers whose names match `not_nvfp4`."""

    nvfp4: bool = False
    not_nvfp4: tuple[str, ...] = ()

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """MXFP4, NVFP4 or FP8."""
        scheme = super().experts(name, projections)
        if scheme is UNQUANTISED or not self.nvfp4:
            return scheme
        layer = EXPERTS_LAYER.search(name)
        if layer and any(fnmatchcase(f"layers.{layer[1]}.ffn.experts", pattern) for pattern in self.not_nvfp4):
            return scheme
        return formats.nvfp4(part_bytes=2 * formats.FLOAT32_BYTES, weight_only=False)


def read_deepseek_v4(config: Fields, root: Fields) -> NotQuantised:
    """DeepSeek-V4: exponents as block scales where the experts are in four bits."""
    if _static(config):
        raise InvalidConfig(
            config.named("activation_scheme"), f"{config.named('activation_scheme')} must be dynamic for DeepSeek-V4"
        )
    block = _block(config)
    if block is None:
        raise InvalidConfig(
            config.named("weight_block_size"), f"{config.named('weight_block_size')} is missing: give two sizes"
        )
    experts = root.text("expert_dtype", default=config.text("expert_dtype", default="fp4"))
    if experts not in ("fp4", "fp8"):
        raise InvalidConfig("expert_dtype", f"expert_dtype must be fp4 or fp8, not {experts!r}")
    field, entries = _skipped(config)
    linears: Scheme = formats.fp8_block(*block, scale_bytes=1 if experts == "fp4" else formats.FLOAT32_BYTES)
    if experts == "fp4" and block == (formats.MX_GROUP, formats.MX_GROUP):
        linears = formats.mx(8, compute=Compute.FP8)
    return DeepseekV4(
        method="deepseek_v4_fp8",
        attention=CACHE_SCALES,
        linears=linears,
        stacks=(
            formats.mx(4, compute=Compute.FP8, padding=formats.MARLIN_PADDING)
            if experts == "fp4"
            else formats.fp8_block(*block, refined=True)
        ),
        skips=names.listed(entries, field),
        nvfp4=experts == "fp4" and config.text("moe_quant_algo", default="").upper() == "NVFP4",
        not_nvfp4=tuple(config.texts("ignore") or ()),
    )
