"""Weight-only integer checkpoints: AWQ, GPTQ, AutoRound (the engine's "inc").

Source: vLLM 0.33 `quantization/auto_awq.py`, `auto_gptq.py`, `utils/gptq_utils.py`, `inc/`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import names
from service.sizing.model.quantization.base import GATED_PROJECTIONS, NotQuantised, Skip, Uniform
from service.sizing.model.schemes import UNQUANTISED, Compute, Scheme, formats

DECODER_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.")
TOWER = re.compile(r"vis(?:ion|ual)|audio|image|tower|projector|resampler|aligner|merger|whisper|siglip|clip")
ROUTER = re.compile(r"(?:^|\.)(?:gate|router|classifier|\w*expert_gate|\w*experts_gate)$")

GPTQ_ORDER = (
    "GPTQ group activation ordering (desc_act=True) is no longer supported. Use a checkpoint with static activation "
    "ordering or desc_act=False."
)
GPTQ_KIND = "Unsupported quantization config: bits={bits}, sym={symmetric}"
AWQ_BITS = (
    "Unsupported num_bits = {bits}. Supported: 4. For 8-bit AWQ, use Marlin backend by setting "
    "backend='awq:marlin' or backend='marlin'."
)
INC_KIND = (
    "INC quantization with bits={bits}, sym={symmetric} is not supported. Only 4-bit and 8-bit symmetric "
    "quantization is supported with Marlin kernels."
)


def left_alone(parts: tuple[str, ...]) -> bool:
    """Whether a quantiser that names no exceptions leaves a layer alone: towers, routers, all outside the decoder.

    The engine reads this off the stored tensors; the configuration alone does not say it.
    """
    name = parts[0]
    return not DECODER_LAYER.search(name) or bool(TOWER.search(name)) or bool(ROUTER.search(name))


def _group(config: Fields, *spellings: str) -> int | None:
    """Inputs of a group; -1, one scale an output, reads as None."""
    size = config.integer(*spellings, minimum=-1)
    if size == 0:
        field = config.named(config.raw(*spellings)[0])
        raise InvalidConfig(field, f"{field} must be -1 or positive, not 0")
    return None if size == -1 else size


def _required_flag(config: Fields, name: str) -> bool:
    if config.raw(name)[1] is None:
        raise InvalidConfig(config.named(name), f"{config.named(name)} is missing: give true or false")
    return config.flag(name, default=False)


def containing(entries: Iterable[str], field: str) -> Skip:
    """Skips layers whose name contains an entry."""
    matches = names.substring(entries)
    return lambda parts: names.every_part(parts, matches, field)


def read_awq(config: Fields, method: str) -> NotQuantised:
    """AWQ: every linear layer but those whose names contain an entry of `modules_to_not_convert`."""
    bits, group = config.integer("w_bit", "bits"), _group(config, "q_group_size", "group_size")
    zero_point = _required_flag(config, "zero_point")
    exceptions = config.texts("modules_to_not_convert")
    scheme = formats.awq(group, bits)
    return Uniform(
        method=method,
        refusal=None if bits == 4 else AWQ_BITS.format(bits=bits),
        linears=scheme,
        stacks=formats.awq_experts(group, zero_point=zero_point),
        heads=scheme if config.flag("lm_head", default=False) else UNQUANTISED,
        skips=containing(exceptions, config.named("modules_to_not_convert")) if exceptions else left_alone,
    )


@dataclass(frozen=True, slots=True)
class GptqRule:
    """A rule for layers whose names match a pattern: left alone, or stored in other bits and groups."""

    pattern: re.Pattern[str]
    skips: bool
    bits: int
    group: int | None
    symmetric: bool


@dataclass(frozen=True, kw_only=True)
class Gptq(NotQuantised):
    """GPTQ with rules by name, the first match deciding; only `modules` are quantised, where given."""

    default: GptqRule
    rules: tuple[GptqRule, ...]
    ordered: bool
    head_quantised: bool
    skips: Skip

    def _rule(self, parts: tuple[str, ...]) -> GptqRule:
        """The rule of a layer, matched under the engine's own name for it."""
        fused = names.fused_name(parts)
        candidates = parts if fused is None else (fused,)
        for rule in self.rules:
            if any(rule.pattern.match(spelling) for name in candidates for spelling in names.spellings(name)):
                return rule
        return self.default

    def linear(self, *parts: str) -> Scheme:
        """As the layer's rule says."""
        rule = self._rule(parts)
        if rule.skips or self.skips(parts):
            return UNQUANTISED
        return formats.gptq(rule.bits, rule.group, ordered=self.ordered)

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """As the rule of the stack says; the list of modules does not count here."""
        rule = self._rule((name,))
        if rule.skips:
            return UNQUANTISED
        return formats.gptq_experts(rule.bits, rule.group, symmetric=rule.symmetric)

    def head(self, name: str) -> Scheme:
        """Quantised where `lm_head` says so."""
        if not self.head_quantised or self._rule((name,)).skips:
            return UNQUANTISED
        rule = self._rule((name,))
        return formats.gptq(rule.bits, rule.group)


