"""Costs by hand: published prices with the arithmetic written out, and laws that hold for any numbers."""

import doctest
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.sizing.cost import (
    ExchangeRate,
    HostedRate,
    InvalidCostInput,
    MachineRate,
    OwnedHardware,
    Replica,
    Traffic,
    at_kind,
    break_even,
    capital_per_hour,
    cents,
    deployment_per_hour,
    exchanged,
    fleet,
    flip_price,
    grown,
    hosted_per_million_output_tokens,
    hosted_per_month,
    hosted_per_request,
    kinds_side_by_side,
    machines_of,
    owned_per_hour,
    pareto,
    per_million_input_and_output,
    per_million_tokens,
    per_month,
    per_year,
    power_per_hour,
    replica_requests_per_second,
    replicas_needed,
    requests_per_month,
    self_hosted_per_month,
    steady_traffic,
    tokens_per_month,
    traffic_of_volume,
)

P5 = Decimal("55.04")
"""USD an hour for AWS p5.48xlarge (8 x H100) on demand in us-east-1, 2026-07-20 (AWS Pricing API)."""

NODE = MachineRate(gpu_count=8, per_hour=Decimal(10))

LLAMA = HostedRate(Decimal("0.23"), Decimal("0.40"))
"""USD per million for Llama 3.3 70B at DeepInfra, as LiteLLM lists it."""

PRICES = st.decimals("0.01", 1000, places=2)
VOLUMES = st.integers(0, 10**12)
CAPACITIES = st.integers(10**6, 10**11)


class TestHoursAndMonths:
    def test_month_is_730_hours_and_a_year_twelve_of_them(self) -> None:
        """55.04 x 730 = 40,179.20; 55.04 x 8,760 = 482,150.40."""
        assert per_month(P5) == Decimal("40179.20")
        assert per_year(P5) == Decimal("482150.40") == 12 * per_month(P5)

    def test_part_of_a_machine_costs_the_machine(self) -> None:
        """4 of 8 GPUs cost 55.04, 12 cost two machines: 110.08."""
        assert deployment_per_hour(P5, 4, 8) == P5
        assert deployment_per_hour(P5, 12, 8) == Decimal("110.08")

    def test_money_is_never_a_float(self) -> None:
        """A price that has been a binary fraction is refused."""
        with pytest.raises(TypeError, match="money is Decimal"):
            per_month(55.04)  # pyright: ignore[reportArgumentType] - the point of the test

    @pytest.mark.parametrize("bad", [Decimal(-1), Decimal("NaN"), Decimal("Infinity")])
    def test_negative_and_infinite_sums_are_refused(self, bad: Decimal) -> None:
        """The message names the argument and the value."""
        with pytest.raises(InvalidCostInput, match="per_hour"):
            per_month(bad)

    def test_a_rate_is_taken_either_way_round(self) -> None:
        """At 1 EUR = 1.08 USD, 108 USD are 100 EUR; at 1 USD = 150 JPY they are 16,200 JPY. What is in EUR stays."""
        euro = ExchangeRate("EUR", "USD", Decimal("1.08"), "2026-11-02", "ECB")
        yen = ExchangeRate("USD", "JPY", Decimal(150), "2026-11-02")
        assert exchanged(Decimal(108), "USD", euro) == Decimal(100)
        assert exchanged(Decimal(108), "EUR", euro) == Decimal(108)
        assert exchanged(Decimal(108), "USD", yen) == Decimal(16_200)
        assert exchanged(Decimal(108), "USD", None) == Decimal(108)

    @pytest.mark.parametrize("rate", [None, ExchangeRate("EUR", "USD", Decimal("1.08"), "2026-11-02")])
    def test_a_currency_without_a_rate_is_refused(self, rate: ExchangeRate | None) -> None:
        """Yen are not euros, and not dollars."""
        with pytest.raises(InvalidCostInput, match="JPY cannot be exchanged"):
            exchanged(Decimal(1), "JPY", rate)

    @pytest.mark.parametrize(
        ("base", "quote", "rate", "field"),
        [
            ("USD", "USD", Decimal(1), "quote"),
            ("EUR", "JPY", Decimal(160), "quote"),
            ("EUR", "USD", Decimal(0), "rate"),
            ("EUR", "USD", Decimal(-1), "rate"),
        ],
    )
    def test_a_rate_is_between_usd_and_another(self, base: str, quote: str, rate: Decimal, field: str) -> None:
        """And above zero."""
        with pytest.raises(InvalidCostInput, match=field):
            ExchangeRate(base, quote, rate, "2026-11-02")


