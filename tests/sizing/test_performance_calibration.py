"""Corrections from measured points, on points whose true parts are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.sizing.performance.calibration import (
    SIBLING_WEIGHT,
    UNCORRECTED,
    Compared,
    MeasuredPoint,
    Tier,
    corrected_by,
)


def point(fixed_ms: float, rest_ms: float, measured_ms: float | None, ttft: float | None = None) -> Compared:
    """A prediction of `fixed_ms + rest_ms` and of 100 ms to the first token, and what was measured."""
    return Compared(MeasuredPoint(8, 1000, 100, ttft, measured_ms), fixed_ms, fixed_ms + rest_ms, 100.0)


def test_nothing_measured_corrects_nothing() -> None:
    """No points, and points without a time."""
    assert corrected_by([]) == UNCORRECTED
    assert corrected_by([point(5, 5, None)]) == UNCORRECTED
    assert UNCORRECTED.tpot(5, 12) == 12


def test_one_point_shifts_both_parts() -> None:
    """12 ms measured where 10 were predicted: everything takes 1.2 times as long."""
    found = corrected_by([point(5, 5, 12, ttft=150)])
    assert (found.fixed, found.variable, found.ttft) == (pytest.approx(1.2), pytest.approx(1.2), pytest.approx(1.5))
    assert found.tier is Tier.ONE_POINT


def test_two_points_tell_the_fixed_part_from_the_rest() -> None:
    """Measured as twice the fixed part and 0.9 of the rest, at a light and at a heavy load."""
    points = [point(5, 2, 2 * 5 + 0.9 * 2), point(5, 45, 2 * 5 + 0.9 * 45)]
    found = corrected_by(points)
    assert found.tier is Tier.POINTS
    assert found.fixed == pytest.approx(2, rel=0.1)
    assert found.variable == pytest.approx(0.9, rel=0.1)
    for each in points:
        assert found.tpot(each.fixed_ms, each.tpot_ms) == pytest.approx(each.measured.tpot_ms, rel=0.05)


def test_two_points_of_one_load_are_a_shift() -> None:
    """Reruns of the same load, 10 % apart, must not tear the parts asunder."""
    found = corrected_by([point(5, 5, 10.5), point(5, 5, 11.5)])
    assert found.fixed == pytest.approx(found.variable, rel=0.01)
    assert found.fixed == pytest.approx(1.1, rel=0.01)


def test_siblings_move_part_of_the_way_and_each_counts_once() -> None:
    """Two siblings off by 1.2 and 1.0: the root of 1.2, weighed down; many points of one do not outvote the other."""
    off = [point(5, 5, 12)] * 7
    found = corrected_by([], [off, [point(5, 5, 10)]])
    assert found.fixed == found.variable == pytest.approx(1.2 ** (SIBLING_WEIGHT / 2))
    assert found.tier is Tier.SIBLINGS
    assert found.ttft == 1


def test_own_points_silence_siblings() -> None:
    """What was measured of the configuration itself is enough."""
    assert corrected_by([point(5, 5, 10)], [[point(5, 5, 30)]]).fixed == pytest.approx(1)


def test_a_time_per_token_follows_from_throughput() -> None:
    """8 requests of 101 tokens at 400 tokens/s take 2.02 s each; without 20 ms to the first, 20 ms a token."""
    found = MeasuredPoint(8, 1000, 101, ttft_ms=20.0, output_tokens_per_second=400.0)
    assert found.token_ms == pytest.approx(20.0)
    assert MeasuredPoint(8, 1000, 101).token_ms is None
    assert MeasuredPoint(8, 1000, 101, ttft_ms=1e6, output_tokens_per_second=400.0).token_ms is None


@given(
    st.lists(
        st.tuples(st.floats(0.1, 50), st.floats(0.1, 200), st.floats(0.2, 5)),
        min_size=1,
        max_size=5,
    )
)
def test_a_correction_never_turns_a_time_negative(rows: list[tuple[float, float, float]]) -> None:
    """Whatever is measured, both factors stay positive."""
    found = corrected_by([point(fixed, rest, (fixed + rest) * factor) for fixed, rest, factor in rows])
    assert found.fixed > 0
    assert found.variable > 0
