"""The only place that wires things."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from litestar import Litestar, Response, get
from litestar.datastructures import State

from service.api import (
    calibrations,
    catalogue,
    compare,
    cost,
    flags,
    imports,
    models,
    plans,
    prices,
    revisions,
    system,
    topology,
)
from service.api.head import HeadAsGet
from service.api.openapi import document
from service.api.operation import Operation, routes_of
from service.api.problems import EXCEPTION_HANDLERS
from service.api.reading import MAX_BODY_BYTES
from service.catalogue.snapshot import Snapshot
from service.settings import Settings
from service.storage.catalogue import EMPTY, load_snapshot
from service.storage.engine import Engine, create_engine, transaction
from service.storage.listen import follow
from service.telemetry import CATALOGUE_REVISION, metrics
from service.web import docs

OPERATIONS: tuple[Operation, ...] = (
    *plans.OPERATIONS,
    *compare.OPERATIONS,
    *cost.OPERATIONS,
    *flags.OPERATIONS,
    *topology.OPERATIONS,
    *catalogue.OPERATIONS,
    *prices.OPERATIONS,
    *imports.OPERATIONS,
    *models.OPERATIONS,
    *calibrations.OPERATIONS,
    *revisions.OPERATIONS,
    *system.OPERATIONS,
)
"""Everything the service offers, in the order of the contract."""

PATH_KINDS = {"name": "path"}
"""Path parameters that may hold slashes."""


@cache
def openapi_document() -> dict[str, Any]:
    """The published contract; made once, to be read only."""
    return document(OPERATIONS, {})


@cache
def openapi_bytes() -> bytes:
    """The published contract, one spelling for one content."""
    return (json.dumps(openapi_document(), indent=2, sort_keys=True) + "\n").encode()


@cache
def docs_page() -> bytes:
    """The API page; made once."""
    return docs.render(openapi_document())


WARMING = "warming"
"""Name of the thread that prepares what first requests would wait for."""


def build_app(settings: Settings) -> Litestar:
    """The service.

    Parameters
    ----------
    settings : Settings
        With `database_url` set: starting a database is the command line's work.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None]:
        engine = create_engine(settings)
        app.state.engine = engine
        app.state.snapshot = await asyncio.to_thread(_load, engine)
        CATALOGUE_REVISION.set(app.state.snapshot.revision)

        # A thread of its own, which the end waits for: one that is cancelled would keep its connection.
        loader = ThreadPoolExecutor(1, "catalogue")

        def load_newer() -> None:
            held: Snapshot = app.state.snapshot
            fresh = _load(engine, held)
            # A revision never goes back.
            if fresh.revision > held.revision:
                app.state.snapshot = fresh.keeping(held).prepare()
                CATALOGUE_REVISION.set(fresh.revision)

        async def refresh() -> None:
            # One load after the other: who writes and who hears of it ask for the same revision.
            await asyncio.get_running_loop().run_in_executor(loader, load_newer)

        async def changed(_: int) -> None:
            await refresh()

        app.state.refresh = refresh
        assert settings.database_url is not None
        following = asyncio.create_task(follow(settings.database_url, changed, app.state.snapshot.revision))
        ended = threading.Event()
        warming = threading.Thread(target=_warm, name=WARMING, args=(app.state.snapshot, ended), daemon=True)
        warming.start()
        try:
            yield
        finally:
            ended.set()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            loader.shutdown()
            warming.join()
            engine.dispose()

    @get("/metrics", name="metrics", include_in_schema=False, sync_to_thread=False)
    def scrape() -> Response[bytes]:
        content, media_type = metrics()
        return Response(content, media_type=media_type)

    @get("/openapi.json", name="openapi", include_in_schema=False)
    async def openapi() -> Response[bytes]:
        return Response(await asyncio.to_thread(openapi_bytes), media_type="application/json")

    app = Litestar(
        route_handlers=[*routes_of(OPERATIONS, PATH_KINDS), openapi, scrape, *docs.handlers(docs_page)],
        lifespan=[lifespan],
        exception_handlers=EXCEPTION_HANDLERS,
        # The process decides how it logs; the framework's own set-up would replace that.
        logging_config=None,
        openapi_config=None,
        request_max_body_size=MAX_BODY_BYTES * 8,
        state=State({}),
    )
    app.asgi_handler = HeadAsGet(app.asgi_handler)
    return app


def _warm(snapshot: Snapshot, ended: threading.Event) -> None:
    """Make what the first request would wait for: what predictions missed, models' structures, contract and page.

    One after the other in one thread, so that requests meanwhile share the interpreter with that alone.
    """
    snapshot.prepare()
    for model in snapshot.models:
        if ended.is_set():
            return
        _ = model.reading
    openapi_bytes()
    docs_page()


def _load(engine: Engine, earlier: Snapshot = EMPTY) -> Snapshot:
    with transaction(engine) as connection:
        return load_snapshot(connection, earlier=earlier)
