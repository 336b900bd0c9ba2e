"""Load and link tests over HTTP: taken once and whole, doubted, listed, withdrawn."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from service.api.contract import PlanRequest
from service.api.plans import question_of
from service.api.responding import ENCODER
from service.catalogue.records.gpu import GpuRecord
from service.catalogue.servings import copies_of
from service.settings import Settings
from service.sizing import plan
from service.storage import calibrations
from service.storage.catalogue import load_snapshot, publish
from service.storage.engine import create_engine
from service.storage.seed import shipped
from tests.api.writing import NAME, Writing, writing
from tests.catalogue.test_benchmark_tools import (
    AIPERF,
    GENAI_PERF,
    GUIDELLM_0_8,
    OWN,
    PLANNER_ROW,
    REPORT_0_1,
    REPORT_0_2_1,
)

# Published by gpustack (docs/performance-lab/gpt-oss-20b/h100.md): vLLM 0.11.0, gpt-oss 20B on one H100, ShareGPT, 1000
# requests at once; 9064.40 / 46.74 = 193.9 tokens an answer, (19128.79 - 9064.40) / 46.74 = 215.3 a prompt.
BURST: dict[str, Any] = {
    "date": "20251110-101010",
    "backend": "openai",
    "model_id": "openai/gpt-oss-20b",
    "num_prompts": 1000,
    "request_rate": "inf",
    "max_concurrency": None,
    "duration": 21.395,
    "completed": 1000,
    "failed": 0,
    "total_input_tokens": 215327,
    "total_output_tokens": 193933,
    "request_throughput": 46.74,
    "output_throughput": 9064.40,
    "total_token_throughput": 19128.79,
    "mean_ttft_ms": 4933.91,
    "median_ttft_ms": 4761.74,
    "p99_ttft_ms": 8029.82,
    "mean_tpot_ms": 86.81,
    "median_tpot_ms": 52.23,
    "p99_tpot_ms": 222.47,
}
DEPLOYED: dict[str, Any] = {"engine": "vllm", "engine_version": "0.11.0", "gpu": "h100-sxm", "tensor_parallel_size": 1}

# Published in vllm-project/vllm#33743: gemma 3 27B, 16 requests at once of 1024 and up to 350 tokens.
TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     16
Failed requests:                         0
Maximum request concurrency:             16
Benchmark duration (s):                  20.79
Total input tokens:                      16304
Total generated tokens:                  5578
Request throughput (req/s):              0.77
Output token throughput (tok/s):         268.31
Peak output token throughput (tok/s):    336.00
Total token throughput (tok/s):          1052.55
---------------Time to First Token----------------
Mean TTFT (ms):                          2633.55
Median TTFT (ms):                        2648.65
P99 TTFT (ms):                           4610.48
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          51.78
Median TPOT (ms):                        51.75
P99 TPOT (ms):                           57.57
---------------Inter-token Latency----------------
Mean ITL (ms):                           51.78
Median ITL (ms):                         46.55
P99 ITL (ms):                            258.31
==================================================
"""
GEMMA = DEPLOYED | {"model": "google/gemma-3-27b-it", "gpu": "a100-sxm4-80gb", "engine_version": "0.15.0"}

# A published run of nccl-tests on 8 x H100 (419.49 GB/s at 256 MiB).
DEVICES = "".join(
    f"#  Rank  {rank} Group  0 Pid 1623{rank:03} on    node-a device  {rank} [0x{rank}b] NVIDIA H100 80GB HBM3\n"
    for rank in range(8)
)
NCCL_TABLE = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   268435456      67108864     float     sum      -1   1119.8  239.71  419.49      0   1117.4  240.24  420.42      0
   536870912     134217728     float     sum      -1   2157.5  248.83  435.46      0   2154.8  249.16  436.02      0
