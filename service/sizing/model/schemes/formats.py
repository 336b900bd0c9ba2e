"""The formats of published checkpoints, each as the parameters the engine builds for it.

Functions ending in `_experts` are for stacks of experts, whose scales the engine groups otherwise than a linear
layer's. Source: vLLM 0.33 `model_executor/layers/quantization/`.
"""

from dataclasses import replace
from functools import lru_cache

from service.sizing.model.schemes.base import Compute
from service.sizing.model.schemes.quantised import FLOAT32_BYTES, MarlinExperts, Padding, Quantised, Scale

INT32_BYTES = 4
MX_GROUP = 32
"""Weights that share a scale in the microscaling (MX) formats."""

NVFP4_GROUP = 16

MARLIN_PADDING = Padding(hidden=256, intermediate=128)
TRITON_PADDING = Padding(hidden=1, intermediate=64)
TRITON_OR_MARLIN_PADDING = replace(MARLIN_PADDING, on_hopper=TRITON_PADDING)
"""How MXFP4 experts are padded for the kernels that take them (`fused_moe/oracle/mxfp4.py`)."""

BITSANDBYTES_BLOCK = 64
"""Weights that share a scale in the 4-bit formats of bitsandbytes."""


@lru_cache
def fp8_tensor(*, static_inputs: bool) -> Quantised:
    """FP8 with one float32 scale for each fused matrix, and one for its inputs where they are static."""
    return Quantised("FP8 per tensor", 8, Compute.FP8, part_bytes=FLOAT32_BYTES * (1 + static_inputs))


@lru_cache
def fp8_tensor_experts(*, static_inputs: bool, biased: bool | None = None, bias_bytes: int | None = None) -> Quantised:
    """FP8 experts with a scale for each matrix; static inputs have one a projection."""
    return Quantised(
        "FP8 per tensor",
        8,
        Compute.FP8,
        part_bytes=FLOAT32_BYTES,
        layer_bytes=FLOAT32_BYTES * static_inputs,
        biased=biased,
        bias_bytes=bias_bytes,
    )


@lru_cache
def fp8_channel(
    *,
    static_inputs: bool = False,
    layer_bytes: int = 0,
    biased: bool | None = None,
    bias_bytes: int | None = None,
) -> Quantised:
    """FP8 with a float32 scale an output; for linear layers and experts alike."""
    return Quantised(
        "FP8 per channel",
        8,
        Compute.FP8,
        scales=(Scale(),),
        part_bytes=FLOAT32_BYTES * static_inputs,
        layer_bytes=layer_bytes,
        biased=biased,
        bias_bytes=bias_bytes,
    )


@lru_cache
def fp8_block(
    rows: int,
    columns: int,
    *,
    scale_bytes: int = FLOAT32_BYTES,
    refined: bool = False,
    biased: bool | None = None,
    bias_bytes: int | None = None,
) -> Quantised:
    """FP8 with a scale for every block of `rows` outputs by `columns` inputs; for linear layers and experts alike."""
    return Quantised(
        f"FP8 in blocks of {rows}x{columns}",
        8,
        Compute.FP8,
        scales=(Scale(rows, columns, scale_bytes, partial=True),),
        refined=refined,
        biased=biased,
        bias_bytes=bias_bytes,
    )


@lru_cache
def int8(*, channel: bool, input_bytes: int = 0, compute: Compute = Compute.INT8) -> Quantised:
    """INT8 with a float32 scale an output, or a matrix; `input_bytes` for a static scale of the inputs."""
    return Quantised(
        "INT8 per channel" if channel else "INT8 per tensor",
        8,
        compute,
        scales=(Scale(),) if channel else (),
        part_bytes=0 if channel else FLOAT32_BYTES,
        layer_bytes=input_bytes,
    )


@lru_cache
def packed_integer(
    bits: int,
    group: int | None,
    *,
    symmetric: bool,
    layer_bytes: int,
    compute: Compute = Compute.SIXTEEN_BIT,
    biased: bool | None = None,
) -> Quantised:
    """Integers packed along the inputs into 32-bit words, a scale of the model's type for each group (None: output).

    Asymmetric weights have packed zero points. `layer_bytes` hold the shape before packing.
    """
    return Quantised(
        f"INT{bits}{_grouped(group)}",
        bits,
        compute,
        scales=(Scale(columns=group, element_bytes=None),),
        word_bytes=INT32_BYTES,
        zero_points=not symmetric,
        layer_bytes=layer_bytes,
        biased=biased,
    )


