"""What else would make a refused question serve: the caller's own settings, changed as little as it takes.

A rule that refuses names its own fix where it knows one. Where it does not (the memory is short, and anything may be
why), each remedy here is judged before it is named.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from service.sizing.changes import applied
from service.sizing.engine.defaults import AUTO_FIT
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import SMALL
from service.sizing.engine.refusal import Changes, Fix, flag, use
from service.sizing.judge import Feasible, fewer_conversations, shorter_conversations
from service.sizing.performance.objectives import rounded_down
from service.sizing.promises import fewer_people, slower
from service.sizing.question import Question

Serves = Callable[[Question], Feasible | None]
"""What a changed question gives on the machine and the count that were refused; None: it is refused too."""

CACHE_STEP_BYTES = 1 << 20
"""How exactly a size of the cache is named."""

LEAST_RATE = 1e-3
"""Requests a second; slower ones are no advice."""

ASSUMED = {"gpu_memory_bytes": "gpu_memory_gib", "working_space_bytes": "working_space_gib"}
"""Assumptions that decide what fits, and their names in the request."""


def remedy(question: Question, serves: Serves, *, code: str) -> Fix | None:
    """The nearest change of what the caller fixed that serves; None where nothing of it does.

    `code` is why the question is refused: where the weights alone are too large, fewer conversations help only if so
    many are asked for that they raise the engine's default, and with it the working space.
    """
    workload = question.workload
    crowded = (
        code != "does_not_fit"
        or workload.concurrent_sequences > SMALL.max_num_seqs
        or workload.people is not None
        or workload.requests_per_second is not None
    )
    return (
        _cache_memory(question, serves)
        or _without_one(question, serves)
        or without_several(question, serves)
        or (smaller_load(question, serves) if crowded else None)
    )


def settings(question: Question) -> tuple[str, ...]:
    """The paths of what the caller fixed of the engine and assumed of memory, in the order in which it is let go."""
    engine, default = question.engine, EngineOptions()
    names = (field.name for field in fields(EngineOptions) if field.name != "version")
    return (
        *(f"engine.{name}" for name in names if getattr(engine, name) != getattr(default, name)),
        *(f"assumptions.{field}" for field in ASSUMED if getattr(question.assumptions, field) is not None),
    )


def without_settings(question: Question) -> Question:
    """The question with the engine's defaults and our own figures of memory."""
    return applied(question, tuple((path, None) for path in settings(question)))


def _cache_memory(question: Question, serves: Serves) -> Fix | None:
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
        return let_go("engine.kv_cache_memory_bytes")
    while abs(good - bad) > CACHE_STEP_BYTES:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if serves(_with_cache(layout, middle)) else (good, middle)
    return use("kv_cache_memory_bytes", good, "less" if good < given else "more")


def _with_cache(question: Question, size: int | None) -> Question:
    return replace(question, engine=replace(question.engine, kv_cache_memory_bytes=size))


def let_go(*paths: str) -> Fix:
    """To leave what was fixed to the engine, and to our own figures."""
    shown = [
        flag(name) if group == "engine" else f"assumptions.{ASSUMED[name]}"
        for group, _, name in (path.partition(".") for path in paths)
    ]
    return Fix(f"leave {', '.join(shown)} out", tuple((path, None) for path in paths))


def _without_one(question: Question, serves: Serves) -> Fix | None:
    """The one setting without which the question serves, or the nearest value of it that is known."""
    for path in settings(question):
        if found := serves(applied(question, ((path, None),))):
            return _nearer(question, serves, path, found) or let_go(path)
    return None


def _nearer(question: Question, serves: Serves, path: str, found: Feasible) -> Fix | None:
    """A value that serves of a setting without which `found` does."""
    asked = question.workload.context_tokens
    if path == "engine.gpu_memory_utilization":
        return use("gpu_memory_utilization", found.settled.fitted.cache.defaults.gpu_memory_utilization)
    if path != "engine.max_model_len" or question.engine.max_model_len == AUTO_FIT:
        return None
    short = (question.engine.max_model_len or 0) < asked
    fix = use("max_model_len", asked) if short else use("max_model_len", found.settled.safe_length, "less")
    return fix if serves(applied(question, fix.changes)) else None


def without_several(question: Question, serves: Serves, kept: Changes = ()) -> Fix | None:
    """Settings that have to go together; as few of them as it takes, and none of those `kept`."""
    stays = {path for path, _ in kept}
    needed = [path for path in settings(question) if path not in stays]
    if not needed or serves(applied(question, _none(needed))) is None:
        return None
    for path in reversed(needed):
        fewer = [each for each in needed if each != path]
        if serves(applied(question, _none(fewer))):
            needed = fewer
    return let_go(*needed)


