"""Parameters of published models with windows, towers or an encoder.

`tests/data/models/published_multimodal.jsonl` has one model a line: its name on the Hugging Face Hub, those fields of
its published `config.json` that decide its size, and its parameters, counted either in transformers 5.24's class, built
on the meta device, or in the published checkpoint, as the Hub shows it ("counted": "class" or "checkpoint").
"""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from service.sizing import weights
from service.sizing.engine.validity import shapes
from service.sizing.engine.validity.setting import Setting
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model

MODELS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data/models/published_multimodal.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("published", MODELS, ids=[model["model"] for model in MODELS])
def test_parameters_are_those_published(published: dict[str, Any]) -> None:
    """Not one parameter more or fewer."""
    assert weights.total_parameters(read_model(published["model"], published["config"])) == published["parameters"]


def shared_caches(pipeline: int) -> Setting:
    """Gemma 4 of eight layers, the last four of which reuse caches, in some pipeline stages."""
    text = {
        "model_type": "gemma4_text",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "num_kv_shared_layers": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2,
    }
    model = read_model("shared", {"architectures": ["Gemma4ForCausalLM"], **text})
    layout = Layout(1, pipeline, 1, False)
    return Setting(model, layout, cast("Any", None), cast("Any", None), (0, 33, 0))


def test_a_shared_cache_must_be_on_the_stage_of_its_layer() -> None:
    """vLLM 0.33 looks the target layer up among those of the stage (`layers/attention/attention.py`)."""
    assert shapes.shared_caches_on_one_stage(shared_caches(1)) is None
    refusal = shapes.shared_caches_on_one_stage(shared_caches(2))
    assert refusal is not None
    assert (
        "Specified KV sharing target layer for model.layers.4.self_attn.attn is not valid: target layer "
        "model.layers.2.self_attn.attn is not a valid Attention layer in the model."
    ) in str(refusal)
