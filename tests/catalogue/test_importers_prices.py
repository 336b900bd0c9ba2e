"""Price lists of other projects and our own become dated prices, and every row is accounted for."""

import io
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from service.catalogue.importers import gpu_names
from service.catalogue.importers.gpu_match import Match, NotCatalogued, match_gpu
from service.catalogue.importers.gpuhunt import read_gpuhunt
from service.catalogue.importers.outcome import Quarantined, Skipped, Tally, WrongFormat
from service.catalogue.importers.own import read_price_csv, read_price_json
from service.catalogue.importers.skypilot import read_skypilot
from service.catalogue.records.gpu import GpuRecord
from service.catalogue.records.price import Price, PriceKind
from service.storage.seed import shipped

DATA = Path(__file__).parent.parent / "data" / "prices"
DAY = date(2026, 11, 1)

SHIPPED_GPUS = [record for record in shipped() if isinstance(record, GpuRecord)]

Outcomes = list[Price | Skipped | Quarantined]


def skypilot(name: str, provider: str) -> Outcomes:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(read_skypilot(file, DAY, "test list", provider=provider))


def gpuhunt(name: str, provider: str) -> Outcomes:
    with (DATA / name).open("rb") as file:
        return list(read_gpuhunt(file, DAY, "test list", provider=provider))


def prices(outcomes: Outcomes) -> dict[tuple[str, str], Price]:
    return {(p.instance_type, p.kind.value): p for p in outcomes if isinstance(p, Price)}


def refused(outcomes: Outcomes) -> set[tuple[int, str]]:
    return {(o.row, o.reason) for o in outcomes if not isinstance(o, Price)}


