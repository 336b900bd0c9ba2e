"""The service in process, on a database with the shipped catalogue."""

from collections.abc import Iterator
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from service.app import build_app
from service.settings import Settings
from tests.api.writing import Writing, writing


@pytest.fixture(scope="session")
def client(settings: Settings) -> Iterator[TestClient[Litestar]]:
    """A client of a running service."""
    with TestClient(build_app(settings)) as client:
        yield client


@pytest.fixture
def service(empty_settings: Settings) -> Iterator[Writing]:
    """A service on a database that is empty but for a key, the test's own."""
    with writing(empty_settings) as service:
        yield service


@pytest.fixture
def plan_request() -> dict[str, Any]:
    """The smallest plan request, a test's own to change."""
    return {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "workload": {"context_tokens": 4096, "concurrent_sequences": 1},
        "hardware": {"gpus": ["h100-sxm"]},
    }
