"""Whatever is given as a model: a problem that names the fault, or a right answer; never a fault of ours."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.writing import JSON, LLAMA, NAME, Writing, writing
from tests.conftest import Databases


@pytest.fixture(scope="module")
def service(databases: Databases, migrated_template: str) -> Iterator[Writing]:
    """A service that all these tests leave as it is."""
    with writing(databases.make(migrated_template)) as service:
        yield service


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "a/b/c"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "a/.."}, "name"),
        ({"name": "a\u0000b"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": None}, "name"),
        ({"config": None}, "config"),
        ({"config": []}, "config"),
        ({"config": LLAMA | {"note": "a\u0000b"}}, "config.note"),
        ({"config": LLAMA | {"a\u0000b": 1}}, "config"),
        ({"config": LLAMA | {"deep": [{"er": ["\u0000"]}]}}, "config.deep.0.er.0"),
        ({"hf_quant_config": {"a": "\u0000"}}, "hf_quant_config.a"),
        ({"hf_quant_config": 7}, "hf_quant_config"),
        ({"weights_bytes": 0}, "weights_bytes"),
        ({"weights_bytes": -1}, "weights_bytes"),
        ({"weights_bytes": 10**30}, "weights_bytes"),
        ({"weights_bytes": "1"}, "weights_bytes"),
        ({"weights_index": {}}, "weights_index.metadata"),
        ({"weights_index": {"metadata": {"total_size": -5}}}, "weights_index.metadata.total_size"),
        ({"revision": ""}, "revision"),
        ({"source": "a\u0000b"}, "source"),
        ({"fidelity": "verbatim"}, "fidelity"),
    ],
)
def test_a_wrong_field_is_named(service: Writing, change: dict[str, Any], field: str) -> None:
    """A 400 with the field, and nothing is kept."""
    body = {"name": NAME, "config": LLAMA} | change
    for path in ("/models", "/models/inspect"):
        response = service.client.post(path, json=body, headers=service.bearer())
        assert response.status_code == 400, response.text
        assert field in {error["field"] for error in response.json()["errors"]}, response.text
    assert service.revision() == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"name": "a", "config": {"a": NaN',
        b'{"name": "a", "config": {"a": "\\ud800"}}',
        b'{"name": "a", "config": {"a": "\xff"}}',
        b'{"name": "a", "weights_bytes": Infinity, "config": {}}',
        b'{"name": "a", "config": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
        b"[" * 100_000,
        b'{"name": "a", "config": {"a": ' + b"9" * 10_000 + b"}}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_no_request_is_a_problem(service: Writing, body: bytes) -> None:
    """Truncated, empty, deep or mis-encoded bodies are 400."""
    for path in ("/models", "/models/inspect"):
        response = service.client.post(path, content=body, headers=service.bearer() | JSON)
        assert response.status_code == 400, response.text
        assert response.headers["content-type"] == "application/problem+json"


def test_bodies_that_are_too_large_or_no_json_are_refused(service: Writing) -> None:
    """413 and 415."""
    huge = b'{"name": "' + b"a" * 9_000_000 + b'"}'
    for path in ("/models", "/models/inspect"):
        assert service.client.post(path, content=huge, headers=service.bearer() | JSON).status_code == 413
        assert service.client.post(path, content=b"{}", headers=service.bearer()).status_code == 415
