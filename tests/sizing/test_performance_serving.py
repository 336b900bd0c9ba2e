"""A copy under load: worked numbers, laws that hold for any queue, and what may never get better with more load."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.sizing.layouts import Layout
from service.sizing.performance import Load, curve, largest_concurrency, largest_rate, predict, tpot_ms
from service.sizing.performance.collectives import Collective
from service.sizing.performance.costs import ExpertCost, StageCost
from service.sizing.performance.parameters import VLLM
from service.sizing.performance.prediction import copy_of
from service.sizing.performance.serving import MOST_UTILISATION, Copy, Pace
from tests.sizing.performance_cases import GPUS, replica

ENGINE = replace(VLLM, step_s=0.0, first_token_s=0.0, bunching=0.0)


def stage(**changes: Any) -> StageCost:
    """A stage whose step takes 10 ms and 1 ms for each prompt token, unless changed."""
    given: dict[str, Any] = {
        "dense_read_s": 0.0,
        "dense_token_s": 0.0,
        "head_read_s": 0.0,
        "head_sequence_s": 0.0,
        "experts": (),
        "attention": (),
        "state_s": 0.0,
        "sequence_s": -0.001,
        "pass_s": 0.001,
        "fixed_s": 0.010,
        "prompt_fixed_s": 0.0,
        "all_reduces": 0,
        "all_reduce": Collective(0, 1),
        "exchanges": 0,
        "exchange": Collective(0, 1),
        "copies": 1,
        "residual_bytes": 1,
    }
    return StageCost(**(given | changes))


def copy(*stages: StageCost, prompt: int = 100, output: int = 10, limit: float = 64, **changes: Any) -> Copy:
    """A copy of some stages, whose prompts take one step."""
    given: dict[str, Any] = {
        "paces": tuple(Pace.of(each, prompt, output, 1) for each in stages),
        "handoffs": (Collective(0.001, 1e12),) * (len(stages) - 1),
        "handoff_bytes": 0,
        "engine": ENGINE,
        "first_token_steps": 0.0,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "chunks": 1,
        "most_chunks": 1.0,
        "limit": limit,
    }
    return Copy(**(given | changes))


def test_a_lone_request_waits_for_its_prompt_and_then_for_its_steps() -> None:
    """100 prompt tokens in a step of 110 ms, then nine tokens at 10 ms: 5 requests a second of 200 ms."""
    state = copy(stage()).at(1)
    assert state.ttft_s == pytest.approx(0.110)
    assert state.tpot_s == pytest.approx(0.010)
    assert state.requests_per_second == pytest.approx(1 / 0.200)


def test_prompts_of_others_make_steps_longer() -> None:
    """Five requests of 1000 tokens: each step meets 4/1000 of a prompt of the others, 100 ms long."""
    assert copy(stage(), output=1000).at(5).tpot_s == pytest.approx(0.010 + 4 / 1000 * 0.100)


def test_many_prompts_share_a_step() -> None:
    """Nine requests of two tokens: every step takes in four prompts, 400 ms, as far as its budget goes."""
    assert copy(stage(), output=2, most_chunks=8).at(9).tpot_s == pytest.approx(0.410)


def test_prompts_beyond_the_budget_of_a_step_wait_before_their_first_token() -> None:
    """With room for three of the four, a token takes 310 ms, and the first comes 100 ms later; the work is the same."""
    roomy, tight = (copy(stage(), output=2, most_chunks=most).at(9) for most in (8, 3))
    assert tight.tpot_s == pytest.approx(0.310)
    assert tight.ttft_s == pytest.approx(roomy.ttft_s + 0.100)
    assert tight.requests_per_second == pytest.approx(roomy.requests_per_second)


def test_long_prompts_take_several_steps() -> None:
    """Four chunks of 25 tokens: three more steps to the first token, no more work for the others."""
    cut = Copy(
        paces=(Pace.of(stage(), 100, 10, 4),),
        handoffs=(),
        handoff_bytes=0,
        engine=ENGINE,
        first_token_steps=0.0,
        prompt_tokens=100,
        output_tokens=10,
        chunks=4,
        most_chunks=1.0,
        limit=8,
    )
    assert cut.at(1).ttft_s == pytest.approx(4 * 0.035)


def test_a_request_arrives_while_a_step_runs_and_others_queue() -> None:
    """Engine time, a wait in steps, and a tenth of nine other prompts of 110 ms."""
    engine = replace(ENGINE, first_token_s=0.5, bunching=0.1)
    served = copy(stage(), output=1000, engine=engine, first_token_steps=2.0)
    assert served.at(10).ttft_s == pytest.approx(0.5 + 2 * 0.010 + 0.110 + 0.1 * 9 * 0.110)


def test_requests_beyond_the_limit_wait_for_a_place() -> None:
    """Sixteen requests in a copy for eight: completions stay, and each waits one whole turn."""
    served = copy(stage(), limit=8)
    full, twice = served.at(8), served.at(16)
    assert twice.requests_per_second == full.requests_per_second
    assert twice.tpot_s == full.tpot_s
    assert twice.ttft_s == pytest.approx(full.ttft_s + full.ttft_s + 9 * full.tpot_s)


def test_a_token_passes_every_stage() -> None:
    """Two stages of 10 ms and a handoff of 1 ms: 21 ms for one sequence and for two, which take turns."""
    served = copy(stage(), stage(), output=1000)
    assert served.times(1.0)[0] == pytest.approx(0.021)
    assert served.times(2.0)[0] == pytest.approx(0.021)


def test_the_slowest_stage_paces_a_full_pipeline() -> None:
    """Stages of 10 and 30 ms: a lone token takes 40 ms and the handoff, two wait for the slow stage twice."""
    served = copy(stage(), stage(fixed_s=0.030))
    assert served.times(1.0)[0] == pytest.approx(0.041)
    assert served.times(2.0)[0] == pytest.approx(0.061)


def test_an_arrival_rate_settles_where_as_much_is_completed() -> None:
    """Little's law: concurrency is the rate times the time of a request."""
    served = copy(stage(), output=100)
    state = served.at_rate(5.0)
    assert state is not None
    assert state.requests_per_second == pytest.approx(5.0, rel=1e-3)
    assert state.concurrency < 64


