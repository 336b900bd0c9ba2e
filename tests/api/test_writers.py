"""Several who write, and writes that end halfway: one revision or none, and old ones stay as they were."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest
import sqlalchemy as sa
from litestar.testing import TestClient

from service.api.contract import PlanRequest
from service.api.plans import question_of
from service.api.reading import read_body
from service.api.responding import ENCODER
from service.app import build_app
from service.catalogue.records.model import ModelRecord
from service.sizing import plan
from service.storage import models
from service.storage.catalogue import current_revision, load_snapshot, publish
from service.storage.models import store_models
from tests.api.writing import LLAMA, NAME, SMALL_CACHE, Writing
from tests.examples import GPU

PATIENCE_S = 20.0


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes true before patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_another_worker_hears_of_it(service: Writing) -> None:
    """Without being asked to look."""
    with TestClient(build_app(service.settings)) as other:
        service.post()
        assert eventually(lambda: other.get(f"/models/{NAME}").status_code == 200)
        service.post(SMALL_CACHE)
        assert eventually(lambda: other.get(f"/models/{NAME}").json()["config"] == SMALL_CACHE)


def test_writers_of_one_model_leave_one_revision(service: Writing) -> None:
    """Eight at the same moment: one creates it, seven find it."""
    with ThreadPoolExecutor(8) as pool:
        answers = [future.result() for future in [pool.submit(service.post) for _ in range(8)]]
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert {answer.json()["catalogue_revision"] for answer in answers} == {1}
    assert service.revision() == 1


def test_the_second_writer_waits_for_the_first(engine: sa.Engine) -> None:
    """It sees what the first one wrote, though it began before that was committed."""
    record = ModelRecord(NAME, LLAMA, None, None, "ingested", "a test", date(2026, 11, 30))
    second: list[bool] = []

    def write() -> None:
        with engine.begin() as connection:
            _, (stored,) = store_models(connection, [record], author="second", summary="the same")
            second.append(stored.is_changed)

    with engine.begin() as connection:
        store_models(connection, [record], author="first", summary="a model")
        waiting = threading.Thread(target=write)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(PATIENCE_S)
    assert second == [False]
    with engine.connect() as connection:
        assert current_revision(connection) == 1


def test_a_failure_before_the_commit_leaves_nothing(service: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row was written when it came: 500, and the catalogue is as it was; afterwards all goes well."""

    def fails(connection: sa.Connection, records: list[object], **who: str) -> int:
        publish(connection, records, author=who["author"], summary=who["summary"])
        raise RuntimeError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(models, "publish", fails)
        assert service.post().status_code == 500
    assert (service.revision(), service.held().models) == (0, ())
    assert service.post().status_code == 201


def test_a_connection_that_dies_before_the_commit_leaves_nothing(
    service: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends it after the rows were written: 503, try again; and trying again succeeds."""

    def dies(connection: sa.Connection, records: list[object], **who: str) -> int:
        revision = publish(connection, records, author=who["author"], summary=who["summary"])
        connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return revision

    with monkeypatch.context() as patch:
        patch.setattr(models, "publish", dies)
        response = service.post()
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert (service.revision(), service.held().models) == (0, ())
    assert service.post().status_code == 201


def test_an_old_revision_plans_as_it_did(service: Writing) -> None:
    """Byte for byte what was answered when it was the newest, though the model has changed since."""
    with service.engine.begin() as connection:
        publish(connection, [GPU], author="test", summary="a GPU")
    service.post()
    question = {"model": NAME, "workload": {"context_tokens": 4096}, "hardware": {"gpus": ["x100"]}}
    answered = service.client.post("/plan", json=question)
    assert answered.status_code == 200
    assert answered.headers["x-catalogue-revision"] == "2"
    service.post(SMALL_CACHE)
    assert service.client.post("/plan", json=question).content != answered.content
    asked = read_body(json.dumps(question).encode(), PlanRequest)
    with service.engine.connect() as connection:
        then = load_snapshot(connection, 2)
    assert ENCODER.encode(plan(question_of(asked, then))) == answered.content


def test_what_was_read_is_kept_over_a_revision(service: Writing) -> None:
    """A new revision does not have every model read again."""
    service.post()
    before = service.client.app.state.snapshot
    assert before.models[0].shape is before.models[0].shape
    service.post(SMALL_CACHE, "example/other")
    after = service.client.app.state.snapshot
    assert after.revision == 2
    assert after.model(NAME) is before.models[0]
