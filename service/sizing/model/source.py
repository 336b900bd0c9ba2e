"""A published configuration, opened for a family's reader."""

from dataclasses import dataclass

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import RopeTable

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

UNSCALED_ROPE = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Rotary scalings that leave the derived context length alone (vLLM 0.33 `config/model.py`)."""

DEFAULT_CONTEXT = 2048
"""Context length of a model that names none (vLLM 0.33)."""


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

    def tied(self, default: bool) -> bool:
        """Whether the output head is the embedding; the text configuration's word counts before the root's."""
        for fields in (self.text, self.root):
            if "tie_word_embeddings" in fields:
                return fields.flag("tie_word_embeddings", default=default)
        return default

    def rope(self) -> Fields | None:
        """The rotary settings, in the new spelling (`rope_parameters`) or the old one."""
        return self.text.child("rope_parameters", "rope_scaling")

    def rope_type(self) -> str:
        """Kind of rotary scaling, "default" where none."""
        rope = self.rope()
        return rope.text("rope_type", "type", default="default") if rope else "default"

    def context(self) -> "Context":
        """The context length vLLM derives: the smallest of the length fields, scaled by some kinds of rope only.

        Source: vLLM 0.33 `config/model.py: _get_and_verify_max_len`.
        """
        lengths = [(self.text.integer(name), name) for name in CONTEXT_FIELDS if name in self.text]
        derived, field = min(lengths, key=lambda pair: pair[0], default=(DEFAULT_CONTEXT, None))
        if "model_max_length" in self.text:
            derived, field = self.text.integer("model_max_length"), "model_max_length"
        rope, kind = self.rope(), self.rope_type()
        if rope is None or kind == "default" or "gemma3" in self.model_type:
            return Context(derived, derived, field)
        if kind == "longrope":
            original = self.root.optional_integer("original_max_position_embeddings") or derived
            return Context(derived, original, field)
        if kind not in UNSCALED_ROPE:
            derived = int(derived * rope.number("factor", default=1.0))
        return Context(derived, derived, field)

    def rope_table(self, rotary_size: int) -> RopeTable:
        """The rotary table of `rotary_size` (sines and cosines together) over the model's positions."""
        return RopeTable(self.text.integer("max_position_embeddings", default=DEFAULT_CONTEXT), rotary_size, 2)

    def refuse(self, *fields: str, because: str) -> NotUnderstood:
        """A refusal that names what was not understood."""
        return NotUnderstood(fields, f"{self.architecture}: {because}")

    def invalid(self, field: str, message: str) -> InvalidConfig:
        """A fault in one field."""
        return InvalidConfig(field, message)