def test_random_arrivals_queue_for_prompts_as_in_md1() -> None:
    """At one request a second prompts of 110 ms are busy 11 % of the time and wait 0.11 / (2 x 0.89) of one."""
    served = copy(stage(), output=2)
    state = served.at_rate(1.0)
    assert state is not None
    assert state.ttft_s == pytest.approx(0.110 + 0.11 / (2 * 0.89) * 0.110, rel=1e-3)


def test_a_rate_near_what_a_copy_completes_is_refused() -> None:
    """Above 95 % of what it completes at its limit."""
    served = copy(stage(), limit=8)
    most = served.at(8).requests_per_second
    assert served.at_rate(most * (MOST_UTILISATION - 0.01)) is not None
    assert served.at_rate(most * (MOST_UTILISATION + 0.01)) is None


def test_copies_in_lockstep_wait_for_each_others_prompts() -> None:
    """Half of each copy's steps carry 100 ms of prompt; of two copies in lockstep three in four steps do."""
    alone, group = copy(stage()), copy(stage(copies=2, exchanges=1, exchange=Collective(0, 1e12)))
    assert alone.at(6).tpot_s == pytest.approx(0.010 + 5 / 10 * 0.100)
    assert group.at(6).tpot_s == pytest.approx(0.010 + 0.75 * 0.100, rel=1e-3)
    # At eleven every step of every copy carries one.
    assert group.at(11).tpot_s == pytest.approx(alone.at(11).tpot_s, rel=1e-3)


def test_experts_of_a_group_see_each_prompt_once() -> None:
    """Two copies of six sequences and half a prompt of 100 tokens a step: 112 tokens, 1 ms each, over the group."""
    experts = (ExpertCost(read_s=0.0, token_s=0.001, passed_by=-50.0, copies=2),)
    group = copy(
        stage(pass_s=0.0, sequence_s=0.0, copies=2, exchanges=1, exchange=Collective(0, 1e12), experts=experts)
    )
    assert group.at(6).tpot_s == pytest.approx(0.010 + 0.112, rel=1e-3)


