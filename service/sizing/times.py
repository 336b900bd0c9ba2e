"""How fast a feasible layout is under the workload, by the performance model."""

from dataclasses import replace

from service.sizing.corrections import links_for, used_for, used_without_links
from service.sizing.judge import Feasible, once
from service.sizing.layouts import cut_by
from service.sizing.performance import UNCORRECTED, Load, Prediction, Replica, State, predict, vllm
from service.sizing.performance.collectives import USUAL_LINKS
from service.sizing.performance.prediction import completed, copy_of, predicted, settled
from service.sizing.performance.serving import Copy
from service.sizing.roofline import DEFAULT_BANDWIDTH_FRACTION, step_ms


@once
def replica_of(found: Feasible) -> Replica | None:
    """A layout as the performance model takes it; None for a card whose 16-bit rate is not known."""
    if not {"bf16", "fp16"} & found.machine.gpu.dense_flops.keys():
        return None
    question, cache, links = found.question, found.settled.fitted.cache, links_for(found)
    return Replica(
        model=question.model,
        layout=found.layout,
        gpu=found.machine.gpu,
        link=found.machine.link,
        gpus_per_node=found.machine.gpus_per_node,
        max_num_seqs=cache.defaults.max_num_seqs,
        cache_holds=found.held,
        max_num_batched_tokens=cache.defaults.max_num_batched_tokens,
        kv_cache_dtype=cache.dtype,
        memory_bandwidth_fraction=question.assumptions.memory_bandwidth_fraction,
        engine=vllm(question.engine.version),
        links=USUAL_LINKS if links is None else links.links,
    )


def load_of(found: Feasible) -> Load:
    """What the fullest copy serves."""
    workload = found.question.workload
    return Load(
        found.sequences,
        workload.prompt_tokens,
        workload.output_tokens,
        workload.requests_per_second,
        workload.concurrent_sequences,
    )


@once
def copy(found: Feasible) -> Copy | None:
    """One copy, its times corrected by what was measured; None where nothing is predicted."""
    replica, workload = replica_of(found), found.question.workload
    if replica is None:
        return None
    return copy_of(replica, workload.prompt_tokens, workload.output_tokens, used_for(found).correction)


@once
def state(found: Feasible) -> State | None:
    """Central values of one copy under the workload: cheap enough to rank many layouts by.

    None where nothing is predicted, or where more requests arrive than a copy can be promised to complete.
    """
    one = copy(found)
    return None if one is None else settled(one, load_of(found), found.layout.data_parallel_size)


@once
def prediction(found: Feasible) -> Prediction | None:
    """Times and throughput under the workload, with bands; None for a card whose 16-bit rate is not known.

    Asked for several times while one answer is written.
    """
    replica, one = replica_of(found), copy(found)
    return None if replica is None or one is None else predicted(replica, load_of(found), one, state(found))


@once
def uncorrected(found: Feasible) -> Prediction | None:
    """The same without measured loads."""
    replica = replica_of(found)
    return None if replica is None else predict(replica, load_of(found), UNCORRECTED)


@once
def over_usual_links(found: Feasible) -> Prediction | None:
    """The same without link tests."""
    replica = replica_of(found)
    if replica is None:
        return None
    return predict(replace(replica, links=USUAL_LINKS), load_of(found), used_without_links(found).correction)


def token_ms(found: Feasible) -> float:
    """Central time per output token; the roofline's where nothing is predicted."""
    one = state(found)
    return roofline_ms(found) if one is None else one.tpot_s * 1000


def tokens_per_second(found: Feasible) -> float:
    """Central output rate over all copies; the roofline's where nothing is predicted."""
    one, workload, copies = state(found), found.question.workload, found.layout.data_parallel_size
    if one is not None:
        rate = workload.requests_per_second or completed(load_of(found), one, copies)
        return rate * workload.output_tokens
    most = found.settled.fitted.cache.defaults.max_num_seqs * copies
    return min(workload.concurrent_sequences, most) / roofline_ms(found) * 1000


def roofline_ms(found: Feasible) -> float:
    """Milliseconds of one decode step at the workload's concurrency, moving bytes only."""
    question, machine, cache = found.question, found.machine, found.settled.fitted.cache
    mean = max(1, question.workload.prompt_tokens + question.workload.output_tokens // 2)
    return step_ms(
        question.model,
        cut_by(found.layout, question.model.experts),
        machine.gpu,
        machine.link,
        machine.gpus_per_node,
        sequences=min(found.sequences, cache.defaults.max_num_seqs),
        cached_bytes=tuple(cache.conversation_blocks(mean) * block for block in cache.block_bytes),
        bandwidth_fraction=question.assumptions.memory_bandwidth_fraction or DEFAULT_BANDWIDTH_FRACTION,
    )
