"""Predictions beside measured runs, their bands, notes, limits and corrections."""

import csv
from functools import cache
from pathlib import Path

import pytest

from service.sizing.hardware import Link
from service.sizing.layouts import Layout
from service.sizing.performance import (
    Correction,
    Load,
    MeasuredPoint,
    Replica,
    compared,
    corrected_by,
    predict,
    state_of,
    tpot_ms,
)
from service.sizing.performance.accuracy import Run, evaluate
from service.sizing.performance.bands import CALIBRATED, COLD
from service.sizing.performance.calibration import Tier
from service.sizing.performance.prediction import Limit
from service.sizing.quantities import Basis
from tests.sizing.performance_cases import replica

RUNS = Path(__file__).parents[1] / "data" / "serving" / "vllm_runs.csv"
SIXTEEN_BIT_CACHE = "gpt-oss-120b"
"""The one model whose runs keep a 16-bit cache."""


@cache
def measured_runs() -> tuple[Run, ...]:
    """Public runs of vLLM, of which none was drawn by its error."""
    with RUNS.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return tuple(
        Run(
            configuration=f"{row['model']} {row['gpu']} {row['tensor_parallel_size']}",
            replica=replica(
                row["model"],
                row["gpu"],
                Layout(int(row["tensor_parallel_size"])),
                kv_cache_dtype="auto" if row["model"] == SIXTEEN_BIT_CACHE and row["gpu"] == "h100-sxm" else "fp8",
            ),
            point=MeasuredPoint(
                float(row["concurrency"]),
                int(row["prompt_tokens"]),
                int(row["output_tokens"]),
                float(row["ttft_ms"]),
                float(row["tpot_ms"]),
                float(row["output_tokens_per_second"]),
            ),
        )
        for row in rows
    )


def test_measured_runs_lie_within_their_bands() -> None:
    """The bands are said to hold 80 % of runs: they hold at least that of these."""
    found = evaluate(measured_runs())
    assert found.ttft is not None
    assert found.throughput is not None
    shares = [each.within_band_percent for each in (found.tpot, found.ttft, found.throughput)]
    assert all(share is not None and share >= 80 for share in shares)


def test_measured_runs_are_predicted_far_better_than_by_a_roofline() -> None:
    """Median error of the time per output token: at most 13 %, less than a third of the roofline's."""
    found = evaluate(measured_runs())
    assert found.tpot.points == 182
    assert found.tpot.median_percent <= 13
    assert found.tpot.median_percent < found.roofline_tpot.median_percent / 3


def test_two_measured_points_improve_the_others() -> None:
    """Calibrated with the fastest and the slowest load, the mean error is at most 9 %."""
    found = evaluate(measured_runs())
    assert found.calibrated_tpot is not None
    assert found.calibrated_tpot.mean_percent <= 9


def test_decisions_with_the_margin_rarely_promise_too_much() -> None:
    """At most 5 % of them, and nearly nine in ten within one doubling."""
    decided = evaluate(measured_runs()).safe_decisions
    assert decided is not None
    assert decided.promised_too_much_percent <= 5
    assert decided.within_one_step_percent >= 88


def test_a_band_is_around_its_value_and_says_what_it_rests_on() -> None:
    """A measured GPU and family: nothing to warn of."""
    found = predict(replica("llama-70b", "h100-sxm", Layout(2)), Load(16, 1024, 1024))
    for figure in (found.tpot_ms, found.ttft_ms, found.output_tokens_per_second):
        assert figure.low < figure.value < figure.high
        assert figure.basis is Basis.COMPUTED
        assert "a measured GPU and a measured family" in figure.source
    assert found.notes == ()


@pytest.mark.parametrize(
    ("name", "card", "layout", "words"),
    [
        ("llama-70b", "a100-sxm4-80gb", Layout(4), "no serving run on a100-sxm4-80gb"),
        ("llama-70b", "h100-sxm", Layout(1, 4), "pipeline stages"),
        ("deepseek-v3", "b200-sxm", Layout(4, 1, 2, expert_parallel=True), "exchanges tokens between expert ranks"),
        ("deepseek-v3", "h100-sxm", Layout(16), "across nodes"),
        ("deepseek-v3", "h200-sxm", Layout(8, decode_context_parallel_size=8), "decode context parallelism"),
        ("llama-70b", "l40s", Layout(4), "peer access between its sockets"),
    ],
)
def test_what_was_not_measured_is_said_and_has_a_wider_band(name: str, card: str, layout: Layout, words: str) -> None:
    """Each part without a run behind it, in a note."""
    found = predict(replica(name, card, layout), Load(4, 1024, 256))
    assert any(words in note and note.startswith("not validated") for note in found.notes)
    covered = COLD[True, True, name == "deepseek-v3"].tpot
    assert found.tpot_ms.high / found.tpot_ms.value > covered.high
    assert found.tpot_ms.low / found.tpot_ms.value < covered.low