def _none(paths: list[str]) -> Changes:
    return tuple((path, None) for path in paths)


def smaller_load(question: Question, serves: Serves) -> Fix | None:
    """The largest load of the same kind that serves; of people and rates beside a concurrency, that first."""
    return next(
        (fix for fix in (most(question, serves) for most in (_conversations, _people, _rate)) if fix is not None), None
    )


def _conversations(question: Question, serves: Serves) -> Fix | None:
    asked = question.workload.concurrent_sequences
    most = _most(asked, lambda number: fewer_conversations(number).changes, question, serves)
    return fewer_conversations(most) if most else None


def _people(question: Question, serves: Serves) -> Fix | None:
    if question.workload.people is None:
        return None
    asked = question.workload.people.people
    most = _most(asked, lambda number: fewer_people(number).changes, question, serves)
    return fewer_people(most) if most else None


def _most(bad: int, changes: Callable[[int], Changes], question: Question, serves: Serves) -> int:
    """The largest number below `bad` that serves; 0 where 1 does not."""
    if bad <= 1 or serves(applied(question, changes(1))) is None:
        return 0
    good = 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if serves(applied(question, changes(middle))) else (good, middle)
    return good


def _rate(question: Question, serves: Serves) -> Fix | None:
    bad = question.workload.requests_per_second
    if bad is None:
        return None

    def carried(rate: float) -> bool:
        return serves(applied(question, slower(rate).changes)) is not None

    good = rounded_down(bad / 2)
    while good >= LEAST_RATE and not carried(good):
        good, bad = rounded_down(good / 4), good
    if good < LEAST_RATE:
        return None
    while rounded_down(middle := (good + bad) / 2) > good:
        good, bad = (rounded_down(middle), bad) if carried(rounded_down(middle)) else (good, rounded_down(middle))
    return slower(good)


def shorter_context(question: Question, serves: Serves) -> Fix | None:
    """The longest conversations that serve."""
    asked = question.workload.context_tokens
    most = _most(asked, lambda tokens: shorter_conversations(tokens).changes, question, serves)
    return shorter_conversations(most) if most else None


def other_sizes(question: Question, serves: Serves, *, widest: int) -> Iterator[Fix]:
    """Changes of a given layout that serve: of one of its sizes, or of its copies and its tensor ranks.

    `widest` is the most tensor ranks that are named.
    """
    layout = question.layout
    assert layout is not None
    model = question.model
    heads = max(1, model.attention_heads)
    sizes = [size for size in range(1, max(widest, layout.tensor_parallel_size) + 1) if heads % size == 0]
    shared = layout.decode_context_parallel_size
    if shared > 1:
        parts = [size for size in range(1, shared + 1) if layout.tensor_parallel_size % size == 0]
        yield from _choice(question, serves, "decode_context_parallel_size", parts)
    if layout.expert_parallel and not model.experts:
        yield from _choice(question, serves, "expert_parallel", [False])
    if layout.pipeline_parallel_size > 1:
        stages = list(range(1, layout.pipeline_parallel_size))
        yield from _choice(question, serves, "pipeline_parallel_size", stages[:1] + stages[1:][-1:])
    alone = (("layout.decode_context_parallel_size", 1),) if shared > 1 else ()
    yield from _choice(question, serves, "tensor_parallel_size", sizes, alone)
    if model.experts and not layout.expert_parallel:
        yield from _choice(question, serves, "expert_parallel", [True])
    if layout.data_parallel_size > 1:
        yield from _choice(question, serves, "tensor_parallel_size", sizes, (("layout.data_parallel_size", 1), *alone))


WHAT = {
    "tensor_parallel_size": "a tensor parallel size",
    "pipeline_parallel_size": "a pipeline parallel size",
    "decode_context_parallel_size": "a decode context parallel size",
}


def _choice(question: Question, serves: Serves, name: str, values: list[Any], besides: Changes = ()) -> Iterator[Fix]:
    """Those of a size's values that serve, as one fix; it takes the first."""
    path = f"layout.{name}"
    good = [value for value in values if serves(applied(question, (*besides, (path, value))))]
    if not good:
        return
    if name == "expert_parallel":
        words = "spread whole experts with expert_parallel" if good[0] else "leave expert_parallel false"
    else:
        words = f"choose {WHAT[name]} from {', '.join(map(str, good))}"
    others = [f"{other.removeprefix('layout.')} {value}" for other, value in besides]
    if others:
        words = f"choose {' and '.join([*others, words.removeprefix('choose ')])}"
    yield Fix(words, (*besides, (path, good[0])))