"""
NCCL = f"$ ./build/all_reduce_perf -b 256M -e 512M -f 2 -g 8\n#\n# Using devices\n{DEVICES}#\n{NCCL_TABLE}"


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


def report(service: Writing, text: str, **given: Any) -> httpx.Response:
    """A report, with what it leaves out."""
    return service.client.post("/calibrations/benchmark", json={"text": text} | given, headers=service.bearer())


def run(**changes: Any) -> str:
    """A result of `vllm bench serve`, with some figures changed."""
    return json.dumps(BURST | changes)


def set_status(service: Writing, id_: str, **said: Any) -> httpx.Response:
    """What a measurement may be used for."""
    return service.client.post(f"/calibrations/{id_}/status", json=said, headers=service.bearer())


def listed(service: Writing, **query: Any) -> list[Any]:
    """Measurements that the service lists."""
    return service.client.get("/calibrations", params=query).json()["items"]


def fields(answer: httpx.Response) -> set[str]:
    """What a refusal names."""
    assert answer.status_code == 400, answer.text
    return {error["field"] for error in answer.json()["errors"]}


def test_a_result_of_vllm_is_taken(carded: Writing) -> None:
    """Every figure is kept, and found again."""
    taken = report(carded, run(), **DEPLOYED, precision="mxfp4", measured_on="2025-11-10")
    assert taken.status_code == 201, taken.text
    (item,) = taken.json()["items"]
    found = item["calibration"]
    assert taken.headers["location"] == f"/calibrations/{found['id']}"
    assert (found["kind"], found["status"], found["reason"]) == ("serving", "accepted", "")
    assert (found["model"], found["gpu"], found["gpu_count"]) == ("openai/gpt-oss-20b", "h100-sxm", 1)
    assert (found["input_tokens_mean"], found["output_tokens_mean"]) == (215.327, 193.933)
    assert (found["ttft"]["median_ms"], found["tpot"]["p99_ms"]) == (4761.74, 222.47)
    assert (found["concurrency"], found["request_rate"], found["measured_on"]) == (None, None, "2025-11-10")
    assert carded.client.get(f"/calibrations/{found['id']}").json() == found
    assert listed(carded, kind="serving", model="OpenAI/GPT-oss-20b") == [found]
    assert carded.held().servings[0].measurement.figures.request_rate == float("inf")


def test_a_console_table_is_taken(carded: Writing) -> None:
    """It says neither model nor deployment: they are asked for, given, and corrected from then on."""
    assert fields(report(carded, TABLE)) == {"gpu", "model", "engine_version", "tensor_parallel_size"}
    taken = report(carded, TABLE, **GEMMA)
    assert taken.status_code == 201, taken.text
    assert taken.json()["items"][0]["calibration"]["concurrency"] == 16
    (point,) = carded.held().serving_points("google/gemma-3-27b-it")["a100-sxm4-80gb"]
    assert (point.point.concurrency, point.point.tpot_ms, point.point.prompt_tokens) == (16, 51.75, 1019)


def test_a_report_of_vllms_own_tool_is_of_vllm_unless_said(carded: Writing) -> None:
    """The same test with the engine left out is the same measurement; of another engine it is another."""
    (first,) = report(carded, TABLE, **GEMMA | {"engine": "vllm"}).json()["items"]
    unsaid = report(carded, TABLE, **{name: value for name, value in GEMMA.items() if name != "engine"})
    assert (unsaid.status_code, unsaid.json()["items"][0]["calibration"]["id"]) == (200, first["calibration"]["id"])
    assert report(carded, TABLE, **GEMMA | {"engine": "sglang"}).status_code == 201


def test_output_of_nccl_tests_is_taken(carded: Writing) -> None:
    """The devices give the card; a table alone asks for what they say."""
    taken = report(carded, NCCL, link="nvlink")
    assert taken.status_code == 201, taken.text
    assert taken.json()["kind"] == "link"
    found = taken.json()["items"][0]["calibration"]
    assert (found["operation"], found["world_size"], found["nodes"], found["gpu"]) == ("all_reduce", 8, 1, "h100-sxm")
    assert found["out_of_place"][0]["busbw_gb_per_s"] == 419.49
    assert listed(carded, kind="link") == [found]
    assert listed(carded, model="openai/gpt-oss-20b") == []
    assert fields(report(carded, NCCL_TABLE)) == {"gpu", "operation", "world_size", "nodes"}
    table = report(carded, NCCL_TABLE, gpu="h100-sxm", operation="all_reduce", world_size=8, nodes=1)
    assert table.json()["items"][0]["calibration"]["status"] == "accepted"


# A machine at half of NCCL's usual speed on eight H100: 2 x 15.8 us to start, 2 x 2075.4 us for 512 MiB.
SLOW_TABLE = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
         512           128     float     sum      -1    31.60    0.02    0.03      0    31.60    0.02    0.03      0
   536870912     134217728     float     sum      -1   4150.8  129.34  226.35      0   4150.8  129.34  226.35      0
"""
SLOW = {"gpu": "h100-sxm", "operation": "all_reduce", "world_size": 8, "nodes": 1}


