"""Bytes of stored weights, against arithmetic written out here and properties that no scheme may break.

Shapes of parameters are those vLLM 0.33 creates (`model_executor/layers/quantization/`).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.sizing.model.schemes import UNQUANTISED, Compute, ExpertStack, MarlinExperts, Quantised, Scheme, formats

STACK = ExpertStack(count=8, hidden=512, intermediate=256, gated=True, bias=False)
WEIGHTS = 8 * 3 * 512 * 256

LINEAR = [
    ("16 bits", UNQUANTISED, 512 * 768 * 2),
    ("a float32 scale for each of three matrices", formats.fp8_tensor(static_inputs=False), 512 * 768 + 3 * 4),
    ("and one for the inputs of each", formats.fp8_tensor(static_inputs=True), 512 * 768 + 3 * 8),
    ("a float32 scale an output", formats.fp8_channel(), 512 * 768 + 768 * 4),
    ("6 x 4 blocks", formats.fp8_block(128, 128), 512 * 768 + 6 * 4 * 4),
    ("6 x 4 blocks with exponents as scales", formats.fp8_block(128, 128, scale_bytes=1), 512 * 768 + 6 * 4),
    ("a scale an output, static asymmetric inputs", formats.int8(channel=True, input_bytes=5), 512 * 768 + 768 * 4 + 5),
    (
        "8 weights a word, 4 groups an output with 16-bit scales, two int64 for the shape",
        formats.packed_integer(4, 128, symmetric=True, layer_bytes=16),
        512 * 768 // 2 + 768 * 4 * 2 + 16,
    ),
    (
        "and zero points of four bits packed along the outputs",
        formats.packed_integer(4, 128, symmetric=False, layer_bytes=16),
        512 * 768 // 2 + 768 * 4 * 2 + 16 + 768 // 8 * 4 * 4,
    ),
    ("AWQ keeps zero points", formats.awq(128), 512 * 768 // 2 + 768 * 4 * 2 + 768 // 8 * 4 * 4),
    ("GPTQ keeps zero points", formats.gptq(4, 128), 512 * 768 // 2 + 768 * 4 * 2 + 768 // 8 * 4 * 4),
    ("GPTQ in 8 bits, a scale an output", formats.gptq(8, None), 512 * 768 + 768 * 2 + 768 // 4 * 4),
    (
        "the order of 512 inputs",
        formats.gptq(4, 128, ordered=True),
        512 * 768 // 2 + 768 * 4 * 2 + 768 // 8 * 4 * 4 + 512 * 4,
    ),
    (
        "an FP8 scale for 16 weights, two float32 for each matrix",
        formats.nvfp4(part_bytes=8, weight_only=False),
        512 * 768 // 2 + 768 * 32 + 3 * 8,
    ),
    ("an exponent for 32 weights", formats.mx(4, compute=Compute.FP4), 512 * 768 // 2 + 768 * 16),
    ("6 bits and an exponent for 32 weights", formats.mx(6, compute=Compute.FP4), 512 * 768 * 6 // 8 + 768 * 16),
    ("a float32 for 64 weights", formats.bitsandbytes(4), 512 * 768 // 2 + 768 * 8 * 4),
]


@pytest.mark.parametrize(("scheme", "expected"), [case[1:] for case in LINEAR], ids=[case[0] for case in LINEAR])
def test_linear_layer(scheme: Scheme, expected: int) -> None:
    """A layer of 512 inputs, fused from 512, 128 and 128 outputs, takes its weights, scales and zero points."""
    assert scheme.linear_bytes(512, (512, 128, 128), 2) == expected


def test_partial_block_has_a_scale() -> None:
    """Outputs beyond the last whole block of 128 have a scale of their own."""
    assert formats.fp8_block(128, 128).linear_bytes(7168, (1536, 576), 2) == 7168 * 2112 + 17 * 56 * 4


EXPERTS = [
    ("16 bits", UNQUANTISED, WEIGHTS * 2),
    ("a scale for each of three matrices", formats.fp8_tensor_experts(static_inputs=False), WEIGHTS + 8 * 3 * 4),
    ("and one for the inputs of each projection", formats.fp8_tensor_experts(static_inputs=True), WEIGHTS + 8 * 5 * 4),
    ("a scale an output", formats.fp8_channel(), WEIGHTS + 8 * (2 * 256 + 512) * 4),
    ("2 x 4 blocks twice and 4 x 2", formats.fp8_block(128, 128, refined=True), WEIGHTS + 8 * 3 * 8 * 4),
    (
        "groups of 128, two elements for each shape",
        formats.packed_integer(4, 128, symmetric=True, layer_bytes=4),
        WEIGHTS // 2 + 8 * (512 * 4 + 512 * 2) * 2 + 8 * 2 * 4,
    ),
    (
        "NVFP4: an FP8 scale for 16, two float32 a matrix",
        formats.nvfp4(part_bytes=8, weight_only=False),
        WEIGHTS // 2 + WEIGHTS // 16 + 8 * 3 * 8,
    ),
    ("MXFP4: an exponent for 32", formats.mx(4, compute=Compute.FP8), WEIGHTS // 2 + WEIGHTS // 32),
]


@pytest.mark.parametrize(("scheme", "expected"), [case[1:] for case in EXPERTS], ids=[case[0] for case in EXPERTS])
def test_experts(scheme: Scheme, expected: int) -> None:
    """Eight gated experts of 512 x 256 take their weights and scales."""
    assert scheme.experts_bytes(STACK, 2, hopper_kernels=True) == expected


def test_blocks_are_refined_where_the_width_cuts_them() -> None:
    """Experts 96 wide take blocks of 32, the greatest common divisor of 128, 96 and 512."""
    stack = ExpertStack(count=1, hidden=512, intermediate=96, gated=True, bias=False)
    refined = formats.fp8_block(128, 128, refined=True)
    assert refined.experts_bytes(stack, 2, hopper_kernels=True) == 3 * 96 * 512 + 3 * 3 * 16 * 4


def test_gptq_experts_keep_room_for_biases() -> None:
    """GPTQ experts have biases in the parameters although the model has none, and zero points."""
    scheme = formats.gptq_experts(4, 128, symmetric=True)
    scales = 8 * (512 * 4 + 512 * 2) * 2
    zeros = 8 * (2 * 256 // 8 * 4 + 512 // 8 * 2) * 4
    biases = 8 * (2 * 256 + 512) * 2
    assert scheme.experts_bytes(STACK, 2, hopper_kernels=True) == WEIGHTS // 2 + scales + zeros + biases


def test_integer_experts_that_marlin_cannot_take_halve_their_groups() -> None:
    """Experts 192 wide cut groups of 128: both projections then take groups of 64, without biases or zero points."""
    stack = ExpertStack(count=1, hidden=512, intermediate=192, gated=True, bias=False)
    scheme = formats.gptq_experts(4, 128, symmetric=True)
    scales = (2 * 192 * 512 // 64 + 512 * 192 // 64) * 2
    assert scheme.experts_bytes(stack, 2, hopper_kernels=True) == 3 * 192 * 512 // 2 + scales


@pytest.mark.parametrize(("hopper_kernels", "hidden", "width"), [(True, 2880, 1472), (False, 3072, 1536)])
def test_gpt_oss_experts_are_padded_for_their_kernel(hopper_kernels: bool, hidden: int, width: int) -> None:
    """The 32 experts of gpt-oss-20b on one of two ranks: padded to 2880 x 1472 on Hopper, to 3072 x 1536 on Ampere.

    Triton's kernel takes widths in multiples of 64, Marlin's in multiples of 256 x 128.
    """
    scheme = formats.mx(4, compute=Compute.SIXTEEN_BIT, padding=formats.TRITON_OR_MARLIN_PADDING)
    stack = ExpertStack(count=32, hidden=2880, intermediate=1440, gated=True, bias=True)
    weights = 3 * hidden * width // 2
    scales = 2 * width * (hidden // 32) + hidden * (width // 32)
    biases = (2 * width + hidden) * 2
    assert scheme.experts_bytes(stack, 2, hopper_kernels) == 32 * (weights + scales + biases)


SCHEMES: list[Scheme] = [
    *(case[1] for case in LINEAR),
    formats.fp8_tensor_experts(static_inputs=True),
    formats.fp8_block(128, 128, refined=True),
    formats.awq_experts(128, zero_point=True),
    formats.gptq_experts(4, 128, symmetric=True),
    formats.gptq_experts(8, None, symmetric=True),
]
UNITS = st.integers(1, 64).map(lambda count: count * 256)


@given(st.sampled_from(SCHEMES), UNITS, st.lists(UNITS, min_size=1, max_size=3))
def test_fewer_bits_never_cost_more(scheme: Scheme, inputs: int, outputs: list[int]) -> None:
    """A quantised layer is smaller than the same layer in 16 bits, and no smaller than its bits."""
    size = scheme.linear_bytes(inputs, tuple(outputs), 2)
    assert inputs * sum(outputs) * scheme.bits // 8 <= size <= UNQUANTISED.linear_bytes(inputs, tuple(outputs), 2)


@given(st.sampled_from(SCHEMES), UNITS, UNITS, st.booleans(), st.booleans())
def test_fewer_bits_never_cost_more_in_experts(
    scheme: Scheme, hidden: int, intermediate: int, gated: bool, hopper_kernels: bool
) -> None:
    """Quantised experts are smaller than the same in 16 bits."""
    stack = ExpertStack(4, hidden, intermediate, gated, bias=False)
    plain = UNQUANTISED.experts_bytes(stack, 2, hopper_kernels)
    assert scheme.experts_bytes(stack, 2, hopper_kernels) <= plain


@given(st.sampled_from(SCHEMES), UNITS, UNITS, st.sampled_from([1, 2, 4, 8]))
def test_ranks_hold_the_whole(scheme: Scheme, inputs: int, outputs: int, ranks: int) -> None:
    """A layer split by outputs takes over all ranks what it takes on one, and what each rank repeats.

    Repeated are per-tensor scales, the stored shape and the order of inputs.
    """
    whole = scheme.linear_bytes(inputs, (outputs * ranks,), 2)
    repeated = 0
    if isinstance(scheme, Quantised):
        repeated = scheme.part_bytes + scheme.layer_bytes + inputs * scheme.input_bytes
    assert ranks * scheme.linear_bytes(inputs, (outputs,), 2) == whole + (ranks - 1) * repeated


def test_schemes_say_what_time_and_validity_need() -> None:
    """Bits, type of the multiplication, group and block are there for other rules."""
    assert formats.fp8_block(128, 128).block_shape == (128, 128)
    assert formats.fp8_block(128, 128).group_size is None
    assert formats.awq(64).group_size == 64
    assert isinstance(formats.awq_experts(64, zero_point=True), MarlinExperts)
    assert formats.nvfp4(part_bytes=4, weight_only=True).compute is Compute.SIXTEEN_BIT
    assert formats.nvfp4(part_bytes=8, weight_only=False).compute is Compute.FP4
    assert (formats.mx(4, compute=Compute.FP8).bits, UNQUANTISED.bits) == (4, 16)
