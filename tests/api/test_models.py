"""Models given to the service: read, shown, and kept whole or not at all."""

import json
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from service.catalogue.records.model import canonical_json, config_sha256
from tests.api.writing import JSON, LLAMA, NAME, SMALL_CACHE, Writing


def test_a_model_is_kept_and_seen_by_the_next_request(service: Writing) -> None:
    """201 with where it is, and a new revision; Llama 3.1 8B has 8,030,261,248 parameters."""
    response = service.post(weights_bytes=16_060_522_496, revision="0e9e39f", source="our own run")
    assert response.status_code == 201
    assert response.headers["location"] == f"/models/{NAME}"
    answer = response.json()
    assert (answer["outcome"], answer["catalogue_revision"], answer["changes"]) == ("created", 1, [])
    assert answer["reading"]["parameters"] == 8_030_261_248
    assert answer["weights_check"]["verdict"] == "equal"
    shown = service.client.get(response.headers["location"])
    assert shown.status_code == 200
    assert shown.headers["x-catalogue-revision"] == "1"
    assert shown.json()["config"] == LLAMA
    assert shown.json()["summary"]["source"] == "our own run"
    (record,) = service.held().models
    assert (record.weights_bytes, record.revision, record.fidelity) == (16_060_522_496, "0e9e39f", "ingested")


def test_the_revision_names_the_key(service: Writing) -> None:
    """Who added what."""
    service.post()
    (revision,) = service.client.get("/catalogue/revisions").json()["items"]
    assert revision["author"].startswith("ana (")
    assert service.key not in revision["author"]
    assert revision["summary"] == f"Model {NAME}"


def test_the_same_model_again_changes_nothing(service: Writing) -> None:
    """200, whatever the case of its name, the order of its fields and where it comes from."""
    service.post(source="here", weights_bytes=16_060_522_496)
    backwards = dict(reversed(LLAMA.items()))
    for again in (service.post(), service.post(backwards, NAME.upper(), source="there", revision="0e9e39f")):
        assert again.status_code == 200
        answer = again.json()
        assert (answer["outcome"], answer["catalogue_revision"], answer["changes"]) == ("unchanged", 1, [])
        assert answer["name"] == NAME
        assert answer["weights_check"]["verdict"] == "equal"
    assert service.revision() == 1
    assert [model.source for model in service.held().models] == ["here"]


def test_other_files_replace_a_model_and_show_what_that_changes(service: Writing) -> None:
    """Four KV heads of 128 instead of eight: half the cache, and 2 x 4 x 128 x 4,096 weights fewer in each layer."""
    service.post(weights_bytes=16_060_522_496)
    answer = service.post(SMALL_CACHE, NAME.upper()).json()
    assert (answer["outcome"], answer["catalogue_revision"], answer["name"]) == ("changed", 2, NAME)
    changes = {change["figure"]: (change["before"], change["after"]) for change in answer["changes"]}
    assert changes["kv_bytes_per_token"] == (32 * 2 * 8 * 128 * 2, 32 * 2 * 4 * 128 * 2)
    assert changes["parameters"] == (8_030_261_248, 8_030_261_248 - 32 * 2 * 4 * 128 * 4096)
    assert changes["given_weights_bytes"] == (16_060_522_496, None)
    assert "8 KV heads" in changes["attention"][0]
    assert "4 KV heads" in changes["attention"][1]
    assert "max_context_tokens" not in changes
    assert service.client.get(f"/models/{NAME}").json()["config"] == SMALL_CACHE


def test_a_size_given_later_is_a_change(service: Writing) -> None:
    """Of the same configuration, whose size was not known."""
    service.post()
    answer = service.post(weights_bytes=16_060_522_496).json()
    assert answer["outcome"] == "changed"
    assert answer["changes"] == [{"figure": "given_weights_bytes", "before": None, "after": 16_060_522_496}]


