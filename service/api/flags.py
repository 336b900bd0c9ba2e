"""GET /flags: what starts the recommended deployment, and nothing else."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from litestar import Request, Response
from pydantic import Field, create_model

from service import RULES_VERSION
from service.api import responding
from service.api.contract import Contract
from service.api.operation import Operation
from service.api.plans import PlanQuery, question_of, read_flat
from service.api.problems import FieldError, conflict, invalid
from service.catalogue.snapshot import Snapshot
from service.sizing import plan
from service.sizing.answer import EngineAnswer, LayoutAnswer, Plan, Rejection
from service.sizing.engine import manifests
from service.sizing.quantities import Doc

FORMATS = ("json", "shell", "docker", "compose", "kubernetes")

MEDIA_TYPES = {"shell": "text/plain", "docker": "text/plain", "compose": "text/yaml", "kubernetes": "text/yaml"}


@dataclass(frozen=True, slots=True)
class FlagsAnswer:
    """What starts the recommended deployment."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    rules_version: Annotated[int, Doc("version of the sizing rules", example=1)]
    model: Annotated[str, Doc("the model served", example="Qwen/Qwen3-32B")]
    gpu: Annotated[str | None, Doc("catalogue slug; null when nothing serves", example="h100-sxm")]
    gpu_count: Annotated[int | None, Doc("GPUs; null when nothing serves", example=2)]
    layout: Annotated[LayoutAnswer | None, Doc("parallel sizes; null when nothing serves")]
    engine: Annotated[EngineAnswer | None, Doc("arguments and commands; null when nothing serves")]
    warnings: Annotated[tuple[str, ...], Doc("assumptions that decide")]
    rejected: Annotated[tuple[Rejection, ...], Doc("reasons, when nothing serves")]


FlagsQuery: type[Contract] = create_model(
    "FlagsQuery",
    __base__=PlanQuery,
    format=(
        Literal["json", "shell", "docker", "compose", "kubernetes"],
        Field(default="json", description="how the flags are written"),
    ),
)


def get_flags(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The flags of the recommended plan."""
    snapshot: Snapshot = request.app.state.snapshot
    items = list(request.query_params.multi_items())
    formats = [value for name, value in items if name == "format"] or ["json"]
    if len(formats) > 1 or formats[0] not in FORMATS:
        raise invalid((FieldError("format", f"give one of {', '.join(FORMATS)}"),))
    etag = responding.tag(snapshot.revision, b"/flags?" + request.scope["query_string"])
    if responding.matches(request, etag):
        return responding.answer(b"", snapshot.revision, status=304, etag=etag)
    answer = plan(question_of(read_flat((name, value) for name, value in items if name != "format"), snapshot))
    found = answer.recommended
    kind = formats[0]
    if kind == "json":
        content = responding.ENCODER.encode(
            FlagsAnswer(
                catalogue_revision=snapshot.revision,
                rules_version=RULES_VERSION,
                model=answer.model.name,
                gpu=found.gpu if found else None,
                gpu_count=found.gpu_count if found else None,
                layout=found.layout if found else None,
                engine=found.engine if found else None,
                warnings=found.warnings if found else answer.warnings,
                rejected=() if found else answer.rejected,
            )
        )
        return responding.answer(content, snapshot.revision, etag=etag)
    if found is None:
        reasons = "; ".join(f"{each.gpu} x {each.gpu_count}: {each.message}" for each in answer.rejected[:3])
        raise conflict("nothing_serves", "Nothing serves", f"no layout serves this workload: {reasons}")
    text = _written(found, kind, answer.model.name, snapshot.gpu(found.gpu).vendor.value)
    return responding.answer(
        (text.rstrip("\n") + "\n").encode(), snapshot.revision, media_type=MEDIA_TYPES[kind], etag=etag
    )


def _written(found: Plan, kind: str, model: str, vendor: str) -> str:
    """The flags as a command or a manifest.

    Raises
    ------
    Problem
        409: a manifest describes one machine, and the plan spans several.
    """
    engine = found.engine
    if kind in ("shell", "docker"):
        exports = "".join(f"{name}={value} " for name, value in engine.env.items()) if kind == "shell" else ""
        return exports + (engine.command if kind == "shell" else engine.docker)
    if found.nodes > 1:
        raise conflict(
            "several_machines", "Several machines", f"{kind} describes one machine and the plan takes {found.nodes}"
        )
    visible = next(iter(engine.env.values()), None)
    container = manifests.Container(
        model=model,
        version=engine.version,
        vendor=vendor,
        gpus=found.gpu_count,
        whole_node=False,
        devices=tuple(map(int, visible.split(","))) if visible else None,
        arguments=engine.args,
    )
    return manifests.compose(container) if kind == "compose" else manifests.kubernetes(container)


OPERATIONS = (
    Operation(
        method="GET",
        path="/flags",
        name="flags",
        summary="Get the flags that start it",
        description="The recommended deployment's arguments, environment and commands alone, for the question that "
        "`GET /plan` takes. `format` writes them as JSON, a shell or docker command (text/plain), a compose file or a "
        "Kubernetes manifest (text/yaml); where nothing serves, JSON says why and the others are a 409.",
        tag="plans",
        handler=get_flags,
        answer=FlagsAnswer,
        text_answers=("text/plain", "text/yaml"),
        query=FlagsQuery,
        problems=(400, 404, 409),
        cacheable=True,
    ),
)