def read_gptq(config: Fields, method: str) -> NotQuantised:
    """GPTQ: `dynamic` holds rules by regular expression, "-:" to leave layers alone."""
    default = GptqRule(
        re.compile(""), False, config.integer("bits"), _group(config, "group_size"), _required_flag(config, "sym")
    )
    ordered = _required_flag(config, "desc_act")
    rules, dynamic = list[GptqRule](), config.child("dynamic")
    for key in dynamic.values if dynamic else ():
        skips, expression = key.startswith("-:"), key.removeprefix("-:").removeprefix("+:")
        overrides = dynamic.child(key) if dynamic and not skips else None
        rules.append(
            GptqRule(
                names.compiled(expression, config.named("dynamic")),
                skips,
                overrides.integer("bits", default=default.bits) if overrides else default.bits,
                _group(overrides, "group_size") if overrides and "group_size" in overrides else default.group,
                overrides.flag("sym", default=default.symmetric) if overrides else default.symmetric,
            )
        )
    kept = [rule for rule in (default, *rules) if not rule.skips]
    odd = next((rule for rule in kept if rule.bits not in (4, 8) or not rule.symmetric), None)
    refusal = GPTQ_KIND.format(bits=odd.bits, symmetric=odd.symmetric) if odd else None
    if ordered and any(rule.group is not None for rule in kept):
        refusal = GPTQ_ORDER
    modules = _flat(config, "modules_in_block_to_quantize")
    return Gptq(
        method=method,
        refusal=refusal,
        default=default,
        rules=tuple(rules),
        ordered=ordered and default.group is not None,
        head_quantised=config.flag("lm_head", default=False),
        skips=_unless(containing(modules, config.named("modules_in_block_to_quantize"))) if modules else left_alone,
    )


def _flat(config: Fields, name: str) -> list[str]:
    """A list of strings, or of lists of them."""
    entries = config.items(name) or ()
    found = list[str]()
    for index, entry in enumerate(entries):
        inner = Fields({"entry": entry}, f"{config.named(name)}.{index}")
        found += [inner.text("entry")] if isinstance(entry, str) else inner.texts("entry") or []
    return found


def _unless(matches: Skip) -> Skip:
    return lambda parts: not matches(parts)


@dataclass(frozen=True, slots=True)
class IncLayer:
    """How AutoRound stores one layer."""

    bits: int
    group: int | tuple[int, int] | None
    symmetric: bool


PATTERN_CHARACTERS = frozenset("*+?^$()[]{}|\\")


