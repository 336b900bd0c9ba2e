"""Load tests as the performance model takes them, and what makes one doubtful."""

from dataclasses import replace
from datetime import date
from math import inf

import pytest

from service.catalogue.records.calibration import Latency, ServingFigures, ServingMeasurement, Status
from service.catalogue.records.calibration_checks import check_serving, contradictions_of
from service.catalogue.seed_calibrations import load_serving
from service.catalogue.servings import ServingRecord, point_of
from service.catalogue.snapshot import Snapshot
from service.sizing.layouts import Layout

DAY = date(2026, 11, 30)

# SemiAnalysis InferenceX: gpt-oss 120B on four B200, vLLM 0.15.1, 32 requests at once of 921.6 + 921.6 tokens.
GPT_OSS = ServingMeasurement(
    source="aiconfigurator-core 0.12.0: source_file=2026-04-06.csv; image=vllm/vllm-openai:v0.15.1",
    model="openai/gpt-oss-120b",
    engine="vllm",
    engine_version="0.15.1",
    gpu="b200-sxm",
    gpu_count=4,
    tensor_parallel_size=4,
    precision="fp4",
    figures=ServingFigures(
        input_tokens_mean=921.6,
        output_tokens_mean=921.6,
        concurrency=32,
        ttft=Latency(median_ms=41.5896),
        tpot=Latency(median_ms=4.54638),
        output_tokens_per_s=6976.89,
    ),
)


def record(measurement: ServingMeasurement = GPT_OSS, **figures: object) -> ServingRecord:
    """A load test in the catalogue, with some figures changed."""
    return ServingRecord(replace(measurement, figures=replace(measurement.figures, **figures)), "test", DAY)


def test_a_load_test_becomes_a_point() -> None:
    """Its conditions and figures as they are."""
    found = point_of(record())
    assert found is not None
    assert (found.version, found.precision, found.layout) == ("0.15.1", "fp4", Layout(4))
    point = found.point
    assert (point.concurrency, point.prompt_tokens, point.output_tokens) == (32, 922, 922)
    assert (point.ttft_ms, point.tpot_ms, point.output_tokens_per_second) == (41.5896, 4.54638, 6976.89)


@pytest.mark.parametrize(("tensor", "data"), [(2, 2), (1, 4)])
def test_a_point_is_of_one_copy(tensor: int, data: int) -> None:
    """Two copies share 32 requests and 6976.89 tokens a second: 16 and 3488.4 each; four, 8 and 1744.2."""
    found = point_of(record(replace(GPT_OSS, tensor_parallel_size=tensor, data_parallel_size=data)))
    assert found is not None
    assert found.layout.data_parallel_size == data
    assert found.point.concurrency == 32 / data
    assert found.point.output_tokens_per_second == pytest.approx(6976.89 / data)


def test_a_steady_rate_is_a_load() -> None:
    """2 requests a second of 1.5 s each are 3 under way; all at once, or more than is answered, is no steady load."""
    times = {"ttft": Latency(mean_ms=100.0), "tpot": Latency(mean_ms=14.0), "output_tokens_mean": 101.0}
    answered = point_of(record(concurrency=None, request_rate=2.0, requests_per_s=2.0, **times))
    assert answered is not None
    assert answered.point.concurrency == pytest.approx(3.0)
    assert point_of(record(concurrency=None, request_rate=inf, requests_per_s=2.0, **times)) is None
    assert point_of(record(concurrency=None, request_rate=20.0, requests_per_s=2.0, **times)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"status": Status.QUARANTINED},
        {"status": Status.WITHDRAWN},
        {"engine": "sglang"},
        {"enforce_eager": True},
        {"speculative": "eagle"},
    ],
)
def test_others_correct_nothing(changed: dict[str, object]) -> None:
    """What is not accepted, or did not run as plans are predicted."""
    assert point_of(record(replace(GPT_OSS, **changed))) is None


def test_requests_that_waited_for_a_place_correct_nothing() -> None:
    """How many ran is unknown where the first token took longer than all others."""
    assert point_of(record(ttft=Latency(median_ms=20_000.0))) is None


def test_the_catalogue_gives_points_by_model_and_card() -> None:
    """In any case of the name; of the shipped runs every one."""
    snapshot = Snapshot(1, servings=tuple(ServingRecord(each, "test", DAY) for each in load_serving()))
    found = snapshot.serving_points("OpenAI/gpt-oss-120b")
    assert {gpu: len(points) for gpu, points in found.items()} == {"b200-sxm": 15, "h100-sxm": 30}
    assert snapshot.serving_points("no/such-model") == {}
    models = {each.model for each in load_serving()}
    assert sum(len(points) for model in models for points in snapshot.serving_points(model).values()) == 438


def test_reports_of_one_run_have_one_id() -> None:
    """Whoever reports it, on whichever day; another figure is another run."""
    assert record().id == record(replace(GPT_OSS, source="someone", measured_on=DAY, note="again")).id
    assert record().id != record(concurrency=31).id


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"requests": 90, "failed": 10}, "10 of 100 requests failed"),
        ({"requests": 0}, "no request was answered"),
        ({"tpot": Latency(mean_ms=0.0)}, "TPOT is 0 ms"),
        ({"tpot": Latency(mean_ms=-3.0)}, "TPOT is negative"),
        ({"output_tokens_per_s": 60_000.0}, "in flight, more than the 32 allowed"),
        ({"output_tokens_per_s": 600.0}, "far fewer than the 32"),
    ],
)
def test_doubtful_figures_say_why(changed: dict[str, object], reason: str) -> None:
    """Failures, times that cannot be, and Little's law either way: 32 requests of 4.2 s are 7.6 a second."""
    figures = replace(GPT_OSS.figures, **changed)
    assert any(reason in each for each in contradictions_of(figures)), list(contradictions_of(figures))


def test_few_requests_or_a_rate_need_not_fill_the_concurrency() -> None:
    """64 requests of a closed loop of 32 half fill it; one in a thousand may fail."""
    slow = replace(GPT_OSS.figures, output_tokens_per_s=2000.0, requests=64)
    assert list(contradictions_of(slow)) == []
    rated = replace(GPT_OSS.figures, output_tokens_per_s=600.0, request_rate=0.65)
    assert list(contradictions_of(rated)) == []
    assert list(contradictions_of(replace(GPT_OSS.figures, requests=999, failed=1))) == []


def test_sizes_that_do_not_multiply_are_doubtful() -> None:
    """Six GPUs are not whole engines of four; three expert ranks are not four."""
    assert check_serving(GPT_OSS) == ()
    assert check_serving(replace(GPT_OSS, gpu_count=6)) == ("6 GPUs are no whole engines of 4",)
    assert any("over 3 ranks" in each for each in check_serving(replace(GPT_OSS, expert_parallel_size=3)))
