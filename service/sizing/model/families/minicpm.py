"""MiniCPM: Llama with every end on every stage; MiniCPM 3 projects through low ranks but caches whole keys and values.

Source: vLLM 0.33 `model_executor/models/` (`minicpm.py`, `minicpm3.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from service.sizing.model import blocks
from service.sizing.model.families.dense import EVERYWHERE
from service.sizing.model.families.llama import even_head_size, read
from service.sizing.model.families.recipe import LayerParts, Recipe, Spelling
from service.sizing.model.modules import Experts, Module, Units
from service.sizing.model.shape import AttentionCache, ModelShape
from service.sizing.model.source import Source


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """Experts in every layer, split over tensor ranks alone and never quantised."""

    count: int
    active: int
    width: int

    def at(self, index: int) -> bool:
        """Whether the layer at `index` has experts."""
        return True

    def modules(self, source: Source, path: str, hidden: int) -> tuple[Module, ...]:
        """Router and experts."""
        return (
            blocks.plain_router(hidden, self.count),
            Experts("experts", self.count, self.active, hidden, self.width, spread=False),
        )


def experts(source: Source) -> PlainExperts:
    """The MLP width is the expert's."""
    text = source.text
    return PlainExperts(
        text.integer("num_experts"), text.integer("num_experts_per_tok"), text.integer("intermediate_size")
    )


MINICPM = Recipe(spelling=Spelling(head_size=()), tied=True, quantised_embedding=False, everywhere=EVERYWHERE)
MIXED = replace(MINICPM, experts=experts)


def read_minicpm(source: Source) -> ModelShape:
    """MiniCPM, with experts where the configuration counts any."""
    mixed = source.text.integer("num_experts", default=0, minimum=0) > 0
    return read(source, MIXED if mixed else MINICPM)


def low_rank_attention(source: Source, path: str, window: int | None) -> LayerParts:
    """MiniCPM 3's: each head caches a key as wide as both its parts, and a value padded to that width."""
    text, quantization = source.text, source.quantization
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    plain, rotated = text.integer("qk_nope_head_dim"), text.integer("qk_rope_head_dim")
    query_rank, rank = text.integer("q_lora_rank"), text.integer("kv_lora_rank")
    values = text.optional_integer("v_head_dim") or even_head_size(source, heads)
    if values > plain + rotated:
        message = f"v_head_dim ({values}) must be at most qk_nope_head_dim ({plain}) + qk_rope_head_dim ({rotated})"
        raise source.invalid("v_head_dim", message)
    return (AttentionCache(heads, heads, plain + rotated, plain + rotated, window),), (
        blocks.replicated(quantization, path, "q_a_proj", hidden, query_rank),
        blocks.norm("q_a_layernorm", query_rank),
        blocks.column(quantization, path, "q_b_proj", query_rank, Units(heads, plain + rotated)),
        blocks.replicated(quantization, path, "kv_a_proj_with_mqa", hidden, rank + rotated),
        blocks.norm("kv_a_layernorm", rank),
        blocks.column(quantization, path, "kv_b_proj", rank, Units(heads, plain + values)),
        blocks.row(quantization, path, "o_proj", Units(heads, values), hidden),
    )


LOW_RANK = replace(MINICPM, spelling=Spelling(head_size=("qk_rope_head_dim",)), attention=low_rank_attention)


def read_minicpm3(source: Source) -> ModelShape:
    """MiniCPM 3, which has no experts."""
    if source.text.integer("num_experts", default=0, minimum=0):
        raise source.refuse("num_experts", because="experts beside low-rank projections are not understood")
    return read(source, LOW_RANK)


READERS: dict[str, Callable[[Source], ModelShape]] = {
    "MiniCPMForCausalLM": read_minicpm,
    "MiniCPM3ForCausalLM": read_minicpm3,
}
