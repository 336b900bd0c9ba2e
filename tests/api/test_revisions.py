"""The catalogue's history: its revisions, and what changed between two."""

from dataclasses import replace
from typing import Any

import pytest

from service.catalogue.records.gpu import Level, SourcedFigure
from service.storage.catalogue import publish
from tests.api.writing import LLAMA, NAME, SMALL_CACHE, Writing
from tests.examples import GPU


@pytest.fixture
def changed(service: Writing) -> Writing:
    """A GPU, a model, then both changed: four revisions."""
    faster = replace(
        GPU, figures=dict(GPU.figures) | {"memory_bandwidth_gb_per_s": SourcedFigure(99, "DS", Level.SINGLE)}
    )
    with service.engine.begin() as connection:
        publish(connection, [GPU], author="test", summary="a GPU")
    service.post()
    service.post(SMALL_CACHE | {"note": "x" * 300})
    with service.engine.begin() as connection:
        publish(connection, [faster], author="test", summary="a faster GPU")
    return service


def diff(service: Writing, query: str) -> dict[str, Any]:
    """What changed, by key."""
    response = service.client.get(f"/catalogue/diff?{query}")
    assert response.status_code == 200, response.text
    return {item["key"]: item for item in response.json()["items"]}


def test_revisions_are_listed_newest_first_in_pages(changed: Writing) -> None:
    """With who made them and what they bring."""
    first = changed.client.get("/catalogue/revisions?limit=3").json()
    assert first["catalogue_revision"] == 4
    assert [item["revision"] for item in first["items"]] == [4, 3, 2]
    assert [item["summary"] for item in first["items"]] == ["a faster GPU", f"Model {NAME}", f"Model {NAME}"]
    second = changed.client.get(f"/catalogue/revisions?limit=3&after={first['next']}").json()
    assert [item["revision"] for item in second["items"]] == [1]
    assert second["next"] is None


def test_a_diff_shows_what_changed_before_and_after(changed: Writing) -> None:
    """Fields by their paths, records in a line."""
    items = diff(changed, "from=2&to=4")
    model = items[f"models/{NAME}"]
    assert model["change"] == "changed"
    assert model["before"] == "8,030,261,248 parameters, 131,072 tokens, exact"
    # 32 layers x 2 x (8 - 4) KV heads of 128 x 4,096 inputs fewer.
    assert model["after"] == "7,896,043,520 parameters, 131,072 tokens, exact"
    fields = {field["field"]: field for field in model["fields"]}
    assert fields.keys() == {"config.note", "config.num_key_value_heads"}
    assert (fields["config.note"]["before"], len(fields["config.note"]["after"])) == (None, 200)
    assert fields["config.num_key_value_heads"] == {
        "field": "config.num_key_value_heads",
        "before": "8",
        "after": "4",
    }
    gpu = items["gpus/x100"]
    assert (gpu["before"], gpu["after"]) == ("Example X100: 80 GiB, 80 GB/s", "Example X100: 80 GiB, 99 GB/s")
    assert {field["field"] for field in gpu["fields"]} == {
        "figures.memory_bandwidth_gb_per_s.level",
        "figures.memory_bandwidth_gb_per_s.value",
    }


def test_what_was_not_there_is_added_and_backwards_removed(changed: Writing) -> None:
    """Neither has fields to compare."""
    assert {key: item["change"] for key, item in diff(changed, "from=0&to=2").items()} == {
        "gpus/x100": "added",
        f"models/{NAME}": "added",
    }
    item = diff(changed, "from=4&to=0")[f"models/{NAME}"]
    assert (item["change"], item["after"], item["fields"]) == ("removed", None, [])


def test_a_change_that_was_taken_back_is_none(changed: Writing) -> None:
    """Only the two ends are compared."""
    changed.post()
    assert "num_key_value_heads" not in str(diff(changed, "from=2"))
    assert f"models/{NAME}" not in diff(changed, "from=2")


def test_a_diff_of_one_kind_comes_in_pages(changed: Writing) -> None:
    """By key."""
    for number in range(5):
        changed.post(LLAMA, f"example/model-{number}")
    query = "/catalogue/diff?from=4&kind=models&limit=2"
    seen, after = list[str](), ""
    while True:
        page = changed.client.get(query + after).json()
        seen += [item["key"] for item in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == [f"models/example/model-{number}" for number in range(5)]
    assert diff(changed, "from=4&kind=gpus") == {}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from=0&to=5", 404),
        ("from=9", 404),
        ("", 400),
        ("from=-1", 400),
        ("from=1.5", 400),
        ("from=99999999999", 400),
        ("from=one", 400),
        ("from_=1", 400),
        ("from=1&colour=red", 400),
        ("from=1&after=a%00", 400),
    ],
)
def test_revisions_that_are_not_there_are_refused(changed: Writing, query: str, status: int) -> None:
    """404 with the newest one, 400 for what is no revision."""
    response = changed.client.get(f"/catalogue/diff?{query}")
    assert response.status_code == status, response.text
    if status == 404:
        assert response.json()["nearest"] == ["4"]


def test_history_is_not_sent_again(changed: Writing) -> None:
    """`If-None-Match` of two fixed revisions stays good for ever."""
    first = changed.client.get("/catalogue/diff?from=1&to=2")
    changed.post(LLAMA, "example/other")
    known = {"If-None-Match": first.headers["etag"]}
    assert changed.client.get("/catalogue/diff?from=1&to=2", headers=known).status_code == 304
