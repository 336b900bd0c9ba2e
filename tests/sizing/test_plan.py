"""The plan as a whole: budget, capacity, search, ranking, refusals, flags; expectations worked by hand."""

from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.sizing import plan
from service.sizing.answer import Answer, Plan
from service.sizing.engine.options import EngineOptions
from service.sizing.hardware import Gpu, Link, Vendor
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model
from service.sizing.quantities import GB, GIB
from service.sizing.question import Assumptions, Machine, Question, RankBy, Workload

# Published config.json of meta-llama/Llama-3.1-70B-Instruct, the fields that decide its size.
LLAMA_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": False,
}
LLAMA_8B = LLAMA_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
}
MODEL = read_model("llama-70b", LLAMA_70B)
SMALL = read_model("llama-8b", LLAMA_8B)

# 80 layers x (8192 x (8192 + 2 x 1024) + 8192 x 8192 + 3 x 8192 x 28672 + 2 x 8192) + 2 x 128256 x 8192 + 8192
PARAMETERS = 70_553_706_496


def card(slug: str, *, link: Link, memory_gib: float, bandwidth_gb_per_s: float, capability: tuple[int, int]) -> Gpu:
    """A card with the figures that a plan reads."""
    return Gpu(
        slug=slug,
        name=slug.upper(),
        vendor=Vendor.NVIDIA,
        architecture="",
        compute_capability=capability,
        memory_total_bytes=round(memory_gib * GIB),
        memory_driver_bytes=round((memory_gib + 0.4) * GIB),
        memory_bandwidth_bytes_per_s=bandwidth_gb_per_s * GB,
        dense_flops={"bf16": 9.89e14},
        link=link,
        link_bandwidth_bytes_per_s=450 * GB if link is Link.NVLINK else 32 * GB,
        gpus_per_domain=8 if link is Link.NVLINK else 1,
        gpus_per_node=8,
        has_rules=True,
    )


H100 = card("h100", link=Link.NVLINK, memory_gib=79.18, bandwidth_gb_per_s=3350, capability=(9, 0))
L40S = card("l40s", link=Link.PCIE, memory_gib=44.39, bandwidth_gb_per_s=864, capability=(8, 9))


def machine(gpu: Gpu, **changes: Any) -> Machine:
    """The usual node of a card."""
    return replace(Machine(gpu, gpu.link, gpu.gpus_per_node, gpu.gpus_per_domain), **changes)