def test_a_link_test_moves_plans_until_it_is_withdrawn(carded: Writing) -> None:
    """A plan names it and says by how much; without calibrations and in earlier revisions it is not there."""
    carded.post()
    asked = {
        "model": NAME,
        "hardware": {"gpus": ["h100-sxm"]},
        "layout": {"tensor_parallel_size": 8},
        "workload": {"context_tokens": 2048, "concurrent_sequences": 4},
    }

    def planned(**changes: Any) -> dict[str, Any]:
        return carded.client.post("/plan", json=asked | changes).json()

    def unrevised(answer: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in answer.items() if name != "catalogue_revision"}

    before, revision = carded.client.post("/plan", json=asked), carded.revision()
    (item,) = report(carded, SLOW_TABLE, **SLOW).json()["items"]
    id_ = item["calibration"]["id"]
    assert item["calibration"]["status"] == "accepted", item
    moved = planned()["recommended"]
    (used,) = moved["links_calibration"]["tests"]
    assert (used["id"], used["collective"], used["distance"]) == (id_, "all_reduce", 0)
    assert (used["measured_start"], used["measured_rate"]) == (pytest.approx(2.0), pytest.approx(0.5))
    plain = before.json()["recommended"]
    assert moved["links_calibration"]["prediction_without"]["tpot_ms"] == plain["latency"]["tpot_ms"]["value"]
    # 64 all-reduces, each 4.78 us x 2.95 x (2^0.6 - 1) longer to start, and at half the rate; prompts add to it.
    assert moved["latency"]["tpot_ms"]["value"] - plain["latency"]["tpot_ms"]["value"] > 64 * 4.78e-3 * 2.95 * 0.5157
    assert moved["basis"]["latency.tpot_ms"] == {
        "basis": "measured",
        "source": f"performance model corrected by measured links: {id_}",
    }
    assert unrevised(planned(calibration="off")) == unrevised(before.json())
    with carded.engine.connect() as connection:
        then = load_snapshot(connection, revision)
    again = ENCODER.encode(plan(question_of(PlanRequest.model_validate(asked), then)))
    assert again == before.content
    for status in ("withdrawn", "quarantined"):
        assert set_status(carded, id_, status=status, reason="another machine").status_code == 200
        assert unrevised(planned()) == unrevised(before.json())
    assert set_status(carded, id_, status="accepted").status_code == 200
    assert planned()["recommended"] == moved


def test_a_link_test_of_one_card_moves_nothing(carded: Writing) -> None:
    """It is doubted, and where someone accepts it all the same, there is no link that it tells of."""
    (item,) = report(
        carded, SLOW_TABLE.replace("0.03", "0.00").replace("226.35", "0.00"), **SLOW | {"world_size": 1}
    ).json()["items"]
    assert item["calibration"]["status"] == "quarantined"
    assert set_status(carded, item["calibration"]["id"], status="accepted").status_code == 200
    assert carded.held().link_tests == {}


TOOLS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (GUIDELLM_0_8, DEPLOYED, ["accepted", "quarantined"]),
    (GENAI_PERF, {"gpu": "h100-sxm", "engine_version": "0.19.0", "tensor_parallel_size": 2}, ["accepted"]),
    (AIPERF, {"engine": "vllm", "engine_version": "0.19.0", "tensor_parallel_size": 2}, ["accepted"]),
    (PLANNER_ROW, {"gpu": "h100-sxm", "tensor_parallel_size": 2}, ["accepted"]),
    (REPORT_0_1, {}, ["accepted"]),
    (REPORT_0_2_1, {"engine_version": "0.19.0"}, ["accepted"]),
    (OWN, {}, ["accepted"]),
]