class TestTokens:
    def test_half_busy_costs_twice_as_much_a_token(self) -> None:
        """55.04 / (2,500 x 3,600) x 1,000,000 = 6.1155...; at half the load 12.2311..."""
        full, half = per_million_tokens(P5, 2500), per_million_tokens(P5, 2500, 0.5)
        assert cents(full) == Decimal("6.12")
        assert cents(half) == Decimal("12.23")
        assert half == 2 * full

    def test_tokens_of_a_month(self) -> None:
        """1,000 a second x 3,600 x 730 x 0.5 = 1,314,000,000."""
        assert tokens_per_month(1000, Decimal("0.5")) == 1_314_000_000

    def test_prompt_and_output_share_the_cost_by_weight(self) -> None:
        """36 an hour over (8,000 + 4 x 500) x 3,600 = 36,000,000 weighted tokens: 1.00 and 4.00 per million."""
        read, write = per_million_input_and_output(Decimal(36), 8000, 500, output_weight=4)
        assert (read, write) == (Decimal(1), Decimal(4))
        assert read * 8000 * 3600 + write * 500 * 3600 == Decimal(36) * 1_000_000

    @pytest.mark.parametrize("bad", [0, 1.01, -0.5, float("nan")])
    def test_utilisation_is_a_share(self, bad: float) -> None:
        """Above 0 and at most 1; 50 per cent is 0.5."""
        with pytest.raises(InvalidCostInput, match="utilisation"):
            per_million_tokens(P5, 2500, bad)


