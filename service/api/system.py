"""Is it alive, is it ready, how is it doing, and what does it promise."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request, Response

from service import RULES_VERSION, __version__
from service.api import responding
from service.api.operation import Operation
from service.api.problems import unavailable
from service.catalogue.snapshot import Snapshot
from service.sizing.quantities import Doc
from service.storage.engine import Engine, answers

READY_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Alive:
    """The process runs."""

    status: Annotated[str, Doc("always alive", example="alive")]
    version: Annotated[str, Doc("software version", example=__version__)]


@dataclass(frozen=True, slots=True)
class Ready:
    """The service answers."""

    status: Annotated[str, Doc("always ready", example="ready")]
    version: Annotated[str, Doc("software version", example=__version__)]
    rules_version: Annotated[int, Doc("version of the sizing rules", example=1)]
    catalogue_revision: Annotated[int, Doc("catalogue revision in memory", example=1)]
    gpus: Annotated[int, Doc("GPUs in the catalogue", example=58)]
    models: Annotated[int, Doc("models in the catalogue", example=150)]


def live(_: Request[Any, Any, Any]) -> Response[bytes]:
    """The process runs."""
    return Response(responding.ENCODER.encode(Alive("alive", __version__)), media_type="application/json")


async def ready(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The catalogue is in memory and the database answers."""
    snapshot: Snapshot = request.app.state.snapshot
    engine: Engine = request.app.state.engine
    try:
        reached = await asyncio.wait_for(asyncio.to_thread(answers, engine), READY_TIMEOUT_S)
    except TimeoutError:
        reached = False
    if not reached:
        raise unavailable("the database does not answer")
    answer = Ready("ready", __version__, RULES_VERSION, snapshot.revision, len(snapshot.gpus), len(snapshot.models))
    return responding.answer(responding.ENCODER.encode(answer), snapshot.revision)


OPERATIONS = (
    Operation(
        method="GET",
        path="/live",
        name="live",
        summary="Is the process alive",
        description="Answers as long as the process runs.",
        tag="system",
        handler=live,
        answer=Alive,
    ),
    Operation(
        method="GET",
        path="/ready",
        name="ready",
        summary="Is the service ready",
        description="Answers 200 while the catalogue is in memory and the database answers.",
        tag="system",
        handler=ready,
        answer=Ready,
        problems=(503,),
    ),
)
