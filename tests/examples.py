"""Records that are nobody's, for tests that need one."""

from datetime import date

from service.catalogue.records.gpu import GpuRecord, Level, SourcedFigure
from service.catalogue.records.model import ModelRecord
from service.sizing.hardware import Link, Vendor

FIGURE = SourcedFigure(80, "DS", Level.VENDOR)
GPU = GpuRecord(
    slug="x100",
    name="Example X100",
    aliases=("X100 SXM",),
    vendor=Vendor.NVIDIA,
    architecture="Example",
    compute_capability="9.0",
    gfx=None,
    form_factor="SXM",
    memory_type="HBM3",
    release_year=2026,
    link=Link.NVLINK,
    gpus_per_domain=8,
    max_bridged=None,
    node_sizes=(4, 8),
    has_rules=True,
    vllm_support="yes",
    figures=dict.fromkeys(("memory_total_gib", "memory_bandwidth_gb_per_s", "nvlink_gb_per_s"), FIGURE),
    disagreements=(),
    notes=None,
    source="datasheet",
    as_of=date(2026, 11, 30),
)
MODEL = ModelRecord(
    name="example/model-7b",
    config={"architectures": ["ExampleForCausalLM"], "hidden_size": 4096},
    hf_quant_config=None,
    weights_bytes=None,
    fidelity="ingested",
    source="a test",
    as_of=date(2026, 11, 30),
)
