"""NVIDIA ModelOpt checkpoints: FP8, NVFP4, MXFP8, and a mixture by layer.

Source: vLLM 0.33 `quantization/modelopt.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields, Json
from service.sizing.model.quantization import names
from service.sizing.model.quantization.base import GATED_PROJECTIONS, NotQuantised, Skip, Uniform
from service.sizing.model.quantization.fp8 import CACHE_SCALES
from service.sizing.model.schemes import UNQUANTISED, Compute, Scheme, formats
from service.sizing.model.shape import AttentionScales

ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8")
METHODS = {
    "FP8": "modelopt",
    "FP8_PER_CHANNEL_PER_TOKEN": "modelopt",
    "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
    "W4A16_NVFP4": "modelopt_fp4",
    "MXFP8": "modelopt_mxfp8",
}
MIXED = "MIXED_PRECISION"
BLOCK_FP8 = ("FP8_PB_WO", "FP8_BLOCK_SCALES")

ALL_CACHE_SCALES = AttentionScales(attention_bytes=8, latent_bytes=8)
"""Four scales in the model's type of each attention, latent ones too."""

TOWERS = ("vision_tower", "vision_model", "vit_large_projector")
"""Names under which ModelOpt leaves layers alone whatever its lists say."""

CACHE_TYPES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def excluded(entries: Iterable[str], field: str) -> Skip:
    """Skips layers in the list, containing an entry, or matching one with wildcards.

    A closing wildcard after a name ("layers.0*") is read as the name and what lies below it.
    """
    split = list[str]()
    for entry in entries:
        split += (
            [entry[:-1], f"{entry[:-1]}.*"] if len(entry) > 1 and entry[-1] == "*" and entry[-2] != "." else [entry]
        )
    listed = names.listed(split, field)
    contained = names.substring(entry for entry in split if not names.WILDCARDS & set(entry))
    covered = names.wildcards(split)

    def skips(parts: tuple[str, ...]) -> bool:
        name = names.fused_name(parts) or parts[0]
        return listed(parts) or contained(name) or covered(name)

    return skips


def with_towers(skips: Skip) -> Skip:
    """Skips vision towers too."""
    return lambda parts: skips(parts) or any(tower in parts[0] for tower in TOWERS)


def linear_scheme(algorithm: str, group: int, element_bytes: int = 2) -> Scheme:
    """Scheme of a linear layer."""
    scale = formats.FLOAT32_BYTES
    match algorithm:
        case "FP8":
            return formats.fp8_tensor(static_inputs=True)
        case "FP8_PER_CHANNEL_PER_TOKEN":
            return formats.fp8_channel()
        case "FP8_PB_WO":
            return formats.fp8_block(128, 128)
        case "NVFP4":
            return formats.nvfp4(part_bytes=2 * scale, weight_only=False, group=group)
        case "W4A16_NVFP4":
            return formats.nvfp4(part_bytes=scale + element_bytes, weight_only=True, group=group)
        case _:
            return formats.mx(8, compute=Compute.FP8)


def experts_scheme(algorithm: str, group: int, block: int, field: str) -> Scheme:
    """Scheme of a stack of experts.

    Raises
    ------
    NotUnderstood
        The engine has no such experts.
    """
    if algorithm in BLOCK_FP8:
        return formats.fp8_block(block, block, refined=True)
    if algorithm == "FP8":
        return formats.fp8_tensor_experts(static_inputs=True, biased=False)
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        weight_only = algorithm == "W4A16_NVFP4"
        return formats.nvfp4(part_bytes=2 * formats.FLOAT32_BYTES, weight_only=weight_only, group=group)
    if algorithm == "MXFP8":
        return formats.mx(8, compute=Compute.FP8, biased=False)
    raise NotUnderstood((field,), f"{field}: experts in {algorithm} are not understood: no sizing rule covers them")


