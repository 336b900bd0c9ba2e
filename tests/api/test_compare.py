"""One workload over models, precisions, GPUs and counts."""

import gc
import json
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from service.api.compare import cases_of
from service.api.contract import CompareRequest
from service.api.plans import question_about, shape_of
from service.api.responding import ENCODER
from service.app import WARMING
from service.catalogue.snapshot import Snapshot
from service.sizing.compare import Cell, Row, Standings, cells
from service.sizing.question import Machine

WORKLOAD = {"context_tokens": 8192, "concurrent_sequences": 11}


def ask(client: TestClient[Litestar], **fields: Any) -> dict[str, Any]:
    """A comparison that is answered."""
    response = client.post("/compare", json={"workload": WORKLOAD, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_seventy_billion_model_in_fp8_takes_two_cards_of_80_gib_and_one_of_141(client: TestClient[Litestar]) -> None:
    """70.6 GB of weights leave no room for a cache on one 80 GB card, and much on an H200 or B200."""
    answer = ask(
        client,
        model="meta-llama/Llama-3.1-70B-Instruct",
        precision="fp8",
        hardware={"gpus": ["h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm4-80gb"]},
    )
    counts = {row["gpu"]: row["plan"]["gpu_count"] for row in answer["rows"]}
    assert counts == {"h100-sxm": 2, "h200-sxm": 1, "b200-sxm": 1, "a100-sxm4-80gb": 2}
    assert answer["rows"][0]["rejected"][0]["gpu_count"] == 1
    assert answer["best"]["fewest_gpus"]["gpu"] == "b200-sxm"


def test_a_row_is_what_plan_recommends(client: TestClient[Litestar]) -> None:
    """The same question gives the same deployment, whichever way it is asked."""
    question = {"model": "Qwen/Qwen3-32B", "hardware": {"gpus": ["l40s"]}, "rank_by": "latency"}
    row = ask(client, **question)["rows"][0]
    whole = client.post("/plan", json={"workload": WORKLOAD, **question}).json()
    assert row["plan"] == whole["recommended"]
    assert row["rejected"] == whole["rejected"]


def test_there_is_a_row_for_each_model_precision_gpu_and_count(client: TestClient[Litestar]) -> None:
    """In the order of the request."""
    rows = ask(
        client,
        models=["Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B-Instruct"],
        precisions=["fp8", "int4"],
        hardware={"gpus": ["h100-sxm", "l40s"], "gpu_counts": [2, 4]},
    )["rows"]
    found = [(row["model"].rpartition("/")[2], row["precision"], row["gpu"], row["gpu_count"]) for row in rows]
    assert found == [
        (model, precision, gpu, count)
        for model in ("Qwen3-32B", "Llama-3.1-70B-Instruct")
        for precision in ("fp8", "int4")
        for gpu in ("h100-sxm", "l40s")
        for count in (2, 4)
    ]
    assert all((row["plan"] is None) == bool(row["rejected"]) for row in rows)


def test_a_model_that_cannot_be_read_is_a_refused_row(client: TestClient[Litestar]) -> None:
    """The other models are still answered."""
    strange = {"name": "my/own", "config": {"architectures": ["NobodyKnowsForCausalLM"], "model_type": "nobody"}}
    faulty = {
        "name": "my/faulty",
        "config": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": "x"},
    }
    rows = ask(client, models=[strange, "Qwen/Qwen3-32B", faulty], hardware={"gpus": ["h200-sxm"]})["rows"]
    assert [row["rejected"][0]["code"] if row["rejected"] else None for row in rows] == [
        "not_understood",
        None,
        "invalid_config",
    ]
    assert "nobody" in rows[0]["rejected"][0]["message"].lower()


def test_every_gpu_of_the_catalogue_has_a_row(client: TestClient[Litestar]) -> None:
    """Without `hardware`, those with rules are compared, and each has a plan or a reason."""
    answer = ask(client, model="Qwen/Qwen3-32B")
    gpus = [row["gpu"] for row in answer["rows"]]
    assert len(gpus) == len(set(gpus)) > 40
    assert all(row["plan"] or row["rejected"] for row in answer["rows"])
    timed = [row for row in answer["rows"] if row["plan"] and row["plan"]["latency"]["tpot_ms"]]
    times = {row["gpu"]: row["plan"]["latency"]["tpot_ms"]["value"] for row in timed}
    assert answer["best"]["latency"]["gpu"] == min(times, key=lambda gpu: times[gpu])


def test_a_sweep_streams_one_row_a_line(client: TestClient[Litestar]) -> None:
    """The lines are the rows of the JSON answer, and the last one what is best among them."""
    body = {
        "models": ["Qwen/Qwen3-32B"],
        "workload": WORKLOAD,
        "hardware": {"gpus": ["h100-sxm", "l40s"], "gpu_counts": [1, 2]},
    }
    streamed = client.post("/compare", json=body, headers={"Accept": "application/x-ndjson"})
    assert streamed.headers["content-type"].startswith("application/x-ndjson")
    assert streamed.headers["x-catalogue-revision"]
    *lines, last = [json.loads(line) for line in streamed.text.splitlines()]
    whole = client.post("/compare", json=body).json()
    assert lines == whole.pop("rows")
    assert last == {"summary": {**whole, "rows": len(lines)}}


def test_a_stream_is_packed_for_whoever_takes_it(client: TestClient[Litestar]) -> None:
    """And only then; the lines are the same."""
    body = {"models": ["Qwen/Qwen3-32B"], "workload": WORKLOAD, "hardware": {"gpus": ["h100-sxm"]}}
    plain, packed = (
        client.post("/compare", json=body, headers={"Accept": "application/x-ndjson", "Accept-Encoding": encoding})
        for encoding in ("identity", "gzip")
    )
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert packed.text == plain.text


def test_a_row_that_fails_is_refused_and_the_others_follow(
    client: TestClient[Litestar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours in the middle of a stream, which has no status any more."""
    whole = Cell.row

    def row(cell: Cell) -> Row:
        if cell.machine.gpu.slug == "l40s":
            raise ZeroDivisionError
        return whole(cell)

    monkeypatch.setattr(Cell, "row", row)
    body = {"models": ["Qwen/Qwen3-32B"], "workload": WORKLOAD, "hardware": {"gpus": ["h100-sxm", "l40s", "h200-sxm"]}}
    streamed = client.post("/compare", json=body, headers={"Accept": "application/x-ndjson"})
    assert streamed.status_code == 200
    first, failed, third, last = [json.loads(line) for line in streamed.text.splitlines()]
    assert (failed["plan"], failed["rejected"][0]["code"]) == (None, "internal_error")
    assert first["plan"]
    assert third["plan"]
    assert last["summary"]["rows"] == 3
    assert {last["summary"]["best"]["fewest_gpus"]["row"]} <= {0, 2}


def test_a_sweep_keeps_nothing_of_the_rows_but_what_ranks_them(client: TestClient[Litestar]) -> None:
    """What is held grows by the standing of a row, far less than the row itself."""
    snapshot: Snapshot = client.app.state.snapshot
    for thread in threading.enumerate():
        if thread.name == WARMING:
            # What it reads in the meantime would be taken for rows that were kept.
            thread.join()
    asked = CompareRequest.model_validate({"models": ["Qwen/Qwen3-32B"], "workload": WORKLOAD})
    case, *_ = cases_of(asked)
    gpu = snapshot.gpu("h100-sxm").gpu()
    machines = (Machine(gpu, gpu.link, gpu.gpus_per_node, gpu.gpus_per_domain),)
    question = question_about(shape_of(case, snapshot), case, machines, snapshot)
    standings, sent, before = Standings(), 0, 0
    for cell in cells(replace(question) for _ in range(250)):
        row = cell.row()
        standings.add(row)
        sent += len(ENCODER.encode(row))
        if standings.rows == 100:
            gc.collect()
            tracemalloc.start()
            before, sent = tracemalloc.get_traced_memory()[0], 0
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert standings.rows == 250
    assert 0 < grown < sent / 4


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "model"),
        ({"model": "Qwen/Qwen3-32B", "models": ["Qwen/Qwen3-32B"]}, "models"),
        ({"model": "Qwen/Qwen3-32B", "precision": "fp8", "precisions": ["fp8"]}, "precisions"),
        ({"models": []}, "models"),
        ({"models": [{"name": "a"}]}, "models.0.config"),
        ({"model": "Qwen/Qwen3-32B", "hardware": {"gpu_counts": list(range(1, 65))}}, "hardware"),
    ],
)
def test_contradictions_name_their_field(client: TestClient[Litestar], fields: dict[str, Any], field: str) -> None:
    """No model, one beside a list, an empty list, half a model, more rows than one answer holds."""
    response = client.post("/compare", json={"workload": WORKLOAD, **fields})
    assert response.status_code == 400
    assert [error["field"] for error in response.json()["errors"]] == [field]


def test_an_unknown_model_is_not_found(client: TestClient[Litestar]) -> None:
    """For a stream too, before the first row."""
    body = {"models": ["Qwen/Qwen3-32B", "Qwen/Qwen3-32X"], "workload": WORKLOAD}
    for accept in ("application/json", "application/x-ndjson"):
        response = client.post("/compare", json=body, headers={"Accept": accept})
        assert response.status_code == 404
        assert "Qwen/Qwen3-32B" in response.json()["nearest"]
