"""What carrying a traffic costs, from the plan to the month."""

from decimal import ROUND_CEILING, Decimal
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

REQUEST: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "precision": "fp8",
    "workload": {"context_tokens": 8192, "concurrent_sequences": 16, "prompt_tokens": 3000, "output_tokens": 500},
    "hardware": {"gpus": ["h100-sxm"]},
    "prices": {"provider": "aws", "region": "us-east-1"},
    "traffic": {"requests_per_second": 5, "hours_per_day": 6},
    "utilisation": 0.5,
}
DAYS = Decimal(730) / 24
RATE = {"base": "EUR", "quote": "USD", "rate": "1.25", "observed_on": "2026-11-02", "source": "ECB"}
OBSERVED = "prices.exchange_rate.observed_on"


def ask(client: TestClient[Litestar], **fields: Any) -> dict[str, Any]:
    """A cost request that is answered."""
    response = client.post("/cost", json=REQUEST | fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_copies_follow_the_load_and_cost_by_the_hour(client: TestClient[Litestar]) -> None:
    """Copies = ceil(5 / (tokens/s x 0.5 / 500)), four of 2 GPUs to a machine of 8, 6 hours of them and 18 of one.

    Times 30.4167 days x 55.04 USD.
    """
    answer = ask(client)
    tokens_per_s = Decimal(str(answer["plan"]["throughput"]["output_tokens_per_second"]["value"]))
    copies = int((5 / (tokens_per_s * Decimal("0.5") / 500)).to_integral_value(ROUND_CEILING))
    assert copies > 4
    assert answer["plan"]["gpu_count"] == 2
    assert answer["fleet"]["replicas_by_hour"] == [copies] * 6 + [1] * 18
    rented = next(kind for kind in answer["kinds"] if kind["kind"] == "on_demand")
    assert rented["price"]["instance_type"] == "p5.48xlarge"
    machines = -(-copies // 4)
    assert rented["machines_at_peak"] == machines
    assert Decimal(rented["per_hour"]) == machines * Decimal("55.04")
    assert Decimal(rented["machine_hours_per_month"]) == pytest.approx((6 * machines + 18) * DAYS, abs=Decimal("1e-4"))
    month = (6 * machines + 18) * DAYS * Decimal("55.04")
    assert Decimal(rented["per_month"]) == pytest.approx(month, abs=Decimal("0.01"))
    served = 5 * 3600 * 6 * DAYS * 500
    assert Decimal(rented["per_million_output_tokens"]) == pytest.approx(month / served * 10**6, abs=Decimal("0.001"))
    spread = served * 6 * Decimal(rented["per_million_input"]) + served * Decimal(rented["per_million_output"])
    assert spread / 10**6 == pytest.approx(month, rel=Decimal("0.001"))


def test_a_volume_is_a_load(client: TestClient[Litestar]) -> None:
    """1,000 million tokens a month in answers of 500: 2,000,000 requests, whatever the hours."""
    fleet = ask(client, traffic={"output_tokens_per_month": 1_000_000_000, "hours_per_day": 12})["fleet"]
    assert float(fleet["requests_per_month"]) == pytest.approx(2_000_000, abs=1)


def test_owned_hardware_stands_beside_rented(client: TestClient[Litestar]) -> None:
    """280,000 over 4 years, 700 W for each H100 (its rating) at 0.12 a kWh and a PUE of 1.3, all month at the peak."""
    owned = {"capital": "280000", "years": 4, "price_per_kwh": "0.12", "pue": 1.3, "gpu_tdp_w": 700}
    answer = ask(client, owned=owned)
    found = next(kind for kind in answer["kinds"] if kind["kind"] == "owned")
    watts = Decimal(700) * answer["plan"]["gpu_count"]
    hour = Decimal(280_000) / 35_040 + watts / 1000 * Decimal("1.3") * Decimal("0.12")
    peak = answer["fleet"]["replicas_peak"]
    assert Decimal(found["per_hour"]) == pytest.approx(peak * hour, abs=Decimal("0.0001"))
    assert Decimal(found["per_month"]) == pytest.approx(peak * 730 * hour, abs=Decimal("0.01"))
    assert found["price"] is None
    server = next(kind for kind in ask(client, owned=owned | {"gpu_count": 8})["kinds"] if kind["kind"] == "owned")
    hour = Decimal(280_000) / 35_040 + Decimal(5600) / 1000 * Decimal("1.3") * Decimal("0.12")
    assert server["machines_at_peak"] == -(-peak // (8 // answer["plan"]["gpu_count"]))
    assert Decimal(server["per_hour"]) == pytest.approx(server["machines_at_peak"] * hour, abs=Decimal("0.0001"))
    without = ask(client, owned={key: value for key, value in owned.items() if key != "gpu_tdp_w"})
    assert next(kind for kind in without["kinds"] if kind["kind"] == "owned")["per_hour"] == found["per_hour"]


def test_hosted_models_are_priced_for_the_same_traffic(client: TestClient[Litestar]) -> None:
    """A request costs (3,000 x input + 500 x output) / 1,000,000; 5 a second for 6 hours a day make 3,285,000."""
    answer = ask(client, hosted=["meta-llama/Llama-3.3-70B-Instruct"])
    assert len(answer["hosted"]) > 1
    for each in answer["hosted"]:
        once = (3000 * Decimal(each["input_per_million"]) + 500 * Decimal(each["output_per_million"])) / 10**6
        assert Decimal(each["per_month"]) == pytest.approx(once * 3_285_000, abs=Decimal("0.01"))
        cheapest = Decimal(answer["kinds"][0]["price"]["per_hour"])
        on_one = answer["kinds"][0]["price"]["gpu_count"] // answer["plan"]["gpu_count"]
        made = Decimal(str(answer["plan"]["throughput"]["output_tokens_per_second"]["value"])) * 1800 * 730 * on_one
        volume = cheapest * 730 / (once / 500)
        if volume <= made:
            first = Decimal(each["break_even"]["first_output_tokens_per_month"])
            assert first == pytest.approx(volume, rel=Decimal("0.0001"))
        else:
            assert each["break_even"]["first_output_tokens_per_month"] is None
    months = [Decimal(each["per_month"]) for each in answer["hosted"]]
    assert months == sorted(months)


def test_sums_in_another_currency_are_those_in_usd_at_the_rate(client: TestClient[Litestar]) -> None:
    """At 1.25 USD for a EUR all sums are four fifths, volumes and choices the same; owned hardware is given in EUR."""
    hosted = ["meta-llama/Llama-3.3-70B-Instruct"]
    owned = {"capital": "280000", "years": 4, "price_per_kwh": "0.12"}
    usd = ask(client, hosted=hosted, owned=owned)
    eur = ask(
        client,
        hosted=hosted,
        owned=owned | {"capital": "224000", "price_per_kwh": "0.096"},
        prices={"provider": "aws", "region": "us-east-1", "exchange_rate": RATE},
    )
    assert (usd["currency"], usd["exchange_rate"]) == ("USD", None)
    assert (eur["currency"], eur["exchange_rate"]) == ("EUR", RATE)
    for name in ("kinds", "hosted"):
        assert len(usd[name]) == len(eur[name]) > 1
        for dollars, euros in zip(usd[name], eur[name], strict=True):
            four_fifths = Decimal(dollars["per_month"]) * Decimal("0.8")
            assert Decimal(euros["per_month"]) == pytest.approx(four_fifths, abs=Decimal("0.011"))
            tokens = Decimal(dollars["per_million_output_tokens"]) * Decimal("0.8")
            assert Decimal(euros["per_million_output_tokens"]) == pytest.approx(tokens, abs=Decimal("0.0002"))
            assert dollars.get("price") == euros.get("price")
            assert dollars.get("break_even") == euros.get("break_even")
            assert dollars.get("input_per_million") == euros.get("input_per_million")
    assert eur["plan"]["cost"]["currency"] == "EUR"
    assert Decimal(eur["plan"]["cost"]["per_hour"]) == Decimal("55.04") / Decimal("1.25") == Decimal("44.032")


def test_without_a_load_copies_are_planned_full(client: TestClient[Litestar]) -> None:
    """As many requests at once as the cache holds and the engine runs; the plan is told at that load."""
    lengths = {"context_tokens": 8192, "prompt_tokens": 3000, "output_tokens": 500}
    answer = ask(client, workload=lengths)
    plan, at_once = answer["plan"], answer["fleet"]["replica_concurrent_sequences"]
    assert 16 < at_once <= plan["capacity"]["concurrent_sequences"]
    assert f"{at_once} requests at once" in answer["warnings"][0]
    judged = client.post(
        "/plan",
        json={
            "model": REQUEST["model"],
            "precision": REQUEST["precision"],
            "workload": lengths | {"concurrent_sequences": at_once},
            "hardware": REQUEST["hardware"],
            "layout": plan["layout"],
        },
    ).json()["recommended"]
    assert judged["latency"] == plan["latency"]
    assert judged["throughput"] == plan["throughput"]


def test_a_plan_is_weighed_by_the_copies_that_the_traffic_needs(client: TestClient[Litestar]) -> None:
    """Every plan offered needs at least as many GPUs at the peak, or costs at least as much a month."""
    for rank_by, measure in (("fewest_gpus", "gpus_at_peak"), ("cost", "per_month")):
        answer = ask(client, workload={"context_tokens": 8192}, rank_by=rank_by)
        month = next(kind["per_month"] for kind in answer["kinds"] if kind["kind"] == "on_demand")
        chosen = {"gpus_at_peak": answer["fleet"]["gpus_at_peak"], "per_month": month}
        others = [Decimal(each[measure]) for each in answer["alternatives"]]
        assert len(others) > 1
        assert others == sorted(others)
        assert Decimal(chosen[measure]) <= others[0]
        assert answer["fleet"]["gpus_at_peak"] == answer["fleet"]["replicas_peak"] * answer["plan"]["gpu_count"]


@pytest.mark.parametrize(("rank_by", "measure"), [("fewest_gpus", "gpus_at_peak"), ("cost", "per_month")])
def test_no_layout_of_the_same_gpus_carries_the_traffic_on_less(
    client: TestClient[Litestar], rank_by: str, measure: str
) -> None:
    """The layout that is quickest for one request is not the one that carries most: each is forced and compared."""
    fields: dict[str, Any] = {
        "model": "Qwen/Qwen3-235B-A22B",
        "precision": "checkpoint",
        "workload": {"context_tokens": 8192, "prompt_tokens": 3000, "output_tokens": 50},
        "hardware": {"gpus": ["h200-sxm"], "gpu_counts": [8]},
        "traffic": {"requests_per_second": 2000},
        "rank_by": rank_by,
    }
    weighed = list[tuple[Decimal, Any]]()
    for tensor, data, expert_parallel in ((8, 1, False), (8, 1, True), (4, 2, False), (4, 2, True)):
        layout = {
            "tensor_parallel_size": tensor,
            "data_parallel_size": data,
            "pipeline_parallel_size": 1,
            "expert_parallel": expert_parallel,
        }
        weighed.append((_measured(ask(client, **fields, layout=layout), measure), layout))
    chosen = ask(client, **fields)
    assert _measured(chosen, measure) <= min(figure for figure, _ in weighed) < weighed[0][0]


def _measured(answer: dict[str, Any], measure: str) -> Decimal:
    on_demand = next(kind["per_month"] for kind in answer["kinds"] if kind["kind"] == "on_demand")
    return Decimal(answer["fleet"]["gpus_at_peak"] if measure == "gpus_at_peak" else on_demand)


def test_promised_times_are_told_at_the_load_a_copy_carries(client: TestClient[Litestar]) -> None:
    """The plan and its alternatives are told at the most arrivals that keep the promise, as `/plan` tells them."""
    workload = {"context_tokens": 8192, "prompt_tokens": 3000, "output_tokens": 500}
    answer = ask(client, workload=workload, objectives={"tpot_ms": 25}, utilisation=1)
    carries = answer["plan"]["objectives"]["requests_per_second"]
    assert answer["plan"]["throughput"]["requests_per_second"] == carries
    assert Decimal(answer["fleet"]["replica_requests_per_second"]) == Decimal(str(carries))
    other = answer["alternatives"][0]
    same = {"precision": REQUEST["precision"], "hardware": REQUEST["hardware"], "objectives": {"tpot_ms": 25}}
    same |= {"model": REQUEST["model"], "layout": other["layout"]}
    most = client.post("/plan", json=same | {"workload": workload}).json()["recommended"]["objectives"]
    at_most = workload | {"requests_per_second": most["requests_per_second"]}
    told = client.post("/plan", json=same | {"workload": at_most}).json()["recommended"]
    assert other["tpot_ms"] == told["latency"]["tpot_ms"]["value"]


def test_no_copies_are_counted_of_a_card_whose_speed_is_unknown(client: TestClient[Litestar]) -> None:
    """The catalogue has no rate of the MI308X, so /plan predicts no time: nothing tells what a copy carries."""
    fields: dict[str, Any] = {"model": "Qwen/Qwen3-0.6B", "precision": "checkpoint", "prices": {}}
    alone = ask(client, **fields, hardware={"gpus": ["mi308x"], "gpu_counts": [1]})
    assert alone["plan"] is None
    assert alone["fleet"] is None
    assert [(each["gpu"], each["code"]) for each in alone["rejected"]] == [("mi308x", "no_time_predicted")]
    beside = ask(client, **fields, hardware={"gpus": ["mi308x", "mi300x"], "gpu_counts": [1]})
    assert beside["plan"]["gpu"] == "mi300x"
    assert any("MI308X is left out" in warning for warning in beside["warnings"])


def test_copies_that_hold_little_are_told_how_few_would_do(client: TestClient[Litestar]) -> None:
    """One request at once, as asked, takes many copies; full, the same plan needs fewer."""
    workload = REQUEST["workload"] | {"concurrent_sequences": 1}
    answer = ask(client, workload=workload)
    full = ask(client, workload={key: value for key, value in workload.items() if key != "concurrent_sequences"})
    assert answer["fleet"]["replicas_peak"] > full["fleet"]["replicas_peak"]
    assert any("would do where" in warning for warning in answer["warnings"])


def test_a_model_that_is_no_longer_served_is_no_alternative(client: TestClient[Litestar]) -> None:
    """W&B stopped serving Llama 3.1 70B on 5 October 2026 (LiteLLM 1.110.2, `deprecation_date`)."""
    hosted = ["meta-llama/Llama-3.1-70B-Instruct"]
    now = ask(client, hosted=hosted)
    assert "wandb" not in {each["provider"] for each in now["hosted"]}
    listed = client.get("/hosted-prices", params={"provider": "wandb", "model": hosted[0]}).json()["items"]
    assert {each["deprecated_on"] for each in listed} == {"2026-10-05"}


def test_an_old_price_of_any_kind_is_warned_of(client: TestClient[Litestar]) -> None:
    """AWS's price of a year's reservation and of spot machines may be older than the one on demand."""
    answer = ask(client, prices={"provider": "aws", "region": "us-east-1", "as_of": "2024-06-01"})
    assert any("on_demand price was seen on 2023-10-09, 236 days" in line for line in answer["warnings"])


def test_growth_is_looked_ahead(client: TestClient[Litestar]) -> None:
    """Doubling every month, three months on it is eight times the load."""
    now = ask(client)["fleet"]
    later = ask(client, months=3, traffic={"requests_per_second": 5, "hours_per_day": 6, "growth_per_month": 1})[
        "later"
    ]
    carries = Decimal(now["replica_requests_per_second"])
    assert later["replicas_peak"] == pytest.approx(40 / carries, abs=1)
    assert later["replicas_peak"] > 6 * now["replicas_peak"]


def test_nothing_is_priced_where_nothing_serves(client: TestClient[Litestar]) -> None:
    """With the reasons."""
    answer = ask(client, hardware={"gpus": ["l4"], "gpu_counts": [1]})
    assert (answer["plan"], answer["fleet"], answer["kinds"]) == (None, None, [])
    assert answer["rejected"]


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"traffic": {}}, 400, "traffic"),
        ({"traffic": {"requests_per_second": 1, "output_tokens_per_month": 1}}, 400, "traffic"),
        ({"traffic": {"requests_per_second": 1e-300}}, 400, "traffic.requests_per_second"),
        ({"traffic": {"output_tokens_per_month": 1e-300}}, 400, "traffic.output_tokens_per_month"),
        ({"owned": {"capital": "1", "years": 1e-300, "price_per_kwh": "0.2"}}, 400, "owned.years"),
        ({"assumptions": {"memory_bandwidth_fraction": 1e-300}}, 400, "assumptions.memory_bandwidth_fraction"),
        ({"traffic": {"requests_per_second": 1, "hours_per_day": 25}}, 400, "traffic.hours_per_day"),
        ({"utilisation": 0}, 400, "utilisation"),
        ({"hosted": ["no/such-model"]}, 404, "hosted.0"),
        ({"prices": {"exchange_rate": RATE | {"quote": "JPY"}}}, 400, "prices.exchange_rate.quote"),
        ({"prices": {"exchange_rate": RATE | {"base": "USD"}}}, 400, "prices.exchange_rate.quote"),
        ({"prices": {"exchange_rate": RATE | {"base": "euro"}}}, 400, "prices.exchange_rate.base"),
        ({"prices": {"exchange_rate": RATE | {"rate": 0}}}, 400, "prices.exchange_rate.rate"),
        ({"prices": {"exchange_rate": {"base": "EUR", "quote": "USD", "rate": 1}}}, 400, OBSERVED),
        ({"owned": {"capital": "x", "years": 4, "price_per_kwh": "0.1"}}, 400, "owned.capital"),
        ({"owned": {"capital": 1, "years": 4, "price_per_kwh": "0.1", "residual": 2}}, 400, "owned.residual"),
    ],
)
def test_what_is_wrong_is_named(client: TestClient[Litestar], fields: dict[str, Any], status: int, field: str) -> None:
    """Neither or both loads, shares out of range, models nobody hosts, money that is none."""
    response = client.post("/cost", json=REQUEST | fields)
    assert response.status_code == status
    assert field in [error["field"] for error in response.json()["errors"]]
