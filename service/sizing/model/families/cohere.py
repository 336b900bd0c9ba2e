"""Cohere 2: windows one token wider than the configuration says, dense or with experts; the head is the embedding.

Source: vLLM 0.33 `model_executor/models/commandr.py`, `cohere2_moe.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model.families.dense import RECIPES
from service.sizing.model.families.llama import reader
from service.sizing.model.families.mixture import Mixture
from service.sizing.model.families.recipe import Recipe, Spelling
from service.sizing.model.source import SLIDING_ATTENTION, Source

DEFAULTS: Mapping[str, Any] = {"max_position_embeddings": 8192, "sliding_window": 4096, "sliding_window_pattern": 4}
MOE_DEFAULTS: Mapping[str, Any] = {
    **DEFAULTS,
    "head_dim": 128,
    "num_experts_per_tok": 2,
    "num_experts": 8,
    "prefix_dense_sliding_window_pattern": 1,
}


def patterned(count: int, every: int) -> list[str]:
    """Kinds of `count` layers: a full one closes every group of `every`."""
    return [SLIDING_ATTENTION if (index + 1) % every else "full_attention" for index in range(count)]


def wider(source: Source) -> Source:
    """The window that attention is built with."""
    window = source.text.optional_integer("sliding_window", minimum=0)
    return source if window is None else source.overridden({"sliding_window": window + 1})


def cohere2_layers(source: Source) -> Source:
    """Cohere 2's layers."""
    source = source.with_defaults(DEFAULTS)
    text = source.text
    kinds = patterned(text.layers("num_hidden_layers"), text.integer("sliding_window_pattern"))
    return wider(source.with_defaults({"layer_types": kinds}))


def dense_layers(source: Source) -> int:
    """Layers before the first with experts."""
    return source.text.integer("first_k_dense_replace", default=0, minimum=0)


def cohere2_moe_layers(source: Source) -> Source:
    """The layers of Cohere 2 with experts: dense ones at the start have a pattern of their own."""
    source = source.with_defaults(MOE_DEFAULTS)
    text, dense = source.text, dense_layers(source)
    kinds = [
        *patterned(dense, text.integer("prefix_dense_sliding_window_pattern")),
        *patterned(text.layers("num_hidden_layers") - dense, text.integer("sliding_window_pattern")),
    ]
    return wider(source.with_defaults({"layer_types": kinds}))


def experts(source: Source) -> Mixture:
    """Experts in the layers that `mlp_layer_types` calls sparse, by default all but the first few."""
    text = source.text
    layers, width = text.layers("num_hidden_layers"), text.integer("intermediate_size")
    kinds = text.texts("mlp_layer_types")
    if kinds is not None and len(kinds) < layers:
        field = text.named("mlp_layer_types")
        raise source.invalid(field, f"{field} must name {layers} layers, not {len(kinds)}")
    dense = dense_layers(source)
    return Mixture(
        places=tuple(kinds[index] != "dense" if kinds else index >= dense for index in range(layers)),
        count=text.integer("num_experts"),
        active=text.integer("num_experts_per_tok"),
        width=width,
        shared_width=width * text.integer("num_shared_experts", default=0, minimum=0),
    )


COHERE2 = replace(
    RECIPES["CohereForCausalLM"],
    mixed_windows=True,
    prepare=cohere2_layers,
)
COHERE2_MOE: Recipe = replace(
    COHERE2,
    spelling=Spelling(
        intermediate=("prefix_dense_intermediate_size", "intermediate_size"), positions=COHERE2.spelling.positions
    ),
    prepare=cohere2_moe_layers,
    extra=None,
    experts=experts,
)

READERS = {
    "Cohere2ForCausalLM": reader(COHERE2),
    "Cohere2MoeForCausalLM": reader(COHERE2_MOE),
}
