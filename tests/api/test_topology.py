"""Topology pastes over HTTP, and plans on the machine they show."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

BRIDGED = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\n"
    "GPU0\t X \tPXB\tNV4\tPXB\n"
    "GPU1\tPXB\t X \tPXB\tNV4\n"
    "GPU2\tNV4\tPXB\t X \tPXB\n"
    "GPU3\tPXB\tNV4\tPXB\t X \n"
)
"""Four cards of which 0 and 2, and 1 and 3, are bridged."""


def test_a_paste_is_read_as_json_and_as_text(client: TestClient[Litestar]) -> None:
    """Both ways of sending give the same reading: two bridged pairs."""
    as_json = client.post("/topology", json={"text": BRIDGED})
    as_text = client.post("/topology", content=BRIDGED, headers={"Content-Type": "text/plain"})
    assert as_json.status_code == as_text.status_code == 200
    assert as_json.json() == as_text.json()
    assert [group["gpus"] for group in as_json.json()["groups"]] == [[0, 2], [1, 3]]
    assert as_json.json()["tensor_parallel_sizes"] == [1, 2]


def test_what_is_no_topology_is_refused(client: TestClient[Litestar]) -> None:
    """Prose is a 400 that names the field."""
    response = client.post("/topology", json={"text": "there are eight GPUs, I think"})
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == "text"


def test_a_plan_puts_bridged_cards_together(client: TestClient[Litestar], plan_request: dict[str, Any]) -> None:
    """Tensor parallel 2 on the pasted machine makes cards 0 and 2 visible."""
    hardware = {"gpus": ["a100-pcie-80gb"], "topology": BRIDGED}
    layout = {"tensor_parallel_size": 2}
    body = plan_request | {"model": "Qwen/Qwen3-14B", "hardware": hardware, "layout": layout}
    plan = client.post("/plan", json=body).json()["recommended"]
    assert plan["engine"]["env"]["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert plan["communication"]["link"] == "nvlink"


def test_the_search_splits_tensors_inside_bridged_pairs_only(
    client: TestClient[Litestar], plan_request: dict[str, Any]
) -> None:
    """Four cards in two bridged pairs: tensor parallel at most 2.

    Two copies of 66 GiB of weights on a GPU leave no room for 8 conversations of 8,192 tokens each, 10 GiB on a GPU;
    two stages of 33 GiB do.
    """
    body = plan_request | {
        "workload": {"context_tokens": 8192, "concurrent_sequences": 16},
        "hardware": {"gpus": ["a100-pcie-80gb"], "topology": BRIDGED, "gpu_counts": [4]},
    }
    plan = client.post("/plan", json=body).json()["recommended"]
    assert plan["layout"]["tensor_parallel_size"] == 2
    assert plan["layout"]["pipeline_parallel_size"] == 2


@pytest.mark.parametrize("other", [{"link": "pcie"}, {"gpus_per_node": 8}])
def test_a_paste_and_a_claim_contradict(
    client: TestClient[Litestar], plan_request: dict[str, Any], other: dict[str, Any]
) -> None:
    """A topology beside link or gpus_per_node is a 400."""
    hardware = {"gpus": ["a100-pcie-80gb"], "topology": BRIDGED, **other}
    response = client.post("/plan", json=plan_request | {"hardware": hardware})
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == f"hardware.{next(iter(other))}"
