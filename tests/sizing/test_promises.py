"""Promised times, arrival rates, people and the curve: laws, and numbers worked by hand."""

import re
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from math import comb
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.sizing.answer import Answer, Plan, Rejection
from service.sizing.cost.offer import Offer
from service.sizing.demand import People
from service.sizing.layouts import Layout
from service.sizing.question import Objectives, RankBy, Workload
from tests.sizing.performance_cases import model
from tests.sizing.test_plan import H100, L40S, ask, machine, recommended

PROMPT, OUTPUT = 3584, 512


def promised(
    *,
    tpot: float | None = None,
    ttft: float | None = None,
    sequences: int = 16,
    rate: float | None = None,
    people: People | None = None,
    **changes: Any,
) -> Answer:
    """A plan of Llama 70B on H100 for 4,096 tokens, held to promises."""
    workload = Workload(4096, sequences, PROMPT, OUTPUT, rate, people)
    return ask(memory_gib=None, space_gib=None, workload=workload, objectives=Objectives(ttft, tpot), **({} | changes))


def gpus(answer: Answer) -> float:
    """GPUs of the recommendation; without one, more than any."""
    return answer.recommended.gpu_count if answer.recommended else float("inf")


def refused(answer: Answer) -> Rejection:
    """The only rejection."""
    assert answer.recommended is None
    (only,) = answer.rejected
    return only


@settings(max_examples=25)
@given(
    tpot=st.floats(5, 80), ttft=st.floats(50, 3000), looser=st.floats(1, 4), sequences=st.sampled_from([1, 8, 40, 120])
)
def test_a_looser_promise_never_needs_more_gpus(tpot: float, ttft: float, looser: float, sequences: int) -> None:
    """Whatever keeps the tighter promise keeps the looser."""
    tight = promised(tpot=tpot, ttft=ttft, sequences=sequences)
    loose = promised(tpot=tpot * looser, ttft=ttft * looser, sequences=sequences)
    assert gpus(loose) <= gpus(tight)


@settings(max_examples=25)
@given(rate=st.floats(0.05, 12), times=st.floats(1, 4), tpot=st.sampled_from([None, 20.0, 40.0]))
def test_a_higher_rate_never_needs_fewer_gpus(rate: float, times: float, tpot: float | None) -> None:
    """What carries more carries less."""
    assert gpus(promised(rate=rate * times, tpot=tpot, sequences=1)) >= gpus(
        promised(rate=rate, tpot=tpot, sequences=1)
    )


@pytest.mark.parametrize("layout", [Layout(4), Layout(8), Layout(8, 1, 2), Layout(4, 2, 1)])
@pytest.mark.parametrize("promise", [{"tpot": 40.0}, {"ttft": 2000.0}, {"tpot": 60.0, "ttft": 3000.0}])
def test_the_largest_load_keeps_the_promise_and_more_breaks_it(layout: Layout, promise: dict[str, Any]) -> None:
    """Closed loop: one request more on each copy; open loop: two per cent more arrivals."""
    kept = recommended(promised(layout=layout, sequences=1, **promise)).objectives
    assert kept is not None
    most, copies = kept.concurrent_sequences, layout.data_parallel_size
    assert promised(layout=layout, sequences=most, **promise).recommended
    assert not promised(layout=layout, sequences=most + copies, **promise).recommended
    rate = kept.requests_per_second
    assert promised(layout=layout, sequences=1, rate=rate, **promise).recommended
    assert not promised(layout=layout, sequences=1, rate=rate * 1.02, **promise).recommended