def cache_type(config: Fields, inner: Fields) -> str | None:
    """The type "auto" means for the cache; None: the model's own.

    Source: vLLM 0.33 `utils/torch_utils.py: get_kv_cache_quant_algo_string`.
    """
    found = (
        inner.raw("kv_cache_scheme")[1]
        or config.raw("kv_cache_scheme")[1]
        or inner.raw("kv_cache_quant_algo")[1]
        or config.raw("kv_cache_quant_algo")[1]
    )
    if isinstance(found, str):
        return CACHE_TYPES.get(found.lower())
    if isinstance(found, Mapping):
        scheme = Fields(cast("Json", found))
        kind, bits = scheme.raw("type")[1], scheme.raw("num_bits")[1]
        if kind == "float" and bits == 8 and scheme.raw("dynamic")[1] is False:
            return "fp8_e4m3"
        if kind == "float" and bits == 4:
            return "nvfp4"
    return None


def algorithm_of(config: Fields) -> str:
    """`quant_algo`, inside `quantization` where that is given; upper case, "" where absent."""
    inner = config.child("quantization")
    return (inner or config).text("quant_algo", default="").upper()


def read_modelopt(config: Fields) -> NotQuantised:
    """One algorithm for every layer but those excluded."""
    inner = config.child("quantization") or config
    algorithm = algorithm_of(config)
    if algorithm not in ALGORITHMS:
        field = inner.named("quant_algo")
        raise NotUnderstood(
            (field,), f"{field} {algorithm!r} is not understood: no sizing rule covers it; {_understood()}"
        )
    if algorithm == "NVFP4" and _weights_only(config):
        algorithm = "W4A16_NVFP4"
    group = inner.integer("group_size", default=16)
    field, entries = _exclusions(config, inner)
    linears, name = linear_scheme(algorithm, group), METHODS[algorithm]
    experts = "FP8" if name == "modelopt" else algorithm
    return Uniform(
        method=name,
        kv_cache_dtype=cache_type(config, inner),
        attention=ALL_CACHE_SCALES,
        refusal=_missing(config, name),
        linears=linears,
        stacks=experts_scheme(experts, group, 128, field),
        heads=linears,
        skips=with_towers(excluded(entries, field)),
    )


def read_mxfp8(config: Fields) -> NotQuantised:
    """MXFP8 outside ModelOpt: every layer but `ignored_layers`."""
    field = config.named("ignored_layers")
    linears = linear_scheme("MXFP8", 0)
    return Uniform(
        method="mxfp8",
        attention=ALL_CACHE_SCALES,
        linears=linears,
        stacks=experts_scheme("MXFP8", 0, 0, field),
        heads=linears,
        skips=with_towers(excluded(config.texts("ignored_layers") or (), field)),
    )


def _missing(config: Fields, method: str) -> str | None:
    """vLLM's words for fields that `hf_quant_config.json` lacks."""
    inner = config.child("quantization")
    needed = {
        "modelopt_fp4": ("NVFP4", ("group_size", "kv_cache_quant_algo", "exclude_modules")),
        "modelopt_mxfp8": ("MXFP8", ("kv_cache_quant_algo", "exclude_modules")),
    }
    if inner is None or method not in needed:
        return None
    label, fields = needed[method]
    missing = [field for field in fields if field not in inner.values]
    if not missing:
        return None
    return f"{label} quantization requires the following fields in hf_quant_config.json: {missing}"


def _understood() -> str:
    return f"understood are {', '.join((*ALGORITHMS, MIXED))}"


def _exclusions(config: Fields, inner: Fields) -> tuple[str, list[str]]:
    """Layers left alone, and the field that lists them."""
    spellings = ("exclude_modules",) if inner is not config else ("ignore", "exclude_modules")
    field = inner.named(inner.raw(*spellings)[0])
    return field, inner.texts(*spellings) or []


def _weights_only(config: Fields) -> bool:
    """Whether every group of `config_groups` leaves the activations alone."""
    outer = config.child("config_groups")
    groups = [outer.child(key) for key in outer.values] if outer else []
    return bool(groups) and all(group is not None and "input_activations" not in group for group in groups)


