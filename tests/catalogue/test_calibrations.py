"""Measurements, what makes one doubtful, and those that come with the package."""

import json
from dataclasses import replace

import pytest

from service.catalogue.importers.benchmark import read_benchmark
from service.catalogue.importers.measurements import (
    MissingConditions,
    Value,
    link_measurement,
    serving_measurement,
    startup_measurement,
)
from service.catalogue.importers.nccl import read_link_tests
from service.catalogue.importers.startup_log import read_startup_log
from service.catalogue.records.calibration import (
    Collective,
    Engine,
    Latency,
    ServingFigures,
    ServingMeasurement,
    StartupMeasurement,
    Status,
)
from service.catalogue.records.calibration_checks import check_serving, check_startup, contradictions_of
from service.catalogue.seed_calibrations import load_serving, load_startups
from tests.catalogue.startup_log_texts import log_text

LLAMA = StartupMeasurement(
    source="a published startup (ashishkamra/vllm-memory-estimator, uuid f2961598)",
    engine_version="0.11.2",
    model="RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
    gpu="h200-sxm",
    gpu_total_gib=139.8,
    gpu_count=4,
    tensor_parallel_size=4,
    gpu_memory_utilization=0.92,
    weights_gib=16.9619,
    available_kv_gib=106.15,
    kv_tokens=1391344,
    max_concurrency=169.84,
    concurrency_tokens=8192,
)
RUN = ServingMeasurement(
    source="a test",
    model="m",
    engine="vllm",
    gpu="h100-sxm",
    gpu_count=1,
    figures=ServingFigures(tpot=Latency(median_ms=20.0), output_tokens_per_s=640.0),
)


def test_overhead_is_what_is_neither_weights_nor_cache() -> None:
    """0.92 x 139.8 - 16.9619 - 106.15 = 5.5041 GiB."""
    assert LLAMA.overhead_gib == pytest.approx(5.5041)
    assert replace(LLAMA, weights_gib=None).overhead_gib is None
    assert replace(LLAMA, kv_cache_memory_bytes=1 << 30).overhead_gib is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"weights_gib": 150.0}, "the weights take 150 GiB of a GPU of 139.8 GiB"),
        ({"available_kv_gib": 120.0}, "exceed the budget by 8.35 GiB"),
        ({"kv_tokens": 4_000_000}, "more than 169.84 requests"),
        ({"weights_gib": None, "available_kv_gib": None, "kv_tokens": None}, "holds no figure"),
    ],
)
def test_startups_that_cannot_be(change: dict[str, float | None], reason: str | None) -> None:
    """A measured startup passes; more memory than there is does not."""
    reasons = check_startup(replace(LLAMA, **change))
    assert reasons == () if reason is None else any(reason in each for each in reasons)


def test_startups_far_from_their_like() -> None:
    """Repeats agree to 0.02 GiB: 3 GiB more overhead is another thing. Two others decide nothing."""
    others = [replace(LLAMA, available_kv_gib=106.15 + difference) for difference in (-0.02, 0.0, 0.02)]
    assert check_startup(LLAMA, others) == ()
    doubtful = replace(LLAMA, available_kv_gib=103.15)
    assert any("8.50 GiB, where 3 others have 5.50 GiB" in reason for reason in check_startup(doubtful, others))
    assert check_startup(doubtful, others[:2]) == ()
    heavier = replace(LLAMA, weights_gib=19.0, available_kv_gib=104.11)
    assert any(reason.startswith("weights: 19.00 GiB") for reason in check_startup(heavier, others))


