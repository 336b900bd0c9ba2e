"""Lists of machines and prices, and lists taken into the catalogue."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from service.api.contract import PlanRequest
from service.api.plans import question_of
from service.api.reading import read_body
from service.api.responding import ENCODER
from service.sizing import plan
from service.storage import seed
from service.storage.catalogue import load_snapshot
from service.storage.engine import create_engine
from tests.api.writing import Writing, writing
from tests.conftest import Databases

HEADER = "provider,region,instance_type,gpu_slug,gpu_count,price_per_instance_hour_usd,kind,observed_on,source\n"
GOOD = "acme,north-1,x.8,h100-sxm,8,24.00,on_demand,2026-11-30,a list\n"
PLACEHOLDER = "acme,north-1,x.9,h100-sxm,8,9999.99,on_demand,2026-11-30,a list\n"
SKYPILOT = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
    "gpu_8x_h100_sxm5,H100,8.0,208,1800,23.92,us-east-1,,\n"
    "cpu_4x,,,4,16,0.1,us-east-1,,\n"
)
LITELLM = (
    '{"sample_spec": {"mode": "chat"}, "acme/llama": {"litellm_provider": "acme", "mode": "chat",'
    ' "input_cost_per_token": 2.3e-07, "output_cost_per_token": 4e-07}}'
)


def items(client: TestClient[Litestar], path: str) -> list[dict[str, Any]]:
    """One page."""
    response = client.get(path)
    assert response.status_code == 200, response.text
    return response.json()["items"]


def test_prices_are_found_by_what_they_are_for(client: TestClient[Litestar]) -> None:
    """AWS asked 98.32 for p5.48xlarge in October 2023 and 55.04 in September 2026, both on record."""
    found = items(client, "/prices?gpu=h100-sxm&provider=aws&instance=p5.48xlarge&kind=on_demand&region=us-east-1")
    by_day = {price["observed_on"]: price["per_hour"] for price in found}
    assert (by_day["2023-10-09"], by_day["2026-09-06"]) == ("98.32", "55.04")
    assert {price["per_gpu_hour"] for price in found if price["per_hour"] == "55.04"} == {"6.88"}
    early = items(client, "/prices?gpu=h100-sxm&provider=aws&instance=p5.48xlarge&as_of=2024-01-01&kind=on_demand")
    assert {price["observed_on"] for price in early} == {"2023-10-09"}


@pytest.mark.parametrize("path", ["/prices", "/instances", "/hosted-prices"])
def test_pages_give_every_entry_once(client: TestClient[Litestar], path: str) -> None:
    """Following `next` to the end meets no entry twice."""
    seen, after = list[str](), ""
    while True:
        page = client.get(f"{path}?limit=500{after}").json()
        seen += [repr(entry) for entry in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert len(seen) == len(set(seen)) > 100


def test_a_machine_is_named_as_plans_take_it(client: TestClient[Litestar]) -> None:
    """Eight H100 joined by NVLink, by provider and type."""
    found = {each["name"]: each for each in items(client, "/instances?gpu=h100-sxm&provider=aws")}
    assert (found["aws/p5.48xlarge"]["gpu_count"], found["aws/p5.48xlarge"]["link"]) == (8, "nvlink")


def test_a_hosted_model_is_found_however_it_is_spelt(client: TestClient[Litestar]) -> None:
    """With or without its owner."""
    bare = items(client, "/hosted-prices?model=llama-3.3-70b-instruct")
    assert bare == items(client, "/hosted-prices?model=meta-llama/Llama-3.3-70B-Instruct")
    assert len({price["provider"] for price in bare}) > 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/prices?gpu=h1000", 404),
        ("/prices?after=!", 400),
        ("/prices?after=abc", 404),
        ("/prices?kind=free", 400),
        ("/prices?as_of=yesterday", 400),
        ("/instances?gpu=h1000", 404),
        ("/hosted-prices?limit=0", 400),
    ],
)
def test_what_is_wrong_is_a_problem(client: TestClient[Litestar], path: str, status: int) -> None:
    """Never an empty list."""
    assert client.get(path).status_code == status


@pytest.fixture(scope="module")
def priced(databases: Databases, migrated_template: str) -> Iterator[Writing]:
    """A service with the shipped catalogue, which these tests add to."""
    settings = databases.make(migrated_template)
    with create_engine(settings, pooled=False).begin() as connection:
        seed.seed(connection)
    with writing(settings) as running:
        yield running


def send(priced: Writing, path: str, content: str, kind: str = "text/csv") -> httpx.Response:
    """A file, sent with the key."""
    return priced.client.post(path, content=content.encode(), headers=priced.bearer() | {"Content-Type": kind})


def test_a_list_is_taken_once_and_plans_use_it(priced: Writing) -> None:
    """The price of 3.00 a GPU is the cheapest at once; the placeholder is left out with its reason."""
    content = HEADER + GOOD + PLACEHOLDER
    tried = send(priced, "/prices/imports?format=csv&dry_run=true", content).json()
    assert (tried["added"], tried["dry_run"]) == (1, True)
    taken = send(priced, "/prices/imports?format=csv", content).json()
    assert (taken["taken"], taken["added"], taken["quarantined"]) == (1, 1, {"placeholder": 1})
    assert taken["rows_per_second"] > 0
    assert taken["catalogue_revision"] == tried["catalogue_revision"] + 1
    again = send(priced, "/prices/imports?format=csv", content).json()
    assert (again["added"], again["known"], again["catalogue_revision"]) == (0, 1, taken["catalogue_revision"])
    question = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "workload": {"context_tokens": 4096},
        "hardware": {"gpus": ["h100-sxm"]},
        "prices": {"provider": "acme"},
    }
    cost = priced.client.post("/plan", json=question).json()["recommended"]["cost"]
    assert (cost["per_hour"], cost["price"]["source"]) == ("24", "a list")


def test_another_amount_for_the_same_day_is_not_taken(priced: Writing) -> None:
    """It contradicts what is held."""
    send(priced, "/prices/imports?format=csv", HEADER + GOOD)
    told = send(priced, "/prices/imports?format=csv", HEADER + GOOD.replace("24.00", "25.00")).json()
    assert (told["added"], told["contradicting"]) == (0, 1)
    assert "x.8" in told["examples"]["contradicts_catalogue"][0]


def test_public_lists_are_taken(priced: Writing) -> None:
    """SkyPilot's and LiteLLM's, with the day their files lack."""
    path = "/prices/imports?format=skypilot&provider=lambda&observed_on=2026-11-29"
    told = send(priced, path, SKYPILOT).json()
    assert (told["added"], told["skipped"]) == (1, {"no_gpu": 1})
    hosted = "/hosted-prices/imports?format=litellm&observed_on=2026-11-29"
    told = send(priced, hosted, LITELLM, "application/json").json()
    assert (told["added"], told["skipped"]) == (1, {"documentation": 1})
    (price,) = items(priced.client, "/hosted-prices?provider=acme")
    assert (price["input_per_million"], price["output_per_million"]) == ("0.23", "0.4")


def test_an_old_revision_prices_a_plan_as_it_did(priced: Writing) -> None:
    """Byte for byte what was answered before a cheaper offer came."""
    question = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "workload": {"context_tokens": 4096},
        "hardware": {"gpus": ["h100-sxm", "l40s"]},
        "rank_by": "cost",
    }
    before = priced.client.post("/plan", json=question)
    cheaper = GOOD.replace("acme", "bargain").replace("24.00", "8.00")
    assert send(priced, "/prices/imports?format=csv", HEADER + cheaper).json()["added"] == 1
    assert priced.client.post("/plan", json=question).json()["recommended"]["cost"]["price"]["provider"] == "bargain"
    with priced.engine.connect() as connection:
        then = load_snapshot(connection, int(before.headers["x-catalogue-revision"]))
    asked = read_body(json.dumps(question).encode(), PlanRequest)
    assert ENCODER.encode(plan(question_of(asked, then))) == before.content


def test_nothing_was_seen_on_a_day_that_has_not_come(priced: Writing) -> None:
    """Such a row is held back, and such a day of the whole list is refused: it would hold as the newest for good."""
    told = send(priced, "/prices/imports?format=csv", HEADER + GOOD.replace("2026-11-30", "2999-01-01")).json()
    assert (told["added"], told["quarantined"]) == (0, {"future": 1})
    path = "/prices/imports?format=skypilot&provider=lambda&observed_on=2999-01-01"
    refused = send(priced, path, SKYPILOT)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "observed_on")


def test_hosted_prices_keep_the_currency_they_are_listed_in(priced: Writing) -> None:
    """A European list; a row that says EUR and fills a column of USD says two things."""
    listed = [
        {"provider": "continental", "api_model_id": "m1", "currency": "EUR", "input_per_mtok": 0.9,
         "output_per_mtok": 1.2, "observed_on": "2026-11"},
        {"provider": "continental", "api_model_id": "m2", "currency": "EUR", "input_usd_per_mtok": 0.9,
         "output_usd_per_mtok": 1.2, "observed_on": "2026-11"},
    ]  # fmt: skip
    path = "/hosted-prices/imports?format=json"
    told = send(priced, path, json.dumps(listed), "application/json").json()
    assert (told["added"], told["quarantined"]) == (1, {"malformed": 1})
    (price,) = items(priced.client, "/hosted-prices?provider=continental")
    assert (price["currency"], price["output_per_million"], price["observed_on"]) == ("EUR", "1.2", "2026-11-01")


def test_prices_that_want_a_rate_are_named(priced: Writing) -> None:
    """A card listed in EUR alone has no cost until `prices.exchange_rate` says what a EUR is worth; 80 EUR then."""
    header = HEADER.replace("price_per_instance_hour_usd", "price_per_instance_hour").replace("\n", ",currency\n")
    row = "continental,,c.8,h100-sxm,8,80,reserved_3y,2026-11-30,a list,EUR\n"
    assert send(priced, "/prices/imports?format=csv", header + row).json()["added"] == 1
    question: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "workload": {"context_tokens": 4096},
        "hardware": {"gpus": ["h100-sxm"]},
        "prices": {"provider": "continental", "kind": "reserved_3y"},
    }
    found = priced.client.post("/plan", json=question).json()["recommended"]
    assert found["cost"] is None
    assert any("listed in EUR" in line and "prices.exchange_rate" in line for line in found["warnings"])
    traffic = {"traffic": {"requests_per_second": 1}}
    told = priced.client.post("/cost", json=question | traffic).json()
    assert (told["kinds"], any("prices in EUR are left out" in line for line in told["warnings"])) == ([], True)
    rate = {"base": "EUR", "quote": "USD", "rate": "1.25", "observed_on": "2026-11-02"}
    question["prices"] |= {"exchange_rate": rate}
    cost = priced.client.post("/plan", json=question).json()["recommended"]["cost"]
    assert (cost["currency"], cost["per_hour"]) == ("EUR", "80")
    assert "left out" not in "".join(priced.client.post("/cost", json=question | traffic).json()["warnings"])


def test_another_price_for_cached_tokens_is_a_contradiction(priced: Writing) -> None:
    """As another price for fresh ones is."""
    header = (
        "provider,api_model_id,input_usd_per_mtok,output_usd_per_mtok,cached_input_usd_per_mtok,observed_on,source\n"
    )
    row = "acme,cached,0.9,1.2,{},2026-11-02,a list\n"
    send(priced, "/hosted-prices/imports?format=csv", header + row.format(0.5))
    told = send(priced, "/hosted-prices/imports?format=csv", header + row.format("")).json()
    assert (told["known"], told["contradicting"]) == (0, 1)


def test_a_name_that_no_index_holds_is_held_back(priced: Writing) -> None:
    """And takes the rest of the list with it no more."""
    long = GOOD.replace("x.8", "x" * 5000)
    told = send(priced, "/prices/imports?format=csv&dry_run=true", HEADER + long + GOOD).json()
    assert (told["taken"], told["quarantined"]) == (1, {"malformed": 1})


@pytest.mark.parametrize(
    ("query", "content", "kind", "status", "said"),
    [
        ("format=csv", "a,b\n1,2\n", "text/csv", 400, "provider"),
        ("format=csv", "", "text/csv", 400, "empty"),
        ("format=csv", HEADER, "image/png", 415, "text/csv"),
        ("format=skypilot&observed_on=2026-11-29", SKYPILOT, "text/csv", 400, "provider"),
        ("format=skypilot&provider=lambda", SKYPILOT, "text/csv", 400, "observed_on"),
        ("format=xls", HEADER, "text/csv", 400, "format"),
        ("", HEADER, "text/csv", 400, "format"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(
    priced: Writing, query: str, content: str, kind: str, status: int, said: str
) -> None:
    """With what was expected."""
    response = send(priced, f"/prices/imports?{query}", content, kind)
    assert response.status_code == status
    assert said in response.text


def test_a_list_needs_a_curator(priced: Writing) -> None:
    """Nobody without a key, and no reader."""
    anonymous = priced.client.post("/prices/imports?format=csv", content=b"x", headers={"Content-Type": "text/csv"})
    reader = priced.client.post(
        "/prices/imports?format=csv",
        content=b"x",
        headers=priced.bearer(priced.make_key("reader")) | {"Content-Type": "text/csv"},
    )
    assert (anonymous.status_code, reader.status_code) == (401, 403)