class TestTraffic:
    def test_requests_of_a_month(self) -> None:
        """2 a second for 10 hours: 2 x 36,000 x 730 / 24 = 2,190,000 (to the last of 28 digits)."""
        assert round(requests_per_month(steady_traffic(2, 3000, 500, hours_per_day=10)), 15) == 2_190_000

    @given(VOLUMES, st.integers(1, 24))
    def test_volume_becomes_traffic_of_that_volume(self, volume: int, hours: int) -> None:
        """Whatever the hours of the day it comes in."""
        traffic = traffic_of_volume(volume, 1000, 500, hours_per_day=hours)
        assert abs(requests_per_month(traffic) * 500 - volume) < Decimal("0.000001")

    def test_growth_compounds(self) -> None:
        """10 a second x 1.05^12 = 17.958..."""
        later = grown(steady_traffic(10, 1000, 500, growth_per_month=Decimal("0.05")), 12)
        assert round(later.requests_per_second[0], 3) == Decimal("17.959")

    def test_room_can_bind_before_throughput(self) -> None:
        """2,000 x 0.8 / 400 = 4 a second by throughput, 32 sequences / 10 s = 3.2 by room."""
        replica = Replica(2000, concurrent_sequences=32, request_seconds=10)
        assert replica_requests_per_second(replica, 400, Decimal("0.8")) == Decimal("3.2")
        assert replica_requests_per_second(Replica(2000), 400, Decimal("0.8")) == 4
        assert replicas_needed(10, Decimal("3.2")) == 4
        assert replicas_needed(0, Decimal("3.2")) == 0

    def test_room_without_a_duration_is_refused(self) -> None:
        """Sequences alone do not say how many requests pass."""
        with pytest.raises(InvalidCostInput, match="request_seconds"):
            replica_requests_per_second(Replica(2000, concurrent_sequences=32), 400)

    def test_a_day_of_office_hours(self) -> None:
        """4 requests/s for 6 h, copies that carry 1 at 10 an hour: 6 x 4 + 18 x 1 = 42 copy-hours a day.

        At 10 an hour for each, scaled: 42 x 730 / 24 x 10 = 12,775. Reserved: 4 x 730 x 10 = 29,200. Served: 4 x
        21,600 x 730 / 24 x 500 = 1,314,000,000 tokens; the copies could have made 42 x 3,600 x 730 / 24 x 500 =
        2,299,500,000: 57.1 %.
        """
        needed = fleet(steady_traffic(4, 1000, 500, hours_per_day=6), Replica(500))
        assert (needed.peak, needed.floor, sum(needed.replicas)) == (4, 1, 42)
        assert round(at_kind(needed, 8, "on_demand", NODE).per_month, 10) == 12_775
        assert at_kind(needed, 8, "reserved_1y", NODE).per_month == 29_200
        assert round(needed.output_tokens_per_month, 10) == 1_314_000_000
        assert round(needed.utilisation, 3) == Decimal("0.571")

    def test_scaled_to_nothing(self) -> None:
        """With floor 0 the idle hours are free: 24 copy-hours a day, 24 x 730 / 24 x 10 = 7,300."""
        needed = fleet(steady_traffic(4, 1000, 500, hours_per_day=6), Replica(500), floor=0)
        assert needed.floor == 0
        assert round(at_kind(needed, 8, "spot", NODE).per_month, 10) == 7_300

    @pytest.mark.parametrize(
        ("copies", "copy_gpus", "machine_gpus", "machines"),
        [
            (1, 2, 8, 1),
            (4, 2, 8, 1),
            (5, 2, 8, 2),
            (5, 3, 8, 3),
            (5, 8, 8, 5),
            (5, 16, 8, 10),
            (3, 12, 8, 6),
            (0, 2, 8, 0),
        ],
    )
    def test_copies_share_machines(self, copies: int, copy_gpus: int, machine_gpus: int, machines: int) -> None:
        """Four copies of 2 GPUs fill a machine of 8; two of 3 leave 2 GPUs idle; one of 12 takes two machines."""
        assert machines_of(copies, copy_gpus, machine_gpus) == machines

    def test_copies_that_share_a_machine_share_its_cost(self) -> None:
        """4 of 8 GPUs at 10: (6 x 2 + 18 x 1) x 730 / 24 x 10 = 9,125; reserved 2 x 730 x 10 = 14,600."""
        needed = fleet(steady_traffic(4, 1000, 500, hours_per_day=6), Replica(500))
        row = at_kind(needed, 4, "on_demand", NODE)
        assert (row.machines, row.per_hour) == (2, 20)
        assert round(row.machine_hours_per_month, 8) == Decimal("912.5")
        assert round(row.per_month, 8) == 9_125
        assert at_kind(needed, 4, "reserved_3y", NODE).per_month == 14_600

    def test_the_machine_that_carries_the_fleet_for_the_least_is_taken(self) -> None:
        """One copy of 4 GPUs: a machine of 4 at 6 before one of 8 at 10. Two: one of 8 (10) before two of 4 (12)."""
        machines = {"on_demand": [MachineRate(4, Decimal(6)), NODE]}
        one, two = (fleet(steady_traffic(load, 1000, 500), Replica(500)) for load in (1, 2))
        assert kinds_side_by_side(one, 4, machines)[0].machine.gpu_count == 4
        assert kinds_side_by_side(two, 4, machines)[0].machine is NODE

    def test_a_lower_reserved_rate_can_cost_more(self) -> None:
        """Reserved at 6: 4 x 730 x 6 = 17,520, paid day and night; on demand at 10: 12,775; spot at 4: 5,110."""
        needed = fleet(steady_traffic(4, 1000, 500, hours_per_day=6), Replica(500))
        rates = {"on_demand": 10, "spot": 4, "reserved_1y": 6, "owned": 3}
        rows = kinds_side_by_side(needed, 8, {kind: [MachineRate(8, Decimal(rate))] for kind, rate in rates.items()})
        assert [(row.kind, round(row.per_month, 8)) for row in rows] == [
            ("spot", 5_110),
            ("owned", 8_760),
            ("on_demand", 12_775),
            ("reserved_1y", 17_520),
        ]
        assert rows[2].per_million_output_tokens is not None
        assert cents(rows[2].per_million_output_tokens) == Decimal("9.72")  # 12,775 / 1,314

    def test_a_day_has_24_hours(self) -> None:
        """A profile of another length is refused by its length."""
        with pytest.raises(InvalidCostInput, match="7 hours given"):
            Traffic((Decimal(1),) * 7, 1000, 500)

    @given(st.integers(1, 400), st.integers(1, 400), PRICES, st.integers(1, 16), st.sampled_from([1, 4, 8]))
    def test_cost_never_falls_with_load_or_price(
        self, load: int, more: int, price: Decimal, copy_gpus: int, machine_gpus: int
    ) -> None:
        """More requests or a dearer hour cannot make a month cheaper."""

        def month(requests: int, per_hour: Decimal) -> Decimal:
            needed = fleet(steady_traffic(requests, 100, 100), Replica(1000))
            return at_kind(needed, copy_gpus, "on_demand", MachineRate(machine_gpus, per_hour)).per_month

        assert month(load + more, price) >= month(load, price)
        assert month(load, price + more) > month(load, price)

    @given(st.lists(st.decimals(0, 100, places=3), min_size=24, max_size=24), st.integers(0, 3))
    def test_scaling_never_costs_more_than_the_peak_all_day(self, loads: list[Decimal], floor: int) -> None:
        """And the copies of every hour carry that hour's load."""
        needed = fleet(Traffic(tuple(loads), 100, 100), Replica(1000), floor=floor)
        scaled, fixed = (at_kind(needed, 2, kind, NODE).per_month for kind in ("on_demand", "reserved_1y"))
        assert scaled <= fixed
        assert all(copies * 10 >= load for copies, load in zip(needed.replicas, loads, strict=True))