def test_reports_of_other_tools_are_taken(carded: Writing) -> None:
    """With what each leaves out; GuideLLM's second run says one request at once and answers sixteen."""
    for document, given, statuses in TOOLS:
        taken = report(carded, json.dumps(document), **given)
        assert taken.status_code == 201, taken.text
        found = [item["calibration"] for item in taken.json()["items"]]
        assert [each["status"] for each in found] == statuses, found
        assert {(each["model"], each["engine"]) for each in found} == {("Qwen/Qwen3-32B", "vllm")}
        assert found[0]["tpot"]["median_ms"] in (None, pytest.approx(22.0))
    (replicas,) = (each for each in carded.held().servings if each.measurement.gpu_count == 16)
    assert (replicas.measurement.tensor_parallel_size, copies_of(replicas.measurement)) == (8, 2)


def test_raw_text_is_taken(carded: Writing) -> None:
    """As text/plain, where the report says all."""
    kind = {"Content-Type": "text/plain"}
    answer = carded.client.post("/calibrations/benchmark", content=NCCL, headers=carded.bearer() | kind)
    assert answer.status_code == 201, answer.text
    empty = carded.client.post("/calibrations/benchmark", content=b"", headers=carded.bearer() | kind)
    assert empty.status_code == 400
    large = carded.client.post(
        "/calibrations/benchmark", content=b"x" * (8 << 20) + b"y", headers=carded.bearer() | kind
    )
    assert large.status_code == 413
    form = {"Content-Type": "text/csv"}
    assert (
        carded.client.post("/calibrations/benchmark", content=b"x", headers=carded.bearer() | form).status_code == 415
    )


def test_every_load_of_a_report_is_taken_or_none(carded: Writing) -> None:
    """Three concurrencies in one file; with a fourth that lacks its concurrency nothing is kept."""
    loads = [run(max_concurrency=size, request_throughput=None, mean_ttft_ms=10.0 * size) for size in (1, 2)]
    bare = {key: value for key, value in BURST.items() if key != "request_rate"}
    refused = report(carded, "\n".join([*loads, json.dumps(bare)]), **DEPLOYED)
    assert fields(refused) == {"concurrency"}
    assert listed(carded) == []
    taken = report(carded, "\n".join([*loads, json.dumps(bare)]), **DEPLOYED, concurrency=500)
    assert taken.status_code == 201, taken.text
    assert [item["calibration"]["concurrency"] for item in taken.json()["items"]] == [1, 2, 500]
    assert taken.json()["created"] == 3
    again = report(carded, "\n".join([loads[1], run()]), **DEPLOYED)
    assert again.status_code == 201
    assert [item["outcome"] for item in again.json()["items"]] == ["unchanged", "created"]
    assert again.json()["catalogue_revision"] == taken.json()["catalogue_revision"] + 1
    two_gaps = "\n".join([json.dumps(bare), json.dumps(bare | {"duration": 21.4})])
    assert fields(report(carded, two_gaps, **DEPLOYED, concurrency=500)) == {"concurrency"}


def test_the_same_test_is_kept_once(carded: Writing) -> None:
    """Whoever posts it again, even at the same moment, finds it there; twice in one report as well."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: report(carded, run(), **DEPLOYED), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["items"][0]["calibration"]["id"] for answer in answers}) == 1
    assert len(listed(carded)) == 1
    assert report(carded, f"{NCCL}\n{NCCL}").json()["created"] == 2
    assert len(listed(carded)) == 2


def test_a_failure_before_the_commit_leaves_nothing(carded: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection dies after the rows were written: 503, neither rows nor text; and trying again succeeds."""

    def dies(connection: sa.Connection, records: list[object], **who: str) -> int:
        revision = publish(connection, records, author=who["author"], summary=who["summary"])
        connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return revision

    with monkeypatch.context() as patch:
        patch.setattr(calibrations, "publish", dies)
        assert report(carded, run(), **DEPLOYED).status_code == 503
    with carded.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM calibration_texts")) == 0
    assert listed(carded) == []
    assert report(carded, run(), **DEPLOYED).status_code == 201
    with carded.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT text FROM calibration_texts")) == run()


