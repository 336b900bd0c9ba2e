"""Bytes of a weight matrix under each way of storing it.

A scheme answers two questions about one rank's share: the bytes of a linear layer (weights, scales, zero points,
packing; never the bias) and those of a stack of experts (biases included, since some schemes pad or widen them). Sizes
are the rank's own, after splitting. All bytes are those of the parameters as the engine builds them, before it repacks
them for a kernel (vLLM 0.33 `model_executor/layers/quantization/`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Compute(StrEnum):
    """The type a quantised matrix multiplication works in, on a card that can."""

    SIXTEEN_BIT = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """The routed experts one rank holds: `count` MLPs of width `intermediate` on a residual stream of `hidden`."""

    count: int
    hidden: int
    intermediate: int
    gated: bool
    bias: bool

    @property
    def first(self) -> int:
        """Matrices fused into the first projection: gate and up, or up alone."""
        return 2 if self.gated else 1


class Scheme(Protocol):
    """How the weights of a linear layer or an expert stack are stored."""

    @property
    def name(self) -> str:
        """The scheme's common name, for people."""
        ...

    @property
    def bits(self) -> int:
        """Bits of one stored weight, scales left out."""
        ...

    @property
    def compute(self) -> Compute:
        """The type the multiplication works in."""
        ...

    @property
    def group_size(self) -> int | None:
        """Inputs that share a scale; None: scales do not follow the inputs."""
        ...

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """(outputs, inputs) of a square-block scale; None: no block scales."""
        ...

    def linear_bytes(self, inputs: int, outputs: tuple[int, ...], element_bytes: int) -> int:
        """Bytes of one linear layer on a rank.

        `outputs` are the rows of each matrix fused into it; `element_bytes` the size of an unquantised element.
        """
        ...

    def experts_bytes(self, stack: ExpertStack, element_bytes: int, hopper_kernels: bool) -> int:
        """Bytes of a stack of experts on a rank.

        `hopper_kernels` is whether the card runs the engine's kernels for compute capability 9.0 and 10.x; some
        schemes pad the experts on others.
        """
        ...


@dataclass(frozen=True, slots=True)
class Unquantised:
    """Every element in the model's own type."""

    name: str = "unquantised"
    bits: int = 16
    compute: Compute = Compute.SIXTEEN_BIT
    group_size: int | None = None
    block_shape: tuple[int, int] | None = None

    def linear_bytes(self, inputs: int, outputs: tuple[int, ...], element_bytes: int) -> int:
        """`inputs x sum(outputs)` elements."""
        return inputs * sum(outputs) * element_bytes

    def experts_bytes(self, stack: ExpertStack, element_bytes: int, hopper_kernels: bool) -> int:
        """`(first + 1) x hidden x intermediate` elements an expert, and its biases."""
        bias = stack.first * stack.intermediate + stack.hidden if stack.bias else 0
        return stack.count * ((stack.first + 1) * stack.hidden * stack.intermediate + bias) * element_bytes


UNQUANTISED = Unquantised()