class TestSkyPilot:
    def test_price_is_of_the_whole_machine(self) -> None:
        """Lambda's 8 x H100 costs 31.92 an hour, 31.92 / 8 = 3.99 for each GPU."""
        price = prices(skypilot("skypilot-v8-lambda.csv", "lambda"))["gpu_8x_h100_sxm5", "on_demand"]
        assert (price.gpu, price.gpu_count, price.amount_per_hour) == ("h100-sxm", 8, Decimal("31.92"))
        assert price.amount_per_gpu_hour == Decimal("3.99")
        assert (price.observed_on, price.source, price.provider) == (DAY, "test list", "lambda")

    def test_machine_type_settles_the_form_factor(self) -> None:
        """Names lose SXM and PCIe; the type keeps them, in words or by what the provider is known to put in it."""
        taken = prices(skypilot("skypilot-v8-lambda.csv", "lambda"))
        assert {key: price.gpu for (key, _), price in taken.items()} == {
            "gpu_8x_h100_sxm5": "h100-sxm",
            "gpu_1x_h100_pcie": "h100-pcie",
            "gpu_8x_a100": "a100-sxm4-40gb",
            "gpu_8x_a100_80gb_sxm4": "a100-sxm4-80gb",
            "gpu_8x_v100": "v100-sxm2-16gb",
        }

    def test_cards_left_out_and_machines_without_gpu_are_skipped_by_reason(self) -> None:
        """Turing's Quadro RTX 6000 is known and not catalogued: neither unknown nor taken for the Ada card."""
        assert refused(skypilot("skypilot-v8-lambda.csv", "lambda")) == {(7, "gpu_not_catalogued"), (8, "no_gpu")}

    def test_zones_of_a_region_give_one_price_unless_they_differ(self) -> None:
        """On demand holds for the region; the dearer local zone and each spot price keep their zone."""
        outcomes = skypilot("skypilot-v8-aws.csv", "aws")
        p5 = [
            (p.kind.value, p.zone, p.amount_per_hour)
            for p in outcomes
            if isinstance(p, Price) and p.instance_type == "p5.48xlarge"
        ]
        assert p5 == [
            ("on_demand", "", Decimal("55.04")),
            ("spot", "use1-az1", Decimal("22.75")),
            ("spot", "use1-az2", Decimal("23.11")),
            ("on_demand", "use1-lax1-az1", Decimal("66.05")),
        ]
        assert (4, "repeat") in refused(outcomes)

    def test_share_of_a_card_is_a_share(self) -> None:
        """g6f.large has an eighth of an L4 for 0.202 an hour: a whole one would be 0.202 x 8 = 1.616."""
        price = prices(skypilot("skypilot-v8-aws.csv", "aws"))["g6f.large", "on_demand"]
        assert (price.gpu, price.gpu_count, price.gpu_fraction) == ("l4", 1, Decimal("0.125"))
        assert price.amount_per_gpu_hour == Decimal("1.616")

    def test_unknown_name_is_reported_and_not_guessed(self) -> None:
        """A card nobody has heard of is counted by name; accelerators we leave out are not."""
        tally = Tally()
        list(tally.records(skypilot("skypilot-v8-aws.csv", "aws")))
        assert tally.report().unknown_names == {"X900": 1}
        assert tally.report().skipped["gpu_not_catalogued"] == 2

    def test_machine_type_against_name_is_a_contradiction(self) -> None:
        """A p5.48xlarge holds H100s: a row that says A10G is wrong in one of the two."""
        assert (11, "contradiction") in refused(skypilot("skypilot-v8-aws.csv", "aws"))

    def test_accelerator_priced_alone_says_so(self) -> None:
        """Google's list prices the A100 without its machine: 2.93391 is not what the machine costs."""
        outcomes = skypilot("skypilot-v8-gcp.csv", "gcp")
        bare = prices(outcomes)["", "on_demand"]
        assert (bare.gpu, bare.amount_per_hour, bare.host_included) == ("a100-sxm4-40gb", Decimal("2.93391"), False)
        assert refused(outcomes) == {(2, "no_gpu"), (4, "repeat"), (5, "gpu_not_catalogued"), (6, "gpu_not_catalogued")}

    @pytest.mark.parametrize(
        ("instance", "gpu", "ambiguous"),
        [
            ("lambdalabs__8xA100_80GB__240__1800", "a100-sxm4-80gb", ()),
            ("datacrunch__1xH100_80GB__30__120", None, ("h100-sxm", "h100-pcie")),
            ("n3-A100x8-NVLink", "a100-pcie-80gb", ()),
            ("1x-H100-75-722", "h100-sxm", ()),
            ("gpu-l40s-a_1gpu-8vcpu-32gb", "l40s", ()),
            ("epyc-genoa-a100-pcie_2x8v16gb", "a100-pcie-80gb", ()),
            ("ice-lake-a40-compute_1x2v4gb", "a40", ()),
            ("ECS1GPU3", None, ("a100-sxm4-80gb", "a100-pcie-80gb")),
            ("silent-a100", None, ("a100-sxm4-40gb", "a100-pcie-40gb")),
        ],
    )
    def test_evidence_in_the_row_narrows_the_card(
        self, instance: str, gpu: str | None, ambiguous: tuple[str, ...]
    ) -> None:
        """Upstream type, driver name and memory (per GPU, in total, as GB, as 0, as free text) narrow; never more."""
        price = prices(skypilot("skypilot-v8-mixed.csv", "mixed"))[instance, "on_demand"]
        assert (price.gpu, price.ambiguous) == (gpu, ambiguous)

    def test_either_price_may_be_missing(self) -> None:
        """A row with a spot price alone is a spot price; one with neither is skipped."""
        outcomes = skypilot("skypilot-v8-mixed.csv", "mixed")
        spot = prices(outcomes)["datacrunch__1xH100_80GB__30__120__SPOT", "spot"]
        assert spot.amount_per_hour == Decimal("0.94")
        assert (14, "no_price") in refused(outcomes)

    def test_float_noise_is_not_kept(self) -> None:
        """0.36979999999999996 is 0.3698."""
        price = prices(skypilot("skypilot-v8-mixed.csv", "mixed"))["ice-lake-a40-compute_1x2v4gb", "on_demand"]
        assert str(price.amount_per_hour) == "0.3698"

    def test_placeholders_and_contradictions_are_quarantined(self) -> None:
        """SXM against PCIe, an 80 GB 'H100 NVL' (it has 94), a price of 0 and one of 9999."""
        outcomes = skypilot("skypilot-v8-mixed.csv", "mixed")
        assert {o for o in refused(outcomes) if o[0] != 14} == {
            (12, "contradiction"),
            (13, "contradiction"),
            (15, "placeholder"),
            (16, "placeholder"),
        }

    def test_a_list_with_one_price_for_every_card_is_a_placeholder(self) -> None:
        """An auction lists 1.00 for H200 and H100, on demand and spot: where bidding starts."""
        outcomes = skypilot("skypilot-v8-mithril.csv", "mithril")
        assert [(o.row, o.reason) for o in outcomes if isinstance(o, Quarantined)] == [
            (2, "placeholder"),
            (2, "placeholder"),
            (3, "placeholder"),
            (3, "placeholder"),
        ]
        assert len(outcomes) == 4

    def test_marketplace_hosts_may_differ_and_zero_spot_is_none(self) -> None:
        """Two hosts at two prices are two offers, the same twice is one; 0.00 spot stands for no spot market."""
        outcomes = skypilot("skypilot-v9-vast.csv", "vast")
        cheap = [p.amount_per_hour for p in outcomes if isinstance(p, Price) and p.gpu == "rtx-4090"]
        assert cheap == [Decimal("0.4"), Decimal("0.35")]
        assert {p.kind for p in outcomes if isinstance(p, Price)} == {PriceKind.MARKETPLACE}
        assert {p.provider for p in outcomes if isinstance(p, Price)} == {"vast-ai"}
        assert (9, "repeat") in refused(outcomes)
        assert sum(reason == "placeholder" for _, reason in refused(outcomes)) == 7

    def test_memory_that_no_such_card_has_is_a_contradiction(self) -> None:
        """A 48 GB RTX 4090 is a rebuilt card: not the one in the catalogue."""
        assert (6, "contradiction") in refused(skypilot("skypilot-v9-vast.csv", "vast"))

    def test_memory_that_fits_two_cards_leaves_both(self) -> None:
        """2 x A100 with 81920 MiB: 80 GB each, or 40 GB each in total. With 163840 MiB it is 80 GB each."""
        outcomes = skypilot("skypilot-v9-vast.csv", "vast")
        a100 = [(p.gpu, p.ambiguous) for p in outcomes if isinstance(p, Price) and p.gpu_name == "A100"]
        assert a100 == [("a100-sxm4-80gb", ()), (None, ("a100-sxm4-40gb", "a100-sxm4-80gb"))]

    def test_runpod_sells_the_pcie_card_and_tells_community_from_secure(self) -> None:
        """A100-80GB there is PCIe; a spot price equal to the price means no discount, not a slip."""
        taken = prices(skypilot("skypilot-v8-runpod.csv", "runpod"))
        assert taken["1x_A100-80GB_SECURE", "on_demand"].gpu == "a100-pcie-80gb"
        assert taken["1x_A100-80GB_SECURE", "spot"].amount_per_hour == Decimal("1.39")
        assert taken["1x_H100_COMMUNITY", "community"].gpu == "h100-pcie"
        assert taken["1x_H100-SXM_SECURE", "on_demand"].gpu == "h100-sxm"

    def test_another_file_is_refused_by_the_columns_it_lacks(self) -> None:
        """images.csv of the same catalogue is no vms.csv."""
        with pytest.raises(WrongFormat, match="missing column InstanceType, AcceleratorName"):
            list(read_skypilot(["Tag,Region,OS,ImageId\n"], DAY, "s", provider="aws"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("RTX-6000-Ada", "rtx-6000-ada"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("H100_SXM5", "h100-sxm"),
        ("H100_PCIE_BAREMETAL", "h100-pcie"),
        ("L40S_PCIE", "l40s"),
        ("B200_SXM6", "b200-sxm"),
        ("H200_SXM", "h200-sxm"),
        ("H200-NVL", "h200-nvl"),
        ("A100-80GB-SXM", "a100-sxm4-80gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("L40S_SXM5", "unknown"),
        ("H100-MEGA", "h100-sxm"),
        ("RTX6000", "not catalogued"),
        ("RTX4090D", "not catalogued"),
        ("tpu-v6e-8", "not catalogued"),
        ("Gaudi HL-205", "not catalogued"),
        ("NVIDIA H100 SXM5 80GB", "h100-sxm"),
        ("H100 SXM 80 GB", "h100-sxm"),
        ("H100 NVL 94GB", "h100-nvl"),
        ("HGX H200", "h200-sxm"),
        ("nvidia-h100-mega-80gb", "h100-sxm"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("L40S-48GB", "l40s"),
        ("GB200 NVL72", "gb200"),
        ("GH200 96GB", "gh200-96gb"),
        ("RTX PRO 6000 Server Edition", "rtx-pro-6000-server"),
        ("Tesla P40 24GB", "not catalogued"),
        ("RTX 4090 48GB", "unknown"),
        ("A100 SXM4 64GB", "unknown"),
        ("H20-3e", "unknown"),
        ("RTX 6000 Blackwell", "unknown"),
        ("H1000", "unknown"),
        ("L400", "unknown"),
        ("", "unknown"),
    ],
)
def test_names_of_cards(name: str, found: str) -> None:
    """Spellings of one card are one card; a name that only looks like one is none."""
    verdict = match_gpu(gpu_names.SKYPILOT, name, provider="somebody")
    match verdict:
        case Match():
            assert verdict.gpu == found
        case NotCatalogued():
            assert found == "not catalogued"
        case _:
            assert found == "unknown"


@pytest.mark.parametrize("record", SHIPPED_GPUS, ids=lambda record: record.slug)
def test_own_lists_may_name_a_card_as_the_catalogue_does(record: GpuRecord) -> None:
    """By slug and by full name it is that card; an alias may stand for more than one, that card among them."""
    for name in (record.slug, record.name):
        verdict = match_gpu(gpu_names.OWN, name, provider="somebody")
        assert isinstance(verdict, Match), name
        assert verdict.gpu == record.slug
    for alias in record.aliases:
        verdict = match_gpu(gpu_names.OWN, alias, provider="somebody")
        assert isinstance(verdict, Match), alias
        assert record.slug in (verdict.gpu, *verdict.ambiguous)


class TestGpuhunt:
    def test_spot_is_a_row_of_its_own(self) -> None:
        """The same machine on demand and as spot."""
        taken = prices(gpuhunt("gpuhunt-azure.csv", "azure"))
        assert taken["Standard_NC24ads_A100_v4", "on_demand"].amount_per_hour == Decimal("3.673")
        assert taken["Standard_NC24ads_A100_v4", "spot"].amount_per_hour == Decimal("0.67877")

    def test_machine_type_gives_the_form_factor(self) -> None:
        """Both are 'A100': NC is PCIe with 80 GB, ND v4 is SXM with 40 GB."""
        taken = prices(gpuhunt("gpuhunt-azure.csv", "azure"))
        assert taken["Standard_NC24ads_A100_v4", "on_demand"].gpu == "a100-pcie-80gb"
        assert taken["Standard_ND96asr_v4", "on_demand"].gpu == "a100-sxm4-40gb"
        assert taken["Standard_NC40ads_H100_v5", "on_demand"].gpu == "h100-nvl"

    def test_little_memory_is_a_share_of_the_card(self) -> None:
        """NV6ads_A10_v5 has 4 of 24 GB: a sixth, so a whole A10 at this rate is 0.454 x 6 = 2.72."""
        taken = prices(gpuhunt("gpuhunt-azure.csv", "azure"))
        assert taken["Standard_NV6ads_A10_v5", "on_demand"].gpu_fraction == Decimal("0.1667")
        assert round(taken["Standard_NV6ads_A10_v5", "on_demand"].amount_per_gpu_hour, 2) == Decimal("2.72")
        assert taken["Standard_NV36ads_A10_v5", "on_demand"].gpu_fraction is None

    def test_only_evidence_decides(self) -> None:
        """Driver and machine names decide; a bare 'A100' or 'H100' stays open; known wrong memory proves nothing."""
        taken = prices(gpuhunt("gpuhunt-mixed.csv", "mixed"))
        assert {key: price.gpu or price.ambiguous for (key, _), price in taken.items()} == {
            "gpu-h100-sxm 8gpu-128vcpu-1600gb": "h100-sxm",
            "gpu_1x_gh200": "gh200-96gb",
            "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
            "some-a100": ("a100-sxm4-40gb", "a100-pcie-40gb"),
            "some-h100": ("h100-sxm", "h100-pcie"),
            "mi325x-8": "mi325x",
            "mi308x-8": "mi308x",
        }

    def test_bad_rows_are_named_and_the_rest_is_read(self) -> None:
        """A missing name, a missing price, a spot column that is neither, a row cut short."""
        assert refused(gpuhunt("gpuhunt-mixed.csv", "mixed")) == {
            (9, "gpu_not_catalogued"),
            (10, "gpu_not_catalogued"),
            (11, "malformed"),
            (12, "malformed"),
            (13, "malformed"),
            (14, "malformed"),
        }

    def test_catalogues_of_before_the_vendor_column_are_read(self) -> None:
        """Fewer columns, and gpuhunt's own name of the provider."""
        taken = prices(gpuhunt("gpuhunt-v1-lambdalabs.csv", "lambdalabs"))
        assert {(p.provider, p.gpu) for p in taken.values()} == {("lambda", "a100-sxm4-40gb"), ("lambda", "h100-pcie")}


class TestOwn:
    @pytest.fixture
    def outcomes(self) -> Outcomes:
        with (DATA / "own.csv").open("rb") as file:
            return list(read_price_csv(file, None, "upload"))

    def test_marks_line_ends_and_quotes_are_read(self, outcomes: Outcomes) -> None:
        """The file has a byte-order mark, CRLF and a note over two lines."""
        first, third = (o for o in outcomes if isinstance(o, Price) and o.instance_type == "p5.48xlarge")
        assert (first.provider, first.amount_per_hour) == ("aws", Decimal("55.04"))
        assert third.note == 'older, and "dearer"\nby far'

    def test_every_row_has_an_outcome(self, outcomes: Outcomes) -> None:
        """Nineteen rows, nineteen outcomes: nothing is lost."""
        assert len(outcomes) == 19
        assert refused(outcomes) == {
            (3, "repeat"),
            (7, "placeholder"),
            (8, "contradiction"),
            (10, "contradiction"),
            (11, "gpu_not_catalogued"),
            (12, "unknown_gpu"),
            (13, "malformed"),
            (14, "malformed"),
            (15, "malformed"),
            (16, "malformed"),
            (17, "malformed"),
            (18, "undated"),
            (19, "no_price"),
            (20, "malformed"),
        }

    def test_price_per_gpu_alone_is_enough(self, outcomes: Outcomes) -> None:
        """0.34 per RTX 4090, community kind under its older name."""
        price = next(o for o in outcomes if isinstance(o, Price) and o.provider == "runpod")
        assert (price.kind, price.amount_per_hour, price.instance_type) == (PriceKind.COMMUNITY, Decimal("0.34"), "")

    def test_slug_without_form_factor_stays_open(self, outcomes: Outcomes) -> None:
        """'a100-80gb' may be either card."""
        price = next(o for o in outcomes if isinstance(o, Price) and o.provider == "packet-ai")
        assert (price.gpu, price.ambiguous) == (None, ("a100-sxm4-80gb", "a100-pcie-80gb"))

    def test_messages_say_what_was_found_and_what_would_do(self, outcomes: Outcomes) -> None:
        """Each malformed value is quoted beside what is accepted."""
        said = {o.row: o.detail for o in outcomes if isinstance(o, Quarantined)}
        assert said[8] == "32 per hour for 8 GPUs is not 5 for each"
        assert said[14] == "price_per_instance_hour_usd is '1,200.50'; a plain number such as 2.49 was expected"
        assert said[17] == "observed_on is '20 July 2026'; a day such as 2026-01-31 was expected"
        assert said[13].startswith("kind is 'weekly'; one of on_demand, spot,")

    def test_another_currency_is_kept_as_such(self) -> None:
        """Columns without _usd are in the row's currency."""
        lines = [
            "provider,gpu_slug,gpu_count,kind,currency,price_per_instance_hour,host_included\n",
            "acme,l40s,4,on_demand,eur,3.20,false\n",
        ]
        (price,) = read_price_csv(lines, DAY, "upload")
        assert isinstance(price, Price)
        assert (price.currency, price.amount_per_hour, price.host_included) == ("EUR", Decimal("3.2"), False)

    @pytest.mark.parametrize(
        "text",
        [
            """[{"provider": "acme", "gpu_slug": "l40s", "gpu_count": 4, "kind": "spot",
                 "price_per_instance_hour_usd": 3.10, "observed_on": "2026-07-20", "note": null}]""",
            """{"provider": "acme", "gpu_slug": "l40s", "gpu_count": 4, "kind": "spot", \
"price_per_gpu_hour_usd": "0.775", "observed_on": "2026-07-20"}""",
        ],
    )
    def test_json_is_read_like_csv(self, text: str) -> None:
        """As an array or one object a line, numbers as numbers or as text."""
        (price,) = read_price_json(io.StringIO(text), None, "upload")
        assert isinstance(price, Price)
        assert (price.amount_per_hour, price.gpu_count, price.observed_on) == (Decimal("3.1"), 4, date(2026, 7, 20))


def endless_csv(read: list[int]) -> Iterator[str]:
    yield "provider,region,gpu_slug,gpu_count,kind,price_per_instance_hour_usd\n"
    while True:
        read[0] += 1
        yield f"acme,region-{read[0]},l40s,1,on_demand,1.5\n"


def test_rows_are_read_as_they_are_asked_for() -> None:
    """Of a list without end the first hundred prices need the first hundred rows."""
    read = [0]
    outcomes = read_price_csv(endless_csv(read), DAY, "s")
    assert all(isinstance(next(outcomes), Price) for _ in range(100))
    assert read == [100]


def test_outliers_against_the_usual_price_are_quarantined() -> None:
    """With a usual 3.50 for an H200, 0.10 (under 5 %) and 350 per GPU are doubted; 0.18 is cheap and taken."""
    lines = [
        "provider,instance_type,gpu_slug,gpu_count,kind,price_per_instance_hour_usd\n",
        "a,x,h200-sxm,8,spot,0.80\n",
        "b,x,h200-sxm,1,spot,0.18\n",
        "c,x,h200-sxm,1,on_demand,176\n",
        "d,x,h200-sxm,1,on_demand,350\n",
    ]
    outcomes = list(read_price_csv(lines, DAY, "s", typical={"h200-sxm": Decimal("3.50")}))
    assert refused(outcomes) == {(2, "outlier"), (4, "outlier"), (5, "outlier")}


def test_tally_keeps_few_examples_whatever_the_number() -> None:
    """A million bad rows leave five sentences for each reason."""
    tally = Tally()
    list(tally.records(Quarantined(row, "malformed", f"field {row}") for row in range(2, 1000)))
    report = tally.report()
    assert report.quarantined == {"malformed": 998}
    assert report.examples["malformed"] == tuple(f"row {row}: field {row}" for row in range(2, 7))
