"""Writes take a key of the right role; reads take none."""

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from service.app import OPERATIONS, openapi_document
from service.settings import Settings
from service.storage import keys
from service.storage.engine import create_engine
from tests.api.writing import LLAMA, NAME, Writing

BODY = {"name": NAME, "config": LLAMA}
LOCKED = [operation for operation in OPERATIONS if operation.role is not None]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic YTpi",
        "sw_000000000000_" + "A" * 43,
        "Bearer sw_000000000000_" + "A" * 43,
        "Bearer sw_000000000000_" + "A" * 100_000,
    ],
)
def test_without_a_key_a_write_is_refused(client: TestClient[Litestar], header: str | None) -> None:
    """A 401 that says how to send one, and nothing is written."""
    response = client.post("/models", json=BODY, headers={"Authorization": header} if header else {})
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "/problems/unauthenticated"
    assert client.get(f"/models/{NAME}").status_code == 404


def test_the_scheme_is_read_in_any_case(service: Writing) -> None:
    """As RFC 9110 has it."""
    response = service.client.post("/models", json=BODY, headers={"Authorization": f"bEARER  {service.key}"})
    assert response.status_code == 201


@pytest.mark.parametrize("role", ["reader", "quoter"])
def test_a_small_role_is_refused_and_named(service: Writing, role: str) -> None:
    """A 403 with the role that is needed and the one the key has."""
    response = service.client.post("/models", json=BODY, headers=service.bearer(service.make_key(role)))
    assert response.status_code == 403
    assert "curator" in response.json()["detail"]
    assert role in response.json()["detail"]


def test_a_greater_role_is_enough(service: Writing) -> None:
    """An admin may what a curator may."""
    response = service.client.post("/models", json=BODY, headers=service.bearer(service.make_key("admin")))
    assert response.status_code == 201


def test_a_revoked_key_stops_at_once(service: Writing) -> None:
    """The very next request is a 401."""
    assert service.post().status_code == 201
    with service.engine.begin() as connection:
        keys.revoke(connection, service.key.split("_")[1])
    assert service.post().status_code == 401


def test_a_stranger_learns_nothing_of_what_is_wrong_with_a_body(service: Writing) -> None:
    """The key is asked for before the body is looked at."""
    for content in (b"", b"{", b"x" * 9_000_000):
        assert service.client.post("/models", content=content).status_code == 401


def test_a_database_that_is_away_is_said_so(service: Writing) -> None:
    """A 503 with the time to try again after, not a fault and not a refusal of the key."""
    service.client.app.state.engine = create_engine(Settings(database_url="postgresql://127.0.0.1:1/x"), pooled=False)
    response = service.post()
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["type"] == "/problems/unavailable"


def test_reads_take_no_key(client: TestClient[Litestar]) -> None:
    """Nor does a key that is wrong keep anyone from them."""
    for path in ("/models?limit=1", "/gpus?limit=1", "/catalogue/revisions"):
        assert client.get(path, headers={"Authorization": "Bearer x"}).status_code == 200


def test_every_change_takes_a_key() -> None:
    """Whatever is not a read or a question has a role."""
    questions = {"plan", "compare", "cost", "topology", "inspect_model"}
    writes = {operation.name for operation in OPERATIONS if operation.method != "GET"} - questions
    assert writes - {operation.name for operation in LOCKED} == set()
    assert "add_model" in writes


def test_the_contract_says_which_operations_are_locked() -> None:
    """Each names the scheme, its role and the two refusals."""
    contract = openapi_document()
    assert contract["components"]["securitySchemes"]["api_key"]["scheme"] == "bearer"
    for operation in OPERATIONS:
        described = contract["paths"][operation.path][operation.method.lower()]
        if operation.role is None:
            assert "security" not in described
            continue
        assert described["security"] == [{"api_key": [operation.role]}]
        assert {"401", "403", "503"} <= described["responses"].keys()
        assert "WWW-Authenticate" in described["responses"]["401"]["headers"]
        assert operation.role in described["description"]


def test_the_page_takes_a_key_for_locked_operations_alone(client: TestClient[Litestar]) -> None:
    """One field for it in each of their forms."""
    assert client.get("/docs").text.count('class="key"') == len(LOCKED)
