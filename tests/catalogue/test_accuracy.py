"""Predictions beside what was measured: what is compared, what is left out and why, and what a plan is told of it."""

from dataclasses import replace

import pytest

from service.catalogue.accuracy import errors_by_kind, left_out, token_errors
from service.catalogue.records.calibration import Latency, ServingFigures, ServingMeasurement, Status
from service.catalogue.records.gpu import GpuRecord
from service.catalogue.records.model import ModelRecord
from service.catalogue.seed_calibrations import load_serving
from service.catalogue.serving_accuracy import accuracy_by, compared_runs, served_model
from service.catalogue.snapshot import Snapshot
from service.catalogue.startups import StartupRecord
from service.sizing.evidence import kind_of
from service.sizing.model.summary import weight_bits
from service.storage.seed import shipped

RECORDS = tuple(shipped())
SNAPSHOT = Snapshot(
    revision=1,
    gpus=tuple(each for each in RECORDS if isinstance(each, GpuRecord)),
    models=tuple(each for each in RECORDS if isinstance(each, ModelRecord)),
    startups=tuple(each for each in RECORDS if isinstance(each, StartupRecord)),
)
RUN = ServingMeasurement(
    source="a test",
    model="meta-llama/Llama-3.1-70B",
    engine="vllm",
    engine_version="0.19.0",
    gpu="h100-sxm",
    gpu_count=4,
    tensor_parallel_size=4,
    precision="fp8",
    figures=ServingFigures(
        input_tokens_mean=1024, output_tokens_mean=512, concurrency=16, tpot=Latency(median_ms=15.0)
    ),
)


def test_nearly_every_usable_startup_is_compared() -> None:
    """What is left out is named: a model nobody published here, and configurations that the engine would refuse."""
    found = SNAPSHOT.compared_startups
    left = left_out(SNAPSHOT.startups, found)
    assert len(found) >= 165
    assert sum(each.measurements for each in left) <= 5
    assert {each.model for each in left} <= {
        "sarvamai/sarvam-105b",
        "Qwen/Qwen3-VL-235B-A22B-Instruct-FP8",
        "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
    }


def test_a_composed_model_is_compared_but_not_planned_by() -> None:
    """It is no model of the catalogue."""
    name = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
    assert SNAPSHOT.started_model(name) is SNAPSHOT.started_model(name.upper())
    assert SNAPSHOT.known_model(name) is None
    assert SNAPSHOT.started_model("nobody/nothing") is None


def test_errors_by_kind_cover_every_compared_startup() -> None:
    """Each startup is of one kind, the one that a plan of it asks for."""
    kinds = errors_by_kind(SNAPSHOT.compared_startups)
    assert sum(each.startups for each in kinds.values()) == len(SNAPSHOT.compared_startups)
    model, gpu = SNAPSHOT.started_model("Qwen/Qwen3-0.6B"), SNAPSHOT.known_gpu("h100-sxm")
    assert model is not None
    assert gpu is not None
    dense = kinds[kind_of(model, gpu, (0, 19, 0))]
    assert dense.startups >= 20
    assert dense.median_percent < 0.2


def test_printed_tokens_are_as_close_as_the_memory_they_need() -> None:
    """The planner is exact, so the error is that of the memory: half a per cent in the median at most."""
    found = token_errors(SNAPSHOT.compared_startups)
    assert found is not None
    assert found.startups > 150
    assert found.median_percent <= 0.5
    assert found.p90_percent <= 2.5


def test_neighbours_are_looked_up_for_unfitted_releases_only() -> None:
    """Two startups of Qwen3.5 27B on an L40S with vLLM 0.26 are all that was published of later releases."""
    found = SNAPSHOT.neighbours("l40s", (0, 26, 0))
    assert {each.point.model.partition(" ")[0] for each in found} == {"Qwen3.5-27B/3.6-27B"}
    assert SNAPSHOT.neighbours("l40s", (0, 26, 0)) is found
    assert SNAPSHOT.neighbours("h200-sxm", (0, 19, 0)) == ()
    assert SNAPSHOT.neighbours("h100-sxm", (0, 33, 0)) == ()


def test_shipped_load_tests_are_compared_or_named() -> None:
    """Far closer than a plain roofline, and hardly a promise broken."""
    runs, left = compared_runs(SNAPSHOT, load_serving())
    assert len(runs) + sum(each.measurements for each in left) == len(load_serving())
    assert [each.model for each in left] == ["nvidia/Llama-3.1-8B-Instruct-FP8"]
    (found,) = accuracy_by(runs, lambda _: "all").values()
    assert found.tpot.median_percent < found.roofline_tpot.median_percent / 4
    assert found.safe_decisions is not None
    assert found.safe_decisions.promised_too_much_percent <= 5


@pytest.mark.parametrize(
    ("model", "precision", "name", "bits"),
    [
        ("meta-llama/Llama-3.1-70B", "fp8", "meta-llama/Llama-3.1-70B", 8),
        ("meta-llama/Llama-3.1-70B", "fp4", "meta-llama/Llama-3.1-70B", 4),
        ("meta-llama/Llama-3.1-70B", None, "meta-llama/Llama-3.1-70B", 16),
        ("MiniMaxAI/MiniMax-M2.5", "fp8", "MiniMaxAI/MiniMax-M2.5", 8),
        ("MiniMaxAI/MiniMax-M2.5", "fp4", "nvidia/MiniMax-M2.5-NVFP4", 4),
        ("moonshotai/Kimi-K2.5", "int4", "moonshotai/Kimi-K2.5", 4),
        ("moonshotai/Kimi-K2.5", "fp4", "nvidia/Kimi-K2.5-NVFP4", 4),
        ("openai/gpt-oss-120b", "fp4", "openai/gpt-oss-120b", 4),
    ],
)
def test_what_was_served_is_of_the_precision_reported(model: str, precision: str | None, name: str, bits: int) -> None:
    """The checkpoint, what it becomes, or its published copy of four bits."""
    served = served_model(SNAPSHOT, model, precision)
    assert (served.name, weight_bits(served)) == (name, bits)


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (replace(RUN, model="nobody/nothing"), "the model is not in the catalogue"),
        (replace(RUN, gpu="abacus"), "the card is not in the catalogue"),
        (replace(RUN, model="MiniMaxAI/MiniMax-M2.5", precision="bf16"), "holds no bf16 checkpoint"),
        (replace(RUN, tensor_parallel_size=3), "the engine's rules refuse it"),
        (replace(RUN, figures=replace(RUN.figures, concurrency=None)), "the load is not known"),
        (replace(RUN, figures=replace(RUN.figures, tpot=Latency())), "no time per output token"),
    ],
)
def test_a_run_that_cannot_be_compared_says_why(measured: ServingMeasurement, reason: str) -> None:
    """By model and GPU."""
    runs, (left,) = compared_runs(SNAPSHOT, [measured, measured])
    assert runs == ()
    assert (left.model, left.gpu, left.measurements) == (measured.model, measured.gpu, 2)
    assert reason in left.reason


def test_other_engines_and_doubtful_runs_are_not_compared() -> None:
    """Nor are they named: nothing is claimed of them."""
    given = [replace(RUN, engine="sglang"), replace(RUN, status=Status.QUARANTINED), RUN]
    runs, left = compared_runs(SNAPSHOT, given)
    assert len(runs) == 1
    assert left == ()
    assert (runs[0].gpu, runs[0].architecture, runs[0].release) == ("h100-sxm", "LlamaForCausalLM", "0.19")
