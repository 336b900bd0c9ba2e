"""AMD Quark checkpoints: a global scheme, others by layer name.

Source: vLLM 0.33 `quantization/quark/quark.py`, `quark_moe.py`, `schemes/`.
"""

from dataclasses import dataclass
from fnmatch import fnmatch

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import names
from service.sizing.model.quantization.base import GATED_PROJECTIONS, NotQuantised
from service.sizing.model.quantization.fp8 import CACHE_SCALES
from service.sizing.model.schemes import UNQUANTISED, Compute, MarlinExperts, Padding, Quantised, Scale, Scheme, formats
from service.sizing.model.shape import AttentionScales

WHOLE_GROUPS = Padding(hidden=32, intermediate=32)
"""How experts emulated in 16 bits are padded: to whole scale groups."""

ATTENTION = "model.layers.0.self_attn.attn"
"""The engine's name of an attention operator, which exceptions may match like a layer's."""

FP8, FP4, INT8, INT4 = "fp8_e4m3", "fp4", "int8", ("int4", "uint4")
FLOAT32_BIAS = formats.FLOAT32_BYTES


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stage of how a tensor is quantised."""

    dtype: str
    scheme: str
    group: int | None
    block: tuple[int, ...]
    symmetric: bool
    dynamic: bool
    byte_scales: bool


def _tensors(fields: Fields, name: str) -> tuple[Tensor, ...]:
    """The stages of a weight or input: none, one, or a list."""
    value = fields.raw(name)[1]
    if value is None:
        return ()
    entries = fields.items(name) if isinstance(value, list) else [value]
    found = list[Tensor]()
    for value in entries or ():
        entry = Fields({"entry": value}, fields.named(name)).child("entry")
        if entry is not None:
            scales = (entry.text("scale_format", default=""), entry.text("scale_type", default=""))
            found.append(
                Tensor(
                    dtype=entry.text("dtype"),
                    scheme=entry.text("qscheme", default=""),
                    group=entry.optional_integer("group_size", minimum=-1),
                    block=tuple(entry.integers("block_size") or ()),
                    symmetric=entry.flag("symmetric", default=False),
                    dynamic=entry.flag("is_dynamic", default=False),
                    byte_scales=scales[0] == "e8m0" or scales[1] == "float8_e8m0fnu",
                )
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a scheme."""

    field: str
    weights: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    packed: bool
    gpt_oss: bool

    def refuse(self, what: str) -> NotUnderstood:
        """A refusal that names the group."""
        weights = ", ".join(f"{tensor.dtype} {tensor.scheme}" for tensor in self.weights) or "no weights"
        inputs = ", ".join(f"{tensor.dtype} {tensor.scheme}" for tensor in self.inputs) or "16-bit inputs"
        return NotUnderstood(
            (self.field,),
            f"{self.field}: {what} of {weights} on {inputs} are not understood: no sizing rule covers them",
        )

    @property
    def is_nvfp4(self) -> bool:
        """Four-bit floats in groups of 16 under an FP8 scale, for weights and inputs."""
        stages = (self.weights, self.inputs)
        return all(
            len(tensors) == 2
            and (tensors[0].dtype, tensors[0].scheme, tensors[0].group) == (FP4, "per_group", formats.NVFP4_GROUP)
            and (tensors[1].dtype, tensors[1].scheme) == (FP8, "per_tensor")
            for tensors in stages
        )

    @property
    def mx_bits(self) -> int | None:
        """Bits of the microscaling format of the weights; None: another format."""
        if len(self.weights) != 1:
            return None
        weights = self.weights[0]
        bits = {"fp4": 4, "fp6_e3m2": 6, "fp6_e2m3": 6, FP8: 8}.get(weights.dtype)
        grouped = weights.scheme == "per_group" and weights.group == formats.MX_GROUP and weights.byte_scales
        blocked = (
            bits == 8
            and weights.scheme == "per_block"
            and weights.block[1:] == (formats.MX_GROUP,)
            and weights.byte_scales
        )
        return bits if grouped or blocked else None

    @property
    def _one(self) -> tuple[Tensor, Tensor | None]:
        if len(self.weights) != 1 or len(self.inputs) > 1:
            raise self.refuse("layers")
        return self.weights[0], self.inputs[0] if self.inputs else None

    def linear(self) -> Scheme:
        """Scheme of a linear layer."""
        scale = formats.FLOAT32_BYTES
        if self.is_nvfp4:
            return formats.nvfp4(part_bytes=2 * scale, weight_only=False)
        weights, inputs = self._one
        if self.mx_bits is None and weights.dtype == FP8 and inputs and inputs.dtype == FP8:
            if weights.scheme == "per_block":
                if weights.block != (128, 128):
                    raise self.refuse("linear layers")
                return formats.fp8_block(128, 128, scale_bytes=1 if weights.byte_scales else scale)
            if weights.scheme == "per_channel":
                return formats.fp8_channel(static_inputs=not inputs.dynamic)
            if weights.scheme == "per_tensor":
                return formats.fp8_tensor(static_inputs=not inputs.dynamic)
        if weights.dtype == INT8 and inputs and inputs.dtype == INT8:
            return _int8(weights, static_bytes=0 if inputs.dynamic else scale + 1)
        if weights.dtype in INT4 and inputs is None and self.packed and weights.group:
            return formats.awq(weights.group)
        if self.mx_bits is not None:
            static = inputs is not None and not inputs.dynamic
            compute = Compute.SIXTEEN_BIT if inputs is None else Compute.FP8 if inputs.dtype == FP8 else Compute.FP4
            return formats.mx(self.mx_bits, compute=compute, part_bytes=scale * static)
        raise self.refuse("linear layers")

    def experts(self) -> Scheme:
        """Scheme of a stack of experts."""
        scale = formats.FLOAT32_BYTES
        if self.is_nvfp4:
            return formats.nvfp4(part_bytes=2 * scale, weight_only=False)
        weights, inputs = self._one
        static = inputs is not None and not inputs.dynamic
        if self.mx_bits is None and weights.dtype == FP8 and inputs and inputs.dtype == FP8:
            if weights.scheme == "per_block" and weights.block == (128, 128):
                return formats.fp8_block(128, 128, bias_bytes=FLOAT32_BIAS)
            if weights.scheme == "per_channel":
                return formats.fp8_channel(layer_bytes=scale * static, bias_bytes=FLOAT32_BIAS)
            if weights.scheme == "per_tensor":
                return formats.fp8_tensor_experts(static_inputs=static, bias_bytes=FLOAT32_BIAS)
        if weights.dtype in INT4 and inputs is None and self.packed and weights.group:
            plain = Quantised(
                f"INT4 in groups of {weights.group}",
                4,
                Compute.SIXTEEN_BIT,
                scales=(Scale(columns=weights.group, element_bytes=None),),
                zero_points=True,
                biased=False,
            )
            return MarlinExperts(plain, plain)
        if weights.dtype == INT8 and inputs and inputs.dtype == INT8:
            return _int8(weights, static_bytes=scale * static, input_zero_bytes=1)
        if self.mx_bits == 8:
            return formats.mx(8, compute=Compute.FP8, biased=False)
        if self.mx_bits is not None:
            marlin = formats.TRITON_OR_MARLIN_PADDING if self.gpt_oss else formats.MARLIN_PADDING
            return formats.mx(
                self.mx_bits,
                compute=Compute.SIXTEEN_BIT if inputs is None else Compute.FP4,
                padding=marlin if self.mx_bits == 4 else WHOLE_GROUPS,
                layer_bytes=scale * static,
                bias_bytes=FLOAT32_BIAS,
            )
        raise self.refuse("experts")


