"""Whatever is sent: a problem that names the fault, or a right answer; never a fault of ours."""

import json
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

JSON = {"Content-Type": "application/json"}

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def post(client: TestClient[Litestar], content: bytes | str, headers: dict[str, str] = JSON) -> tuple[int, Any]:
    """Status and body of a plan request sent as it is."""
    response = client.post("/plan", content=content, headers=headers)
    assert response.headers["content-type"] in ("application/json", "application/problem+json")
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hardwear": {}}, "hardwear"),
        ({"workload": {"context_tokens": 4096, "sequences": 1}}, "workload.sequences"),
        ({"workload": {"context_tokens": 0}}, "workload.context_tokens"),
        ({"workload": {"context_tokens": -1}}, "workload.context_tokens"),
        ({"workload": {"context_tokens": "4096"}}, "workload.context_tokens"),
        ({"workload": {"context_tokens": True}}, "workload.context_tokens"),
        ({"workload": {"context_tokens": 4096.5}}, "workload.context_tokens"),
        ({"workload": {"context_tokens": 10**30}}, "workload.context_tokens"),
        ({"workload": {}}, "workload.context_tokens"),
        ({"workload": {"context_tokens": 4096, "prompt_tokens": 4000, "output_tokens": 97}}, "workload.prompt_tokens"),
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"model": ""}, "model"),
        ({"model": "a\x00b"}, "model"),
        ({"model": {"name": "x"}}, "model.config"),
        ({"model": {"name": "x", "config": {**LLAMA, "hidden_size": "wide"}}}, "model.config.hidden_size"),
        ({"model": {"name": "x", "config": {**LLAMA, "hidden_size": -4096}}}, "model.config.hidden_size"),
        ({"model": {"name": "x", "config": {**LLAMA, "num_hidden_layers": 10**9}}}, "model.config.num_hidden_layers"),
        ({"model": {"name": "x", "config": {**LLAMA, "num_hidden_layers": True}}}, "model.config.num_hidden_layers"),
        ({"model": {"name": "x", "config": {**LLAMA, "vocab_size": 10**40}}}, "model.config.vocab_size"),
        ({"hardware": {"gpus": []}}, "hardware.gpus"),
        ({"hardware": {"gpu_counts": [4], "max_gpus": 8}}, "hardware.max_gpus"),
        ({"hardware": {"gpu_counts": [0]}}, "hardware.gpu_counts"),
        ({"hardware": {"link": "rope"}}, "hardware.link"),
        ({"layout": {"tensor_parallel_size": 0}}, "layout.tensor_parallel_size"),
        ({"engine": {"gpu_memory_utilization": 1.5}}, "engine.gpu_memory_utilization"),
        ({"engine": {"max_model_len": -2}}, "engine.max_model_len"),
        ({"kv_cache_dtype": "fp7"}, "kv_cache_dtype"),
        ({"precision": "fp3"}, "precision"),
        ({"rank_by": "luck"}, "rank_by"),
    ],
)
def test_a_wrong_field_is_named(
    client: TestClient[Litestar], plan_request: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    """A wrong value is a 400 that names its field."""
    status, problem = post(client, json.dumps(plan_request | change))
    assert status == 400, problem
    assert any(error["field"].startswith(field) for error in problem["errors"]), problem


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_numbers_outside_json_are_refused_beside_the_configuration(client: TestClient[Litestar], number: str) -> None:
    """A non-finite number anywhere but in a configuration is a 400."""
    body = (
        '{"model": "Qwen/Qwen3-32B", "workload": {"context_tokens": 4096}, '
        f'"assumptions": {{"working_space_gib": {number}}}}}'
    )
    status, problem = post(client, body)
    assert status == 400
    assert problem["type"] in ("/problems/invalid_request", "/problems/malformed_request")


def test_an_infinity_in_a_configuration_is_accepted(client: TestClient[Litestar], plan_request: dict[str, Any]) -> None:
    """Published files hold a bare Infinity; it changes nothing in a Llama."""
    inline = {"name": "x", "config": {**LLAMA, "time_step_limit": [0.0, float("inf")]}}
    status, answer = post(client, json.dumps(plan_request | {"model": inline}))
    assert status == 200
    assert answer["recommended"]["gpu_count"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"model": "a", "workload": {"context_tokens": 40',
        b"null",
        b"[]",
        b'"plan"',
        b'{"model": "\\ud800", "workload": {"context_tokens": 1}}',
        b'{"model": "a\\u0000b", "workload": {"context_tokens": 1}}',
        b'{"model": "\xff\xfe", "workload": {"context_tokens": 1}}',
        b"[" * 100_000,
        b'{"model": {"name": "x", "config": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}}",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_no_request_is_a_problem(client: TestClient[Litestar], body: bytes) -> None:
    """Truncated, empty, deep or mis-encoded bodies are 400."""
    status, problem = post(client, body)
    assert status == 400, problem
    assert problem["detail"]


def test_a_body_of_ten_megabytes_is_too_large(client: TestClient[Litestar]) -> None:
    """A body beyond the limit is a 413."""
    status, problem = post(client, b'{"model": "' + b"a" * 10_000_000 + b'"}')
    assert status == 413
    assert problem["type"] == "/problems/too_large"


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_refused(client: TestClient[Litestar], plan_request: dict[str, Any], kind: str) -> None:
    """JSON sent as something else is a 415."""
    status, _ = post(client, json.dumps(plan_request), {"Content-Type": kind} if kind else {})
    assert status == 415


def test_an_unknown_gpu_is_answered_with_the_nearest(
    client: TestClient[Litestar], plan_request: dict[str, Any]
) -> None:
    """A slip in a slug is a 404 that names what is near."""
    status, problem = post(client, json.dumps(plan_request | {"hardware": {"gpus": ["h100sxm"]}}))
    assert status == 404
    assert "h100-sxm" in problem["nearest"]


def test_an_unknown_model_is_answered_with_the_nearest(
    client: TestClient[Litestar], plan_request: dict[str, Any]
) -> None:
    """A model without its owner is a 404 that names the whole."""
    status, problem = post(client, json.dumps(plan_request | {"model": "Llama-3.1-70B-Instruct"}))
    assert status == 404
    assert "meta-llama/Llama-3.1-70B-Instruct" in problem["nearest"]


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10_000},
        {"hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 10_000},
        {"vocab_size": 1 << 38},
        {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 1 << 30},
    ],
)
def test_a_monstrous_model_is_answered(
    client: TestClient[Litestar], plan_request: dict[str, Any], change: dict[str, int]
) -> None:
    """Ten thousand layers or 10^18 parameters are sized, and do not fit."""
    inline = {"name": "x", "config": {**LLAMA, **change}}
    status, answer = post(client, json.dumps(plan_request | {"model": inline}))
    assert status == 200, answer
    assert answer["recommended"] is None or answer["recommended"]["gpu_count"] >= 1


def test_an_infeasible_request_is_an_answer(client: TestClient[Litestar], plan_request: dict[str, Any]) -> None:
    """Nothing that fits is a 200 with the reason and the nearest fix."""
    hardware = {"gpus": ["l40s"], "max_gpus": 2}
    status, answer = post(client, json.dumps(plan_request | {"hardware": hardware}))
    assert status == 200
    assert answer["recommended"] is None
    assert {rejection["code"] for rejection in answer["rejected"]} == {"does_not_fit"}
    assert all("GPUs" in rejection["fix"] for rejection in answer["rejected"])


def test_every_gpu_at_once_is_answered(client: TestClient[Litestar]) -> None:
    """Without a GPU named, every GPU with rules is judged."""
    body = {"model": "Qwen/Qwen3-32B", "workload": {"context_tokens": 4096}}
    status, answer = post(client, json.dumps(body))
    assert status == 200
    assert answer["recommended"] is not None


def test_the_same_question_gets_the_same_bytes(client: TestClient[Litestar], plan_request: dict[str, Any]) -> None:
    """An answer is a function of the question and the catalogue."""
    first, second = (client.post("/plan", json=plan_request) for _ in range(2))
    assert first.content == second.content
    assert first.headers["etag"] == second.headers["etag"]


def test_a_query_asks_what_a_body_asks(client: TestClient[Litestar], plan_request: dict[str, Any]) -> None:
    """`GET /plan` gives the answer of `POST /plan`."""
    query = "/plan?model=meta-llama/Llama-3.1-70B-Instruct&gpu=h100-sxm&context_tokens=4096&concurrent_sequences=1"
    assert client.get(query).json() == client.post("/plan", json=plan_request).json()


def test_a_known_answer_is_not_sent_again(client: TestClient[Litestar]) -> None:
    """`If-None-Match` with the ETag of an answer is a 304 without a body."""
    for path in ("/plan?model=Qwen/Qwen3-32B&gpu=h100-sxm&context_tokens=4096", "/gpus", "/gpus/l4", "/models"):
        first = client.get(path)
        assert first.status_code == 200
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/plan?model=x&context_tokens=1&colour=red", "/gpus?colour=red", "/models/x?a=1"])
def test_an_unknown_parameter_is_named(client: TestClient[Litestar], path: str) -> None:
    """Query parameters that mean nothing are refused, not ignored."""
    response = client.get(path)
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] in ("colour", "a")


