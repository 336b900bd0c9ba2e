"""What is refused names what would serve, and does serve when asked for: each alternative, with all that it changes."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from tests.api.following import ADVICE, Body, followed
from tests.api.test_topology import BRIDGED

LLAMA, QWEN, HYBRID = "meta-llama/Llama-3.1-70B-Instruct", "Qwen/Qwen3-32B", "Qwen/Qwen3-Next-80B-A3B-Instruct"
MIXTRAL, DEEPSEEK = "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3"


def question(model: str, gpu: str, *, tokens: int = 4096, sequences: int = 1, **fields: Any) -> Body:
    """A plan request for one card."""
    hardware = {"gpus": [gpu]} | fields.pop("hardware", {})
    load = {"context_tokens": tokens, "concurrent_sequences": sequences} | fields.pop("load", {})
    if load.keys() & {"people", "requests_per_second"}:
        load.pop("concurrent_sequences")
    return {"model": model, "workload": load, "hardware": hardware, **fields}


def ask(client: TestClient[Litestar], body: Body) -> dict[str, Any]:
    """The answer."""
    response = client.post("/plan", json=body)
    assert response.status_code == 200, response.text
    return response.json()


REFUSED = {
    "a card far too small by assumption": question(QWEN, "h100-sxm", assumptions={"gpu_memory_gib": 1}),
    "and settings beside it": question(
        QWEN,
        "h100-sxm",
        assumptions={"gpu_memory_gib": 1},
        engine={"gpu_memory_utilization": 0.05, "max_model_len": 4096},
    ),
    "longer than the model, on cards too few": question(LLAMA, "l40s", tokens=1_000_000, hardware={"gpu_counts": [1]}),
    "longer than the model, with a prompt and an answer": question(
        LLAMA, "h100-sxm", tokens=1_000_000, load={"prompt_tokens": 900_000, "output_tokens": 100_000}
    ),
    "a length beyond the model, on cards too few": question(QWEN, "h100-sxm", engine={"max_model_len": 400_000}),
    "a cache type without kernels, on cards too few": question(LLAMA, "h100-sxm", kv_cache_dtype="nvfp4"),
    "a cache type and a block size without kernels": question(
        QWEN, "a100-sxm4-80gb", kv_cache_dtype="fp8", engine={"block_size": 100}
    ),
    "the hybrid manager off, on cards too few": question(
        HYBRID, "h100-sxm", engine={"disable_hybrid_kv_cache_manager": True}
    ),
    "more sequences than state blocks": question(
        HYBRID,
        "h200-sxm",
        layout={"tensor_parallel_size": 2},
        engine={"kv_cache_memory_bytes": 1 << 32, "max_num_seqs": 1024},
    ),
    "a step smaller than its sequences": question(
        QWEN, "h100-sxm", engine={"max_num_seqs": 20_000, "max_num_batched_tokens": 64}
    ),
    "heads that do not divide, of a model too large for one card": question(
        LLAMA, "h100-sxm", layout={"tensor_parallel_size": 6}
    ),
    "experts that do not divide": question(
        MIXTRAL, "h100-sxm", layout={"tensor_parallel_size": 4, "data_parallel_size": 3}
    ),
    "ranks that cannot share the cache": question(
        QWEN, "h100-sxm", layout={"tensor_parallel_size": 4, "decode_context_parallel_size": 3}
    ),
    "experts where there are none": question(
        QWEN, "h100-sxm", layout={"tensor_parallel_size": 2, "expert_parallel": True}
    ),
    "copies that fit nowhere, where a split does": question(LLAMA, "h100-sxm", layout={"data_parallel_size": 4}),
    "a layout and a setting at once": question(
        LLAMA, "h100-sxm", layout={"tensor_parallel_size": 3}, kv_cache_dtype="nvfp4"
    ),
    "more conversations than the default at once": question(
        LLAMA, "h100-sxm", tokens=8192, sequences=5000, hardware={"gpu_counts": [1, 4]}
    ),
    "arrivals that the cache does not hold": question(
        LLAMA, "h100-sxm", tokens=65_536, load={"requests_per_second": 3}, layout={"tensor_parallel_size": 4}
    ),
    "arrivals too many for one deployment": question(
        LLAMA, "h100-sxm", load={"requests_per_second": 800}, objectives={"tpot_ms": 40}
    ),
    "people that the cache does not hold": question(
        LLAMA,
        "l40s",
        tokens=32_768,
        load={"people": {"people": 5000, "answer_seconds": 20}},
        hardware={"max_gpus": 8},
    ),
    "a promise that no count keeps, and a card too small": question(
        LLAMA, "h100-sxm", objectives={"tpot_ms": 1, "ttft_ms": 10}
    ),
    "everything at once": question(
        LLAMA,
        "l40s",
        tokens=1_000_000,
        load={"requests_per_second": 30},
        objectives={"tpot_ms": 5},
        engine={"max_num_batched_tokens": 10_000_000, "gpu_memory_utilization": 0.999},
        assumptions={"working_space_gib": 20},
        layout={"tensor_parallel_size": 3, "pipeline_parallel_size": 4},
    ),
    "a release that serves what the newest does not, and a length": question(
        "microsoft/Phi-3-vision-128k-instruct",
        "h100-sxm",
        tokens=1_000_000,
        layout={"tensor_parallel_size": 3},
        engine={"version": "0.20.0"},
    ),
    "a release older than the model's layers": question(HYBRID, "h100-sxm", engine={"version": "0.6.0"}),
    "a machine pasted that is too small": question(
        DEEPSEEK, "a100-pcie-80gb", hardware={"topology": BRIDGED, "gpu_counts": [4]}
    ),
    "more cards than the pasted machine has": question(
        QWEN, "a100-pcie-80gb", hardware={"topology": BRIDGED, "gpu_counts": [8]}
    ),
    "a checkpoint whose cache the card cannot store": question(
        "nvidia/Qwen3-235B-A22B-NVFP4", "a100-sxm4-80gb", tokens=1_000_000
    ),
    "a checkpoint whose cache the card cannot store, and all else": question(
        "nvidia/DeepSeek-V3.2-NVFP4",
        "h100-sxm",
        tokens=262_144,
        load={"requests_per_second": 30},
        hardware={"gpus_per_node": 4},
        layout={"tensor_parallel_size": 4, "pipeline_parallel_size": 3},
        engine={"version": "0.10.2"},
        assumptions={"gpu_memory_gib": 20},
    ),
    "more nodes than are looked at first": question(DEEPSEEK, "l4", hardware={"gpu_counts": [1]}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_fix_serves_when_it_is_taken(client: TestClient[Litestar], name: str) -> None:
    """All of it together, each alternative by itself."""
    body, taken = REFUSED[name], 0
    for refused in ask(client, body)["rejected"]:
        for way, request in followed(body, refused["gpu"], refused["gpu_count"], refused["fix"]):
            answer = ask(client, request)
            assert answer["recommended"], (refused["fix"], way, answer["rejected"])
            taken += 1
    assert taken


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (question("openai/gpt-oss-120b", "v100-sxm2-32gb"), "choose a GPU of compute capability 8.0 or newer"),
        (
            question(LLAMA, "v100-sxm2-32gb", precision="fp8"),
            "choose a GPU of compute capability 7.5 or newer, or choose another precision",
        ),
        (question("zai-org/GLM-5.3-FP8", "a100-sxm4-40gb", tokens=10_000_000), "no setting and no count up to"),
    ],
)
def test_where_nothing_serves_the_fix_says_so(client: TestClient[Litestar], body: Body, reason: str) -> None:
    """And names the hardware that would, instead of a setting that would not."""
    refused = ask(client, body)["rejected"]
    assert refused
    for each in refused:
        assert each["fix"].startswith(reason)
        assert any(advice in each["fix"] for advice in ADVICE)


def test_one_machine_was_pasted_and_no_more_are_planned(client: TestClient[Litestar]) -> None:
    """Four cards are pasted: a search stops at four, and eight are refused with the reason."""
    hardware = {"topology": BRIDGED, "max_gpus": 64}
    answer = ask(client, question(QWEN, "a100-pcie-80gb", sequences=64, hardware=hardware))
    plans = (answer["recommended"], *answer["alternatives"])
    assert {plan["nodes"] for plan in plans} == {1}
    assert max(plan["gpu_count"] for plan in plans) == 4
    more: tuple[dict[str, Any], ...] = ({"hardware": {"gpu_counts": [8]}}, {"layout": {"data_parallel_size": 8}})
    for asked in more:
        body = question(QWEN, "a100-pcie-80gb", **asked)
        body["hardware"]["topology"] = BRIDGED
        (refused,) = ask(client, body)["rejected"]
        assert refused["code"] == "more_gpus_than_pasted"
        assert "the pasted machine has 4" in refused["message"]


def test_the_largest_load_is_named_where_the_flags_need_not_be_raised_for_it(client: TestClient[Litestar]) -> None:
    """Room for 37 beside the working space of 5,000 sequences is room for more beside that of the default of 256."""
    body = question(LLAMA, "h100-sxm", tokens=8192, sequences=5000, hardware={"gpu_counts": [4]})
    (refused,) = ask(client, body)["rejected"]
    number = int(refused["fix"].removeprefix("ask for ").removesuffix(" conversations or fewer"))
    more = body | {"workload": {"context_tokens": 8192, "concurrent_sequences": number + 1}}
    assert ask(client, more)["recommended"] is None
