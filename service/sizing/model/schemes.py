"""Bytes of a weight matrix under each way of storing it.

A scheme answers two questions about one rank's share: the bytes of a linear layer (weights, scales, zero points,
packing; never the bias) and those of a stack of experts. Sizes are the rank's own, after splitting.
"""

from dataclasses import dataclass
from typing import Protocol


class Scheme(Protocol):
    """How the weights of a linear layer or an expert stack are stored."""

    @property
    def name(self) -> str:
        """The engine's name for it, for people."""
        ...

    def linear_bytes(self, inputs: int, outputs: tuple[int, ...], element_bytes: int) -> int:
        """Bytes of one linear layer on a rank.

        `outputs` are the rows of each matrix fused into it; `element_bytes` the size of an unquantised element.
        """
        ...

    def experts_bytes(self, experts: int, hidden: int, intermediate: int, gated: bool, element_bytes: int) -> int:
        """Bytes of `experts` whole expert MLPs of the given widths on a rank."""
        ...


@dataclass(frozen=True, slots=True)
class Unquantised:
    """Every element in the model's own type."""

    name: str = "unquantised"

    def linear_bytes(self, inputs: int, outputs: tuple[int, ...], element_bytes: int) -> int:
        """`inputs x sum(outputs)` elements."""
        return inputs * sum(outputs) * element_bytes

    def experts_bytes(self, experts: int, hidden: int, intermediate: int, gated: bool, element_bytes: int) -> int:
        """Up (and gate) and down projections: `(3 if gated else 2) x hidden x intermediate` elements an expert."""
        return experts * (3 if gated else 2) * hidden * intermediate * element_bytes


UNQUANTISED = Unquantised()