DOUBTFUL: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"max_concurrency": 8}, {}, "in flight, more than the 8 allowed"),
    ({"failed": 250}, {}, "250 of 1250 requests failed"),
    ({"mean_tpot_ms": 0, "median_tpot_ms": 0, "p99_tpot_ms": 0}, {}, "TPOT is 0 ms"),
    ({"mean_tpot_ms": -5}, {}, "TPOT is negative"),
    ({"output_throughput": 19000.0}, {}, "are not 19000 a second"),
    ({}, {"gpu_count": 8}, "8 GPUs, of which the layout takes 1"),
    ({"gpu": "NVIDIA H200"}, {}, "gpu was given as h100-sxm, the report says NVIDIA H200"),
    ({"tensor_parallel_size": 2}, {}, "tensor_parallel_size was given as 1, the report says 2"),
    ({}, {"model": "other/model"}, "model was given as other/model, the report says openai/gpt-oss-20b"),
]


def test_doubtful_tests_are_quarantined(carded: Writing) -> None:
    """With the reason; they correct nothing."""
    for number, (changes, given, reason) in enumerate(DOUBTFUL):
        taken = report(carded, run(**changes, p99_ttft_ms=8030 + number), **(DEPLOYED | given))
        assert taken.status_code == 201, taken.text
        found = taken.json()["items"][0]["calibration"]
        assert found["status"] == "quarantined"
        assert reason in found["reason"]
    assert carded.held().serving_points("openai/gpt-oss-20b") == {}


def test_a_test_far_from_its_likes_is_quarantined(carded: Writing) -> None:
    """Three runs agree, the fourth takes three times as long."""
    steady = {"max_concurrency": 500, "request_rate": "inf"}
    for tpot in (30.0, 30.5, 31.0):
        taken = report(carded, run(**steady, mean_tpot_ms=tpot, median_tpot_ms=tpot), **DEPLOYED).json()
        assert taken["items"][0]["calibration"]["status"] == "accepted", taken
    slow = report(carded, run(**steady, mean_tpot_ms=66.0, median_tpot_ms=66.0), **DEPLOYED).json()
    assert "where 3 others have 30.50 ms" in slow["items"][0]["calibration"]["reason"]


def test_what_would_be_ignored_is_refused(carded: Writing) -> None:
    """Conditions of the other kind of test, and fields nobody knows."""
    assert fields(report(carded, run(), **DEPLOYED, world_size=8, link="pcie")) == {"world_size", "link"}
    assert fields(report(carded, NCCL, model="m", measured_on="2025-11-10")) == {"model", "measured_on"}
    assert fields(report(carded, run(), **DEPLOYED, tp=2)) == {"tp"}


def test_a_card_that_may_be_several_is_asked_for(carded: Writing) -> None:
    """H100 is sold in three forms; an unknown slug has near ones."""
    answer = report(carded, run(gpu="NVIDIA H100"), engine="vllm", engine_version="0.11.0", tensor_parallel_size=1)
    assert fields(answer) == {"gpu"}
    assert "h100-sxm, h100-pcie" in answer.json()["detail"]
    assert report(carded, run(gpu="NVIDIA H100"), **DEPLOYED).json()["items"][0]["calibration"]["status"] == "accepted"
    named = report(carded, run(), **(DEPLOYED | {"gpu": "NVIDIA H200 SXM"})).json()["items"][0]["calibration"]
    assert named["gpu"] == "h200-sxm"
    assert fields(report(carded, run(), **(DEPLOYED | {"gpu": "A100 80GB"}))) == {"gpu"}
    unknown = report(carded, run(), **(DEPLOYED | {"gpu": "h100-smx"}))
    assert (unknown.status_code, unknown.json()["nearest"][0]) == (404, "h100-sxm")


HOSTILE = [
    "hello",
    "{}",
    "[]",
    "[[[[[[",
    '{"request_throughput": 1}',
    "\x00\x00",
    TABLE.replace("Request throughput", "Requests"),
    NCCL.replace("1119.8", ""),
    NCCL_TABLE.splitlines()[1] + "\n",
    run(model_id="a\x00b"),
    run(model_id="a\ud800b"),
    run(gpu_count=10**12),
    run(completed=10**15, total_output_tokens=1),
]


