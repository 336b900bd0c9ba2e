"""Plans with a price: which offer they rest on, and what follows from it."""

from decimal import Decimal
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

Request = dict[str, Any]


def plan(client: TestClient[Litestar], request: Request, **fields: Any) -> dict[str, Any]:
    """The recommended plan."""
    response = client.post("/plan", json=request | fields)
    assert response.status_code == 200, response.text
    return response.json()["recommended"]


def test_a_machine_is_paid_for_whole(client: TestClient[Litestar], plan_request: Request) -> None:
    """AWS asked 55.04 an hour for 8 H100 (p5.48xlarge, September 2026); x 730 h = 40,179.20, however few are used."""
    found = plan(client, plan_request, prices={"provider": "aws", "region": "us-east-1"})
    assert found["gpu_count"] < 8
    assert found["cost"]["per_hour"] == "55.04"
    assert found["cost"]["per_month"] == "40179.20"
    price = found["cost"]["price"]
    assert (price["provider"], price["instance_type"], price["gpu_count"]) == ("aws", "p5.48xlarge", 8)
    assert price["observed_on"] == "2026-09-06"
    assert price["source"]
    assert f"{8 - found['gpu_count']} GPUs of p5.48xlarge" in "".join(found["warnings"])
    tokens_an_hour = found["throughput"]["output_tokens_per_second"]["value"] * 3600
    assert float(found["cost"]["per_million_output_tokens"]) == pytest.approx(55.04 / tokens_an_hour * 1e6, rel=1e-3)


def test_an_earlier_day_has_its_own_price(client: TestClient[Litestar], plan_request: Request) -> None:
    """Until 2025 the same machine was listed at 98.32."""
    prices = {"provider": "aws", "region": "us-east-1", "as_of": "2025-04-01"}
    assert plan(client, plan_request, prices=prices)["cost"]["per_hour"] == "98.32"


def test_before_the_first_price_there_is_none(client: TestClient[Litestar], plan_request: Request) -> None:
    """Cost is null, with a warning that says so."""
    found = plan(client, plan_request, prices={"as_of": "2020-01-01"})
    assert found["cost"] is None
    assert any("so cost is null" in warning for warning in found["warnings"])


def test_an_old_price_is_warned_of(client: TestClient[Litestar], plan_request: Request) -> None:
    """From 2023-10-09 to 2024-06-01 are 22 + 30 + 31 + 31 + 29 + 31 + 30 + 31 + 1 = 236 days."""
    found = plan(client, plan_request, prices={"provider": "aws", "region": "us-east-1", "as_of": "2024-06-01"})
    assert found["cost"]["price"]["observed_on"] == "2023-10-09"
    assert any("236 days" in warning for warning in found["warnings"])


def test_ranked_by_cost_the_cheapest_comes_first_and_unpriced_last(
    client: TestClient[Litestar], plan_request: Request
) -> None:
    """Over every GPU of the catalogue, at whole-machine prices."""
    question = plan_request | {"hardware": {}, "rank_by": "cost"}
    answer = client.post("/plan", json=question).json()
    plans = [answer["recommended"], *answer["alternatives"]]
    costs = [float("inf") if each["cost"] is None else float(each["cost"]["per_hour"]) for each in plans]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    assert "nothing else tried costs less an hour" in answer["recommended"]["reasons"]


def test_a_rate_in_the_query_tells_costs_in_its_currency(client: TestClient[Litestar]) -> None:
    """At 150 JPY for a USD, 55.04 USD an hour are 8,256 JPY; the price stays as listed."""
    query = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "context_tokens": 4096,
        "gpu": "h100-sxm",
        "provider": "aws",
        "region": "us-east-1",
    }
    rate = {"base": "USD", "quote": "JPY", "rate": 150, "observed_on": "2026-11-02"}
    asked = query | {f"exchange_{name.removeprefix('exchange_')}": value for name, value in rate.items()}
    answer = client.get("/plan", params=asked).json()
    cost = answer["recommended"]["cost"]
    assert (cost["currency"], Decimal(cost["per_hour"])) == ("JPY", 8256)
    assert cost["exchange_rate"] == rate | {"rate": "150", "source": None}
    assert (cost["price"]["currency"], cost["price"]["per_hour"]) == ("USD", "55.04")
    body = {
        "model": query["model"],
        "workload": {"context_tokens": 4096},
        "hardware": {"gpus": ["h100-sxm"]},
        "prices": {"provider": "aws", "region": "us-east-1", "exchange_rate": rate},
    }
    assert client.post("/plan", json=body).json() == answer


def test_a_rentable_machine_sets_gpus_and_price(client: TestClient[Litestar], plan_request: Request) -> None:
    """By its full name or by its type alone: 8 H100 joined by NVLink at one price."""
    for name in ("aws/p5.48xlarge", "p5.48xlarge"):
        found = plan(client, plan_request, hardware={"instances": [name]})
        assert (found["gpu"], found["cost"]["price"]["instance_type"]) == ("h100-sxm", "p5.48xlarge")
        assert found["communication"]["link"] == "nvlink"