def test_a_promise_is_held_against_the_prediction_with_its_margin() -> None:
    """1.15 on the time per output token and 1.5 on the first, with the share of decisions that promised too much."""
    plan = recommended(promised(tpot=40, ttft=1000, sequences=8, layout=Layout(8)))
    assert plan.objectives is not None
    assert plan.latency.tpot_ms is not None
    assert plan.latency.ttft_ms is not None
    for promise, figure, margin, broken in (
        (plan.objectives.tpot, plan.latency.tpot_ms, 1.15, 4),
        (plan.objectives.ttft, plan.latency.ttft_ms, 1.5, 12),
    ):
        assert promise is not None
        assert (promise.margin, promise.over_promised_percent) == (margin, broken)
        assert promise.predicted_ms == pytest.approx(figure.value)
        assert promise.with_margin_ms == pytest.approx(figure.value * margin)
        assert promise.with_margin_ms <= promise.promised_ms
    assert any("4 % promised" in warning for warning in plan.warnings)
    assert any("12 % promised" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("promise", "code"),
    [({"tpot": 12.0}, "tpot_missed"), ({"ttft": 200.0}, "ttft_missed"), ({"rate": 12.0}, "rate_too_high")],
)
def test_every_fix_of_a_broken_promise_works(promise: dict[str, Any], code: str) -> None:
    """More GPUs, a smaller load, a looser promise: each is taken when asked for."""
    asked: dict[str, Any] = {"sequences": 24} | promise
    missed = refused(promised(layout=Layout(4), **asked))
    assert missed.code == code
    assert missed.fix
    if more := re.search(r"use (\d+) GPUs", missed.fix):
        assert promised(gpu_counts=(int(more[1]),), **asked).recommended
    if fewer := re.search(r"at most (\d+) concurrent", missed.fix):
        assert promised(layout=Layout(4), **(asked | dict[str, Any](sequences=int(fewer[1])))).recommended
    if slower := re.search(r"at most ([\d.]+) requests a second", missed.fix):
        assert promised(layout=Layout(4), **(asked | dict[str, Any](rate=float(slower[1])))).recommended
    if looser := re.search(r"promise a (tpot|ttft)_ms of ([\d.]+)", missed.fix):
        assert promised(layout=Layout(4), **(asked | dict[str, Any]({looser[1]: float(looser[2])}))).recommended


@pytest.mark.parametrize("people", [People(9000, 0.5, 40, 1.0, 0.01), People(1000, 0.5, 0, None, 0.01)])
def test_no_promise_makes_room_for_the_cache(people: People) -> None:
    """What too many people would keep waiting is cured by fewer people or more cards, not by a looser promise."""
    missed = refused(promised(people=people, tpot=5, ttft=100, layout=Layout(4)))
    assert missed.code == "cache_too_small"
    assert not any(way.startswith("promise") for way in (missed.fix or "").split(", or "))


def test_pairs_without_fast_links_are_searched_where_single_cards_do_not_serve() -> None:
    """Two L40S that split tensors keep a promise that one card or two stages break; so do four such pairs."""
    asked: dict[str, Any] = {"gpu": L40S, "model": model("llama-70b-int4"), "tpot": 45}
    assert promised(sequences=1, layout=Layout(1, 2), **asked).recommended is None
    assert recommended(promised(sequences=1, layout=Layout(2), **asked))
    copies = recommended(promised(sequences=4, gpu_counts=(8,), **asked)).layout
    assert (copies.tensor_parallel_size, copies.data_parallel_size) == (2, 4)
    asked["tpot"] = 200
    loose = recommended(promised(sequences=4, gpu_counts=(8,), **asked)).layout
    assert loose.tensor_parallel_size == 1


def test_nothing_is_advised_that_cannot_be_asked_for() -> None:
    """At most 4,096 GPUs, and an hour for the first token."""
    answer = promised(rate=50_000, sequences=1, tpot=40, ttft=2000)
    fixes = " ".join(each.fix or "" for each in answer.rejected if each.code == "rate_too_high")
    assert "side by side" in fixes
    assert not [count for count in re.findall(r"use (\d+) GPUs", fixes) if int(count) > 4096]


def test_an_impossible_promise_is_refused_with_what_would_be_kept() -> None:
    """Nothing answers a token of 70 billion parameters in a millisecond; no count of GPUs is named."""
    answer = promised(tpot=1.0)
    assert answer.recommended is None
    missed = [each for each in answer.rejected if each.code == "tpot_missed"]
    assert [each.gpu_count for each in missed] == [4, 8, 16]
    assert all(re.fullmatch(r"promise a tpot_ms of [\d.]+", each.fix or "") for each in missed)
    assert "with the margin of 1.15" in missed[0].message