@pytest.mark.parametrize(
    ("config", "status", "field"),
    [
        (LLAMA | {"hidden_size": "wide"}, 400, "config.hidden_size"),
        ({key: LLAMA[key] for key in LLAMA if key != "vocab_size"}, 400, "config.vocab_size"),
        (LLAMA | {"architectures": ["NoSuchForCausalLM"]}, 409, "architectures"),
        (LLAMA | {"kv_lora_rank": 512}, 409, "kv_lora_rank"),
        ({}, 400, "config.architectures"),
    ],
)
def test_what_cannot_be_read_is_refused_and_not_kept(
    service: Writing, config: dict[str, Any], status: int, field: str
) -> None:
    """Its field is named, and the catalogue stays as it was; inspecting says the same."""
    for response in (
        service.post(config),
        service.client.post("/models/inspect", json={"name": NAME, "config": config}),
    ):
        assert response.status_code == status, response.text
        assert field in {error["field"] for error in response.json()["errors"]}
    assert (service.revision(), service.held().models) == (0, ())


def test_inspecting_keeps_nothing(service: Writing) -> None:
    """And takes no key."""
    body = {"name": NAME, "config": LLAMA, "weights_bytes": 2 * 8_030_261_248 + 2 * 128_256 * 4096}
    response = service.client.post("/models/inspect", json=body)
    assert response.status_code == 200
    answer = response.json()
    assert answer["reading"]["kv_bytes_per_token"] == 131_072
    assert [each["tensor_parallel_size"] for each in answer["reading"]["weights_by_tensor_parallel_size"]] == [
        1,
        2,
        4,
        8,
    ]
    assert answer["weights_check"]["verdict"] == "unexplained"
    assert service.revision() == 0


def test_the_total_of_an_index_is_checked_as_the_size(service: Writing) -> None:
    """The file as it is published, whatever else is in it."""
    index = {"metadata": {"total_size": 16_060_522_496.0, "total_parameters": 1}, "weight_map": {"a": "b"}}
    body = {"name": NAME, "config": LLAMA, "weights_index": index}
    answer = service.client.post("/models/inspect", json=body).json()
    assert answer["weights_check"]["given_bytes"] == 16_060_522_496
    assert answer["weights_check"]["verdict"] == "equal"
    refused = service.client.post("/models/inspect", json=body | {"weights_bytes": 7})
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["field"] == "weights_bytes"


def test_numbers_that_json_lacks_are_kept(service: Writing) -> None:
    """Published files hold a bare `Infinity`; what is read back is the same to the byte."""
    config = LLAMA | {
        "time_step_limit": [0.0, float("inf")],
        "nothing": float("nan"),
        "$float": "1.5",
        "exact": [1.0, 1, -0.0, 1e16, 10**40, 1e-7],
        "name": "é😀",
    }
    body = json.dumps({"name": NAME, "config": config})
    for status in (201, 200):
        response = service.client.post("/models", content=body, headers=service.bearer() | JSON)
        assert response.status_code == status, response.text
    (record,) = service.held().models
    assert canonical_json(record.config) == canonical_json(config)
    assert record.sha256 == config_sha256(config)
    shown = json.loads(service.client.get(f"/models/{NAME}").content, parse_constant=pytest.fail)
    assert shown["config"]["time_step_limit"] == [0.0, "Infinity"]
    assert shown["config"]["nothing"] == "NaN"
    assert shown["config"]["exact"] == config["exact"]


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 1 << 39, "intermediate_size": 1 << 39, "num_attention_heads": 1, "num_key_value_heads": 1},
        {"num_hidden_layers": 10_000, "num_nextn_predict_layers": 10**18},
    ],
)
def test_a_monstrous_model_is_answered(service: Writing, change: dict[str, int]) -> None:
    """Sizes beyond any machine are numbers like others."""
    response = service.post(LLAMA | change, weights_bytes=1 << 60)
    assert response.status_code == 201, response.text
    assert service.client.get(f"/models/{NAME}").status_code == 200
    assert service.client.get("/models").json()["items"][0]["name"] == NAME


def test_lists_are_filtered(client: TestClient[Litestar]) -> None:
    """By part of a name or architecture, in any case, and by status."""
    names = [item["name"] for item in client.get("/models?q=MIXTRALforCausalLM").json()["items"]]
    assert {"mistralai/Mixtral-8x22B-v0.1", "mistralai/Mixtral-8x7B-v0.1"} <= set(names)
    assert all("mixtral" in name.casefold() for name in names)
    refused = client.get("/models?status=refused&limit=500").json()["items"]
    assert refused
    assert all(item["status"] == "refused" and item["refusal"] for item in refused)
    assert client.get("/models?q=mixtral&status=refused").json()["items"] == []
    assert client.get("/models?status=good").status_code == 400
