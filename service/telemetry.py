"""What the service says about itself: structured logs and Prometheus metrics."""

import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any, cast

import structlog
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from service.settings import LogFormat, LogLevel

METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable by which several worker processes share their metrics."""

REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
SLOW_S = 1.0
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

logger: structlog.stdlib.BoundLogger = structlog.get_logger("shardwise")

REQUESTS = Histogram(
    "shardwise_request_seconds", "Time to answer a request", ("method", "route", "status"), buckets=BUCKETS_S
)
CATALOGUE_REVISION = Gauge(
    "shardwise_catalogue_revision", "Catalogue revision in memory", multiprocess_mode="livemostrecent"
)


def configure_logging(level: LogLevel, style: LogFormat) -> None:
    """Send this process's logs, ours and the libraries', to standard error: one line each, for people or as JSON."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if style == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def metrics() -> tuple[bytes, str]:
    """The metrics of all workers, and their media type."""
    registry = REGISTRY
    if METRICS_DIRECTORY in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class Telemetry:
    """Wraps the whole application: gives each request an identifier, counts and times it, and logs it.

    Faults of ours are logged as errors, refused and slow requests at `info`, others at `debug`. A caller's
    `X-Request-ID` is kept where it is short and plain; the response carries it back. It stands outside the
    framework, whose own middleware does not see requests for paths that do not exist.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and note how it went."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _request_id(scope)
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableScopeHeaders(message)["X-Request-ID"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                _note(cast("Mapping[str, Any]", scope), status, time.perf_counter() - began)


def _note(scope: Mapping[str, Any], status: int, seconds: float) -> None:
    """Count a request, and log it: quietly unless it failed or took long."""
    REQUESTS.labels(scope["method"], scope.get("path_template") or "unmatched", status).observe(seconds)
    log = logger.error if status >= 500 else logger.info if status >= 400 or seconds > SLOW_S else logger.debug
    log("request", method=scope["method"], path=scope["path"], status=status, duration_ms=round(seconds * 1000, 2))


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(given := value.decode("latin-1")):
            return given
    return uuid.uuid4().hex
