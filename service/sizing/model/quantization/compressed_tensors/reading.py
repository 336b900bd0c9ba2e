"""Compressed-tensors checkpoints (llm-compressor and others): groups of layers by target, and exceptions.

Source: vLLM 0.33 `quantization/compressed_tensors/compressed_tensors.py`, `utils.py`.
"""

from dataclasses import dataclass

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import names
from service.sizing.model.quantization.base import GATED_PROJECTIONS, NotQuantised
from service.sizing.model.quantization.compressed_tensors.group import Group, read_group
from service.sizing.model.schemes import UNQUANTISED, Scheme
from service.sizing.model.shape import AttentionScales

CACHE_SCALE_BYTES = 3 * 4 + 3 * 2
"""Query, key and value: a float32 scale and a zero point in the model's type each."""

MERGED_TRANSFORMS = ("weight_input", "weight_output")
"""Where transforms are merged into the weights when a checkpoint is written."""

ACTIVATION_ORDER = (
    "Compressed-tensors group/dynamic activation ordering (actorder={order!r}) is no longer supported. "
    "Use a checkpoint with static/weight activation ordering or without activation ordering."
)


@dataclass(frozen=True, kw_only=True)
class CompressedTensors(NotQuantised):
    """Groups by target, in the order of the configuration; ignored layers stay as they are."""

    method: str | None = "compressed-tensors"
    groups: tuple[tuple[str, names.Match, Group], ...]
    ignored: names.Match
    ignore_field: str

    def _group(self, parts: tuple[str, ...], kind: str) -> Group | None:
        """The group of a layer: by its name, then by those of its parts, then by its class.

        Source: `compressed_tensors/utils.py: find_matched_target`.
        """
        if names.every_part(parts, self.ignored, self.ignore_field):
            return None
        fused = names.fused_name(parts)
        if fused is not None:
            for _, matches, group in self.groups:
                if matches(fused):
                    return group
        if len(parts) > 1:
            found = [next((group for _, matches, group in self.groups if matches(part)), None) for part in parts]
            if all(found):
                return found[0]
        return next((group for target, _, group in self.groups if target.lower() in kind), None)

    def linear(self, *parts: str) -> Scheme:
        """As the layer's group says."""
        group = self._group(parts, "linear")
        return group.linear() if group else UNQUANTISED

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """As the group of the first expert's matrices says; a group for "Linear" covers experts too."""
        groups = [self._group((f"{name}.0.{projection}",), "routedexperts linear") for projection in projections]
        if any(group != groups[0] for group in groups):
            raise InvalidConfig(self.ignore_field, f"{name}: all matrices of an expert must be stored in the same way")
        return groups[0].experts() if groups[0] else UNQUANTISED

    def embedding(self, name: str) -> Scheme:
        """As a group named after the table or the class says."""
        group = self._group((name,), "vocabparallelembedding")
        return group.embedding() if group else UNQUANTISED

    def head(self, name: str) -> Scheme:
        """As a group named after the head or the class says."""
        group = self._group((name,), "parallellmhead")
        return group.linear() if group else UNQUANTISED


def read_compressed_tensors(config: Fields, *, latent: bool) -> NotQuantised:
    """Read the groups; `latent` models keep the cache's type whatever `kv_cache_scheme` says."""
    sparsity = config.child("sparsity_config")
    if sparsity and any(value not in (None, {}, [], "", "dense") for value in sparsity.values.values()):
        raise NotUnderstood((sparsity.path,), f"{sparsity.path} is not understood: no sizing rule covers it")
    _refuse_transforms(config)
    default_format = config.text("format", default="")
    groups = list[tuple[str, names.Match, Group]]()
    refusal: str | None = None
    outer = config.child("config_groups")
    for key in outer.values if outer else ():
        fields = outer.child(key) if outer else None
        if fields is None:
            continue
        targets = fields.texts("targets") or []
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue
        weights = fields.child("weights")
        if weights is None:
            raise InvalidConfig(fields.named("weights"), f"{fields.named('weights')} is missing: give an object")
        order = weights.raw("actorder")[1]
        if order in (True, "group", "dynamic"):
            refusal = ACTIVATION_ORDER.format(order="group")
        group = read_group(fields, weights, default_format)
        groups += [(target, names.exact_or_regex((target,), fields.named("targets")), group) for target in targets]
    scheme = config.child("kv_cache_scheme")
    return CompressedTensors(
        kv_cache_dtype="fp8" if scheme and not latent else None,
        attention=_cache_scales(scheme),
        refusal=refusal,
        groups=tuple(groups),
        ignored=names.exact_or_regex(config.texts("ignore") or (), config.named("ignore")),
        ignore_field=config.named("ignore"),
    )


def _refuse_transforms(config: Fields) -> None:
    """Refuse transforms of activations, which have weights of their own; those merged into the weights have none."""
    transforms = config.child("transform_config")
    groups = transforms.child("config_groups") if transforms else None
    for key in groups.values if groups else ():
        scheme = groups.child(key) if groups else None
        for index, arguments in enumerate((scheme.items("apply") if scheme else None) or ()):
            entry = Fields({"apply": arguments}, f"{groups.path if groups else ''}.{key}").child("apply")
            location = entry.text("location", default="") if entry else ""
            if location not in MERGED_TRANSFORMS:
                field = f"{groups.path if groups else ''}.{key}.apply.{index}.location"
                raise NotUnderstood(
                    (field,), f"{field} {location!r} is not understood: only {' and '.join(MERGED_TRANSFORMS)} are"
                )


def _cache_scales(scheme: Fields | None) -> AttentionScales:
    if scheme is None:
        return AttentionScales(attention_bytes=CACHE_SCALE_BYTES)
    strategy = scheme.text("strategy", default="tensor")
    understood = (
        scheme.text("type", default="int") == "float"
        and scheme.integer("num_bits", default=8) == 8
        and strategy in ("tensor", "attn_head")
        and scheme.flag("symmetric", default=True)
    )
    if not understood:
        raise NotUnderstood(
            (scheme.path,),
            f"{scheme.path} is not understood: only symmetric 8-bit floats with strategy tensor or attn_head are",
        )
    return AttentionScales(attention_bytes=CACHE_SCALE_BYTES, per_kv_head=strategy == "attn_head")