def test_load_tests_far_from_their_like() -> None:
    """Reruns differ by up to half; a factor of three is another deployment."""
    slow = replace(RUN, figures=replace(RUN.figures, tpot=Latency(median_ms=60.0), output_tokens_per_s=200.0))
    assert check_serving(RUN, [RUN] * 3) == ()
    assert check_serving(slow) == ()
    assert len(check_serving(slow, [RUN] * 3)) == 2


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        (ServingFigures(ttft=Latency(median_ms=5.0, p90_ms=4.0)), "median of 5 ms is above the P90 of 4 ms"),
        (ServingFigures(tpot=Latency(mean_ms=-1.0)), "TPOT is negative"),
        (
            ServingFigures(requests=100, duration_s=10.0, requests_per_s=12.0),
            "100 requests in 10 s are not 12 a second",
        ),
        (
            ServingFigures(requests=10, duration_s=10.0, output_tokens_mean=100.0, output_tokens_per_s=150.0),
            "1000 output tokens in 10 s are not 150 a second",
        ),
        (
            ServingFigures(concurrency=8.0, requests_per_s=10.0, e2e=Latency(mean_ms=2000.0)),
            "20.0 in flight, more than the 8 allowed",
        ),
    ],
)
def test_load_tests_that_contradict_themselves(figures: ServingFigures, reason: str) -> None:
    """Order of percentiles, counts over time, and Little's law."""
    assert any(reason in each for each in contradictions_of(figures))


def test_a_startup_log_becomes_a_measurement() -> None:
    """What the log leaves at default is taken from the caller's defaults and listed as assumed."""
    measurement = startup_measurement(
        read_startup_log(log_text("v0.11.2-tp4.log")),
        source="someone",
        gpu="h200-sxm",
        defaults={"max_num_seqs": 1024, "max_num_batched_tokens": 2048},
    )
    assert measurement.status is Status.ACCEPTED
    assert (measurement.engine, measurement.engine_version) == (Engine.V1, "0.11.2")
    assert (measurement.tensor_parallel_size, measurement.gpu_count) == (4, 4)
    assert (measurement.max_num_seqs, measurement.max_num_batched_tokens) == (1024, 8192)
    assert measurement.assumed == ("max_num_seqs",)
    assert measurement.overhead_gib == pytest.approx(5.5041)
    assert measurement.quantization == "compressed-tensors"


def test_a_card_the_log_does_not_measure_takes_the_catalogues_total() -> None:
    """0.8.5 prints neither total nor available memory; the tokens still count."""
    log = read_startup_log(log_text("v0.8.5-v1-tp2.log"))
    measurement = startup_measurement(log, source="someone", gpu="h100-sxm", gpu_total_gib=79.1)
    assert (measurement.gpu_total_gib, measurement.assumed) == (79.1, ("gpu_total_gib",))
    assert (measurement.kv_tokens, measurement.weights_gib) == (270480, 30.7097)
    assert measurement.overhead_gib is None


def test_a_cache_sized_in_bytes_says_nothing_about_overhead() -> None:
    """With `--kv-cache-memory-bytes` the budget is not utilised; the log shows it even without the arguments."""
    text = log_text("v0.33.0-one-gpu.log")
    available = next(line for line in text.split("\n") if "Available KV" in line)
    reserved = (
        "(EngineCore pid=214) INFO 11-30 16:32:31 [gpu_worker.py:671] Initial free memory 78.6 GiB, reserved 55.0 GiB "
        "memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling."
    )
    log = read_startup_log(text.replace(available, reserved))
    assert log.available_kv_gib is not None
    assert log.available_kv_gib.low == 55.0
    assert startup_measurement(log, source="someone", gpu="h100-sxm").overhead_gib is None


def test_a_log_without_conditions_asks_for_them() -> None:
    """Bare figures say nothing without version, model and layout; the caller can add them."""
    log = read_startup_log("Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens")
    with pytest.raises(MissingConditions) as missing:
        startup_measurement(log, source="someone", gpu="h100-sxm")
    assert missing.value.names == (
        "engine_version",
        "model",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "max_model_len",
    )
    given = {
        "engine_version": "0.10.0",
        "model": "Qwen/Qwen3-235B-A22B-FP8",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "max_model_len": 40960,
        "gpu_memory_utilization": 0.9,
    }
    measurement = startup_measurement(log, source="someone", gpu="h100-sxm", given=given)
    assert (measurement.status, measurement.kv_tokens) == (Status.ACCEPTED, 178880)


def test_given_conditions_that_the_log_denies_quarantine_it() -> None:
    """The log says tensor parallel 4."""
    log = read_startup_log(log_text("v0.11.2-tp4.log"))
    measurement = startup_measurement(log, source="someone", gpu="h200-sxm", given={"tensor_parallel_size": 2})
    assert measurement.status is Status.QUARANTINED
    assert "tensor_parallel_size was given as 2, the log says 4" in measurement.reason
    assert measurement.tensor_parallel_size == 4


