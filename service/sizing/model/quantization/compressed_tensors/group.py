"""A group of layers of a compressed-tensors checkpoint: how its weights and activations are quantised.

Source: vLLM 0.33 `quantization/compressed_tensors/`, compressed-tensors 0.17 `quantization/quant_args.py`.
"""

from dataclasses import dataclass

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.schemes import Compute, Scheme, formats

PACKED = "pack-quantized"
WITH_ACTIVATIONS = frozenset({"naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized"})
"""Formats whose activations may be quantised."""

PACKED_SHAPE_BYTES = 16
EXPERT_SHAPE_BYTES = 4
"""The shape before packing: two int64 for a linear layer, two elements of the model's type for an expert's matrix."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """How one kind of tensor is quantised."""

    bits: int
    is_float: bool
    symmetric: bool
    strategy: str
    group: int | None
    block: tuple[int, int] | None
    dynamic: bool
    byte_scales: bool

    @property
    def is_nvfp4(self) -> bool:
        """Four-bit floats with a scale for 16 and one for the tensor."""
        return self._is_float_of(4, "tensor_group", formats.NVFP4_GROUP)

    @property
    def is_mxfp4(self) -> bool:
        """Four-bit floats with a scale for 32."""
        return self._is_float_of(4, "group", formats.MX_GROUP)

    @property
    def is_mxfp8(self) -> bool:
        """Eight-bit floats with an 8-bit exponent for 32."""
        return self._is_float_of(8, "group", formats.MX_GROUP) and self.byte_scales

    def _is_float_of(self, bits: int, strategy: str, group: int) -> bool:
        return (self.bits, self.is_float, self.symmetric, self.strategy, self.group) == (
            bits,
            True,
            True,
            strategy,
            group,
        )


def _arguments(fields: Fields) -> Arguments:
    group = fields.optional_integer("group_size", minimum=-1)
    strategy = fields.text("strategy", default="").lower()
    if not strategy:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    kind = fields.text("type", default="int").lower()
    block = fields.integers("block_structure", minimum=1) if strategy == "block" else None
    if kind not in ("int", "float"):
        raise InvalidConfig(fields.named("type"), f"{fields.named('type')} must be int or float, not {kind!r}")
    if strategy == "block" and (block is None or len(block) != 2):
        name = fields.named("block_structure")
        raise InvalidConfig(name, f"{name} must hold two sizes (outputs, inputs) with strategy block")
    if strategy in ("group", "tensor_group") and (group is None or group < 1):
        name = fields.named("group_size")
        raise InvalidConfig(name, f"{name} must be a positive number with strategy {strategy}")
    dynamic = fields.raw("dynamic")[1]
    return Arguments(
        bits=fields.integer("num_bits", default=8),
        is_float=kind == "float",
        symmetric=fields.flag("symmetric", default=True),
        strategy=strategy,
        group=group if strategy in ("group", "tensor_group") else None,
        block=(block[0], block[1]) if block else None,
        dynamic=bool(dynamic),
        byte_scales=str(fields.raw("scale_dtype")[1]).removeprefix("torch.") == "uint8",
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a scheme: weights, activations in and out, and the file format."""

    field: str
    weights: Arguments
    inputs: Arguments | None
    outputs: Arguments | None
    format: str

    @property
    def weight_only(self) -> bool:
        """Whether weights alone are quantised, with a scale an output or a group."""
        return self.inputs is None and self.weights.strategy in ("channel", "group") and not self.weights.dynamic

    @property
    def is_fp8(self) -> bool:
        """Whether weights are eight-bit floats with a scale a matrix, an output or a block."""
        weights = self.weights
        return (
            weights.is_float
            and weights.bits == 8
            and weights.symmetric
            and not weights.dynamic
            and weights.strategy in ("tensor", "channel", "block")
        )

    @property
    def is_fp8_both(self) -> bool:
        """Whether the inputs are eight-bit floats too."""
        inputs = self.inputs
        return (
            self.is_fp8
            and inputs is not None
            and inputs.is_float
            and (inputs.dynamic or (inputs.symmetric and inputs.strategy == "tensor"))
        )

    @property
    def is_int8_both(self) -> bool:
        """Whether weights and inputs are eight-bit integers: static a tensor, or dynamic a token."""
        weights, inputs = self.weights, self.inputs
        return (
            inputs is not None
            and weights.bits == inputs.bits == 8
            and weights.symmetric
            and weights.strategy in ("tensor", "channel")
            and not weights.dynamic
            and (inputs.strategy, inputs.dynamic) in (("tensor", False), ("token", True))
        )

    @property
    def is_int4_by_token(self) -> bool:
        """Whether weights are four-bit integers and inputs dynamic a token."""
        weights, inputs = self.weights, self.inputs
        return (
            inputs is not None
            and not weights.is_float
            and weights.bits == 4
            and weights.symmetric
            and not weights.dynamic
            and inputs.bits == 8
            and inputs.strategy == "token"
            and inputs.dynamic
        )

    @property
    def is_packed_with_integer_inputs(self) -> bool:
        """Whether weights are packed integers and inputs dynamic integers."""
        weights, inputs = self.weights, self.inputs
        return (
            inputs is not None
            and self.format == PACKED
            and not weights.is_float
            and not weights.dynamic
            and weights.strategy in ("channel", "group")
            and not inputs.is_float
            and inputs.symmetric
            and inputs.dynamic
            and inputs.strategy in ("token", "group")
            and inputs.bits in (4, 8)
        )

    @property
    def has_static_outputs(self) -> bool:
        """Whether inputs and outputs are static eight-bit integers, one scale a tensor."""
        weights = self.weights
        return (
            not weights.is_float
            and not weights.dynamic
            and weights.strategy in ("channel", "group")
            and self.format in (PACKED, "int-quantized")
            and all(
                arguments is not None
                and not arguments.is_float
                and arguments.strategy == "tensor"
                and arguments.bits == 8
                and not arguments.dynamic
                for arguments in (self.inputs, self.outputs)
            )
        )

    def refuse(self, what: str) -> NotUnderstood:
        """A refusal that names the group."""
        weights = self.weights
        return NotUnderstood(
            (self.field,),
            f"{self.field}: {what} of {weights.bits}-bit {'float' if weights.is_float else 'int'} weights, strategy "
            f"{weights.strategy}, in format {self.format or 'absent'} are not understood: no sizing rule covers them",
        )

    def linear(self) -> Scheme:
        """Scheme of a linear layer.

        Source: `compressed_tensors.py: _get_scheme_from_parts`, in its order.
        """
        weights, inputs = self.weights, self.inputs
        if weights.is_nvfp4:
            if inputs is not None and not inputs.is_nvfp4:
                raise self.refuse("linear layers")
            scales = 1 if inputs is None else 2
            return formats.nvfp4(part_bytes=scales * formats.FLOAT32_BYTES, weight_only=inputs is None)
        if weights.is_mxfp4:
            by_token = inputs is not None and inputs.is_float and inputs.bits == 8 and inputs.dynamic
            return formats.mx(4, compute=Compute.FP8 if by_token else Compute.FP4)
        if weights.is_mxfp8:
            return formats.mx(8, compute=Compute.FP8)
        if self._is_int4_with_fp8_inputs:
            return formats.packed_integer(
                4, weights.group, symmetric=True, layer_bytes=PACKED_SHAPE_BYTES, compute=Compute.FP8
            )
        if self.has_static_outputs:
            input_and_output = 2 * formats.FLOAT32_BYTES
            if self.format == PACKED:
                return formats.packed_integer(
                    weights.bits, weights.group, symmetric=True, layer_bytes=PACKED_SHAPE_BYTES + input_and_output
                )
            return formats.byte_integer(weights.bits, weights.group, scale_bytes=None, layer_bytes=input_and_output)
        if self.is_packed_with_integer_inputs or (self.weight_only and self.format == PACKED):
            return formats.packed_integer(
                weights.bits,
                weights.group,
                symmetric=weights.symmetric,
                layer_bytes=PACKED_SHAPE_BYTES,
                compute=Compute.SIXTEEN_BIT if inputs is None else Compute.INT8,
            )
        if self.format not in WITH_ACTIVATIONS:
            raise self.refuse("linear layers")
        if self.is_fp8:
            static = inputs is not None and not inputs.dynamic
            if weights.block:
                return formats.fp8_block(*weights.block)
            if weights.strategy == "channel":
                return formats.fp8_channel(static_inputs=static)
            return formats.fp8_tensor(static_inputs=static)
        if self.is_int8_both and inputs is not None:
            return formats.int8(
                channel=weights.strategy == "channel",
                input_bytes=0 if inputs.dynamic else formats.FLOAT32_BYTES + (not inputs.symmetric),
            )
        if self.is_int4_by_token and weights.strategy in ("channel", "group"):
            return formats.byte_integer(4, weights.group, scale_bytes=None)
        raise self.refuse("linear layers")

    @property
    def _is_int4_with_fp8_inputs(self) -> bool:
        return (
            self.is_int4_by_token
            and self.inputs is not None
            and self.inputs.is_float
            and self.inputs.symmetric
            and self.weights.strategy == "group"
        )

    def experts(self) -> Scheme:
        """Scheme of a stack of experts.

        Source: `compressed_tensors_moe/compressed_tensors_moe.py: get_moe_method`, in its order.
        """
        weights, inputs = self.weights, self.inputs
        if weights.is_mxfp4:
            by_token = inputs is not None and inputs.is_float and inputs.bits == 8 and inputs.dynamic
            return formats.mx(4, compute=Compute.FP8 if by_token else Compute.FP4, biased=False)
        if weights.is_mxfp8:
            return formats.mx(8, compute=Compute.FP8, biased=False)
        if self.weight_only:
            if self.format != PACKED:
                raise self.refuse("experts")
            return formats.packed_integer(
                weights.bits, weights.group, symmetric=weights.symmetric, layer_bytes=EXPERT_SHAPE_BYTES
            )
        if weights.is_nvfp4:
            if inputs is not None and not inputs.is_nvfp4:
                raise self.refuse("experts")
            return formats.nvfp4(part_bytes=2 * formats.FLOAT32_BYTES, weight_only=inputs is None)
        if self.is_fp8_both and inputs is not None:
            if weights.block:
                return formats.fp8_block(*weights.block, biased=False)
            if weights.strategy == "channel" and inputs.strategy == "token":
                return formats.fp8_channel(biased=False)
            if weights.strategy == "tensor" and inputs.strategy == "tensor":
                return formats.fp8_tensor_experts(static_inputs=not inputs.dynamic, biased=False)
            raise self.refuse("experts")
        if self.is_int8_both and inputs is not None and inputs.dynamic and weights.strategy == "channel":
            return formats.int8(channel=True)
        if self._is_int4_with_fp8_inputs:
            return formats.packed_integer(
                4,
                weights.group,
                symmetric=True,
                layer_bytes=EXPERT_SHAPE_BYTES,
                compute=Compute.FP8,
                biased=False,
            )
        raise self.refuse("experts")

    def embedding(self) -> Scheme:
        """Scheme of a vocabulary table: packed integers alone."""
        if self.weight_only and not self.weights.is_float:
            return formats.packed_integer(
                self.weights.bits, self.weights.group, symmetric=True, layer_bytes=PACKED_SHAPE_BYTES
            )
        raise self.refuse("embeddings")


def read_group(fields: Fields, weights: Fields, default_format: str) -> Group:
    """Read one entry of `config_groups`, whose weights are `weights`."""
    file_format = fields.text("format", default=default_format)
    inputs, outputs = fields.child("input_activations"), fields.child("output_activations")
    return Group(
        field=fields.path,
        weights=_arguments(weights),
        inputs=_arguments(inputs) if inputs else None,
        outputs=_arguments(outputs) if outputs else None,
        format=file_format,
    )