names = st.sampled_from(["llama-70b", "llama-70b-int4", "gpt-oss-120b", "minimax-m2.5", "deepseek-v3"])
cards = st.sampled_from(sorted(GPUS))
layouts = st.builds(
    Layout,
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
lengths = st.sampled_from([1, 16, 300, 2000, 30_000])


@settings(max_examples=150, deadline=None)
@given(names, cards, layouts, lengths, lengths, st.lists(st.floats(0.05, 3000), min_size=2, max_size=6))
def test_more_requests_never_make_times_shorter(
    name: str, card: str, layout: Layout, prompt: int, output: int, loads: list[float]
) -> None:
    """Neither the time per output token nor that to the first, nor does the wait for a place."""
    served = copy_of(replica(name, card, layout, max_num_seqs=256), prompt, output)
    states = [served.at(load) for load in sorted(loads)]
    for fewer, more in pairwise(states):
        assert more.tpot_s >= fewer.tpot_s * (1 - 1e-9)
        assert more.ttft_s >= fewer.ttft_s * (1 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(names, cards, layouts, lengths, lengths, st.integers(1, 512), st.floats(1.0, 4.0))
def test_more_bandwidth_never_makes_times_longer(
    name: str, card: str, layout: Layout, prompt: int, output: int, requests: int, faster: float
) -> None:
    """The same card with faster memory."""
    slow = replica(name, card, layout)
    fast = replace(
        slow,
        gpu=replace(slow.gpu, memory_bandwidth_bytes_per_s=slow.gpu.memory_bandwidth_bytes_per_s * faster),
    )
    before, after = (copy_of(each, prompt, output).at(requests) for each in (slow, fast))
    assert after.tpot_s <= before.tpot_s * (1 + 1e-9)
    assert after.ttft_s <= before.ttft_s * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(names, cards, lengths, st.integers(2, 4000), st.integers(1, 256))
def test_requests_in_a_copy_are_those_completed_in_the_time_of_one(
    name: str, card: str, prompt: int, output: int, requests: int
) -> None:
    """Little's law: concurrency = completions x (time to first token + the other tokens)."""
    state = copy_of(replica(name, card), prompt, output).at(requests)
    assert state.requests_per_second * (state.ttft_s + (output - 1) * state.tpot_s) == pytest.approx(requests)


def test_the_largest_load_is_the_last_that_keeps_its_promises() -> None:
    """One more request breaks them, with the margin for an unmeasured configuration."""
    served = replica("llama-70b", "h100-sxm", Layout(4))
    most = largest_concurrency(served, 1000, 500, ttft_ms=2000, tpot_ms=25)
    assert 1 < most < 1024
    here, above = (predict(served, Load(load, 1000, 500)) for load in (most, most + 1))
    assert here.tpot_ms.value * 1.15 <= 25
    assert above.tpot_ms.value * 1.15 > 25 or above.ttft_ms.value * 1.5 > 2000


def test_a_promise_that_one_request_breaks_allows_none() -> None:
    """Reading 70 GB takes an L40S more than 5 ms."""
    assert largest_concurrency(replica("llama-70b", "l40s"), 100, 100, ttft_ms=None, tpot_ms=5) == 0


def test_without_promises_the_limit_is_the_copys_own() -> None:
    """What the cache holds."""
    served = replica("llama-70b", "h100-sxm", Layout(4), cache_holds=37)
    assert largest_concurrency(served, 100, 100, ttft_ms=None, tpot_ms=None) == 37


def test_the_curve_spans_the_loads_a_copy_runs() -> None:
    """From one request to the limit, throughput over all copies."""
    served = replica("llama-70b", "h100-sxm", Layout(4, data_parallel_size=2))
    points = curve(served, 1000, 500)
    assert (points[0].concurrency, points[-1].concurrency) == (1, 1024)
    assert len(points) <= 32
    assert points[0].tpot_ms == tpot_ms(served, Load(1, 1000, 500))
    assert points[0].output_tokens_per_second == pytest.approx(
        predict(served, Load(1, 1000, 500)).output_tokens_per_second.value
    )


def test_the_largest_rate_counts_all_copies() -> None:
    """Two copies of a dense model take twice what one does."""
    one, two = (replica("llama-70b", "h100-sxm", Layout(4, data_parallel_size=copies)) for copies in (1, 2))
    assert largest_rate(two, 1000, 500) == pytest.approx(2 * largest_rate(one, 1000, 500))
