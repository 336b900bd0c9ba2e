"""The restated planner against vLLM's own: block sizes, kernels, groups, blocks, tokens, concurrency, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.sizing.engine.refusal import Refusal
from service.sizing.kv_cache.planner import plan_cache
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from tests.sizing.cache_models import cache_from, laid_out, model

TABLE = json.loads((Path(__file__).parent.parent / "data" / "kv" / "planner.json").read_text())


def read(description: dict[str, Any]) -> ModelShape:
    """A model of the table: its caches, and which of them each layer has."""
    fields = dict(description)
    caches = [cache_from(entry) for entry in fields.pop("caches")]
    layers = [
        tuple(caches[number] for number in numbers) for numbers, count in fields.pop("layers") for _ in range(count)
    ]
    return model(*layers, **fields)


MODELS = {name: read(description) for name, description in TABLE["models"].items()}


def name(case: dict[str, Any]) -> str:
    """A case in a few words."""
    settings = {**case["layout"], **case["options"]}
    return " ".join([case["model"], case["gpu"], *(f"{key}={value}" for key, value in settings.items())])


@pytest.mark.parametrize("case", TABLE["cases"], ids=name)
def test_equals_what_vllm_plans(case: dict[str, Any]) -> None:
    """Every figure the planner prints, and its words where it refuses."""
    expected = case["expect"]
    layout = Layout(**case["layout"])
    cache = laid_out(MODELS[case["model"]], case["gpu"], layout, **case["options"])
    defaults, graphs = cache.defaults, cache.defaults.cuda_graph_sizes
    assert cache.block_size == expected["block_size"]
    assert sorted(cache.kernels) == expected["kernels"]
    reserved = cache.group_blocks_reserved(defaults.max_model_len)
    assert (
        sorted([group.layers, blocks] for group, blocks in zip(cache.groups, reserved, strict=True))
        == (expected["groups"])
    )
    assert [
        defaults.max_num_seqs,
        defaults.max_num_batched_tokens,
        defaults.in_flight_tokens,
        len(graphs),
        max(graphs),
    ] == expected["batch"]
    plan = plan_cache(cache, [expected["available_bytes"]] * layout.pipeline_parallel_size)
    if isinstance(plan, Refusal):
        assert plan.engine_error == expected.get("error")
        return
    assert (plan.num_blocks, plan.tokens, plan.max_concurrency) == (
        expected["num_blocks"],
        expected["tokens"],
        expected["max_concurrency"],
    )
