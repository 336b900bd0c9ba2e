"""What else would make a refused question serve: the caller's own settings, changed as little as it takes.

A rule that refuses names its own fix where it knows one. Where it does not (the memory is short, and anything may be
why), each remedy here is judged before it is named.
"""

from collections.abc import Callable
from dataclasses import fields, replace

from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import SMALL
from service.sizing.judge import Feasible, fewer_conversations
from service.sizing.question import Assumptions, Question

Serves = Callable[[Question], Feasible | None]
"""What a changed question gives on the machine and the count that were refused; None: it is refused too."""

CACHE_STEP_BYTES = 1 << 20
"""How exactly a size of the cache is named."""

MORE_MEMORY = "choose a GPU with more memory, or a checkpoint of fewer bytes"


def remedy(question: Question, serves: Serves, *, code: str) -> str | None:
    """The nearest change of what the caller fixed that serves, as a sentence; None where none alone does.

    `code` is why the question is refused: where the weights alone are too large, fewer conversations help only if so
    many are asked for that they raise the engine's default, and with it the working space.
    """
    crowded = code != "does_not_fit" or question.workload.concurrent_sequences > SMALL.max_num_seqs
    return (
        _cache_memory(question, serves)
        or _without_an_argument(question, serves)
        or _without_an_assumption(question, serves)
        or (_fewer_conversations(question, serves) if crowded else None)
    )


def _cache_memory(question: Question, serves: Serves) -> str | None:
    """The nearest size of the cache that serves, where one was given."""
    given = question.engine.kv_cache_memory_bytes
    if given is None:
        return None
    found = serves(_with_cache(question, None))
    if found is None:
        return None
    layout = replace(question, layout=found.layout)
    good, bad = min(found.settled.safe_rooms), given
    if good <= 0 or serves(_with_cache(layout, good)) is None:
        return "leave --kv-cache-memory-bytes out"
    while abs(good - bad) > CACHE_STEP_BYTES:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if serves(_with_cache(layout, middle)) else (good, middle)
    return f"use --kv-cache-memory-bytes {good} or {'less' if good < given else 'more'}"


def _with_cache(question: Question, size: int | None) -> Question:
    return replace(question, engine=replace(question.engine, kv_cache_memory_bytes=size))


def _without_an_argument(question: Question, serves: Serves) -> str | None:
    """The one engine argument, or else all of them, without which the question serves."""
    engine, default = question.engine, EngineOptions()
    given = [
        name
        for name in (field.name for field in fields(EngineOptions))
        if name != "version" and getattr(engine, name) != getattr(default, name)
    ]
    for name in given:
        if found := serves(replace(question, engine=replace(engine, **{name: getattr(default, name)}))):
            if name == "gpu_memory_utilization":
                return f"use --gpu-memory-utilization {found.settled.fitted.cache.defaults.gpu_memory_utilization:g}"
            return f"leave --{name.replace('_', '-')} out"
    if len(given) > 1 and serves(replace(question, engine=EngineOptions(version=engine.version))):
        return f"leave {', '.join('--' + name.replace('_', '-') for name in given)} out"
    return None


def _without_an_assumption(question: Question, serves: Serves) -> str | None:
    """The caller's own figures, where ours would do."""
    for name, field in (("gpu_memory_gib", "gpu_memory_bytes"), ("working_space_gib", "working_space_bytes")):
        if getattr(question.assumptions, field) is not None and serves(
            replace(question, assumptions=replace(question.assumptions, **{field: None}))
        ):
            return f"leave assumptions.{name} out"
    if question.assumptions != Assumptions() and serves(replace(question, assumptions=Assumptions())):
        return "leave assumptions out"
    return None


def _fewer_conversations(question: Question, serves: Serves) -> str | None:
    """The most conversations that serve, where one does."""
    bad = question.workload.concurrent_sequences
    if bad == 1 or serves(_with_conversations(question, 1)) is None:
        return None
    good = 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if serves(_with_conversations(question, middle)) else (good, middle)
    return fewer_conversations(good)


def _with_conversations(question: Question, number: int) -> Question:
    return replace(question, workload=replace(question.workload, concurrent_sequences=number))
