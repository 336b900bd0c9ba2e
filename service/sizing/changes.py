"""Changes of a question, as fixes name them."""

from dataclasses import replace
from typing import Any

from service.sizing.engine.options import EngineOptions
from service.sizing.engine.refusal import Changes, Value
from service.sizing.layouts import Layout
from service.sizing.question import Question, Workload


def applied(question: Question, changes: Changes) -> Question:
    """The question with some of its fields changed, each by its path in the request."""
    for path, value in changes:
        group, _, name = path.partition(".")
        if group == "workload":
            question = replace(question, workload=_with_load(question.workload, name, value))
        elif group == "engine":
            default: Any = getattr(EngineOptions(), name)
            given: Any = default if value is None else value
            question = replace(question, engine=replace(question.engine, **{name: given}))
        elif group == "layout":
            changed: Any = {name: value}
            question = replace(question, layout=replace(question.layout or Layout(), **changed))
        else:
            changed = {name: value}
            question = replace(question, **{group: replace(getattr(question, group), **changed)})
    return question


def _with_load(workload: Workload, name: str, value: Value) -> Workload:
    changed: Any = value
    if name == "context_tokens":
        return with_context(workload, changed)
    if name == "people" and value is not None and workload.people is not None:
        return replace(workload, people=replace(workload.people, people=changed))
    return replace(workload, **{name: changed})


def with_context(workload: Workload, tokens: int) -> Workload:
    """The workload of other conversations, whose prompt and answer are as before or, too long for it, as by default."""
    if workload.prompt_tokens + workload.output_tokens <= tokens:
        return replace(workload, context_tokens=tokens)
    answer = max(1, tokens // 8)
    return replace(workload, context_tokens=tokens, prompt_tokens=max(1, tokens - answer), output_tokens=answer)