def test_a_model_is_found_with_its_slash_written_either_way(client: TestClient[Litestar]) -> None:
    """Raw and as %2F."""
    raw, quoted = client.get("/models/Qwen/Qwen3-32B"), client.get("/models/Qwen%2FQwen3-32B")
    assert raw.status_code == quoted.status_code == 200
    assert raw.json() == quoted.json()


def test_methods_that_are_not_there_name_those_that_are(client: TestClient[Litestar]) -> None:
    """405 and OPTIONS carry the same methods in Allow."""
    refused, options = client.delete("/plan"), client.options("/plan")
    assert refused.status_code == 405
    assert refused.json()["type"] == "/problems/method_not_allowed"
    assert refused.headers["allow"] == options.headers["allow"] == "GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize(
    "path",
    [
        "/plan?model=Qwen/Qwen3-32B&gpu=h100-sxm&context_tokens=4096",
        "/gpus/h100-sxm",
        "/models/Qwen/Qwen3-32B",
        "/openapi.json",
        "/docs",
        "/gpus/h100-smx",
        "/plan?model=Qwen/Qwen3-32B&context_tokens=0",
        "/nowhere",
    ],
)
def test_head_is_get_without_the_body(client: TestClient[Litestar], path: str) -> None:
    """RFC 9110, 9.3.2: the same status and headers, those of problems too, and nothing after them."""
    whole, head = client.get(path), client.head(path)
    assert head.content == b""
    assert (head.status_code, head.headers) == (whole.status_code, whole.headers)
    assert int(head.headers["content-length"]) == len(whole.content) > 0


