"""Step 3: all query heads grow out of one low-rank projection and share a single KV head.

Source: vLLM 0.33 `model_executor/models/step3_text.py`, `transformers_utils/configs/step3_vl.py`.
"""

from collections.abc import Callable

from service.sizing.model import blocks
from service.sizing.model.families.llama import reader
from service.sizing.model.families.mixture import Mixture, layer_count
from service.sizing.model.families.recipe import LayerParts, Recipe, Spelling
from service.sizing.model.modules import Units
from service.sizing.model.shape import AttentionCache, ModelShape
from service.sizing.model.source import Source

DEFAULTS = {
    "num_key_value_heads": 1,
    "max_position_embedding": 65536,
    "max_seq_len": 65536,
    "head_dim": 256,
    "share_q_dim": 2048,
    "share_expert_dim": 5120,
}
"""What the configuration class fills in."""


def defaults(source: Source) -> Source:
    """The configuration as its class completes it."""
    return source.with_defaults(DEFAULTS)


def attention(source: Source, path: str, window: int | None) -> LayerParts:
    """Query projection, norm and expansion; key and value of one head, whole on every rank."""
    text, quantization = source.text, source.quantization
    hidden, heads, size = text.integer("hidden_size"), text.integer("num_attention_heads"), text.integer("head_dim")
    shared = text.integer("share_q_dim")
    return (AttentionCache(heads, 1, size, size, window),), (
        blocks.replicated(quantization, path, "qkv_proj", hidden, shared + 2 * size),
        blocks.norm("inter_norm", shared),
        blocks.column(quantization, path, "wq", shared, Units(heads, size)),
        blocks.row(quantization, path, "o_proj", Units(heads, size), hidden),
    )


def experts(source: Source) -> Mixture:
    """The layers that `moe_layers_enum` lists, a string of numbers; by default all but the first."""
    text, layers = source.text, layer_count(source)
    listed = text.text("moe_layers_enum", default=",".join(str(index) for index in range(1, layers)))
    numbers = [number.strip() for number in listed.split(",")] if listed else []
    if not all(number.isdecimal() for number in numbers):
        raise source.invalid("moe_layers_enum", "moe_layers_enum must list layers as '4,5,6'")
    mixed = {int(number) for number in numbers}
    return Mixture(
        places=tuple(index in mixed for index in range(layers)),
        count=text.integer("moe_num_experts"),
        active=text.integer("moe_top_k"),
        width=text.integer("moe_intermediate_size"),
        path="moe",
        shared_width=text.integer("share_expert_dim"),
        shared="share_expert",
    )


RECIPE = Recipe(
    spelling=Spelling(positions=("max_position_embedding",)),
    reads_tied=False,
    quantised_embedding=False,
    quantised_head=False,
    prepare=defaults,
    attention=attention,
    experts=experts,
)

READERS: dict[str, Callable[[Source], ModelShape]] = {"Step3TextForCausalLM": reader(RECIPE)}
