"""A GPU, every figure with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property

from service.sizing.hardware import Gpu, Link, Vendor
from service.sizing.quantities import GB, GIB

MIB = 1 << 20
TERA = 10**12


class Level(StrEnum):
    """How well a figure is known.

    `vendor`: printed by the vendor. `tables`: two or more independent public tables agree. `single`: one table.
    `derived`: computed from one of these. `observed`: read on a machine that names the card. `matched`: read on a
    machine whose memory size only this card, or a twin of it, has. `estimated`: from a rule fitted on other cards.
    `unverified`: no source was read.
    """

    VENDOR = "vendor"
    TABLES = "tables"
    SINGLE = "single"
    DERIVED = "derived"
    OBSERVED = "observed"
    MATCHED = "matched"
    ESTIMATED = "estimated"
    UNVERIFIED = "unverified"


FIGURES = {
    "memory_total_gib": "Memory a process sees (CUDA or HIP device total), GiB",
    "memory_driver_mib": "Memory the driver reports (`nvidia-smi`, `rocm-smi`), MiB",
    "memory_marketed_gb": "Memory as marketed, GB",
    "memory_bandwidth_gb_per_s": "Rated memory bandwidth, GB/s",
    "bf16_tflops": "Rated dense BF16 rate, TFLOP/s",
    "fp16_tflops": "Rated dense FP16 rate, TFLOP/s",
    "fp8_tflops": "Rated dense FP8 rate, TFLOP/s",
    "int8_tops": "Rated dense INT8 rate, TOP/s",
    "fp4_tflops": "Rated dense FP4 rate, TFLOP/s",
    "nvlink_gb_per_s": "NVLink bandwidth of one GPU over all its links, each direction, GB/s",
    "xgmi_gb_per_s": "Infinity Fabric bandwidth of one GPU over all its links, each direction, GB/s",
    "pcie_gb_per_s": "PCI Express bandwidth of one GPU, each direction, GB/s",
    "tdp_w": "Rated board power, W",
}
"""The figures a record may hold, with their units."""

RATES = {"bf16": "bf16_tflops", "fp16": "fp16_tflops", "fp8": "fp8_tflops", "int8": "int8_tops", "fp4": "fp4_tflops"}


@dataclass(frozen=True, slots=True)
class SourcedFigure:
    """A number, the keys of its sources (`Snapshot.sources` spells them out) and how well it is known."""

    value: float
    source: str
    level: Level


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Another value of a figure that a source prints."""

    figure: str
    value: float
    source: str


@dataclass(frozen=True)
class GpuRecord:
    """A GPU of the catalogue.

    Attributes
    ----------
    slug, name, aliases : str, str, tuple of str
        Key; full name; other names, the driver's among them.
    compute_capability, gfx : str or None
        What CUDA ("9.0") or ROCm ("gfx942") calls the architecture.
    link, gpus_per_domain : Link, int
        What joins the cards of the usual node, and how many it joins at full speed. A bridge is never assumed.
    max_bridged : int or None
        Cards that an optional bridge can join.
    node_sizes : tuple of int
        GPUs of the nodes it is sold in.
    has_rules : bool
        Whether the engine's rules for it are restated.
    vllm_support : str
        "yes", "limited", "plugin", "xpu" or "in progress".
    figures : mapping of str to SourcedFigure
        By the names in `FIGURES`; absent where unknown or unsupported.
    disagreements : tuple of Disagreement
        Other values in print.
    source, as_of : str, date
        Where the record comes from, and when it was collected.

    Raises
    ------
    ValueError
        A figure is unknown, not positive, or one that sizing needs is absent.
    """

    slug: str
    name: str
    aliases: tuple[str, ...]
    vendor: Vendor
    architecture: str
    compute_capability: str | None
    gfx: str | None
    form_factor: str
    memory_type: str
    release_year: int | None
    link: Link
    gpus_per_domain: int
    max_bridged: int | None
    node_sizes: tuple[int, ...]
    has_rules: bool
    vllm_support: str
    figures: Mapping[str, SourcedFigure]
    disagreements: tuple[Disagreement, ...]
    notes: str | None
    source: str
    as_of: date

    def __post_init__(self) -> None:
        for name, figure in self.figures.items():
            if name not in FIGURES:
                raise ValueError(f"{self.slug}: {name!r} is not a figure of a GPU; known are {', '.join(FIGURES)}")
            if not figure.value > 0:
                raise ValueError(f"{self.slug}: {name} is {figure.value}; it must be positive")
        for name in ("memory_total_gib", "memory_bandwidth_gb_per_s", f"{self.link}_gb_per_s"):
            if name not in self.figures:
                raise ValueError(f"{self.slug}: {name} is missing")
        if not self.node_sizes or min(self.node_sizes) < 1:
            raise ValueError(f"{self.slug}: node_sizes must name at least one size of 1 or more")

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the usual node: 8 where it is sold so, else the largest."""
        return 8 if 8 in self.node_sizes else max(self.node_sizes)

    def gpu(self) -> Gpu:
        """The GPU as the sizing rules see it: one object, since formulas remember by identity."""
        return self._gpu

    @cached_property
    def _gpu(self) -> Gpu:
        value = {name: figure.value for name, figure in self.figures.items()}
        driver_mib = value.get("memory_driver_mib")
        major, _, minor = (self.compute_capability or "").partition(".")
        return Gpu(
            slug=self.slug,
            name=self.name,
            vendor=self.vendor,
            architecture=self.architecture,
            compute_capability=(int(major), int(minor)) if self.compute_capability else None,
            memory_total_bytes=round(value["memory_total_gib"] * GIB),
            memory_driver_bytes=round(driver_mib * MIB) if driver_mib else None,
            memory_bandwidth_bytes_per_s=value["memory_bandwidth_gb_per_s"] * GB,
            dense_flops={rate: value[name] * TERA for rate, name in RATES.items() if name in value},
            link=self.link,
            link_bandwidth_bytes_per_s=value[f"{self.link}_gb_per_s"] * GB,
            gpus_per_domain=self.gpus_per_domain,
            gpus_per_node=self.gpus_per_node,
            has_rules=self.has_rules,
        )