def test_what_the_price_leaves_open_is_told(client: TestClient[Litestar], plan_request: Request) -> None:
    """Sixteen GPUs take two machines of eight, whose network no price names; in May 2026 a single H100 cost 1.92."""
    hardware = {"gpus": ["h100-sxm"], "gpu_counts": [16]}
    found = plan(client, plan_request, hardware=hardware, layout=None)
    told = " ".join(found["warnings"])
    assert "the price is of 2 machines" in told
    assert "1.92 USD an hour each" in told
    assert "ask whether it has a machine of 8" in told
    alone = plan(client, plan_request, hardware=hardware, prices={"provider": "aws"})
    assert "an hour each" not in " ".join(alone["warnings"])


def test_rows_at_one_price_do_not_turn_on_it(client: TestClient[Litestar], plan_request: Request) -> None:
    """Four and eight H100 on one machine of eight cost the same, whatever it costs; only the other card can win."""
    hardware = {"gpus": ["h100-sxm", "a100-sxm4-80gb"], "gpu_counts": [4, 8]}
    body = plan_request | {"hardware": hardware, "prices": {"provider": "aws", "region": "us-east-1"}}
    answer = client.post("/compare", json=body).json()
    rows = answer["rows"]
    assert rows[0]["plan"]["cost"]["price"] == rows[1]["plan"]["cost"]["price"]
    assert answer["flips"]
    for flip in answer["flips"]:
        moving, level = rows[flip["row"]], rows[flip["against"]]
        assert moving["gpu"] != level["gpu"]
        machines = Decimal(moving["plan"]["cost"]["per_hour"]) / Decimal(flip["price_per_hour"])
        at_the_flip = machines * Decimal(flip["flips_at"])
        assert at_the_flip == pytest.approx(Decimal(level["plan"]["cost"]["per_hour"]), abs=Decimal("0.0001"))


def test_rows_of_a_comparison_are_priced(client: TestClient[Litestar], plan_request: Request) -> None:
    """The best by cost, the sets no row beats, and how far a price must move."""
    question = plan_request | {"hardware": {"gpus": ["h100-sxm", "h200-sxm", "b200-sxm"]}}
    answer = client.post("/compare", json=question).json()
    costs = [float(row["plan"]["cost"]["per_hour"]) for row in answer["rows"]]
    times = [row["plan"]["latency"]["tpot_ms"]["value"] for row in answer["rows"]]
    cheapest = costs.index(min(costs))
    assert answer["best"]["cost"]["row"] == cheapest
    kept = [
        index
        for index in range(3)
        if not any(
            costs[other] <= costs[index]
            and times[other] <= times[index]
            and (costs[other], times[other]) != (costs[index], times[index])
            for other in range(3)
        )
    ]
    assert sorted(answer["pareto"]["cost_latency"]) == kept
    falls = [flip for flip in answer["flips"] if flip["row"] != cheapest]
    assert {flip["against"] for flip in falls} == {cheapest}
    for flip in falls:
        assert flip["change"] == pytest.approx(costs[cheapest] / costs[flip["row"]] - 1)


def test_a_comparison_in_another_currency_turns_at_the_same_listed_prices(
    client: TestClient[Litestar], plan_request: Request
) -> None:
    """Which is best does not depend on the currency; lists stay in their own."""
    rate = {"base": "EUR", "quote": "USD", "rate": "1.25", "observed_on": "2026-11-02"}
    question = plan_request | {"hardware": {"gpus": ["h100-sxm", "h200-sxm", "b200-sxm"]}}
    usd = client.post("/compare", json=question).json()
    eur = client.post("/compare", json=question | {"prices": {"exchange_rate": rate}}).json()
    assert [flip | {"change": None} for flip in eur["flips"]] == [flip | {"change": None} for flip in usd["flips"]]
    assert eur["pareto"] == usd["pareto"]
    best, same = eur["best"]["cost"], usd["best"]["cost"]
    assert best["row"] == same["row"]
    assert "EUR an hour" in best["why"]
    assert "USD an hour" in same["why"]


@pytest.mark.parametrize(
    ("fields", "status", "hint"),
    [
        ({"prices": {"provider": "awss"}}, 404, "aws"),
        ({"hardware": {"instances": ["aws/p5.48xlargee"]}}, 404, "aws/p5.48xlarge"),
        ({"hardware": {"instances": ["p5.48xlarge"], "gpus": ["h100-sxm"]}}, 400, "hardware.gpus"),
        ({"hardware": {"instances": ["p5.48xlarge"], "link": "pcie"}}, 400, "hardware.link"),
        ({"prices": {"kind": "free"}}, 400, "prices.kind"),
        ({"prices": {"as_of": "2026-02-30"}}, 400, "prices.as_of"),
    ],
)
def test_what_is_not_known_is_named(
    client: TestClient[Litestar], plan_request: Request, fields: Request, status: int, hint: str
) -> None:
    """With the nearest names, or the field at fault."""
    response = client.post("/plan", json=plan_request | fields)
    assert response.status_code == status
    details = response.json()
    assert hint in [*details.get("nearest", ()), *(error["field"] for error in details.get("errors", ()))]
