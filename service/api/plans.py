"""POST and GET /plan: one workload, the deployment that carries it."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from litestar import Request, Response
from pydantic import Field, create_model

from service import RULES_VERSION
from service.api import responding
from service.api.contract import (
    Contract,
    DeploymentRequest,
    HardwareRequest,
    InlineModel,
    PlanRequest,
    Text,
    WorkloadRequest,
    field_at,
    query_names,
)
from service.api.operation import Operation
from service.api.pricing import exchange_rate_of, instance_machines, offers_for, other_currencies_for
from service.api.problems import FieldError, Problem, conflict, invalid, unknown
from service.api.reading import read_body, read_bytes, read_query, require_json
from service.api.topology import read_paste
from service.catalogue.records.model import read_at
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing import plan
from service.sizing.answer import Answer
from service.sizing.calibration import Neighbour, StartupPoint
from service.sizing.demand import People
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import profile_for, release
from service.sizing.errors import InvalidConfig, NotUnderstood, SizingError
from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.model.quantization import AlreadyQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.performance.measured import ServingPoint
from service.sizing.quantities import GIB
from service.sizing.question import Assumptions, Machine, Objectives, Question, Workload
from service.sizing.topology import Topology
from service.sizing.working_space import era_of

REMEMBERED_BYTES = 32 << 20
"""Memory for answers given before, by worker."""


class Remembered:
    """Answers by catalogue revision and question, the least recently asked forgotten first."""

    def __init__(self, limit_bytes: int = REMEMBERED_BYTES) -> None:
        self._answers: OrderedDict[tuple[int, bytes], responding.Tagged] = OrderedDict()
        self._limit = limit_bytes
        self._size = 0

    def get(self, revision: int, question: bytes) -> responding.Tagged | None:
        """The answer, where it is still remembered."""
        key = (revision, question)
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, revision: int, question: bytes, tagged: responding.Tagged) -> None:
        """Remember an answer."""
        self._answers[(revision, question)] = tagged
        self._size += len(question) + len(tagged.content)
        while self._size > self._limit:
            (_, forgotten), tagged = self._answers.popitem(last=False)
            self._size -= len(forgotten) + len(tagged.content)


REMEMBERED = Remembered()


async def post_plan(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answer a plan request."""
    require_json(request)
    snapshot: Snapshot = request.app.state.snapshot
    body = await read_bytes(request)
    tagged = REMEMBERED.get(snapshot.revision, body)
    if tagged is None:
        tagged = _answered(snapshot, body, read_body(body, PlanRequest))
    return responding.answer(tagged.content, snapshot.revision, etag=tagged.etag)


