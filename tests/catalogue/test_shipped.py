"""What is shipped is what was published, and says where it comes from."""

import json
import re

import pytest

from service.catalogue.records.gpu import FIGURES, GpuRecord, Level
from service.catalogue.records.model import ModelRecord
from service.catalogue.records.source import SourceRecord
from service.catalogue.snapshot import Snapshot
from service.sizing.hardware import Link, Vendor
from service.storage.seed import DATA, shipped

MIB = 1 << 20


@pytest.fixture(scope="module")
def catalogue() -> Snapshot:
    """The shipped catalogue without a database."""
    records = list(shipped())
    return Snapshot(
        revision=1,
        gpus=tuple(record for record in records if isinstance(record, GpuRecord)),
        models=tuple(record for record in records if isinstance(record, ModelRecord)),
        sources=tuple(record for record in records if isinstance(record, SourceRecord)),
    )


# Published by NVIDIA (datasheets: bandwidth, dense tensor rate, NVLink of both directions) and read on machines
# (`nvidia-smi` total, and the total PyTorch prints).
@pytest.mark.parametrize(
    ("slug", "bandwidth_gb", "bf16_tflops", "nvlink_both_gb", "driver_mib", "process_mib"),
    [
        ("h100-sxm", 3350, 989.4, 900, 81559, 81082),
        ("h200-sxm", 4800, 989.4, 900, 143771, 143156),
        ("a100-sxm4-80gb", 2039, 312, 600, 81920, 81038),
        ("b200-sxm", 7700, 2250, 1800, 183359, 182631),
        ("l4", 300, 121, None, 23034, 22563),
        ("rtx-4090", 1008, 165.2, None, 24564, 24081),
        ("rtx-3090", 936.2, 71, None, 24576, 24124),
    ],
)
def test_known_cards_have_their_published_figures(
    catalogue: Snapshot,
    slug: str,
    bandwidth_gb: float,
    bf16_tflops: float,
    nvlink_both_gb: float | None,
    driver_mib: int,
    process_mib: int,
) -> None:
    """In the units of the sizing rules; the smallest total that was seen counts."""
    gpu = catalogue.gpu(slug).gpu()
    assert gpu.memory_bandwidth_bytes_per_s == bandwidth_gb * 10**9
    assert gpu.dense_flops["bf16"] == pytest.approx(bf16_tflops * 10**12)
    assert gpu.memory_driver_bytes == driver_mib * MIB
    assert gpu.memory_total_bytes == process_mib * MIB
    if nvlink_both_gb:
        assert (gpu.link, gpu.link_bandwidth_bytes_per_s) == (Link.NVLINK, nvlink_both_gb / 2 * 10**9)
    else:
        assert gpu.link is Link.PCIE


def test_a_process_never_sees_more_than_the_driver_reports(catalogue: Snapshot) -> None:
    """Both totals are of the same state of the card, error correction on or off."""
    for record in catalogue.gpus:
        gpu = record.gpu()
        assert gpu.memory_driver_bytes is None or gpu.memory_total_bytes <= gpu.memory_driver_bytes, record.slug


def test_a_bridge_is_never_assumed(catalogue: Snapshot) -> None:
    """Cards that take one are joined by PCI Express until somebody says otherwise."""
    bridged = [record for record in catalogue.gpus if record.max_bridged]
    assert {"h100-nvl", "a100-pcie-80gb", "rtx-a6000", "rtx-3090"} <= {record.slug for record in bridged}
    assert all(record.link is Link.PCIE and record.gpus_per_domain == 1 for record in bridged)


def test_only_cards_whose_rules_are_restated_claim_so(catalogue: Snapshot) -> None:
    """Gaudi, Arc, unified memory, what does not ship and AMD before CDNA3 are known but not planned for."""
    without = {record.slug for record in catalogue.gpus if not record.has_rules}
    assert {"gaudi2", "gaudi3", "arc-pro-b60", "gb10", "rubin-vr200", "mi250x"} <= without
    others = {record.slug for record in catalogue.gpus if record.has_rules and record.vendor is not Vendor.NVIDIA}
    assert others == {"mi300x", "mi308x", "mi325x", "mi350x", "mi355x"}


def test_nodes_are_the_usual_ones(catalogue: Snapshot) -> None:
    """Eight where the card is sold so, else the largest."""
    nodes = {slug: catalogue.gpu(slug).gpus_per_node for slug in ("h100-sxm", "gb200", "a100-sxm4-40gb", "a10")}
    assert nodes == {"h100-sxm": 8, "gb200": 4, "a100-sxm4-40gb": 8, "a10": 4}


def test_every_figure_has_a_source_and_a_level(catalogue: Snapshot) -> None:
    """Keys in capitals are spelled out; `unverified` is said where nothing was read."""
    assert len(catalogue.gpus) >= 45
    for record in catalogue.gpus:
        for name, figure in record.figures.items():
            keys = [key for part in figure.source.split(", ") for key in re.findall(r"^[A-Z][A-Z0-9]+\b", part)]
            assert set(keys) <= set(catalogue.source_titles), (record.slug, name, figure.source)
            assert keys or figure.level is Level.UNVERIFIED or "#" in figure.source or " " in figure.source


def test_the_share_alike_source_is_attributed(catalogue: Snapshot) -> None:
    """CC BY-SA 4.0 asks for name and licence."""
    assert "CC BY-SA 4.0" in catalogue.source_titles["SC"]


def test_every_figure_is_described() -> None:
    """With its unit."""
    assert all("," in description for description in FIGURES.values())


def test_well_known_models_are_there_with_their_published_shape(catalogue: Snapshot) -> None:
    """Hidden size, layers and KV heads of the published `config.json`."""
    published = {
        "meta-llama/Llama-3.1-70B-Instruct": (8192, 80, 8),
        "Qwen/Qwen3-32B": (5120, 64, 8),
        "openai/gpt-oss-120b": (2880, 36, 8),
        "deepseek-ai/DeepSeek-R1": (7168, 61, 128),
    }
    for name, shape in published.items():
        config = catalogue.model(name).config
        assert (config["hidden_size"], config["num_hidden_layers"], config["num_key_value_heads"]) == shape


def test_model_files_are_small_named_after_their_model_and_sourced(catalogue: Snapshot) -> None:
    """One file each, with its source; `Infinity` is kept as published."""
    for file in (DATA / "models").glob("*.json"):
        assert file.stat().st_size < 100_000
        model = json.loads(file.read_text())
        assert file.stem == model["name"].replace("/", "--")
        assert model["source"]
    assert catalogue.model("mistralai/Mamba-Codestral-7B-v0.1").config["time_step_limit"] == [0.0, float("inf")]
