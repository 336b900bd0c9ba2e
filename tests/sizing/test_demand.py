"""From people to load, against textbook values."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.sizing import demand


def test_fifty_people() -> None:
    """50 people, half of them active, answers of 10 s, 40 s to read and write: 5 wait on average, 0.5 ask a second."""
    assert demand.active_people(50, 0.5) == 25
    assert demand.waiting_share(10, 40) == pytest.approx(0.2)
    assert demand.mean_concurrency(50, 0.5, 10, 40) == pytest.approx(5)
    assert demand.arrival_rate(50, 0.5, 10, 40) == pytest.approx(0.5)


def test_nobody_thinks() -> None:
    """Programs that ask again at once all wait all the time."""
    assert demand.mean_concurrency(50, 1.0, 10, 0) == 50


def test_a_busy_moment_follows_the_binomial_distribution() -> None:
    """10 people waiting a tenth of the time: P(X > 4) = 0.16 %, P(X > 3) = 1.28 %, by direct summation."""
    exceeds = [sum(comb(10, k) * 0.1**k * 0.9 ** (10 - k) for k in range(most + 1, 11)) for most in range(11)]
    assert (round(exceeds[4], 4), round(exceeds[3], 4)) == (0.0016, 0.0128)
    assert demand.peak_concurrency(10, 0.1) == 4
    assert demand.peak_concurrency(10, 0.1, chance=0.02) == 3


@pytest.mark.parametrize(("busy", "peak"), [(0.0, 0), (1.0, 50)])
def test_peaks_at_the_ends(busy: float, peak: int) -> None:
    """Nobody waits, or everybody does."""
    assert demand.peak_concurrency(50, busy) == peak


@given(st.integers(1, 3000), st.floats(0.001, 0.999))
def test_a_peak_is_between_the_mean_and_everybody(people: int, busy: float) -> None:
    """And large numbers neither overflow nor vanish."""
    peak = demand.peak_concurrency(people, busy)
    assert people * busy - 1 <= peak <= people


def test_slower_answers_settle_at_more_in_flight() -> None:
    """Answers of 2 s and 1 s more for each in flight, 27 people with 7 s between: n = 27 (2 + n) / (9 + n)."""
    # n^2 - 18 n - 54 = 0, so n = 9 + sqrt(135) = 20.619.
    assert demand.settled_concurrency(27, 1.0, 7.0, lambda n: 2 + n) == pytest.approx(20.619, abs=0.001)


def test_constant_answers_settle_at_the_mean() -> None:
    """Where load slows nothing, the law alone decides."""
    assert demand.settled_concurrency(50, 0.5, 40, lambda _: 10.0) == pytest.approx(5)


def test_tokens_of_equal_conversations_need_no_margin() -> None:
    """Mean and maximum the same."""
    assert demand.cached_tokens(10, 4000, 4000) == 40_000


def test_tokens_of_unequal_conversations() -> None:
    """100 of 1000 on average, 8000 at most: 100,000 and 2.326 x sqrt(100 x 1000 x 7000), rounded up."""
    assert demand.cached_tokens(100, 1000, 8000) == 161_550


def test_one_conversation_of_the_maximum_always_fits() -> None:
    """However short they are on average, and never more than all of the maximum."""
    assert demand.cached_tokens(1, 100, 8000) == 8000
    assert demand.cached_tokens(2, 7999, 8000) <= 16_000