def get_plan(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answer a plan request given as query parameters."""
    snapshot: Snapshot = request.app.state.snapshot
    question: bytes = request.scope["query_string"]
    tagged = REMEMBERED.get(snapshot.revision, b"?" + question)
    if tagged is None:
        tagged = _answered(snapshot, b"?" + question, read_flat(request.query_params.multi_items()))
    if responding.matches(request, tagged.etag):
        return responding.answer(b"", snapshot.revision, status=304, etag=tagged.etag)
    return responding.answer(tagged.content, snapshot.revision, etag=tagged.etag, headers={"Cache-Control": "no-cache"})


def _answered(snapshot: Snapshot, question: bytes, asked: PlanRequest) -> responding.Tagged:
    content = responding.ENCODER.encode(plan(question_of(asked, snapshot)))
    tagged = responding.Tagged(content, responding.tag(snapshot.revision, question))
    REMEMBERED.put(snapshot.revision, question, tagged)
    return tagged


def read_flat(items: Any) -> PlanRequest:
    """A plan request from query parameters.

    Raises
    ------
    Problem
        400: a parameter is unknown, given twice, or wrong.
    """
    names = query_names()
    nested: dict[str, Any] = {}
    for name, value in items:
        if name not in names:
            raise invalid((FieldError(name, f"unknown parameter (accepted: {', '.join(names)})"),))
        path = names[name]
        target = nested
        for part in path[:-1]:
            target = target.setdefault(part, {})
        if path[-1] in ("gpus", "gpu_counts", "instances"):
            target.setdefault(path[-1], []).append(value)
        elif path[-1] in target:
            raise invalid((FieldError(name, "is given twice"),))
        else:
            target[path[-1]] = value
    nested.setdefault("workload", {})
    return read_query(nested, PlanRequest)


def question_of(asked: PlanRequest, snapshot: Snapshot) -> Question:
    """The question that a request asks, resolved against the catalogue.

    Raises
    ------
    Problem
        400 for contradictions, 404 for unknown names, 409 for models not understood.
    """
    return question_about(shape_of(asked, snapshot), asked, machines_of(asked.hardware, snapshot), snapshot)


def question_about(
    model: ModelShape, asked: PlanRequest, machines: tuple[Machine, ...], snapshot: Snapshot
) -> Question:
    """The question that a request asks of a model and machines that were resolved already.

    Raises
    ------
    Problem
        400 for contradictions.
    """
    return Question(
        model=model,
        precision=asked.precision,
        workload=workload_of(asked),
        machines=machines,
        engine=EngineOptions(kv_cache_dtype=asked.kv_cache_dtype, **asked.engine.model_dump()),
        objectives=Objectives(**asked.objectives.model_dump()),
        assumptions=assumptions_of(asked),
        layout=Layout(**asked.layout.model_dump()) if asked.layout else None,
        gpu_counts=tuple(asked.hardware.gpu_counts) if asked.hardware.gpu_counts else None,
        max_gpus=asked.hardware.max_gpus,
        rank_by=asked.rank_by,
        calibrations=calibrations_of(model, asked, snapshot),
        servings=servings_of(model, asked, snapshot),
        link_tests={} if asked.calibration == "off" else snapshot.link_tests,
        curve_points=asked.curve_points,
        neighbours=neighbours_of(asked, machines, snapshot),
        memory_errors=snapshot.memory_errors,
        offers=offers_for(asked.prices, machines, snapshot),
        other_currencies=other_currencies_for(asked.prices, machines, snapshot),
        exchange_rate=exchange_rate_of(asked.prices),
        catalogue_revision=snapshot.revision,
        rules_version=RULES_VERSION,
    )


def calibrations_of(
    model: ModelShape, asked: PlanRequest, snapshot: Snapshot
) -> Mapping[str, tuple[StartupPoint, ...]]:
    """Measured startups that may correct the answer, by GPU slug: of the checkpoint itself, unless switched off."""
    if asked.calibration == "off" or asked.precision != "checkpoint":
        return {}
    return snapshot.startup_points(model.name)


def servings_of(model: ModelShape, asked: PlanRequest, snapshot: Snapshot) -> Mapping[str, tuple[ServingPoint, ...]]:
    """Measured load tests that may correct the times, by GPU slug, unless switched off; they tell their weights."""
    if asked.calibration == "off":
        return {}
    return snapshot.serving_points(model.name)


def neighbours_of(
    asked: PlanRequest, machines: tuple[Machine, ...], snapshot: Snapshot
) -> Mapping[str, tuple[Neighbour, ...]]:
    """Measured startups of any model on the machines' cards, by GPU slug; only for releases that were not fitted."""
    profile, _ = profile_for(asked.engine.version)
    number = release(asked.engine.version or profile.version) or profile.first
    if asked.calibration == "off" or era_of(number).measured:
        return {}
    slugs = {machine.gpu.slug for machine in machines}
    return {slug: found for slug in sorted(slugs) if (found := snapshot.neighbours(slug, number))}


def workload_of(asked: DeploymentRequest) -> Workload:
    """The workload, with its defaults.

    Raises
    ------
    Problem
        400: prompt and answer together exceed the context, or the load is given twice.
    """
    workload = asked.workload
    people = people_of(workload)
    context, prompt, output = workload.context_tokens, workload.prompt_tokens, workload.output_tokens
    share = max(1, context // 8)
    if output is None:
        output = share if prompt is None else max(1, min(share, context - prompt))
    if prompt is None:
        prompt = max(1, min(context - share, context - output))
    if prompt + output > context and context > 1:
        raise invalid(
            (
                FieldError(
                    "workload.prompt_tokens",
                    f"prompt_tokens ({prompt}) and output_tokens ({output}) may not exceed context_tokens ({context})",
                ),
            )
        )
    split_given = workload.prompt_tokens is not None or workload.output_tokens is not None
    rate = workload.requests_per_second
    return Workload(context, workload.concurrent_sequences, prompt, output, rate, people, split_given)


def people_of(workload: WorkloadRequest) -> People | None:
    """Who makes the load, if people do.

    Raises
    ------
    Problem
        400: a concurrency or a rate is given beside them.
    """
    given = workload.people
    if given is None:
        return None
    for name in ("concurrent_sequences", "requests_per_second"):
        if name in workload.model_fields_set and getattr(workload, name) is not None:
            raise invalid((FieldError(f"workload.{name}", "follows from workload.people: give one of them"),))
    return People(given.people, given.share_active, given.think_seconds, given.answer_seconds, given.peak_chance)


def shape_of(asked: PlanRequest, snapshot: Snapshot) -> ModelShape:
    """The model, from the catalogue or read from the request, at the precision asked.

    Raises
    ------
    Problem
        404 for an unknown name, 400 for a faulty configuration, 409 for one that is not understood.
    """
    try:
        if isinstance(asked.model, InlineModel):
            given = asked.model
            return read_at(given.name, given.config, given.hf_quant_config, asked.precision)
        return snapshot.model(asked.model).shape_at(asked.precision)
    except UnknownName as error:
        raise unknown("model", error.name, error.nearest, "model") from None
    except AlreadyQuantised as error:
        raise conflict("already_quantised", "Already quantised", str(error), ("precision",)) from None
    except SizingError as error:
        raise model_problem(error) from None


def model_problem(error: SizingError, config: str = "model.config") -> Problem:
    """The problem that an unreadable model is; `config` is where the request has the configuration."""
    if isinstance(error, InvalidConfig):
        return invalid((FieldError(f"{config}.{error.field}", str(error)),))
    if isinstance(error, NotUnderstood):
        return conflict("not_understood", "Not understood", str(error), error.fields)
    return conflict("not_sizable", "Not sizable", str(error))


def machines_of(hardware: HardwareRequest, snapshot: Snapshot) -> tuple[Machine, ...]:
    """The machines to consider, with the caller's overrides.

    Raises
    ------
    Problem
        404 for an unknown GPU, 400 where counts and a maximum are both given.
    """
    if hardware.gpu_counts is not None and hardware.max_gpus is not None:
        raise invalid((FieldError("hardware.max_gpus", "give either gpu_counts or max_gpus, not both"),))
    if hardware.instances is not None:
        return instance_machines(hardware, snapshot)
    if hardware.gpus is None:
        gpus = [record.gpu() for record in snapshot.gpus if record.has_rules]
    else:
        gpus = [_gpu(snapshot, name, index) for index, name in enumerate(hardware.gpus)]
    topology = pasted_topology(hardware)
    return tuple(machine_of(gpu, hardware, topology) for gpu in dict.fromkeys(gpus))


def pasted_topology(hardware: HardwareRequest) -> Topology | None:
    """The machine that was pasted, if any.

    Raises
    ------
    Problem
        400: the paste was not understood, or `link` or `gpus_per_node` say otherwise.
    """
    if hardware.topology is None:
        return None
    for name in ("link", "gpus_per_node"):
        if getattr(hardware, name) is not None:
            raise invalid((FieldError(f"hardware.{name}", "give either a topology or this, not both"),))
    return read_paste(hardware.topology, "hardware.topology")


def _gpu(snapshot: Snapshot, name: str, index: int) -> Gpu:
    try:
        return snapshot.gpu(name).gpu()
    except UnknownName as error:
        raise unknown("gpu", error.name, error.nearest, f"hardware.gpus.{index}") from None


def machine_of(gpu: Gpu, hardware: HardwareRequest, topology: Topology | None) -> Machine:
    """A GPU in its usual node, or as the caller says or pasted."""
    if topology is not None:
        return pasted_machine(gpu, topology)
    warnings = list[str]()
    link, domain, node = gpu.link, gpu.gpus_per_domain, gpu.gpus_per_node
    if hardware.gpus_per_node is not None:
        if hardware.gpus_per_node != node:
            warnings.append(
                f"{hardware.gpus_per_node} GPUs per node are taken as given; the usual {gpu.name} node has {node}"
            )
        node = hardware.gpus_per_node
        domain = min(domain, node)
    if hardware.link is not None:
        link = Link(hardware.link)
        if link is not gpu.link:
            warnings.append(f"the link {link.value} is taken as given; the usual {gpu.name} node has {gpu.link.value}")
        domain = 1 if link is Link.PCIE else node
    return Machine(gpu, link, node, domain, tuple(warnings))


def pasted_machine(gpu: Gpu, topology: Topology) -> Machine:
    """A GPU in the machine of a paste: tensor parallel groups stay inside what is complete in NVLink or XGMI."""
    groups = topology.fabric_groups
    widest = max(groups, key=lambda group: len(group.gpus), default=None)
    return Machine(
        gpu,
        Link.PCIE if widest is None else widest.link,
        topology.gpu_count,
        1 if widest is None else len(widest.gpus),
        topology.warnings,
        topology,
    )


def assumptions_of(asked: DeploymentRequest) -> Assumptions:
    """Figures used instead of ours, in bytes."""
    given = asked.assumptions
    return Assumptions(
        gpu_memory_bytes=None if given.gpu_memory_gib is None else round(given.gpu_memory_gib * GIB),
        working_space_bytes=None if given.working_space_gib is None else round(given.working_space_gib * GIB),
        memory_bandwidth_fraction=given.memory_bandwidth_fraction,
    )


def _flat_query() -> type[Contract]:
    """The query parameters of `GET /plan`, as a model for the contract."""
    fields: dict[str, Any] = {}
    for name, path in query_names().items():
        field = field_at(path)
        if path == ("model",):
            fields[name] = (Text, Field(description="catalogue name"))
        else:
            fields[name] = (field.annotation, field)
    return create_model("PlanQuery", __base__=Contract, **fields)


PlanQuery = _flat_query()
"""What `GET /plan` takes."""

EXAMPLES = {
    "Llama 3.1 70B for sixteen conversations of 8,192 tokens": {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "workload": {"context_tokens": 8192, "concurrent_sequences": 16},
        "hardware": {"gpus": ["h100-sxm"]},
    },
    "One layout, judged": {
        "model": "Qwen/Qwen3-32B",
        "workload": {"context_tokens": 4096, "concurrent_sequences": 1},
        "hardware": {"gpus": ["h100-sxm"]},
        "layout": {"tensor_parallel_size": 2},
    },
    "Fifty people, with promised times": {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "precision": "fp8",
        "workload": {"context_tokens": 4096, "people": {"people": 50}},
        "objectives": {"ttft_ms": 800, "tpot_ms": 30},
        "hardware": {"gpus": ["h100-sxm"]},
    },
}

OPERATIONS = (
    Operation(
        method="POST",
        path="/plan",
        name="plan",
        summary="Plan a deployment",
        description="The vLLM deployment that starts and holds the workload, its alternatives, and a reason and a fix "
        "for every GPU and count that does not serve. Nothing feasible is an answer, with `recommended` null.",
        tag="plans",
        handler=post_plan,
        answer=Answer,
        body=PlanRequest,
        problems=(400, 404, 409, 413, 415),
        examples=EXAMPLES,
    ),
    Operation(
        method="GET",
        path="/plan",
        name="plan_by_query",
        summary="Plan a deployment from query parameters",
        description="The same as `POST /plan` for a catalogue model, every field under its own name: "
        "`/plan?model=Qwen/Qwen3-32B&gpu=h100-sxm&context_tokens=4096`. `gpu`, `gpu_count` and `instance` repeat.",
        tag="plans",
        handler=get_plan,
        answer=Answer,
        query=PlanQuery,
        problems=(400, 404, 409),
        cacheable=True,
    ),
)