def test_failed_and_contradictory_startups_are_quarantined() -> None:
    """A refusal, and a log whose figures were changed."""
    refused = read_startup_log(log_text("v0.20.2-needs-more-cache.log"))
    assert "max_model_len_needs_more_kv" in startup_measurement(refused, source="s", gpu="rtx-3090").reason
    changed = read_startup_log(log_text("v0.33.0-one-gpu.log").replace("in use is 55.0", "in use is 45.0"))
    assert "45 GiB in use" in startup_measurement(changed, source="s", gpu="h100-sxm").reason


def test_a_load_test_becomes_a_measurement() -> None:
    """What the file leaves out the caller adds; without the engine it is refused."""
    result = {
        "model_id": "Qwen/Qwen3-32B",
        "backend": "openai",
        "completed": 200,
        "duration": 40.0,
        "total_input_tokens": 204800,
        "total_output_tokens": 25600,
        "request_throughput": 5.0,
        "output_throughput": 640.0,
        "max_concurrency": 16,
        "mean_ttft_ms": 380.5,
        "mean_tpot_ms": 22.2,
    }
    (row,) = read_benchmark(json.dumps(result))
    with pytest.raises(MissingConditions) as missing:
        serving_measurement(row, source="someone", gpu="h100-sxm")
    assert missing.value.names == ("engine", "engine_version", "tensor_parallel_size")
    given: dict[str, Value] = {"engine": "vllm", "engine_version": "0.33.0", "gpu_count": 2, "tensor_parallel_size": 2}
    measurement = serving_measurement(row, source="someone", gpu="h100-sxm", given=given)
    assert (measurement.status, measurement.engine_version) == (Status.ACCEPTED, "0.33.0")
    assert (measurement.gpu_count, measurement.tensor_parallel_size) == (2, 2)
    (doubtful,) = read_benchmark(json.dumps({**result, "output_throughput": 900.0}))
    assert serving_measurement(doubtful, source="s", gpu="h100-sxm", given=given).status is Status.QUARANTINED
    simulated = replace(row, measured=False)
    assert "simulated" in serving_measurement(simulated, source="s", gpu="h100-sxm", given=given).reason


def test_a_link_test_becomes_a_measurement() -> None:
    """Operation and ranks come from the text or from the caller."""
    (test,) = read_link_tests(
        "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
        "  34359738368 8589934592  float   sum    -1  875713  39.24   68.66       0\n"
    )
    with pytest.raises(MissingConditions) as missing:
        link_measurement(test, source="someone", gpu="h100-sxm")
    assert missing.value.names == ("operation", "world_size", "nodes")
    given: dict[str, Value] = {"operation": Collective.ALL_REDUCE, "world_size": 8, "nodes": 1, "link": "nvlink"}
    measured = link_measurement(test, source="someone", gpu="h100-sxm", given=given)
    assert (measured.status, measured.link) == (Status.ACCEPTED, "nvlink")
    wrong_count = link_measurement(test, source="someone", gpu="h100-sxm", given=given | {"world_size": 2})
    assert "expected 39.24" in wrong_count.reason


def test_shipped_startups_stand_up_to_the_checks() -> None:
    """Every shipped startup is accepted, names its source, and holds no contradiction."""
    startups = load_startups()
    assert len(startups) == 198
    assert all(startup.status is Status.ACCEPTED and startup.source for startup in startups)
    assert [check_startup(startup) for startup in startups] == [()] * len(startups)
    assert LLAMA.available_kv_gib in {
        startup.available_kv_gib
        for startup in startups
        if startup.model == LLAMA.model and startup.tensor_parallel_size == 4
    }


def test_shipped_load_tests_stand_up_to_the_checks() -> None:
    """Every shipped load test is of vLLM, names its source, and says that its throughput is derived."""
    runs = load_serving()
    assert len(runs) == 438
    assert {run.engine for run in runs} == {"vllm"}
    assert {run.derived for run in runs} == {("output_tokens_per_s",)}
    assert all(run.source and run.status is Status.ACCEPTED for run in runs)
    assert [check_serving(run) for run in runs] == [()] * len(runs)
