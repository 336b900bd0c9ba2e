"""Logs and metrics say what happened, once and in a form that machines read."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import structlog
from litestar import Litestar, get
from litestar.params import FromPath
from litestar.testing import TestClient

from service.app import build_app
from service.settings import Settings
from service.telemetry import Telemetry, configure_logging, logger, metrics


@get("/items/{item:int}", sync_to_thread=False)
def item(item: FromPath[int]) -> str:
    logger.warning("looked", item=item)
    if item == 0:
        raise RuntimeError("broken")
    return "ok"


@pytest.fixture
def client() -> Iterator[TestClient[Any]]:
    """An application with one route."""
    app = Telemetry(Litestar([item], openapi_config=None, logging_config=None))
    with TestClient(cast("Any", app), raise_server_exceptions=False) as client:
        yield client


@contextmanager
def logs(capsys: pytest.CaptureFixture[str]) -> Iterator[list[dict[str, object]]]:
    """Our lines logged meanwhile, as the service logs them."""
    lines: list[dict[str, object]] = []
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configure_logging("info", "json")
    try:
        yield lines
    finally:
        root.handlers = handlers
        root.setLevel(level)
        structlog.reset_defaults()
    written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    lines += [line for line in written if line["logger"] == "shardwise"]


def test_a_request_keeps_its_callers_identifier(client: TestClient[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """In the response and in every line logged on its behalf."""
    with logs(capsys) as lines:
        response = client.get("/items/7", headers={"X-Request-ID": "from-the-proxy.1"})
    assert response.headers["X-Request-ID"] == "from-the-proxy.1"
    assert [(line["event"], line["request_id"], line["level"]) for line in lines] == [
        ("looked", "from-the-proxy.1", "warning")
    ]


@pytest.mark.parametrize("given", ["x" * 65, "a b", "", "\t{}"])
def test_an_identifier_that_is_long_or_odd_is_replaced(client: TestClient[Any], given: str) -> None:
    """So that nobody writes into the logs."""
    identifier = client.get("/items/7", headers={"X-Request-ID": given}).headers["X-Request-ID"]
    assert len(identifier) == 32
    assert identifier.isalnum()


def test_a_fault_is_logged_as_an_error(client: TestClient[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """With its path, status and duration."""
    with logs(capsys) as lines:
        client.get("/items/0")
    line = next(line for line in lines if line["event"] == "request")
    assert (line["level"], line["path"], line["status"], line["method"]) == ("error", "/items/0", 500, "GET")
    assert isinstance(line["duration_ms"], float)


def test_requests_are_counted_by_route(client: TestClient[Any]) -> None:
    """Not by path: a thousand names do not make a thousand series."""
    for path in ("/items/7", "/items/8", "/nowhere/9"):
        client.get(path)
    content, media_type = metrics()
    counted = content.decode()
    assert media_type.startswith("text/plain")
    assert 'shardwise_request_seconds_count{method="GET",route="/items/{item}",status="200"}' in counted
    assert 'shardwise_request_seconds_count{method="GET",route="unmatched",status="404"}' in counted
    assert "/items/8" not in counted
    assert "/nowhere" not in counted


def test_the_service_logs_as_its_process_was_told(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """The framework sets up nothing of its own over it."""
    with logs(capsys) as lines, TestClient(cast("Any", Telemetry(build_app(settings)))) as client:
        client.get("/nowhere")
    assert any(line["event"] == "request" and line["status"] == 404 for line in lines)
