"""The Q-Former of BLIP-2, which every rank holds whole.

Source: vLLM 0.33 `model_executor/models/blip2.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module
from service.sizing.model.towers.parts import PROJECTOR, layer_norm, whole_linear

QFORMER: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "cross_attention_frequency": 2,
    "encoder_hidden_size": 1408,
}


def linear(name: str, inputs: int, outputs: int) -> Module:
    """A linear layer between the tower and the language model."""
    return whole_linear(name, inputs, outputs, tensor_class=PROJECTOR)


def attention(hidden: int, seen: int) -> tuple[Module, ...]:
    """Attention of the queries to what is `seen` wide."""
    return (
        linear("attention.query", hidden, hidden),
        linear("attention.key/value", seen, 2 * hidden),
        linear("output.dense", hidden, hidden),
        layer_norm("output.LayerNorm", hidden, tensor_class=PROJECTOR),
    )


def qformer(settings: Fields) -> tuple[Module, ...]:
    """Layers of attention among the queries and, every few layers, to the encoder's output."""
    settings = settings.completed(QFORMER)
    hidden, width = settings.integer("hidden_size"), settings.integer("intermediate_size")
    every, seen = settings.integer("cross_attention_frequency"), settings.integer("encoder_hidden_size")
    modules: list[Module] = [layer_norm("layernorm", hidden, tensor_class=PROJECTOR)]
    for number in range(settings.layers("num_hidden_layers")):
        modules += (
            *attention(hidden, hidden),
            *(() if number % every else attention(hidden, seen)),
            linear("intermediate_query.dense", hidden, width),
            linear("output_query.dense", width, hidden),
            layer_norm("output_query.LayerNorm", hidden, tensor_class=PROJECTOR),
        )
    return tuple(modules)
