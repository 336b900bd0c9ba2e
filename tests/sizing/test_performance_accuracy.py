"""The evaluation itself, on runs whose error is known."""

from dataclasses import replace

import pytest

from service.sizing.layouts import Layout
from service.sizing.performance import Load, MeasuredPoint, predict
from service.sizing.performance.accuracy import Run, evaluate, roofline_ms
from tests.sizing.performance_cases import replica

SERVED = replica("llama-70b", "h100-sxm", Layout(4))
LOADS = (1, 4, 16, 64, 256)


def runs(factor: float, name: str = "one") -> list[Run]:
    """Runs measured at the prediction times a factor."""
    found = list[Run]()
    for load in LOADS:
        said = predict(SERVED, Load(load, 1024, 512))
        found.append(
            Run(
                name,
                SERVED,
                MeasuredPoint(
                    load,
                    1024,
                    512,
                    said.ttft_ms.value * factor,
                    said.tpot_ms.value * factor,
                    said.output_tokens_per_second.value / factor,
                ),
            )
        )
    return found


def test_runs_as_predicted_have_no_error() -> None:
    """All within their bands, every decision exact."""
    found = evaluate(runs(1.0))
    for errors in (found.tpot, found.ttft, found.throughput, found.calibrated_tpot):
        assert errors is not None
        assert errors.p90_percent == pytest.approx(0, abs=1e-6)
    assert found.tpot.within_band_percent == 100
    assert found.decisions is not None
    assert found.decisions.exact_percent == 100


def test_an_error_common_to_a_configuration_is_calibrated_away() -> None:
    """Measured twice as slow as predicted: 50 % cold, none with two points, too much promised without the margin."""
    found = evaluate(runs(2.0))
    assert found.tpot.median_percent == pytest.approx(50)
    assert found.tpot.within_band_percent == 0
    assert found.throughput is not None
    assert found.throughput.median_percent == pytest.approx(100)
    assert found.calibrated_tpot is not None
    assert found.calibrated_tpot.p90_percent == pytest.approx(0, abs=1e-6)
    assert found.decisions is not None
    assert found.safe_decisions is not None
    assert found.decisions.promised_too_much_percent > 0
    assert found.safe_decisions.promised_too_much_percent <= found.decisions.promised_too_much_percent


def test_configurations_are_calibrated_apart() -> None:
    """One twice as slow and one as predicted."""
    found = evaluate(runs(2.0, "slow") + runs(1.0, "fast"))
    assert found.calibrated_tpot is not None
    assert found.calibrated_tpot.points == 2 * (len(LOADS) - 2)
    assert found.calibrated_tpot.p90_percent == pytest.approx(0, abs=1e-6)


def test_siblings_correct_a_configuration_without_its_own_runs() -> None:
    """Two layouts, both twice as slow: six tenths of what the other missed are taken, 2^0.6 / 2 - 1 = -24.2 %."""
    both = [
        replace(run, configuration=name, siblings="one", replica=replace(run.replica, layout=layout))
        for name, layout in (("four", Layout(4)), ("eight", Layout(8)))
        for run in runs(2.0)
    ]
    slow = [
        replace(run, point=replace(run.point, tpot_ms=predict(run.replica, load_of(run)).tpot_ms.value * 2))
        for run in both
    ]
    found = evaluate(slow).sibling_tpot
    assert found is not None
    assert found.points == 2 * len(LOADS)
    assert found.median_percent == pytest.approx(24.2, abs=0.1)
    assert evaluate(runs(2.0)).sibling_tpot is None


def load_of(run: Run) -> Load:
    """The load that a run was measured at."""
    return Load(run.point.concurrency, run.point.prompt_tokens, run.point.output_tokens)


def test_runs_without_a_time_are_left_out() -> None:
    """And where none is left there is nothing to say."""
    blank = replace(runs(1.0)[0], point=MeasuredPoint(4, 1024, 512))
    assert evaluate([*runs(1.0), blank]).tpot.points == len(LOADS)
    with pytest.raises(ValueError, match="no run has a time"):
        evaluate([blank])


def test_the_roofline_reads_weights_and_cache_once() -> None:
    """70 GB over four cards of 3.35 TB/s x 0.85, and 16 conversations of 1280 tokens of cache."""
    run = runs(1.0)[2]
    weights = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672) / 4
    # A scale for each output: a quarter of those split by outputs, all of those split by inputs.
    scales = 80 * 4 * ((8192 + 2 * 1024 + 2 * 28672) / 4 + 2 * 8192)
    head = 128256 * 8192 * 2 / 4
    cached = 16 * 1280 * 80 * 2 * 2 * 128 * 2
    assert roofline_ms(run) == pytest.approx((weights + scales + head + cached) / (3350e9 * 0.85) * 1000)
