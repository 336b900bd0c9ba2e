"""Promised times, rates, people and the curve over HTTP: every way of asking, and contradictions."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

QUESTION: dict[str, Any] = {
    "model": "Qwen/Qwen3-32B",
    "workload": {"context_tokens": 4096, "prompt_tokens": 1000, "output_tokens": 300},
    "hardware": {"gpus": ["h100-sxm"]},
}
FLAT = {
    "model": "Qwen/Qwen3-32B",
    "context_tokens": "4096",
    "prompt_tokens": "1000",
    "output_tokens": "300",
    "gpu": "h100-sxm",
}


def asked(load: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The question with a load."""
    return {**QUESTION, "workload": QUESTION["workload"] | load, **fields}


@pytest.mark.parametrize(
    ("load", "objectives", "flat"),
    [
        ({"requests_per_second": 2.5}, {"tpot_ms": 30}, {"requests_per_second": "2.5", "tpot_ms": "30"}),
        ({"concurrent_sequences": 9}, {"ttft_ms": 900}, {"concurrent_sequences": "9", "ttft_ms": "900"}),
        (
            {"people": {"people": 50, "think_seconds": 30, "share_active": 0.4}},
            {},
            {"people": "50", "think_seconds": "30", "share_active": "0.4"},
        ),
        (
            {"people": {"people": 50, "answer_seconds": 12, "peak_chance": 0.05}},
            {},
            {"people": "50", "answer_seconds": "12", "peak_chance": "0.05"},
        ),
    ],
)
def test_both_ways_of_asking_agree(
    client: TestClient[Litestar], load: dict[str, Any], objectives: dict[str, Any], flat: dict[str, str]
) -> None:
    """The query parameters are the leaves of the body."""
    posted = client.post("/plan", json=asked(load, objectives=objectives, curve_points=5))
    got = client.get("/plan", params={**FLAT, **flat, "curve_points": "5"})
    assert posted.status_code == got.status_code == 200
    assert posted.json() == got.json()
    plan = posted.json()["recommended"]
    assert len(plan["load_curve"]) == 5
    assert (plan["people"] is None) == ("people" not in load)


@pytest.mark.parametrize(
    ("load", "fields", "name"),
    [
        ({"people": {"people": 50}, "concurrent_sequences": 8}, {}, "workload.concurrent_sequences"),
        ({"people": {"people": 50}, "requests_per_second": 1}, {}, "workload.requests_per_second"),
        ({"people": {"people": 0}}, {}, "workload.people.people"),
        ({"people": {"share_active": 0.5}}, {}, "workload.people.people"),
        ({"people": {"people": 50, "share_active": 0}}, {}, "workload.people.share_active"),
        ({"people": {"people": 50, "idle": 1}}, {}, "workload.people.idle"),
        ({"requests_per_second": 0}, {}, "workload.requests_per_second"),
        ({}, {"objectives": {"tpot_ms": 0}}, "objectives.tpot_ms"),
        ({}, {"objectives": {"ttft_ms": -1}}, "objectives.ttft_ms"),
        ({}, {"curve_points": 65}, "curve_points"),
    ],
)
@pytest.mark.parametrize("path", ["/plan", "/compare"])
def test_contradictions_and_nonsense_name_their_field(
    client: TestClient[Litestar], path: str, load: dict[str, Any], fields: dict[str, Any], name: str
) -> None:
    """400, wherever the same request is taken."""
    response = client.post(path, json=asked(load, **fields))
    assert response.status_code == 400
    assert name in [error["field"] for error in response.json()["errors"]]


def test_a_comparison_keeps_the_promise_in_every_row(client: TestClient[Litestar]) -> None:
    """Each row is the plan of its GPU under the same promise, or says why not."""
    question = asked({"concurrent_sequences": 8}, objectives={"tpot_ms": 25})
    question["hardware"] = {"gpus": ["h100-sxm", "l4"]}
    quick, slow = client.post("/compare", json=question).json()["rows"]
    assert quick["plan"]["objectives"]["tpot"]["with_margin_ms"] <= 25
    assert slow["plan"] is None
    assert "tpot_missed" in {each["code"] for each in slow["rejected"]}


def test_flags_are_those_of_the_plan_that_keeps_the_promise(client: TestClient[Litestar]) -> None:
    """A tighter promise takes more GPUs, and the flags say so."""
    counts = [
        client.get("/flags", params={**FLAT, "concurrent_sequences": "16", "tpot_ms": promise}).json()["gpu_count"]
        for promise in ("60", "12")
    ]
    assert counts[0] < counts[1]


def test_a_traffic_is_carried_by_what_copies_keep_promises_at(client: TestClient[Litestar]) -> None:
    """Copies for 20 requests a second, each planned for seven tenths of the most that keeps the promise."""
    question = asked({"requests_per_second": 1}, objectives={"tpot_ms": 25}, traffic={"requests_per_second": 20})
    answer = client.post("/cost", json=question).json()
    carried = answer["plan"]["objectives"]["requests_per_second"]
    assert answer["fleet"]["replicas_peak"] == -int(-20 // (carried * 0.7))
    assert float(answer["fleet"]["replica_requests_per_second"]) == pytest.approx(carried * 0.7, abs=1e-3)


def test_predicted_times_state_their_measured_error(client: TestClient[Litestar]) -> None:
    """For a measured card and family the errors of docs/performance.md, for others theirs."""
    measured = client.post("/plan", json=QUESTION).json()["recommended"]["latency"]
    assert "median error 9 %" in measured["tpot_ms"]["source"]
    assert "median error 26 %" in measured["ttft_ms"]["source"]
    other = client.post("/plan", json=QUESTION | {"hardware": {"gpus": ["l40s"]}}).json()["recommended"]
    assert "median error 11.1 %" in other["latency"]["tpot_ms"]["source"]
    assert any("not validated" in note for note in other["latency"]["notes"])


def test_shipped_load_tests_correct_times_unless_switched_off(client: TestClient[Litestar]) -> None:
    """MiniMax M2.5 on H100 was measured; each load used is in the catalogue."""
    question = {
        "model": "MiniMaxAI/MiniMax-M2.5",
        "workload": {"context_tokens": 4096, "concurrent_sequences": 16},
        "hardware": {"gpus": ["h100-sxm"]},
    }
    used = client.post("/plan", json=question).json()["recommended"]["times_calibration"]
    assert used["used"] > 0
    assert all(client.get(f"/calibrations/{point['id']}").status_code == 200 for point in used["points"])
    plain = client.post("/plan", json=question | {"calibration": "off"}).json()["recommended"]
    assert plain["times_calibration"] is None
    assert plain["latency"]["tpot_ms"]["value"] == pytest.approx(used["prediction_without"]["tpot_ms"])