def test_larger_loads_and_longer_requests_than_measured_are_not_validated() -> None:
    """More than 512 at once, or more than 9216 tokens."""
    served = replica("llama-70b", "h100-sxm", Layout(4))
    assert predict(served, Load(512, 1024, 1024)).notes == ()
    assert len(predict(served, Load(513, 1024, 1024)).notes) == 1
    assert len(predict(served, Load(8, 9000, 1024)).notes) == 1


def test_a_link_given_for_a_card_of_another_is_not_covered() -> None:
    """H100 SXM over PCIe was not measured; alone it does not matter what joins it."""
    apart = replica("llama-70b", "h100-sxm", Layout(2), link=Link.PCIE)
    assert any("no serving run on" in note for note in predict(apart, Load(4, 1024, 256)).notes)
    alone = replica("gpt-oss-120b", "h100-sxm", link=Link.PCIE)
    assert predict(alone, Load(4, 1024, 256)).notes == ()


def test_the_parts_of_a_token_add_up() -> None:
    """Also with stages, experts and prompts of others."""
    for served in (
        replica("llama-70b", "h100-sxm", Layout(2, 2)),
        replica("minimax-m2.5", "h200-sxm", Layout(4, 1, 2)),
        replica("gpt-oss-120b", "b200-sxm"),
    ):
        found = predict(served, Load(32, 4096, 512))
        parts = found.breakdown
        total = (
            parts.weights_ms
            + parts.cache_ms
            + parts.compute_ms
            + parts.communication_ms
            + parts.overhead_ms
            + parts.prompts_ms
        )
        assert total == pytest.approx(found.tpot_ms.value)


@pytest.mark.parametrize(
    ("served", "load", "limit"),
    [
        (replica("llama-70b", "h200-sxm"), Load(1, 128, 512), Limit.BANDWIDTH),
        (replica("llama-70b", "h200-sxm"), Load(256, 8000, 100), Limit.COMPUTE),
        (replica("llama-70b", "l40s", Layout(8)), Load(1, 128, 512), Limit.COMMUNICATION),
        (replica("minimax-m2.5", "h200-sxm", Layout(8)), Load(1, 128, 512), Limit.SCHEDULER),
        (replica("llama-70b", "h200-sxm", cache_holds=8), Load(16, 128, 512), Limit.MEMORY),
        (replica("llama-70b", "h200-sxm", max_num_seqs=8), Load(16, 128, 512), Limit.SCHEDULER),
    ],
)
def test_what_binds_is_named(served: Replica, load: Load, limit: Limit) -> None:
    """Reading weights; prompts; PCIe; launches of a small sparse model; no room in the cache; no place in the batch."""
    assert predict(served, load).limited_by is limit


def test_throughput_counts_all_copies() -> None:
    """Two copies of a dense model under the same load each do as one does."""
    one, two = (
        predict(replica("llama-70b", "h100-sxm", Layout(4, 1, copies)), Load(8, 1024, 256)) for copies in (1, 2)
    )
    assert two.tpot_ms.value == one.tpot_ms.value
    assert two.output_tokens_per_second.value == pytest.approx(2 * one.output_tokens_per_second.value)


@pytest.mark.parametrize(("over_all", "fullest"), [(1, 1), (9, 2), (15, 2), (16, 2)])
def test_copies_complete_no_more_than_is_asked_of_them(over_all: int, fullest: int) -> None:
    """Little's law over all eight copies: requests at once = completed a second x time of one; idle copies add none."""
    served, load = replica("llama-70b", "h100-sxm", Layout(4, 1, 8)), Load(fullest, 1024, 256, over_all_copies=over_all)
    found = predict(served, load)
    whole = (found.ttft_ms.value + 255 * found.tpot_ms.value) / 1000
    assert found.requests_per_second * whole == pytest.approx(over_all)


