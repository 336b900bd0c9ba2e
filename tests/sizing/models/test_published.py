"""Parameters of published models, against the count of transformers' own classes.

`tests/data/models/published.jsonl` has one model a line: its name on the Hugging Face Hub, the structural fields of its
published `config.json`, and the parameters of transformers 5.24's class (for models without one, of the class they
are spelled after), built on the meta device.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from service.sizing import weights
from service.sizing.model.reader import read_model
from service.sizing.model.shape import AttentionCache

MODELS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/models/published.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("published", MODELS, ids=[model["model"] for model in MODELS])
def test_parameters_are_those_published(published: dict[str, Any]) -> None:
    """Not one parameter more or fewer."""
    assert weights.total_parameters(read_model(published["model"], published["config"])) == published["parameters"]


def test_a_searched_model_adds_up_layer_by_layer() -> None:
    """A layer without attention or without an MLP has neither its norm; multipliers give widths rounded up to 256."""
    blocks: list[dict[str, dict[str, Any]]] = [
        {"attention": {"no_op": False, "n_heads_in_group": 4}, "ffn": {"no_op": False, "ffn_mult": 1.0}},
        {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"no_op": False, "ffn_mult": 2.625}},
        {"attention": {"no_op": False, "n_heads_in_group": 8}, "ffn": {"no_op": True, "ffn_mult": None}},
    ]
    config = {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "hidden_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "vocab_size": 1024,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "block_configs": blocks,
    }
    # int(2 * 1.0 * 512 / 3) = 341 -> 512; int(2 * 2.625 * 512 / 3) = 896 -> 1024
    first = 512 * (8 + 2 + 2) * 64 + 512 * 512 + 3 * 512 * 512 + 2 * 512
    second = 3 * 512 * 1024 + 512
    third = 512 * (8 + 1 + 1) * 64 + 512 * 512 + 512
    model = read_model("searched", config)
    assert weights.total_parameters(model) == first + second + third + 2 * 1024 * 512 + 512
    caches = [[cache for cache in layer.caches if isinstance(cache, AttentionCache)] for layer in model.layers]
    assert [[cache.kv_heads for cache in kept] for kept in caches] == [[2], [], [1]]


def test_phi_3_small_reads_though_the_engine_dropped_it() -> None:
    """Phi-3-small is sized, a head tied to its embedding, and the refusal names the last version that served it."""
    config = {
        "architectures": ["Phi3SmallForCausalLM"],
        "model_type": "phi3small",
        "ff_intermediate_size": 14336,
        "hidden_size": 4096,
        "max_position_embeddings": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 100352,
    }
    attention = 4096 * (32 + 8 + 8) * 128 + (32 + 8 + 8) * 128 + 4096 * 4096 + 4096
    mlp = 4096 * 2 * 14336 + 2 * 14336 + 14336 * 4096 + 4096
    norms = 2 * 2 * 4096
    model = read_model("phi-3-small", config)
    assert weights.total_parameters(model) == 32 * (attention + mlp + norms) + 100352 * 4096 + 2 * 4096
    assert model.architecture_refusal is not None
    assert "v0.9.2" in model.architecture_refusal