def test_more_arrivals_take_more_copies_than_memory_needs() -> None:
    """One copy on four cards holds the conversations; the rate takes several, and beyond a node whole nodes."""
    assert gpus(promised(rate=0.5, sequences=1)) == 4
    wide = recommended(promised(rate=14, sequences=1, max_gpus=64))
    assert wide.layout.data_parallel_size > 1
    assert wide.gpu_count % 8 == 0
    named = [each.fix or "" for each in promised(rate=300, sequences=1).rejected if each.code == "rate_too_high"]
    count = int(re.findall(r"use (\d+) GPUs", named[-1])[0])
    assert count % 8 == 0
    assert promised(rate=300, sequences=1, gpu_counts=(count,)).recommended


def test_arrivals_settle_by_littles_law_and_fit_the_cache() -> None:
    """In flight = rate x time of an answer (first token, then 511 more); the cache holds them."""
    plan = recommended(promised(rate=3, sequences=1, layout=Layout(8)))
    assert plan.objectives is not None
    assert plan.latency.tpot_ms is not None
    assert plan.latency.ttft_ms is not None
    whole = (plan.latency.ttft_ms.value + (OUTPUT - 1) * plan.latency.tpot_ms.value) / 1000
    assert plan.objectives.requests_in_flight == pytest.approx(3 * whole)
    assert plan.throughput.requests_per_second == 3
    per_conversation = plan.kv_cache.bytes_per_token_per_gpu * 4096
    assert plan.memory.kv_cache_needed_bytes >= 3 * whole * per_conversation * 0.95
    assert plan.objectives.utilisation is not None
    assert 0 < plan.objectives.utilisation < 0.95


def test_idle_copies_make_no_tokens() -> None:
    """One request at once over two copies: the throughput, price and load are of one request."""
    one, two = (recommended(promised(sequences=1, tpot=100, layout=Layout(4, 1, copies))) for copies in (1, 2))
    assert one.throughput.output_tokens_per_second is not None
    assert two.throughput.output_tokens_per_second is not None
    assert two.throughput.output_tokens_per_second.value == one.throughput.output_tokens_per_second.value
    assert two.throughput.output_tokens_per_second_per_gpu == pytest.approx(
        two.throughput.output_tokens_per_second.value / 8
    )
    assert two.objectives is not None
    assert two.objectives.requests_in_flight == 1


def test_the_cheapest_that_keeps_the_promise_is_found() -> None:
    """Eight cards that keep a promise beat four that cost less and do not."""
    price = Offer("somewhere", "on_demand", "", "", 1, Decimal(2), "2026-11-01", "list", 0, "USD", Decimal(2))
    offers = {"h100": (price,)}
    cheap = recommended(promised(rank_by=RankBy.COST, offers=offers))
    assert cheap.gpu_count == 4
    quick = recommended(promised(rank_by=RankBy.COST, offers=offers, tpot=24))
    assert quick.gpu_count == 8


@pytest.mark.parametrize(("rank_by", "sign"), [(RankBy.LATENCY, 1), (RankBy.THROUGHPUT, -1)])
def test_plans_are_ranked_by_predicted_figures(rank_by: RankBy, sign: int) -> None:
    """By the time per token, or by tokens a second, as they are answered."""
    answer = promised(rank_by=rank_by, max_gpus=32)
    values = list[float]()
    for plan in (recommended(answer), *answer.alternatives):
        figure = plan.latency.tpot_ms if rank_by is RankBy.LATENCY else plan.throughput.output_tokens_per_second
        assert figure is not None
        values.append(sign * figure.value)
    assert values == sorted(values)


def test_a_card_of_unknown_speed_promises_nothing() -> None:
    """Without a rated speed no time is predicted, and so none can be kept."""
    silent = replace(H100, dense_flops={})
    assert refused(promised(tpot=40, machines=(machine(silent),), gpu_counts=(8,))).code == "no_time_predicted"
    assert ask(machines=(machine(silent),)).recommended


def test_a_promise_on_slow_cards_is_refused_for_speed_not_for_memory() -> None:
    """Eight L40S hold the model; what stops them is the time of a token."""
    answer = promised(tpot=20, gpu=L40S, gpu_counts=(8,), sequences=2)
    assert refused(answer).code == "tpot_missed"


FIFTY = People(people=50, share_active=0.5, think_s=40, answer_s=None, peak_chance=0.01)


def exceeded(people: int, busy: float, most: int) -> float:
    """Chance that more than `most` of them wait at once, by direct summation."""
    return sum(comb(people, k) * busy**k * (1 - busy) ** (people - k) for k in range(most + 1, people + 1))


