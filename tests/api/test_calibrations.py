"""Measured startups over HTTP: taken once, shown, and used in plans."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from service.catalogue.records.gpu import GpuRecord
from service.settings import Settings
from service.storage.catalogue import publish
from service.storage.engine import create_engine
from service.storage.seed import shipped
from tests.api.writing import LLAMA, NAME, Writing, writing

LOGS = Path(__file__).parents[1] / "data" / "logs"

# A startup as vLLM prints it; the figures are made up, not far from what is predicted.
LOG = """\
INFO 11-30 10:00:00 [arg_utils.py:10] non-default args: {'model': 'example/llama-8b', 'max_model_len': 8192}
INFO 11-30 10:00:01 [core.py:94] Initializing a V1 LLM engine (v0.19.0) with config: model='example/llama-8b', \
speculative_config=None, tokenizer='example/llama-8b', \
dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, \
quantization=None, enforce_eager=False, kv_cache_dtype=auto
INFO 11-30 10:00:30 [gpu_model_runner.py:4000] Model loading took 14.99 GiB memory and 20.1 seconds
INFO 11-30 10:00:40 [gpu_worker.py:400] Available KV cache memory: 54.00 GiB
INFO 11-30 10:00:41 [kv_cache_utils.py:1300] GPU KV cache size: 442,368 tokens
INFO 11-30 10:00:41 [kv_cache_utils.py:1305] Maximum concurrency for 8,192 tokens per request: 54.00x
"""
FIGURES: dict[str, Any] = {
    "engine_version": "0.19.0",
    "model": NAME,
    "gpu": "h100-sxm",
    "gpu_memory_utilization": 0.9,
    "max_model_len": 8192,
    "weights_gib": 14.99,
    "available_kv_gib": 54.0,
}
PLAN: dict[str, Any] = {
    "model": {"name": NAME, "config": LLAMA},
    "hardware": {"gpus": ["h100-sxm"]},
    "layout": {"tensor_parallel_size": 1},
    "engine": {"version": "0.19.0", "max_model_len": 8192},
}


@pytest.fixture
def carded(empty_settings: Settings) -> Iterator[Writing]:
    """A service that knows the shipped cards and nothing else."""
    engine = create_engine(empty_settings, pooled=False)
    with engine.begin() as connection:
        cards = [record for record in shipped() if isinstance(record, GpuRecord)]
        publish(connection, cards, author="test", summary="cards")
    engine.dispose()
    with writing(empty_settings) as service:
        yield service


def give(service: Writing, **changes: Any) -> httpx.Response:
    """A startup in figures, with some changed."""
    return service.client.post("/calibrations", json=FIGURES | changes, headers=service.bearer())


def paste(service: Writing, text: str, **given: Any) -> httpx.Response:
    """A log, with what it leaves out."""
    body = {"text": text} | given
    return service.client.post("/calibrations/startup-log", json=body, headers=service.bearer())


ASKED = count(4096)


def planned(service: Writing, **changes: Any) -> Any:
    """The plan of the measured deployment, for a question nobody asked before: answers are remembered by revision."""
    workload = {"context_tokens": next(ASKED), "concurrent_sequences": 1}
    return service.client.post("/plan", json=PLAN | {"workload": workload} | changes).json()["recommended"]


def test_a_pasted_log_replaces_the_prediction(carded: Writing) -> None:
    """Weights and room for the cache are then what the log printed; off, they are what was predicted."""
    before = planned(carded)
    assert before["calibration"] is None
    taken = paste(carded, LOG, gpu="h100-sxm")
    assert taken.status_code == 201, taken.text
    calibration = taken.json()["calibration"]
    assert (calibration["status"], calibration["weights_gib"], calibration["max_num_seqs"]) == ("accepted", 14.99, 1024)
    assert set(calibration["assumed"]) >= {"max_num_seqs", "max_num_batched_tokens", "gpu_total_gib"}
    after = planned(carded)
    assert after["calibration"]["id"] == calibration["id"]
    assert after["calibration"]["tier"] == "exact"
    assert after["memory"]["weights_bytes"] == round(14.99 * 2**30)
    assert after["memory"]["kv_cache_room_bytes"] == pytest.approx(54 * 2**30, abs=2**20)
    assert after["calibration"]["prediction_without"]["weights_bytes"] == before["memory"]["weights_bytes"]
    off = planned(carded, calibration="off")
    assert off["calibration"] is None
    assert off["memory"]["kv_cache_room_bytes"] == before["memory"]["kv_cache_room_bytes"]


def test_the_same_startup_is_kept_once(carded: Writing) -> None:
    """Whoever posts it again, even at the same moment, finds it there."""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: give(carded), range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.json()["calibration"]["id"] for answer in answers}) == 1
    assert len(carded.client.get("/calibrations").json()["items"]) == 1
    assert give(carded).json()["outcome"] == "unchanged"


def test_missing_conditions_are_asked_for_by_name(carded: Writing) -> None:
    """Each with a field of its own; given beside the text they are taken."""
    cut = "\n".join(line for line in LOG.splitlines() if "config:" not in line and "args" not in line)
    answer = paste(carded, cut, gpu="h100-sxm")
    assert answer.status_code == 400
    fields = {error["field"] for error in answer.json()["errors"]}
    assert fields >= {"model", "engine_version", "max_model_len", "tensor_parallel_size"}
    given = {
        "model": NAME,
        "engine_version": "0.19.0",
        "max_model_len": 8192,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
    }
    assert paste(carded, cut, gpu="h100-sxm", **given).status_code == 201


def test_a_log_that_names_no_card_asks_for_it(carded: Writing) -> None:
    """The card decides what is corrected."""
    answer = carded.client.post(
        "/calibrations/startup-log", content=LOG, headers=carded.bearer() | {"Content-Type": "text/plain"}
    )
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == ["gpu"]


@pytest.mark.parametrize("file", sorted(LOGS.glob("*.log")), ids=lambda file: file.stem)
def test_every_kept_log_is_taken_or_refused_by_name(carded: Writing, file: Path) -> None:
    """Never a failure of ours."""
    answer = paste(carded, file.read_text(), gpu="h100-sxm")
    assert answer.status_code in (200, 201, 400), answer.text


@pytest.mark.parametrize(
    "text", ["hello", "\x00\x00", "Model loading took nan GiB", "Model loading took 1e999 GiB memory", LOG[:200] * 50]
)
def test_hostile_text_is_refused(carded: Writing, text: str) -> None:
    """With a reason, and nothing is kept."""
    assert paste(carded, text, gpu="h100-sxm").status_code == 400
    assert carded.client.get("/calibrations").json()["items"] == []


def test_nul_and_broken_bytes_in_a_log_do_no_harm(carded: Writing) -> None:
    """They are replaced before the text is kept."""
    body = LOG.encode().replace(b"quantization=None", b"quantization=None, noise='\x00\xff'")
    kind = {"Content-Type": "text/plain"}
    answer = carded.client.post("/calibrations/startup-log", content=body, headers=carded.bearer() | kind)
    assert answer.status_code == 400
    assert paste(carded, body.decode("utf-8", "replace"), gpu="h100-sxm").status_code == 201


def test_impossible_figures_are_quarantined_and_correct_nothing(carded: Writing) -> None:
    """A cache larger than the card."""
    taken = give(carded, available_kv_gib=90).json()["calibration"]
    assert taken["status"] == "quarantined"
    assert "GiB" in taken["reason"]
    assert planned(carded)["calibration"] is None


def test_writing_takes_a_curator(carded: Writing) -> None:
    """401 without a key, 403 with one of a reader."""
    assert carded.client.post("/calibrations", json=FIGURES).status_code == 401
    reader = carded.bearer(carded.make_key("reader"))
    assert carded.client.post("/calibrations", json=FIGURES, headers=reader).status_code == 403


def test_lists_are_filtered_and_paged(client: TestClient[Litestar]) -> None:
    """By model, card and status; each entry is found under its id."""
    first = client.get("/calibrations", params={"limit": 1, "gpu": "h200-sxm", "status": "accepted"}).json()
    second = client.get("/calibrations", params={"limit": 1, "gpu": "h200-sxm", "after": first["next"]}).json()
    assert first["items"][0]["id"] < second["items"][0]["id"]
    assert first["items"][0]["gpu"] == "h200-sxm"
    assert client.get(f"/calibrations/{first['next']}").json() == first["items"][0]
    assert client.get("/calibrations/0000000000000000").status_code == 404
    assert client.get("/calibrations", params={"status": "fine"}).status_code == 400


def test_accuracy_is_better_than_common_rules(client: TestClient[Litestar]) -> None:
    """Over the shipped startups: closer than 2 GiB, none, or a fifth of the weights; nine in ten within the band."""
    found = client.get("/calibrations/accuracy").json()
    rules = found["rules"]
    assert found["startups"] > 20
    assert found["within_band_percent"] >= 90
    for rule in ("flat_2_gib", "no_working_space", "weights_x_1_2"):
        assert rules["predicted"]["median_percent"] < rules[rule]["median_percent"] / 5
    assert rules["calibrated"]["median_percent"] <= rules["predicted"]["median_percent"]
    assert {group["name"] for group in found["by_gpu"]} >= {"h200-sxm", "mi300x"}
    assert found["tokens"]["median_percent"] <= 0.5
    serving = found["serving"]
    assert serving["runs"] == sum(group["errors"]["tpot"]["points"] for group in serving["by_gpu"])
    assert serving["all"]["tpot"]["median_percent"] < serving["all"]["roofline_tpot"]["median_percent"]


@pytest.mark.parametrize(("version", "kind"), [("0.19.0", "vLLM 0.17 to 0.19"), ("0.20.2", "vLLM 0.20")])
def test_a_plan_says_the_error_that_accuracy_shows(client: TestClient[Litestar], version: str, kind: str) -> None:
    """Of its kind: dense or not, cards of its generation, releases that divide memory alike."""
    asked = {"model": "Qwen/Qwen3-0.6B", "hardware": {"gpus": ["h200-sxm"]}, "engine": {"version": version}}
    workload = {"context_tokens": next(ASKED), "concurrent_sequences": 1}
    found = client.post("/plan", json=asked | {"workload": workload, "calibration": "off"}).json()["recommended"]
    (said,) = [line for line in found["warnings"] if line.startswith("measured error")]
    groups = client.get("/calibrations/accuracy").json()["by_kind"]
    (group,) = [each for each in groups if each["name"] == f"dense models on Hopper 9.0 cards, {kind}"]
    error = group["predicted"]
    several = "startups" if error["startups"] > 1 else "startup"
    assert f"over {error['startups']} measured {several}" in said
    assert f"{error['median_percent']:.1f} % in the median and {error['p90_percent']:.1f} % in nine of ten" in said
    assert said in found["basis"]["memory.working_space_bytes"]["source"]


def test_a_plan_of_a_release_nobody_measured_says_so(client: TestClient[Litestar]) -> None:
    """The formulas follow vLLM's source there."""
    asked = {"model": "Qwen/Qwen3-0.6B", "hardware": {"gpus": ["h200-sxm"]}, "engine": {"version": "0.33.0"}}
    found = client.post("/plan", json=asked | {"workload": {"context_tokens": next(ASKED)}}).json()["recommended"]
    assert any(line.startswith("measured error: extrapolated, no measurement") for line in found["warnings"])
