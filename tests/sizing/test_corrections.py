"""Measured load tests that correct predicted times: which, by how much, and what is said of them."""

from typing import Any

import pytest

from service.sizing.answer import Plan
from service.sizing.corrections import Weights, checkpoint_weights, reported_weights
from service.sizing.layouts import Layout
from service.sizing.performance import MeasuredPoint, ServingPoint
from service.sizing.question import Assumptions, Objectives
from tests.sizing.performance_cases import model
from tests.sizing.test_plan import ask, recommended

EIGHT = Layout(8)


def served(layout: Layout = EIGHT, *, servings: tuple[ServingPoint, ...] = (), **changes: Any) -> Plan:
    """Llama 70B on H100 with eight conversations of 4,096 tokens, and what was measured of it."""
    answer = ask(layout=layout, sequences=8, memory_gib=None, space_gib=None, servings={"h100": servings}, **changes)
    return recommended(answer)


def tpot(plan: Plan) -> float:
    """Central time per output token, ms."""
    assert plan.latency.tpot_ms is not None
    return plan.latency.tpot_ms.value


def measured(
    times: float,
    layout: Layout = EIGHT,
    *,
    name: str = "a",
    version: str = "0.33.0",
    precision: str = "bf16",
    concurrency: float = 8,
) -> ServingPoint:
    """A load test of the same requests that took some times as long as predicted."""
    plan = recommended(ask(layout=layout, sequences=int(concurrency), memory_gib=None, space_gib=None))
    assert plan.latency.ttft_ms is not None
    point = MeasuredPoint(concurrency, 3584, 512, plan.latency.ttft_ms.value * times, tpot(plan) * times)
    return ServingPoint(name, "a test", version, layout, precision, point)


def test_a_load_measured_of_the_layout_replaces_the_prediction() -> None:
    """Half as fast as predicted at this very load: so it is answered, with what was predicted beside it."""
    plain, plan = served(), served(servings=(measured(2.0),))
    assert tpot(plan) == pytest.approx(2 * tpot(plain), rel=1e-6)
    assert plan.latency.ttft_ms is not None
    assert plain.latency.ttft_ms is not None
    assert plan.latency.ttft_ms.value == pytest.approx(2 * plain.latency.ttft_ms.value, rel=1e-6)
    used = plan.times_calibration
    assert used is not None
    assert (used.tier, used.used, used.points[0].id, used.points[0].version) == ("one_point", 1, "a", "0.33.0")
    assert used.prediction_without.tpot_ms == pytest.approx(tpot(plain))
    assert plan.basis["latency.tpot_ms"].basis == "measured"
    assert plan.latency.tpot_ms is not None
    assert "mean error 9 %" in plan.latency.tpot_ms.source
    assert plain.times_calibration is None


def test_another_layout_shifts_by_part_of_what_it_missed() -> None:
    """Six tenths of the deviation on a logarithmic scale: 1.5^0.6; the first token is left as it is."""
    plain, plan = served(), served(servings=(measured(1.5, Layout(4)),))
    assert tpot(plan) == pytest.approx(1.5**0.6 * tpot(plain), rel=1e-6)
    assert plan.times_calibration is not None
    assert plan.times_calibration.tier == "siblings"
    assert plan.latency.ttft_ms is not None
    assert plain.latency.ttft_ms is not None
    assert plan.latency.ttft_ms.value == pytest.approx(plain.latency.ttft_ms.value)


def test_its_own_load_counts_and_those_of_other_layouts_do_not() -> None:
    """A layout that was measured needs no sibling."""
    plan = served(servings=(measured(1.2), measured(0.7, Layout(4), name="b")))
    assert tpot(plan) == pytest.approx(1.2 * tpot(served()), rel=1e-6)
    assert plan.times_calibration is not None
    assert [point.id for point in plan.times_calibration.points] == ["a"]


def test_copies_of_a_dense_model_are_one_configuration() -> None:
    """A copy of eight cards was measured; two of them side by side are corrected by it as their own."""
    plan = served(Layout(8, 1, 2), servings=(measured(1.3),))
    assert plan.times_calibration is not None
    assert plan.times_calibration.tier == "one_point"


def test_two_loads_give_the_narrowest_band_and_margin() -> None:
    """The band shrinks with each tier; the margin on the time per output token falls to 1.08."""
    two = (measured(1.2), measured(1.2, name="b", concurrency=32))
    plan = served(servings=two, objectives=Objectives(tpot_ms=100))
    assert plan.times_calibration is not None
    assert plan.times_calibration.tier == "points"
    assert plan.objectives is not None
    assert plan.objectives.tpot is not None
    assert (plan.objectives.tpot.margin, plan.objectives.tpot.over_promised_percent) == (1.08, 5)


@pytest.mark.parametrize(
    "point",
    [
        measured(1.5, precision="fp8"),
        measured(9.0),
        measured(0.2),
    ],
)
def test_what_was_not_of_these_weights_corrects_nothing(point: ServingPoint) -> None:
    """Another precision, or times that no error of the model explains."""
    plan = served(servings=(point,))
    assert plan.times_calibration is None
    assert tpot(plan) == tpot(served())


def test_the_callers_own_bandwidth_is_not_corrected() -> None:
    """An assumption stands in place of what was measured, as it does for memory."""
    own = Assumptions(memory_bandwidth_fraction=0.5)
    plan = recommended(ask(layout=EIGHT, sequences=8, assumptions=own, servings={"h100": (measured(2.0),)}))
    assert plan.times_calibration is None


def test_the_release_measured_is_said_where_it_is_another() -> None:
    """An old engine still shifts the times, and the reader is told."""
    old = served(servings=(measured(1.1, version="0.11.0"),))
    assert any("measured loads of vLLM 0.11.0; the plan is for 0.33.0" in warning for warning in old.warnings)
    same = served(servings=(measured(1.1),))
    assert not any("measured loads" in warning for warning in same.warnings)


@pytest.mark.parametrize(
    ("reported", "weights"),
    [
        ("bf16", Weights(16, False)),
        ("bfloat16", Weights(16, False)),
        ("FP16", Weights(16, False)),
        ("fp8", Weights(8, False)),
        ("fp8_e4m3", Weights(8, False)),
        ("int8", Weights(8, True)),
        ("w8a8", Weights(8, None)),
        ("int4", Weights(4, True)),
        ("w4a16", Weights(4, True)),
        ("nvfp4", Weights(4, False)),
        ("fp4", Weights(4, False)),
        ("mxfp4", Weights(4, False)),
        ("awq", Weights(4, True)),
        ("gptq_marlin", Weights(4, True)),
        ("", None),
        ("auto", None),
    ],
)
def test_a_reported_precision_tells_its_weights(reported: str, weights: Weights | None) -> None:
    """As engines and benchmarks spell it; four bits are not all alike."""
    assert reported_weights(reported) == weights


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama-70b-bf16", Weights(16, False)),
        ("llama-70b", Weights(8, False)),
        ("llama-70b-int4", Weights(4, True)),
        ("gpt-oss-120b", Weights(4, False)),
        ("minimax-m2.5", Weights(8, False)),
    ],
)
def test_the_checkpoint_tells_its_weights(name: str, weights: Weights) -> None:
    """By the format that most of its bytes are stored in."""
    assert checkpoint_weights(model(name)) == weights


def test_four_bits_of_another_kind_are_another_checkpoint() -> None:
    """Kimi K2.5 is published in INT4 and, by others, in NVFP4: loads of one do not correct the other."""
    assert not Weights(4, True).may_be(Weights(4, False))
    assert Weights(8, None).may_be(Weights(8, True))
