"""Small models with windows, chunks, shared caches, towers or an encoder, against what vLLM 0.33 itself builds.

`tests/data/models/windows_and_towers.jsonl` has one model a line: its configuration; a layout ("tensor x pipeline x
data", with an "e" where experts are parallel too); the context length, the type and whether images attend both ways;
and what tensor rank 0 of each pipeline stage holds on an H100: bytes of parameters, bytes of buffers, and the caches
that vLLM registers (kind, KV heads on the rank, head size, size of a value, window or chunk or 0, layers).
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from service.sizing import weights
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.model.shape import AttentionCache, Cache, CrossCache, LatentCache

MODELS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data/models/windows_and_towers.jsonl").read_text().splitlines()
]


def described(cache: Cache, tensor: int) -> tuple[str, int, int, int, int]:
    """Kind, KV heads on a rank, head size, size of a value, and window or chunk."""
    match cache:
        case AttentionCache(window=window, chunk=chunk):
            kind = "window" if window else "chunk" if chunk else "full"
            return kind, max(1, cache.kv_heads // tensor), cache.head_size, cache.value_head_size, window or chunk or 0
        case CrossCache():
            return "cross", max(1, cache.kv_heads // tensor), cache.head_size, cache.head_size, 0
        case LatentCache():
            return "latent", 1, cache.latent_size + cache.rope_size, 0, 0
        case _:
            raise AssertionError(cache)


@pytest.mark.parametrize("built", MODELS, ids=[model["name"] for model in MODELS])
def test_a_model_is_what_the_engine_builds(built: dict[str, Any]) -> None:
    """Parameters, buffers and caches of every stage, context length, type and image attention are vLLM's."""
    model = read_model("tiny", built["config"])
    tensor, pipeline, data = (int(part) for part in built["layout"].rstrip("e").split("x"))
    layout = Layout(tensor, pipeline, data, built["layout"].endswith("e"))
    stages = weights.stage_weights(model, layout, True)
    assert [stage.parameter_bytes for stage in stages] == built["parameters"]
    assert [stage.buffer_bytes for stage in stages] == built["buffers"]
    caches = [
        Counter(described(cache, tensor) for layer in model.layers[start:end] for cache in layer.caches)
        for start, end in weights.stage_bounds(len(model.layers), pipeline)
    ]
    assert [sorted([*kind, layers] for kind, layers in held.items()) for held in caches] == built["caches"]
    assert model.default_context_tokens == built["context"]
    assert model.dtype == built["dtype"]
    assert model.image_prefix == built["image_prefix"]