class TestHosted:
    def test_a_request(self) -> None:
        """3,000 x 0.23 + 500 x 0.40 = 890 millionths: 0.00089. A thousandth of a cent is kept."""
        assert hosted_per_request(LLAMA, 3000, 500) == Decimal("0.00089")

    def test_cached_prompt_tokens_cost_less(self) -> None:
        """Half of 3,000 at 0.07 instead of 0.27: (1,500 x 0.27 + 1,500 x 0.07 + 500 x 1.10) / 1e6 = 0.00106."""
        deepseek = HostedRate(Decimal("0.27"), Decimal("1.10"), Decimal("0.07"))
        assert hosted_per_request(deepseek, 3000, 500, Decimal("0.5")) == Decimal("0.00106")
        assert hosted_per_request(LLAMA, 3000, 500, Decimal("0.5")) == Decimal("0.00089")

    def test_a_month(self) -> None:
        """2,190,000 requests x 0.00089 = 1,949.10."""
        assert round(hosted_per_month(LLAMA, steady_traffic(2, 3000, 500, hours_per_day=10)), 10) == Decimal("1949.1")

    def test_output_carries_its_prompts(self) -> None:
        """0.00089 / 500 x 1,000,000 = 1.78 per million output tokens."""
        assert hosted_per_million_output_tokens(LLAMA, 3000, 500) == Decimal("1.78")

    def test_a_node_of_h100s_against_an_api(self) -> None:
        """40,179.20 a month / 1.78 = 22,572.58 million output tokens, 8,589 a second: more than 2,500 can make."""
        meets = break_even(per_month(P5), tokens_per_month(2500), hosted_per_million_output_tokens(LLAMA, 3000, 500))
        assert meets.first is None
        assert round(meets.utilisation, 3) == Decimal("3.436")  # 22,572.58 / (2,500 x 3,600 x 730 = 6,570 million)

    def test_first_and_lasting_break_even(self) -> None:
        """2,000 a month / 2.00 = 1,000 million, 0.8 of a copy's 1,250 million; for good from 4 copies on.

        Just over 1,250 million two copies cost 4,000 and the API 2,500; over 5,000 million five cost 10,000, as it.
        """
        meets = break_even(Decimal(2000), 1_250_000_000, Decimal(2))
        assert meets.first == 1_000_000_000
        assert meets.utilisation == Decimal("0.8")
        assert meets.lasting == 4_000_000_000

    def test_exactly_full_meets_only_at_full_copies(self) -> None:
        """At utilisation 1 a copy is as cheap when full, and dearer with the next one started."""
        meets = break_even(Decimal(2000), 1_000_000_000, Decimal(2))
        assert (meets.first, meets.lasting) == (1_000_000_000, None)

    @given(PRICES, CAPACITIES, PRICES)
    def test_break_even_is_where_the_curves_meet(self, cost: Decimal, capacity: int, price: Decimal) -> None:
        """At the first volume both cost the same; below it one's own copy is dearer."""
        meets = break_even(cost, capacity, price)
        assume(meets.first is not None)
        assert meets.first is not None
        assert abs(self_hosted_per_month(meets.first, cost, capacity) - meets.first * price / 1_000_000) < Decimal(
            "1e-9"
        )
        below = meets.first * Decimal("0.99")
        assert self_hosted_per_month(below, cost, capacity) > below * price / 1_000_000

    @given(PRICES, CAPACITIES, PRICES, st.integers(1, 500))
    def test_beyond_the_lasting_break_even_the_api_never_wins(
        self, cost: Decimal, capacity: int, price: Decimal, hundredths: int
    ) -> None:
        """Also just after a further copy was started."""
        lasting = break_even(cost, capacity, price).lasting
        assume(lasting is not None and lasting < capacity * 1000)
        assert lasting is not None
        copies = -(-int(lasting) // capacity)
        for volume in (lasting * (100 + hundredths) / 100, Decimal((copies + hundredths) * capacity + 1)):
            assert self_hosted_per_month(volume, cost, capacity) <= volume * price / 1_000_000 + cost / 10**6

    @given(PRICES, CAPACITIES, PRICES, VOLUMES, VOLUMES)
    def test_cost_never_falls_with_volume(
        self, cost: Decimal, capacity: int, price: Decimal, volume: int, more: int
    ) -> None:
        """Nor does the break-even volume when a copy gets dearer."""
        capacity = max(capacity, (volume + more) // 10**6 + 1)
        assert self_hosted_per_month(volume + more, cost, capacity) >= self_hosted_per_month(volume, cost, capacity)
        cheap, dear = break_even(cost, capacity, price), break_even(cost * 2, capacity, price)
        assert dear.utilisation > cheap.utilisation


class TestOwned:
    SERVER = OwnedHardware(
        capital=Decimal(280_000), years=4, gpu_count=8, gpu_tdp_w=700, host_w=2000, price_per_kwh=Decimal("0.12")
    )

    def test_depreciation(self) -> None:
        """280,000 / (4 x 8,760) = 7.990867..."""
        assert round(capital_per_hour(self.SERVER), 4) == Decimal("7.9909")

    def test_electricity(self) -> None:
        """(8 x 700 + 2,000) W = 7.6 kW x PUE 1.3 x 0.12 = 1.1856 an hour."""
        assert power_per_hour(self.SERVER) == Decimal("1.1856")

    def test_an_hour(self) -> None:
        """7.990867 + 1.1856 = 9.176467, against 55.04 rented: paid back in 280,000 / (55.04 - 1.1856) = 5,199 hours."""
        assert round(owned_per_hour(self.SERVER), 4) == Decimal("9.1765")

    @pytest.mark.parametrize(
        ("change", "field"),
        [({"years": 0}, "years"), ({"pue": Decimal("0.9")}, "pue"), ({"residual": Decimal(300_000)}, "residual")],
    )
    def test_impossible_hardware_is_refused(self, change: dict[str, Decimal | int], field: str) -> None:
        """Written off at once, a hall that makes power, worth more when old."""
        facts: dict[str, Decimal | int] = {
            "capital": Decimal(280_000),
            "years": 4,
            "gpu_count": 8,
            "gpu_tdp_w": 700,
            "price_per_kwh": Decimal("0.12"),
        }
        with pytest.raises(InvalidCostInput, match=field):
            owned_per_hour(OwnedHardware(**{**facts, **change}))  # pyright: ignore[reportArgumentType] - mixed types


class TestDecisions:
    def test_only_options_nobody_beats_remain(self) -> None:
        """(25, 30) is no better than (20, 30), (30, 60) no better than (10, 50)."""
        options = [(25, 30), (10, 50), (30, 60), (20, 30)]
        assert pareto(options, lambda o: o[0], lambda o: o[1]) == ((10, 50), (20, 30))

    def test_more_throughput_is_better(self) -> None:
        """Given as its negative: the dearest is worth it only if it is the fastest."""
        options = [(10, 100), (20, 90), (30, 400)]
        assert pareto(options, lambda o: o[0], lambda o: -o[1]) == ((10, 100), (30, 400))

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
    def test_pareto_set_is_what_its_definition_says(self, options: list[tuple[int, int]]) -> None:
        """An option remains exactly if no other is at least as good in both and better in one."""

        def beaten(one: tuple[int, int]) -> bool:
            return any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in options)

        kept = pareto(options, lambda o: o[0], lambda o: o[1])
        assert sorted(kept) == sorted(option for option in options if not beaten(option))

    def test_how_far_a_price_must_move(self) -> None:
        """8 GPUs x 730 h at 3.00 = 17,520 against 21,900: they meet at 21,900 / 5,840 = 3.75, +25 %."""
        flip = flip_price(Decimal(3), 8 * 730, Decimal(21_900))
        assert flip is not None
        assert (flip.price, flip.change) == (Decimal("3.75"), Decimal("0.25"))

    def test_no_price_flips_what_other_costs_already_decide(self) -> None:
        """If the rest alone costs more than the rival, free GPUs would not help."""
        assert flip_price(Decimal(3), 5840, Decimal(100), other_costs=Decimal(101)) is None
        assert flip_price(Decimal(3), 0, Decimal(100)) is None

    @given(PRICES, st.integers(1, 10**5), PRICES)
    def test_at_the_flip_both_cost_the_same(self, price: Decimal, quantity: int, rival: Decimal) -> None:
        """Price x quantity + other costs is the rival's cost."""
        flip = flip_price(price, quantity, rival * 1000, other_costs=rival)
        assert flip is not None
        assert abs(flip.price * quantity + rival - rival * 1000) < Decimal("1e-12")


def test_examples_of_the_document_are_right() -> None:
    """Every example in docs/cost.md gives what it says."""
    document = Path(__file__).parents[2] / "docs" / "cost.md"
    outcome = doctest.testfile(str(document), module_relative=False)
    assert outcome.attempted > 20
    assert outcome.failed == 0