def test_hostile_reports_are_refused(carded: Writing) -> None:
    """With a reason, or taken and doubted; never a failure of ours."""
    for text in HOSTILE:
        answer = report(carded, text, **DEPLOYED)
        assert answer.status_code in (201, 400), answer.text
    assert {each["status"] for each in listed(carded)} <= {"quarantined"}
    assert report(carded, run(gpu="a\x00b\ud800"), **DEPLOYED).status_code == 201
    strange = json.dumps(REPORT_0_1 | {"version": "\x00\ud800"})
    assert report(carded, strange).json()["items"][0]["calibration"]["note"] == "llm-d benchmark report \ufffd?"


def test_writing_takes_a_curator(carded: Writing) -> None:
    """401 without a key, 403 with one of a reader; of the status too."""
    for path, body in (("/calibrations/benchmark", {"text": NCCL}), ("/calibrations/0/status", {"status": "accepted"})):
        assert carded.client.post(path, json=body).status_code == 401
        reader = carded.bearer(carded.make_key("reader"))
        assert carded.client.post(path, json=body, headers=reader).status_code == 403


def test_a_withdrawn_test_corrects_nothing(carded: Writing) -> None:
    """Until it is accepted again; the catalogue keeps what it said before, and the same again changes nothing."""
    found = report(carded, TABLE, **GEMMA).json()
    id_, revision = found["items"][0]["calibration"]["id"], found["catalogue_revision"]
    withdrawn = set_status(carded, id_, status="withdrawn", reason="the card was throttled")
    assert withdrawn.status_code == 200, withdrawn.text
    assert withdrawn.json()["outcome"] == "changed"
    assert withdrawn.json()["catalogue_revision"] == revision + 1
    assert carded.held().serving_points("google/gemma-3-27b-it") == {}
    again = set_status(carded, id_, status="withdrawn", reason="the card was throttled").json()
    assert (again["outcome"], again["catalogue_revision"]) == ("unchanged", revision + 1)
    assert report(carded, TABLE, **GEMMA).json()["items"][0]["calibration"]["status"] == "withdrawn"
    assert [each["status"] for each in listed(carded)] == ["withdrawn"]
    accepted = set_status(carded, id_, status="accepted", reason="measured again").json()
    assert (accepted["calibration"]["status"], accepted["calibration"]["reason"]) == ("accepted", "")
    assert carded.held().serving_points("google/gemma-3-27b-it") != {}
    steps = carded.client.get("/catalogue/revisions").json()["items"]
    assert steps[0]["summary"] == f"Measurement {id_} accepted: measured again"
    changes = carded.client.get("/catalogue/diff", params={"from": revision, "to": revision + 1}).json()["items"]
    assert [(change["kind"], change["change"]) for change in changes] == [("serving_calibrations", "changed")]


def test_a_status_needs_a_reason_and_a_measurement(carded: Writing) -> None:
    """Each refusal names what is wrong."""
    id_ = report(carded, NCCL).json()["items"][0]["calibration"]["id"]
    assert fields(set_status(carded, id_, status="withdrawn")) == {"reason"}
    assert fields(set_status(carded, id_, status="quarantined", reason=" ")) == {"reason"}
    assert fields(set_status(carded, id_, status="gone", reason="x")) == {"status"}
    assert fields(set_status(carded, id_, reason="x")) == {"status"}
    for unknown in ("0" * 16, "%00", "%C3%A9", "x" * 500):
        assert set_status(carded, unknown, status="withdrawn", reason="x").status_code == 404
    assert set_status(carded, id_, status="quarantined", reason="look at it").json()["outcome"] == "changed"


def test_writers_of_one_status_make_one_revision(carded: Writing) -> None:
    """Four at the same moment."""
    id_ = report(carded, NCCL).json()["items"][0]["calibration"]["id"]
    before = carded.revision()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: set_status(carded, id_, status="withdrawn", reason="wrong cable"), range(4)))
    assert sorted(answer.json()["outcome"] for answer in answers) == ["changed", "unchanged", "unchanged", "unchanged"]
    assert carded.revision() == before + 1