@lru_cache
def byte_integer(bits: int, group: int | None, *, scale_bytes: int | None, layer_bytes: int = 0) -> Quantised:
    """Integers of `bits` kept one a byte, with grouped scales; INT8 activations."""
    return Quantised(
        f"INT{bits} in bytes{_grouped(group)}",
        8,
        Compute.INT8,
        scales=(Scale(columns=group, element_bytes=scale_bytes),),
        layer_bytes=layer_bytes,
    )


@lru_cache
def awq(group: int | None, bits: int = 4) -> Quantised:
    """AWQ: integers packed along the outputs, zero points always kept."""
    return Quantised(
        f"AWQ INT{bits}{_grouped(group)}",
        bits,
        Compute.SIXTEEN_BIT,
        scales=(Scale(columns=group, element_bytes=None),),
        word_bytes=INT32_BYTES,
        packs_outputs=True,
        zero_points=True,
    )


@lru_cache
def awq_experts(group: int | None, *, zero_point: bool, width_multiple: int = 1) -> MarlinExperts:
    """AWQ experts; those Marlin cannot take keep zero points only where the checkpoint has them. No biases."""
    marlin = Quantised(
        f"AWQ INT4{_grouped(group)}",
        4,
        Compute.SIXTEEN_BIT,
        scales=(Scale(columns=group, element_bytes=None),),
        word_bytes=INT32_BYTES,
        packs_outputs=True,
        zero_points=True,
        biased=False,
    )
    return MarlinExperts(marlin, _wna16_experts(4, group, zero_points=zero_point), width_multiple)


@lru_cache
def gptq(bits: int, group: int | None, *, ordered: bool = False) -> Quantised:
    """GPTQ: integers packed along the inputs, zero points always kept; `ordered` adds the order of the inputs."""
    return Quantised(
        f"GPTQ INT{bits}{_grouped(group)}",
        bits,
        Compute.SIXTEEN_BIT,
        scales=(Scale(columns=group, element_bytes=None),),
        word_bytes=INT32_BYTES,
        zero_points=True,
        input_bytes=INT32_BYTES * ordered,
    )


@lru_cache
def gptq_experts(bits: int, group: int | None, *, symmetric: bool, width_multiple: int = 1) -> MarlinExperts:
    """GPTQ experts: room for biases whether or not the model has them, unless Marlin cannot take their shape."""
    marlin = Quantised(
        f"GPTQ INT{bits}{_grouped(group)}",
        bits,
        Compute.SIXTEEN_BIT,
        scales=(Scale(columns=group, element_bytes=None),),
        word_bytes=INT32_BYTES,
        zero_points=True,
        biased=True,
    )
    return MarlinExperts(marlin, _wna16_experts(bits, group, zero_points=not symmetric), width_multiple)


def _wna16_experts(bits: int, group: int | None, *, zero_points: bool) -> Quantised:
    return Quantised(
        f"INT{bits}{_grouped(group)}",
        bits,
        Compute.SIXTEEN_BIT,
        scales=(Scale(columns=group, element_bytes=None),),
        zero_points=zero_points,
        biased=False,
    )


@lru_cache
def nvfp4(*, part_bytes: int, weight_only: bool, group: int = NVFP4_GROUP) -> Quantised:
    """NVFP4: an FP8 scale for 16 weights, `part_bytes` of float32 scales for each matrix; experts have no biases."""
    return Quantised(
        "NVFP4, weights only" if weight_only else "NVFP4",
        4,
        Compute.SIXTEEN_BIT if weight_only else Compute.FP4,
        scales=(Scale(columns=group, element_bytes=1),),
        part_bytes=part_bytes,
        biased=False,
    )


@lru_cache
def mx(
    bits: int,
    *,
    compute: Compute,
    padding: Padding | None = None,
    part_bytes: int = 0,
    layer_bytes: int = 0,
    biased: bool | None = None,
    bias_bytes: int | None = None,
) -> Quantised:
    """MXFP4, MXFP6 and MXFP8: an 8-bit exponent for 32 weights."""
    return Quantised(
        f"MXFP{bits}",
        bits,
        compute,
        scales=(Scale(columns=MX_GROUP, element_bytes=1),),
        padding=padding,
        part_bytes=part_bytes,
        layer_bytes=layer_bytes,
        biased=biased,
        bias_bytes=bias_bytes,
    )


@lru_cache
def bitsandbytes(bits: int) -> Quantised:
    """bitsandbytes: 4 bits with a float32 scale for 64 weights, or INT8 with one an output."""
    scale = Scale(columns=BITSANDBYTES_BLOCK, partial=True) if bits == 4 else Scale()
    return Quantised(
        f"bitsandbytes {bits}-bit", bits, Compute.SIXTEEN_BIT if bits == 4 else Compute.INT8, scales=(scale,)
    )


def _grouped(group: int | None) -> str:
    return f" in groups of {group}" if group else " per channel"
