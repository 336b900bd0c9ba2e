"""Weights in fewer bits than the model's own type, with scales, packing and padding."""

from dataclasses import dataclass, replace
from math import gcd

from service.sizing.model.schemes.base import Compute, ExpertStack
from service.sizing.quantities import ceil_div, round_up

FLOAT32_BYTES = 4

FINEST_BLOCK = 32
"""Smallest side of a block that expert scales are refined to."""

MARLIN_GROUPS = frozenset({None, 32, 64, 128})
"""Group sizes the Marlin expert kernel takes; None: one scale an output."""

SMALLEST_GROUP = 32
"""Smallest group that integer experts outside Marlin are cut to."""


@dataclass(frozen=True, slots=True)
class Scale:
    """One scale for every block of `rows` outputs by `columns` inputs (None: all inputs).

    `element_bytes` None is the model's own type. `partial` blocks at the edges have a scale of their own; without it
    the inputs beyond the last whole group have none.
    """

    rows: int = 1
    columns: int | None = None
    element_bytes: int | None = FLOAT32_BYTES
    partial: bool = False

    def groups(self, inputs: int) -> int:
        """Scales along the inputs."""
        if self.columns is None:
            return 1
        return ceil_div(inputs, self.columns) if self.partial else inputs // self.columns

    def total_bytes(self, outputs: int, inputs: int, element_bytes: int) -> int:
        """Bytes of the scales of an `outputs x inputs` matrix."""
        size = element_bytes if self.element_bytes is None else self.element_bytes
        return ceil_div(outputs, self.rows) * self.groups(inputs) * size


@dataclass(frozen=True, slots=True)
class Padding:
    """Multiples that the widths of an expert are rounded up to; others `on_hopper`, with the kernels of such cards."""

    hidden: int
    intermediate: int
    on_hopper: "Padding | None" = None


@dataclass(frozen=True, slots=True)
class Quantised:
    """Weights in fewer bits, with scales.

    Attributes
    ----------
    name, bits, compute
        As in `Scheme`.
    scales : tuple of Scale
        What follows the matrix: the first decides group size and block shape.
    word_bytes : int
        Bytes of the word that weights are packed into.
    packs_outputs : bool
        Whether the weights of a word lie along the outputs instead of the inputs.
    zero_points : bool
        Whether each group of the first scale has a zero point of `bits` bits, packed along the outputs.
    part_bytes : int
        Further bytes for each matrix fused into a layer: per-tensor scales of weights and inputs.
    layer_bytes : int
        Further bytes for each layer (each projection of an expert): one input scale, the stored shape.
    input_bytes : int
        Further bytes for each input: the order of activations.
    padding : Padding or None
        How the experts' widths are rounded.
    refined : bool
        Whether experts whose width cuts a block take smaller blocks that fit.
    biased : bool or None
        Whether experts have biases; None: as the model says.
    bias_bytes : int or None
        Bytes of an element of the experts' biases; None: the model's own.
    """

    name: str
    bits: int
    compute: Compute
    scales: tuple[Scale, ...] = ()
    word_bytes: int = 1
    packs_outputs: bool = False
    zero_points: bool = False
    part_bytes: int = 0
    layer_bytes: int = 0
    input_bytes: int = 0
    padding: Padding | None = None
    refined: bool = False
    biased: bool | None = None
    bias_bytes: int | None = None

    @property
    def group_size(self) -> int | None:
        """Inputs of the first scale, where it covers single outputs."""
        return self.scales[0].columns if self.scales and self.scales[0].rows == 1 else None

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """Shape of the first scale, where it covers several outputs."""
        scale = self.scales[0] if self.scales else None
        return (scale.rows, scale.columns) if scale and scale.rows > 1 and scale.columns else None

    def linear_bytes(self, inputs: int, outputs: tuple[int, ...], element_bytes: int) -> int:
        """Packed weights, scales, zero points and what comes with each part and layer."""
        return (
            self._matrix_bytes(self.scales, sum(outputs), inputs, element_bytes)
            + len(outputs) * self.part_bytes
            + self.layer_bytes
            + inputs * self.input_bytes
        )

    def experts_bytes(self, stack: ExpertStack, element_bytes: int, hopper_kernels: bool) -> int:
        """Up (and gate) and down projections, each stored as a matrix of its own, and biases."""
        hidden, width, first = stack.hidden, stack.intermediate, stack.first
        padding = self.padding
        if padding and hopper_kernels:
            padding = padding.on_hopper or padding
        if padding:
            hidden, width = round_up(hidden, padding.hidden), round_up(width, padding.intermediate)
        scales = self._refined(hidden, width) if self.refined else self.scales
        up = self._matrix_bytes(scales, width, hidden, element_bytes) + self.part_bytes
        down = self._matrix_bytes(scales, hidden, width, element_bytes) + self.part_bytes
        biased = stack.bias if self.biased is None else self.biased
        bias = (first * width + hidden) * (self.bias_bytes or element_bytes) if biased else 0
        return stack.count * (first * up + down + 2 * self.layer_bytes + bias)

    def _matrix_bytes(self, scales: tuple[Scale, ...], outputs: int, inputs: int, element_bytes: int) -> int:
        weights = inputs * self._words(outputs) if self.packs_outputs else outputs * self._words(inputs)
        zeros = self._words(outputs) * scales[0].groups(inputs) if self.zero_points else 0
        return (weights + zeros) * self.word_bytes + sum(
            scale.total_bytes(outputs, inputs, element_bytes) for scale in scales
        )

    def _words(self, weights: int) -> int:
        return ceil_div(weights * self.bits, 8 * self.word_bytes)

    def _refined(self, hidden: int, intermediate: int) -> tuple[Scale, ...]:
        """Block scales, finer where the experts' width on this rank cuts a block.

        The finer block is the greatest common divisor of block and widths, if at least 32. Source: vLLM 0.33
        `fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape`.
        """
        scale = self.scales[0]
        columns = scale.columns or 1
        if intermediate % scale.rows == 0 and intermediate % columns == 0:
            return self.scales
        side = gcd(scale.rows, columns, hidden, intermediate)
        return (replace(scale, rows=side, columns=side),) if side >= FINEST_BLOCK else self.scales


