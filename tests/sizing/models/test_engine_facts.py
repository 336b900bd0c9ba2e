"""Readers of models against what vLLM 0.33 built of the same configurations."""

import pytest

from service.sizing.kv_cache.planner import CachePlan
from service.sizing.weights import total_parameters
from tests.sizing.models.engine_facts import Fact, counts, facts, planned, shape, stage_bytes

FACTS = facts()


@pytest.mark.parametrize("fact", FACTS)
def test_bytes_of_every_stage_are_the_engines(fact: Fact) -> None:
    """Parameters and buffers of tensor rank 0 of each pipeline stage."""
    assert stage_bytes(fact) == fact.stages


@pytest.mark.parametrize("fact", [fact for fact in FACTS if fact.values[0].blocks is not None])
def test_cache_is_planned_as_the_engine_does(fact: Fact) -> None:
    """Blocks and tokens that the engine prints for the same memory."""
    plan = planned(fact)
    assert isinstance(plan, CachePlan)
    assert (plan.num_blocks, plan.tokens) == (fact.blocks, fact.tokens)


@pytest.mark.parametrize(("family", "model", "parameters"), counts())
def test_parameters_are_those_published(family: str, model: str, parameters: int) -> None:
    """Parameters of the checkpoint, without layers that only speculate."""
    assert total_parameters(shape(family, model)) == parameters