def _int8(weights: Tensor, static_bytes: int, input_zero_bytes: int = 0) -> Quantised:
    """INT8 with a scale and a zero point an output, or a matrix; experts have zero points of the inputs too."""
    channel = weights.scheme == "per_channel"
    return Quantised(
        "INT8 per channel" if channel else "INT8 per tensor",
        8,
        Compute.INT8,
        scales=(Scale(), Scale(element_bytes=1)) if channel else (),
        part_bytes=input_zero_bytes + (0 if channel else formats.FLOAT32_BYTES + 1),
        layer_bytes=static_bytes,
        bias_bytes=FLOAT32_BIAS,
    )


@dataclass(frozen=True, kw_only=True)
class Quark(NotQuantised):
    """A global group, others by pattern, exceptions by name or regular expression."""

    method: str | None = "quark"
    default: Group
    by_name: tuple[tuple[str, Group], ...]
    excluded: names.Match
    entries: tuple[str, ...]
    field: str

    def _named(self, name: str) -> Group | None:
        for pattern, group in self.by_name:
            for spelling in names.spellings(name):
                if fnmatch(spelling, pattern) if "*" in pattern else spelling in pattern:
                    return group
        return None

    def _group(self, parts: tuple[str, ...]) -> Group:
        found = [self._named(part) or self.default for part in parts]
        if any(group != found[0] for group in found):
            raise InvalidConfig(
                self.field,
                f"{self.field} stores the parts of one fused layer ({', '.join(parts)}) in different ways: "
                "the engine needs all of them stored in the same way",
            )
        return found[0]

    def linear(self, *parts: str) -> Scheme:
        """As the layer's group says."""
        if names.every_part(parts, self.excluded, self.field):
            return UNQUANTISED
        return self._group(parts).linear()

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """As the stack's group says, unless the stack or anything below it is excluded."""
        below = tuple(f"{spelling}." for spelling in names.spellings(name))
        if self.excluded(name) or any(entry.startswith(below) for entry in self.entries):
            return UNQUANTISED
        return self._group((name,)).experts()


def read_quark(config: Fields, *, gpt_oss: bool) -> NotQuantised:
    """`global_quant_config`, `layer_quant_config` and `exclude`."""
    export = config.child("export")
    if export is None:
        raise InvalidConfig(config.named("export"), f"{config.named('export')} is missing: give an object")
    packed = export.text("pack_method", default="") in ("order", "reorder")
    default = config.child("global_quant_config")
    if default is None:
        field = config.named("global_quant_config")
        raise InvalidConfig(field, f"{field} is missing: give an object")
    by_type = config.child("layer_type_quant_config")
    if by_type and by_type.values:
        raise NotUnderstood((by_type.path,), f"{by_type.path} is not understood: no sizing rule covers it")
    by_name = config.child("layer_quant_config")
    groups = list[tuple[str, Group]]()
    for pattern in by_name.values if by_name else ():
        fields = by_name.child(pattern) if by_name else None
        if fields is not None:
            groups.append((pattern, _group(fields, packed, gpt_oss)))
    field, entries = config.named("exclude"), config.texts("exclude") or []
    excluded = names.exact_or_regex(entries, field)
    return Quark(
        attention=AttentionScales() if excluded(ATTENTION) else CACHE_SCALES,
        default=_group(default, packed, gpt_oss),
        by_name=tuple(groups),
        excluded=excluded,
        entries=tuple(entry for entry in entries if not entry.startswith("re:")),
        field=field,
    )


def _group(fields: Fields, packed: bool, gpt_oss: bool) -> Group:
    return Group(fields.path, _tensors(fields, "weight"), _tensors(fields, "input_tensors"), packed, gpt_oss)