def test_fifty_people_become_their_mean_and_their_busy_moment() -> None:
    """25 active; each waits the answer's share of answer and thought; the peak is exceeded 1 % of the time."""
    plan = recommended(promised(people=FIFTY, layout=Layout(8), sequences=1))
    made = plan.people
    assert made is not None
    assert made.active == 25
    assert made.mean_concurrency == pytest.approx(25 * made.answer_seconds / (made.answer_seconds + 40), rel=1e-4)
    assert made.requests_per_second == pytest.approx(25 / (made.answer_seconds + 40))
    busy = made.mean_concurrency / 50
    assert exceeded(50, busy, made.peak_concurrency) <= 0.01 < exceeded(50, busy, made.peak_concurrency - 1)
    assert plan.memory.kv_cache_needed_bytes == made.peak_concurrency * 4096 * plan.kv_cache.bytes_per_token_per_gpu


def test_a_given_answer_time_is_taken() -> None:
    """Answers of 10 s and 40 s between: 25 x 10 / 50 = 5 at once, half a question a second."""
    made = recommended(promised(people=replace(FIFTY, answer_s=10), layout=Layout(8), sequences=1)).people
    assert made is not None
    assert (made.mean_concurrency, made.requests_per_second) == (pytest.approx(5), pytest.approx(0.5))
    assert exceeded(50, 0.1, made.peak_concurrency) <= 0.01 < exceeded(50, 0.1, made.peak_concurrency - 1)


def test_people_and_their_peak_as_a_concurrency_give_the_same_times() -> None:
    """The plan is for the busy moment, however it was asked for."""
    people = recommended(promised(people=FIFTY, layout=Layout(8), sequences=1, tpot=40))
    assert people.people is not None
    plain = recommended(promised(sequences=people.people.peak_concurrency, layout=Layout(8), tpot=40))
    assert people.latency == plain.latency
    assert people.memory == plain.memory


def test_fewer_people_keep_a_promise_that_many_break() -> None:
    """The fix names how many, and that many are served."""
    crowd = replace(FIFTY, people=2000)
    missed = refused(promised(people=crowd, layout=Layout(8), sequences=1, tpot=20, max_gpus=64))
    count = re.search(r"use (\d+) GPUs", missed.fix or "")
    assert count
    assert promised(people=crowd, gpu_counts=(int(count[1]),), sequences=1, tpot=20).recommended
    most = re.search(r"at most (\d+) people", missed.fix or "")
    assert most
    assert promised(people=replace(crowd, people=int(most[1])), layout=Layout(8), sequences=1, tpot=20).recommended


def test_the_curve_rises_and_says_where_the_promise_breaks() -> None:
    """32 loads from one request on each copy to all that run; times never fall, and promises break once."""
    layout = Layout(4, 1, 2)
    plan = recommended(promised(layout=layout, sequences=2, tpot=40, curve_points=32))
    curve = plan.load_curve
    assert 16 < len(curve) <= 32
    assert curve[0].concurrent_sequences == 2
    assert curve[-1].concurrent_sequences == plan.capacity.concurrent_sequences
    for before, after in pairwise(curve):
        assert before.concurrent_sequences < after.concurrent_sequences
        assert before.tpot_ms <= after.tpot_ms
        assert before.ttft_ms <= after.ttft_ms
    assert plan.objectives is not None
    assert all(
        point.keeps_objectives == (point.concurrent_sequences <= plan.objectives.concurrent_sequences)
        for point in curve
    )


def test_the_curve_passes_through_the_plan() -> None:
    """At the concurrency asked it shows the plan's own figures."""
    plan = recommended(promised(layout=Layout(8), sequences=1, curve_points=8))
    assert plan.latency.tpot_ms is not None
    assert plan.throughput.output_tokens_per_second is not None
    first = plan.load_curve[0]
    assert first.tpot_ms == plan.latency.tpot_ms.value
    assert first.output_tokens_per_second == pytest.approx(plan.throughput.output_tokens_per_second.value)
    assert first.keeps_objectives is None


def test_nothing_is_said_of_promises_that_nobody_asked_for() -> None:
    """No objectives, people or curve without their question."""
    plan: Plan = recommended(promised())
    assert (plan.objectives, plan.people, plan.load_curve) == (None, None, ())