@dataclass(frozen=True, slots=True)
class MarlinExperts:
    """Integer experts for the Marlin kernel where their shape suits it, else for the one that takes smaller groups.

    Attributes
    ----------
    marlin, other : Quantised
        How the experts are stored for either kernel.
    width_multiple : int
        What the kernel asks the experts' width on a rank to be a multiple of, besides the group.

    Source: vLLM 0.33 `quantization/utils/marlin_utils.py: check_moe_marlin_supports_config`, `moe_wna16.py`.
    """

    marlin: Quantised
    other: Quantised
    width_multiple: int = 1

    @property
    def name(self) -> str:
        """As the Marlin form's."""
        return self.marlin.name

    @property
    def bits(self) -> int:
        """As the Marlin form's."""
        return self.marlin.bits

    @property
    def compute(self) -> Compute:
        """As the Marlin form's."""
        return self.marlin.compute

    @property
    def group_size(self) -> int | None:
        """As the Marlin form's."""
        return self.marlin.group_size

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """None."""
        return None

    def linear_bytes(self, inputs: int, outputs: tuple[int, ...], element_bytes: int) -> int:
        """As the Marlin form's."""
        return self.marlin.linear_bytes(inputs, outputs, element_bytes)

    def experts_bytes(self, stack: ExpertStack, element_bytes: int, hopper_kernels: bool) -> int:
        """Bytes of the form the shape selects; the other kernel halves the group until it divides both widths."""
        group = self.marlin.group_size
        multiple = max(self.width_multiple, group or 1)
        if stack.hidden % 128 == 0 and stack.intermediate % multiple == 0 and group in MARLIN_GROUPS:
            return self.marlin.experts_bytes(stack, element_bytes, hopper_kernels)
        while group and group > SMALLEST_GROUP and (stack.hidden % group or stack.intermediate % group):
            group //= 2
        other = replace(self.other, scales=(Scale(columns=group, element_bytes=None),))
        return other.experts_bytes(stack, element_bytes, hopper_kernels)