def test_head_is_answered_304_and_405_as_get_is(client: TestClient[Litestar]) -> None:
    """A validator works; where there is no GET there is no HEAD."""
    etag = client.head("/gpus/h100-sxm").headers["etag"]
    assert client.head("/gpus/h100-sxm", headers={"If-None-Match": etag}).status_code == 304
    refused = client.head("/compare")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "OPTIONS, POST", b"")


@pytest.mark.parametrize("length", [0, -2, -4096, 100_000_001])
def test_a_longest_context_is_positive_or_left_to_the_engine(
    client: TestClient[Litestar], plan_request: dict[str, Any], length: int
) -> None:
    """vLLM 0.33 wants `max_model_len` at least -1 (the field) and, unless it is -1, at least 1 (its own check)."""
    response = client.post("/plan", json={**plan_request, "engine": {"max_model_len": length}})
    assert response.status_code == 400
    (error,) = response.json()["errors"]
    assert error["field"] == "engine.max_model_len"
    assert error["message"].startswith("must be from 1 to 100000000, or -1 ")
    query = f"/flags?model=Qwen/Qwen3-32B&gpu=h100-sxm&context_tokens=4096&max_model_len={length}"
    assert client.get(query).json()["errors"][0]["field"] == "engine.max_model_len"


def test_lists_come_in_pages(client: TestClient[Litestar]) -> None:
    """Following `next` visits every GPU once, in order."""
    seen, after = list[str](), ""
    while True:
        page = client.get(f"/gpus?limit=7{after}").json()
        seen += [item["slug"] for item in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == sorted(set(seen))
    assert len(seen) == len(client.get("/gpus?limit=500").json()["items"])