def test_copies_are_apart_where_the_engine_overlooks_the_experts() -> None:
    """vLLM finds no experts in DBRX's nested configuration: 18 copies on 8 GPUs each cut experts 8 ways, not 144."""
    eight, many = (predict(replica("dbrx", "h100-sxm", Layout(8, 1, copies)), Load(4, 512, 64)) for copies in (1, 18))
    assert many.tpot_ms.value == eight.tpot_ms.value
    assert many.requests_per_second == pytest.approx(18 * eight.requests_per_second)


def test_an_arrival_rate_decides_the_load() -> None:
    """Half of what is completed at the limit: half utilised, as many completed as arrive."""
    served = replica("llama-70b", "h100-sxm", Layout(4, 1, 2), cache_holds=64)
    most = predict(served, Load(64, 1024, 256)).requests_per_second
    found = predict(served, Load(64, 1024, 256, requests_per_second=most / 2))
    assert found.utilisation == pytest.approx(0.5)
    assert found.sustainable
    assert found.requests_per_second == pytest.approx(most / 2)
    assert found.concurrency < 64


def test_a_rate_that_leaves_no_room_is_refused() -> None:
    """The figures are those at the limit, which binds."""
    served = replica("llama-70b", "h100-sxm", Layout(4), cache_holds=64)
    most = predict(served, Load(64, 1024, 256))
    found = predict(served, Load(64, 1024, 256, requests_per_second=most.requests_per_second))
    assert not found.sustainable
    assert found.limited_by is Limit.MEMORY
    assert found.tpot_ms.value == most.tpot_ms.value


def test_the_callers_bandwidth_fraction_replaces_the_fitted_ones() -> None:
    """Weights at half the rated bandwidth take twice as long as at all of it."""
    half, whole = (
        predict(replica("llama-70b", "h100-sxm", Layout(2), memory_bandwidth_fraction=share), Load(1, 128, 128))
        for share in (0.5, 1.0)
    )
    assert half.breakdown.weights_ms == pytest.approx(2 * whole.breakdown.weights_ms, rel=0.01)


def test_ranking_uses_the_value_that_is_shown() -> None:
    """The cheap central values are the prediction's; throughput is that of one copy."""
    served, load = replica("llama-70b", "h100-sxm", Layout(2, 1, 2)), Load(24, 2048, 512)
    found = predict(served, load)
    assert tpot_ms(served, load) == found.tpot_ms.value
    assert state_of(served, load).requests_per_second * 2 == pytest.approx(found.requests_per_second)


def test_a_measured_point_moves_the_prediction_to_it() -> None:
    """Its own load is predicted as measured, throughput with it, in a narrower band that says so."""
    served = replica("llama-70b", "a100-sxm4-80gb", Layout(4))
    cold = predict(served, Load(16, 1024, 256))
    point = MeasuredPoint(16, 1024, 256, cold.ttft_ms.value * 1.5, cold.tpot_ms.value * 1.3)
    found = predict(served, Load(16, 1024, 256), corrected_by([compared(served, point)]))
    assert found.tpot_ms.value == pytest.approx(point.tpot_ms)
    assert found.ttft_ms.value == pytest.approx(point.ttft_ms)
    whole_s = (found.ttft_ms.value + 255 * found.tpot_ms.value) / 1000
    assert found.requests_per_second == pytest.approx(16 / whole_s)
    assert found.tpot_ms.basis is Basis.MEASURED
    assert found.tpot_ms.high / found.tpot_ms.value == pytest.approx(CALIBRATED[Tier.ONE_POINT].tpot.high)


def test_a_correction_also_moves_those_who_wait() -> None:
    """Requests without a place wait for whole answers, which take longer in the same measure."""
    served = replica("llama-70b", "h100-sxm", Layout(4), cache_holds=8)
    slower = Correction(1.2, 1.2, 1.2, Tier.ONE_POINT)
    before, after = (predict(served, Load(16, 1024, 256), each) for each in (Correction(), slower))
    assert after.ttft_ms.value == pytest.approx(1.2 * before.ttft_ms.value)
    assert after.requests_per_second == pytest.approx(before.requests_per_second / 1.2)
