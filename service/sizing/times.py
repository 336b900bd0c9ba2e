"""How fast a feasible layout is under the workload, by the performance model."""

from functools import lru_cache

from service.sizing.judge import Feasible
from service.sizing.performance import Load, Prediction, Replica, predict


@lru_cache(maxsize=64)
def prediction(found: Feasible) -> Prediction | None:
    """Times and throughput at the workload's concurrency; None for a card whose 16-bit rate is not known.

    Asked for several times while one answer is written.
    """
    if not {"bf16", "fp16"} & found.machine.gpu.dense_flops.keys():
        return None
    question, cache, workload = found.question, found.settled.fitted.cache, found.question.workload
    replica = Replica(
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
    )
    return predict(replica, Load(found.sequences, workload.prompt_tokens, workload.output_tokens))


def token_ms(found: Feasible) -> float:
    """Central time per output token; the roofline's where nothing is predicted."""
    timed = prediction(found)
    return found.step_ms if timed is None else timed.tpot_ms.value


def tokens_per_second(found: Feasible) -> float:
    """Central output rate over all copies; the roofline's where nothing is predicted."""
    timed = prediction(found)
    return found.tokens_per_second if timed is None else timed.output_tokens_per_second.value