@dataclass(frozen=True, kw_only=True)
class Inc(NotQuantised):
    """AutoRound: a default, other bits and groups by name or regular expression in `extra_config`.

    Source: `inc/config_parser.py: INCConfigParser._resolve_raw`.
    """

    method: str | None = "inc"
    default: IncLayer
    data_type: str
    packing: str
    layers: dict[str, IncLayer]
    patterns: tuple[tuple[re.Pattern[str], IncLayer], ...]
    blocks: tuple[str, ...]

    def _layer(self, name: str, *, head: bool) -> IncLayer:
        for spelling in names.spellings(name):
            if spelling in self.layers:
                return self.layers[spelling]
        for key, layer in self.layers.items():
            if name.endswith(f".{key}"):
                return layer
        quantised = not head
        if self.blocks:
            quantised = any(spelling.startswith(self.blocks) for spelling in names.spellings(name))
        for pattern, layer in self.patterns:
            if any(pattern.search(spelling) for spelling in names.spellings(name)):
                return layer
        return self.default if quantised else IncLayer(16, None, True)

    def _configured(self, name: str) -> bool:
        return any(
            spelling in self.layers or any(pattern.search(spelling) for pattern, _ in self.patterns)
            for spelling in names.spellings(name)
        )

    def _fused(self, parts: tuple[str, ...]) -> IncLayer:
        """The layer's own entry, or else that of all its parts."""
        fused = names.fused_name(parts)
        if len(parts) == 1 or not any(self._configured(part) for part in parts):
            return self._layer(fused or parts[0], head=False)
        found = [self._layer(part, head=False) for part in parts]
        if any(layer != found[0] for layer in found):
            raise InvalidConfig(
                "quantization_config.extra_config",
                f"quantization_config.extra_config stores the parts of one fused layer ({', '.join(parts)}) "
                "in different ways: the engine needs all of them stored in the same way",
            )
        return found[0]

    def _refuse(self, layer: IncLayer) -> NotUnderstood:
        return NotUnderstood(
            ("quantization_config.data_type", "quantization_config.packing_format", "quantization_config.bits"),
            f"AutoRound with data_type {self.data_type}, packing_format {self.packing} and {layer.bits} bits "
            "is not understood: no sizing rule covers it",
        )

    def _scheme(self, layer: IncLayer) -> Scheme:
        if layer.bits >= 16:
            return UNQUANTISED
        if "mx_fp" in self.data_type and layer.bits in (4, 8):
            return formats.mx(layer.bits, compute=Compute.FP8 if layer.bits == 8 else Compute.FP4)
        if self.data_type == "fp" and layer.bits == 8 and isinstance(layer.group, tuple):
            return formats.fp8_block(*layer.group)
        if self.data_type == "int" and not isinstance(layer.group, tuple):
            if "awq" in self.packing:
                return formats.awq(layer.group, layer.bits)
            return formats.gptq(layer.bits, layer.group)
        raise self._refuse(layer)

    def linear(self, *parts: str) -> Scheme:
        """As the layer's entry, or the default, says."""
        return self._scheme(self._fused(parts))

    def head(self, name: str) -> Scheme:
        """Left alone unless `extra_config` names it."""
        return self._scheme(self._layer(name, head=True))

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """As the stack's entry, or the default, says."""
        layer = self._layer(name, head=False)
        if layer.bits >= 16:
            return UNQUANTISED
        if "mx_fp" in self.data_type and layer.bits in (4, 8):
            return formats.mx(layer.bits, compute=Compute.FP8 if layer.bits == 8 else Compute.FP4, biased=False)
        if self.data_type == "int" and not isinstance(layer.group, tuple) and layer.bits in (4, 8):
            if "awq" in self.packing:
                return formats.awq_experts(layer.group, zero_point=not layer.symmetric, width_multiple=64)
            return formats.gptq_experts(layer.bits, layer.group, symmetric=layer.symmetric, width_multiple=64)
        raise self._refuse(layer)


def read_inc(config: Fields) -> NotQuantised:
    """AutoRound: integers packed as GPTQ or AWQ would, microscaling floats, or FP8 in blocks."""
    data_type = config.text("data_type", default="int").removesuffix("8")
    default = _inc_layer(config, IncLayer(config.integer("bits"), _inc_group(config), True))
    packing = config.text("packing_format", default="auto_round:auto_gptq")
    layers, patterns = dict[str, IncLayer](), list[tuple[re.Pattern[str], IncLayer]]()
    extra = config.child("extra_config")
    for key in extra.values if extra else ():
        fields = extra.child(key) if extra else None
        layer = _inc_layer(fields, default) if fields else default
        layers[key] = layer
        if PATTERN_CHARACTERS & set(key):
            patterns.append((names.compiled(key, config.named("extra_config")), layer))
    name, blocks = config.raw("block_name_to_quantize", "to_quant_block_names")
    wanted = blocks.split(",") if isinstance(blocks, str) else config.texts(name) or ()
    refusal = None
    if data_type == "int" and "awq" not in packing and default.bits in (4, 8) and not default.symmetric:
        refusal = INC_KIND.format(bits=default.bits, symmetric=default.symmetric)
    return Inc(
        refusal=refusal,
        exact=data_type != "int" or default.bits in (4, 8),
        default=default,
        data_type=data_type,
        packing=packing,
        layers=layers,
        patterns=tuple(patterns),
        blocks=tuple(wanted),
    )


def _inc_group(config: Fields) -> int | tuple[int, int] | None:
    if isinstance(config.raw("group_size")[1], list | tuple):
        sizes = config.integers("group_size", minimum=1) or []
        if len(sizes) != 2:
            name = config.named("group_size")
            raise InvalidConfig(name, f"{name} must be a number or hold two sizes, not {len(sizes)}")
        return sizes[0], sizes[1]
    return _group(config, "group_size")


def _inc_layer(fields: Fields, default: IncLayer) -> IncLayer:
    return IncLayer(
        fields.integer("bits", default=default.bits),
        _inc_group(fields) if "group_size" in fields else default.group,
        fields.flag("sym", default=default.symmetric),
    )
