"""A published configuration, opened for a family's reader."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import Quantization

CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Fields the context length is derived from (vLLM 0.33 `model_arch_config_convertor.py`)."""

UNSCALED_ROPE = frozenset({"longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Rotary scalings that leave the derived context length alone (vLLM 0.33 `config/model.py`)."""

LEGACY_ROPE = {"su": "longrope", "mrope": "default", "telechat3-yarn": "yarn"}
"""Older names of rotary scalings (vLLM 0.33 `transformers_utils/config.py: patch_legacy_rope_type`)."""

DEFAULT_CONTEXT = 2048
"""Context length of a model that names none (vLLM 0.33)."""

FULL_ATTENTION = frozenset({"full_attention", "attention"})
SLIDING_ATTENTION = "sliding_attention"
"""Layer kinds, as `layer_types` spells them."""

DEFAULT_LABELS = 2
"""Classes of a classifier whose configuration names none (transformers 5.20)."""


@dataclass(frozen=True, slots=True)
class Context:
    """Context lengths of a model: the most the engine accepts, what it takes by default, and the deciding field."""

    limit: int
    default: int
    field: str | None


@dataclass(frozen=True)
class Source:
    """One model's configuration.

    Attributes
    ----------
    name, architecture, model_type : str
        As in `ModelShape`.
    root, text : Fields
        The whole configuration, and the part that describes the language model (often the same).
    quantization : Quantization
        How its weights are stored.
    dtype : str
        "bfloat16" or "float16".
    """

    name: str
    architecture: str
    model_type: str
    root: Fields
    text: Fields
    quantization: Quantization
    dtype: str

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Source":
        """The configuration with what its class (transformers 5.20) fills in for absent fields of the text part."""
        text = self.text.completed(defaults)
        return replace(self, text=text, root=text if self.root is self.text else self.root)

    def overridden(self, values: Mapping[str, Any], spelled: Mapping[str, str] | None = None) -> "Source":
        """The configuration with fields of the text part replaced, as its class does; `spelled` as for `Fields`."""
        text = self.text.overridden(values, spelled)
        return replace(self, text=text, root=text if self.root is self.text else self.root)

    def respelled(self, **spellings: tuple[str, ...]) -> "Source":
        """The configuration with fields of the text part under today's names; messages keep its own."""
        found = {today: self.text.raw(*names) for today, names in spellings.items()}
        text = self.text.overridden(
            {today: value for today, (_, value) in found.items()}, {today: name for today, (name, _) in found.items()}
        )
        return replace(self, text=text, root=text if self.root is self.text else self.root)

    def tied(self, default: bool) -> bool:
        """Whether the output head is the embedding; the text configuration's word counts before the root's."""
        for fields in (self.text, self.root):
            if "tie_word_embeddings" in fields:
                return fields.flag("tie_word_embeddings", default=default)
        return default

    def labels(self) -> int:
        """Classes of a classification head: entries of `id2label`, else `num_labels`, else two."""
        names = self.root.child("id2label")
        return len(names.values) if names else self.root.integer("num_labels", default=DEFAULT_LABELS)

    def rope(self) -> Fields | None:
        """The rotary settings, in the old spelling, which wins, or the new one."""
        return self.text.child("rope_scaling", "rope_parameters")

    def rope_type(self) -> str:
        """Kind of rotary scaling, "default" where none."""
        return rope_kind(self.rope())

    def unknown_rope(self) -> NotUnderstood:
        """A refusal of the rotary scaling."""
        rope = self.rope()
        field = rope.named(rope.raw("rope_type", "type")[0]) if rope else "rope_scaling"
        return self.refuse(field, because=f"{field} {self.rope_type()!r} is not understood")

    def windows(self, layers: int, *, mixed: bool = True) -> tuple[int | None, ...]:
        """The sliding window of each layer; None: full attention.

        `sliding_window` holds for every layer unless `layer_types` names other kinds too; then classes that read it
        (`mixed`) give the window to the sliding layers, and others to none.

        Source: vLLM 0.33 `engine/arg_utils.py: create_engine_config`, `layers/attention/attention.py`.
        """
        window = self.text.integer("sliding_window", default=0, minimum=0) or None
        types = self.text.texts("layer_types")
        if types is None:
            return (window,) * layers
        if len(types) < layers:
            message = f"layer_types must name num_hidden_layers ({layers}) layers, not {len(types)}"
            raise self.invalid("layer_types", message)
        strange = sorted({kind for kind in types[:layers] if kind not in (*FULL_ATTENTION, SLIDING_ATTENTION)})
        if strange:
            raise self.refuse("layer_types", because=f"layers of kind {', '.join(strange)} are not understood")
        sliding = [kind == SLIDING_ATTENTION for kind in types]
        if not all(sliding) and not mixed:
            return (None,) * layers
        return tuple(window if slides else None for slides in sliding[:layers])

    def context(self) -> "Context":
        """The context length vLLM derives: the smallest of the length fields, scaled by some kinds of rope only.

        Source: vLLM 0.33 `config/model.py: _get_and_verify_max_len`.
        """
        lengths = [(self.text.integer(name), name) for name in CONTEXT_FIELDS if name in self.text]
        derived, field = min(lengths, key=lambda pair: pair[0], default=(DEFAULT_CONTEXT, None))
        if "model_max_length" in self.text:
            derived, field = self.text.integer("model_max_length"), "model_max_length"
        rope = self.root.child("rope_scaling", "rope_parameters")
        if rope is None or "gemma3" in self.model_type:
            return Context(derived, derived, field)
        nested = [name for name, value in rope.values.items() if isinstance(value, Mapping)]
        kinds = [settings for name in nested if (settings := rope.child(name))] or [rope]
        factor = 1.0
        for settings in kinds:
            if rope_kind(settings) not in UNSCALED_ROPE:
                factor = settings.number("factor", default=factor)
        derived = max(1, int(derived * factor))
        if any(rope_kind(settings) == "longrope" for settings in kinds):
            original = self.root.optional_integer("original_max_position_embeddings") or derived
            return Context(derived, original, field)
        return Context(derived, derived, field)

    def refuse(self, *fields: str, because: str) -> NotUnderstood:
        """A refusal that names what was not understood."""
        return NotUnderstood(fields, f"{self.architecture}: {because}")

    def invalid(self, field: str, message: str) -> InvalidConfig:
        """A fault in one field."""
        return InvalidConfig(field, message)


def rope_kind(rope: Fields | None) -> str:
    """Kind of rotary scaling, by its present name; "default" where none."""
    kind = rope.text("rope_type", "type", default="default") if rope else "default"
    return LEGACY_ROPE.get(kind, kind)
