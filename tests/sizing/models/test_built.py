"""Small models of every family, against what vLLM 0.33 itself builds.

`tests/data/models/built.jsonl` has one model a line: its configuration; the context length, the type and the caches
(KV heads, head size, window or 0, layers) that vLLM derives; and the bytes of parameters and of buffers that tensor
rank 0 of each pipeline stage holds once vLLM has built its class, by layout ("tensor x pipeline x data", with an "e"
where experts are parallel too).
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from service.sizing import weights
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.model.shape import AttentionCache

MODELS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/models/built.jsonl").read_text().splitlines()
]


def layout(name: str) -> Layout:
    """A layout by its name in the data."""
    tensor, pipeline, data = (int(part) for part in name.rstrip("e").split("x"))
    return Layout(tensor, pipeline, data, name.endswith("e"))


@pytest.mark.parametrize("built", MODELS, ids=[model["name"] for model in MODELS])
def test_a_model_is_what_the_engine_builds(built: dict[str, Any]) -> None:
    """Parameters and buffers of every stage, caches, context length and type are vLLM's."""
    model = read_model("tiny", built["config"])
    stages = {name: weights.stage_weights(model, layout(name)) for name in built["built"]}
    caches = Counter(
        (cache.kv_heads, cache.head_size, cache.window or 0)
        for layer in model.layers
        for cache in layer.caches
        if isinstance(cache, AttentionCache)
    )
    assert {
        name: [[stage.parameter_bytes for stage in held], [stage.buffer_bytes for stage in held]]
        for name, held in stages.items()
    } == built["built"]
    assert sorted([*kind, layers] for kind, layers in caches.items()) == built["caches"]
    assert (model.default_context_tokens, model.dtype) == (built["context"], built["dtype"])