@dataclass(frozen=True, kw_only=True)
class Mixed(NotQuantised):
    """An algorithm by layer; layers without one stay as they are.

    Attributes
    ----------
    layers, below : dict
        Algorithm of each named layer, and of the first named layer below each name.
    group, block : int
        Group of the NVFP4 layers, block of the FP8 ones.
    skips : function of names
        Layers left alone.
    """

    layers: dict[str, str]
    below: dict[str, str]
    group: int
    block: int
    skips: Skip
    field: str

    def _algorithm(self, parts: tuple[str, ...]) -> str | None:
        """Source: `ModelOptMixedPrecisionConfig._resolve_quant_algo`."""
        fused = names.fused_name(parts) or parts[0]
        for spelling in names.spellings(fused):
            if spelling in self.layers:
                return self.layers[spelling]
        found = {self.layers[s] for part in parts for s in names.spellings(part) if s in self.layers}
        if len(found) > 1:
            raise InvalidConfig(
                self.field,
                f"{self.field} stores the parts of one fused layer ({', '.join(parts)}) in different ways: "
                "the engine needs all of them stored in the same way",
            )
        if found:
            return found.pop()
        candidates = names.spellings(fused)
        if fused.endswith(".experts"):
            candidates += tuple(spelling.removesuffix(".experts") for spelling in candidates)
        return next((self.below[candidate] for candidate in candidates if candidate in self.below), None)

    def linear(self, *parts: str) -> Scheme:
        """As the layer's algorithm says."""
        algorithm = None if self.skips(parts) else self._algorithm(parts)
        if algorithm in ALGORITHMS:
            return linear_scheme(algorithm, self.group)
        if algorithm is None or algorithm in BLOCK_FP8:
            return UNQUANTISED
        raise NotUnderstood(
            (self.field,), f"{self.field}: {algorithm} is not understood: no sizing rule covers it; {_understood()}"
        )

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """As the algorithm of the stack, or of the first matrix in it, says."""
        algorithm = None if self.skips((name,)) else self._algorithm((name,))
        return UNQUANTISED if algorithm is None else experts_scheme(algorithm, self.group, self.block, self.field)

    def head(self, name: str) -> Scheme:
        """As the head's algorithm says."""
        return self.linear(name)


def read_mixed(config: Fields, quantized_layers: Fields) -> NotQuantised:
    """`quantized_layers` gives each layer its algorithm."""
    inner = config.child("quantization") or config
    layers, below = dict[str, str](), dict[str, str]()
    group, blocks = inner.optional_integer("group_size"), set[int]()
    for name in quantized_layers.values:
        fields = quantized_layers.child(name)
        algorithm = fields.text("quant_algo", default="").upper() if fields else ""
        if fields and algorithm in BLOCK_FP8:
            blocks.add(fields.integer("group_size", default=128))
        if fields and algorithm in ("NVFP4", "W4A16_NVFP4") and group is None:
            group = fields.integer("group_size", default=16)
        layers[name] = algorithm
        parent = name
        while parent := parent.rpartition(".")[0]:
            if parent in below:
                break
            below[parent] = algorithm
    if len(blocks) > 1:
        raise InvalidConfig(
            quantized_layers.path,
            f"{quantized_layers.path} must give all FP8 blocks one group_size, not {sorted(blocks)}",
        )
    field, entries = _exclusions(config, inner)
    cache = inner.raw("kv_cache_quant_algo")[1] if inner is not config else _float8(config)
    return Mixed(
        method="modelopt_mixed",
        kv_cache_dtype=cache_type(config, inner),
        attention=CACHE_SCALES if cache else AttentionScales(),
        layers=layers,
        below=below,
        group=group or 16,
        block=blocks.pop() if blocks else 128,
        skips=excluded(entries, field),
        field=quantized_layers.path,
    )


def _float8(config: Fields) -> bool:
    """Whether `kv_cache_scheme` asks for eight-bit floats."""
    scheme = config.child("kv_cache_scheme") if isinstance(config.raw("kv_cache_scheme")[1], Mapping) else None
    return scheme is not None and (scheme.raw("type")[1], scheme.raw("num_bits")[1]) == ("float", 8)