def ask(
    *,
    gpu: Gpu = H100,
    context: int = 4096,
    sequences: int = 1,
    memory_gib: float | None = 79.6,
    space_gib: float | None = 2.0,
    **changes: Any,
) -> Answer:
    """A plan for Llama 70B, by default with the memory and working space of the worked examples."""
    question = Question(
        model=MODEL,
        precision="checkpoint",
        workload=Workload(context, sequences, max(1, context - context // 8), max(1, context // 8)),
        machines=(machine(gpu),),
        engine=EngineOptions(),
        assumptions=Assumptions(
            gpu_memory_bytes=None if memory_gib is None else round(memory_gib * GIB),
            working_space_bytes=None if space_gib is None else round(space_gib * GIB),
        ),
    )
    return plan(replace(question, **changes))


def recommended(answer: Answer) -> Plan:
    """The recommendation, which must be there."""
    assert answer.recommended is not None, answer.rejected
    return answer.recommended


def test_the_budget_of_two_cards_adds_up() -> None:
    """79.6 GiB x 0.92 - half the weights and one rotary table - 2 GiB = 5.49 GiB, which hold 8 x 4,096 tokens."""
    found = recommended(ask(layout=Layout(2)))
    # Norms are copied to both cards: (80 x 2 + 1) x 8192 elements.
    parameters = (PARAMETERS + 161 * 8192) // 2 * 2
    rotary, scales = 131072 * 128 * 2, 80 * 16
    weights = parameters + rotary + scales
    usable = ceil(round(79.6 * GIB) * 0.92)
    assert found.memory.weights_bytes == weights
    assert found.memory.usable_bytes == usable
    room = usable - weights - 2 * GIB
    assert found.memory.kv_cache_room_bytes == room
    # One token on one card: 80 layers x 4 KV heads x 128 x 2 (key, value) x 2 bytes.
    assert found.kv_cache.bytes_per_token_per_gpu == 163_840
    assert found.kv_cache.num_blocks == room // (16 * 163_840)
    assert found.capacity.concurrent_sequences == room // (16 * 163_840) // 256 == 8


@pytest.mark.parametrize(("tensor", "sequences"), [(4, 122), (8, 350)])
def test_more_cards_hold_more_conversations(tensor: int, sequences: int) -> None:
    """Published worked example: 122 and 350 conversations of 4,096 tokens on four and eight cards."""
    assert recommended(ask(layout=Layout(tensor))).capacity.concurrent_sequences == sequences


def test_reading_the_weights_takes_as_long_as_the_bandwidth_says() -> None:
    """70.55 GB on each of two cards at 3,350 GB/s x 0.85 take 24.78 ms; as a pipeline twice that."""
    per_card = (PARAMETERS + 161 * 8192) // 2 * 2 / (3350e9 * 0.85) * 1000
    assert recommended(ask(layout=Layout(2))).latency.weight_read_ms == pytest.approx(per_card)
    whole = PARAMETERS * 2 / (3350e9 * 0.85) * 1000
    assert recommended(ask(layout=Layout(1, 2))).latency.weight_read_ms == pytest.approx(whole)


def test_traffic_is_two_reductions_a_layer_or_one_handoff_a_stage() -> None:
    """160 all-reduces for 80 layers; a stage passes hidden state and residual: 2 x 8192 x 2 bytes."""
    split, staged = recommended(ask(layout=Layout(2))), recommended(ask(layout=Layout(1, 2)))
    assert (split.communication.all_reduces_per_step, split.communication.pipeline_handoffs_per_step) == (160, 0)
    assert (staged.communication.all_reduces_per_step, staged.communication.pipeline_handoffs_per_step) == (0, 1)
    assert staged.communication.handoff_bytes_per_token == 32_768


def test_the_pessimistic_end_decides_and_the_centre_is_shown() -> None:
    """Without a given working space, capacity comes from the high end and the printed cache from the centre."""
    found = recommended(ask(memory_gib=None, space_gib=None, layout=Layout(4)))
    memory = found.memory
    assert memory.working_space_low_bytes < memory.working_space_bytes < memory.working_space_high_bytes
    safe = memory.usable_bytes - memory.weights_bytes - memory.working_space_high_bytes
    per_block = 16 * 80 * 2 * 128 * 2 * 2
    assert found.capacity.concurrent_sequences == safe // per_block // 256
    assert found.kv_cache.num_blocks == memory.kv_cache_room_bytes // per_block


def test_fewest_cards_come_first_and_the_rest_are_alternatives() -> None:
    """Sixteen conversations of 8,192 tokens need four cards; eight are an alternative."""
    answer = ask(context=8192, sequences=16)
    assert recommended(answer).gpu_count == 4
    assert [other.gpu_count for other in answer.alternatives] == [8, 16]
    assert [(each.gpu_count, each.code) for each in answer.rejected] == [(1, "does_not_fit"), (2, "cache_too_small")]
    assert all("4 GPUs" in (each.fix or "") for each in answer.rejected)


def test_cards_without_a_fast_link_take_a_pipeline() -> None:
    """Four L40S split the layers, not every matrix."""
    found = recommended(ask(gpu=L40S, memory_gib=45, gpu_counts=(4,), sequences=16))
    assert (found.layout.tensor_parallel_size, found.layout.pipeline_parallel_size) == (1, 4)


def test_a_pair_without_a_fast_link_is_offered_both_ways() -> None:
    """Two PCIe cards may split tensors or layers: one is recommended, the other an alternative."""
    answer = ask(gpu=L40S, memory_gib=45, gpu_counts=(2,), model=SMALL, rank_by=RankBy.LATENCY)
    sizes = {
        (each.layout.tensor_parallel_size, each.layout.pipeline_parallel_size, each.layout.data_parallel_size)
        for each in (recommended(answer), *answer.alternatives)
    }
    assert {(2, 1, 1), (1, 2, 1)} <= sizes


@pytest.mark.parametrize("gpu", [H100, L40S])
@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_stages_never_make_a_token_of_one_request_faster(gpu: Gpu, tensor: int) -> None:
    """The reads of the stages add up to those of one, and every handoff adds its latency: 5 us at least on any link."""
    times = list[float]()
    for stages in (1, 2, 4, 8, 16):
        answer = ask(gpu=gpu, model=SMALL, layout=Layout(tensor, stages), memory_gib=None, space_gib=None)
        figure = recommended(answer).latency.tpot_ms
        assert figure is not None
        times.append(figure.value)
    assert all(after - before >= 0.005 for before, after in pairwise(times))


def test_one_request_is_served_soonest_by_a_node_however_many_may_be_taken() -> None:
    """Of 128 cards, eight that split every layer are enough: neither stages nor copies make its tokens faster."""
    found = recommended(ask(memory_gib=None, space_gib=None, max_gpus=128, rank_by=RankBy.LATENCY))
    assert found.layout.tensor_parallel_size == found.gpu_count == 8


def test_beyond_a_node_whole_nodes_are_taken() -> None:
    """Tensor parallel over the cards of a node, pipeline over the nodes."""
    found = recommended(ask(memory_gib=None, space_gib=None, gpu_counts=(16,), context=131072, sequences=15))
    assert found.nodes == 2
    assert found.layout.tensor_parallel_size <= 8
    assert found.layout.tensor_parallel_size * found.layout.pipeline_parallel_size % 8 == 0


def test_a_context_beyond_memory_is_shortened_by_the_flags() -> None:
    """On two cards one request of 131,072 tokens does not fit: the flags name the longest that does."""
    found = recommended(ask(layout=Layout(2)))
    assert found.kv_cache.max_model_len < 131_072
    words = found.engine.args
    assert words[words.index("--max-model-len") + 1] == str(found.kv_cache.max_model_len)
    # One block of 16 tokens stays reserved.
    assert found.kv_cache.max_model_len == (found.kv_cache.num_blocks - 1) * 16


def test_a_context_longer_than_the_model_is_refused_with_its_length() -> None:
    """A conversation of 200,000 tokens is not one of this model's."""
    answer = ask(context=200_000)
    assert answer.recommended is None
    assert {each.code for each in answer.rejected} == {"context_too_long"}
    assert "131072" in (answer.rejected[0].fix or "")


def test_more_sequences_than_the_default_are_allowed_by_the_flags() -> None:
    """2,000 conversations at once exceed the engine's default of 1,024 on this card."""
    found = recommended(ask(context=256, sequences=2000, layout=Layout(8)))
    words = found.engine.args
    assert words[words.index("--max-num-seqs") + 1] == "2000"


def test_given_cache_memory_is_the_room() -> None:
    """`kv_cache_memory_bytes` is taken as it is, and must fit beside weights and working space."""
    options = EngineOptions(kv_cache_memory_bytes=20 * GIB)
    assert recommended(ask(layout=Layout(4), engine=options)).memory.kv_cache_room_bytes == 20 * GIB
    too_much = EngineOptions(kv_cache_memory_bytes=60 * GIB)
    answer = ask(layout=Layout(4), engine=too_much)
    assert [each.code for each in answer.rejected] == ["does_not_fit"]


def test_a_card_without_rules_is_answered_with_that() -> None:
    """A card that is known but not understood gets a rejection, not a number."""
    answer = ask(machines=(machine(card_without_rules()),))
    assert answer.recommended is None
    assert {each.code for each in answer.rejected} == {"no_rules_for_this_gpu"}


def card_without_rules() -> Gpu:
    """An accelerator whose use by the engine is not restated."""
    return replace(H100, slug="gaudi3", vendor=Vendor.INTEL, compute_capability=None, has_rules=False)


def test_a_forced_layout_that_heads_do_not_divide_is_refused_in_the_engines_words() -> None:
    """64 heads do not split over 6 cards."""
    answer = ask(layout=Layout(6))
    assert answer.rejected[0].code == "attention_heads_not_divisible"
    assert answer.rejected[0].engine_error == (
        "Total number of attention heads (64) must be divisible by tensor parallel size (6)."
    )


@given(
    context=st.integers(1, 131_072),
    sequences=st.integers(1, 3000),
    memory=st.floats(1, 400),
    extra=st.floats(0, 100),
    tensor=st.sampled_from([1, 2, 4, 8]),
)
def test_more_memory_never_holds_less(context: int, sequences: int, memory: float, extra: float, tensor: int) -> None:
    """A card with more memory holds at least as many conversations in at least as many blocks."""
    small, large = (
        ask(context=context, sequences=sequences, memory_gib=size, layout=Layout(tensor)).recommended
        for size in (memory, memory + extra)
    )
    if small is not None:
        assert large is not None
        assert large.kv_cache.num_blocks >= small.kv_cache.num_blocks
        assert large.capacity.concurrent_sequences >= small.capacity.concurrent_sequences


@given(context=st.integers(1, 140_000), sequences=st.integers(1, 100_000), most=st.integers(1, 64))
def test_whatever_is_asked_is_recommended_or_refused_with_a_reason(context: int, sequences: int, most: int) -> None:
    """Every count ends as a plan or as one rejection, and a plan holds what was asked."""
    answer = ask(context=context, sequences=sequences, memory_gib=None, space_gib=None, max_gpus=most)
    plans = [plan for plan in (answer.recommended, *answer.alternatives) if plan is not None]
    assert plans or answer.rejected
    for each in plans:
        sizes = each.layout
        copy = sizes.tensor_parallel_size * sizes.pipeline_parallel_size
        assert copy * sizes.data_parallel_size == each.gpu_count <= most
        assert each.capacity.concurrent_sequences >= sequences
    assert all(each.message for each in answer.rejected)
