"""How well the memory of a startup is known: fitted to measurements, extended beyond them, or not known."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from service.sizing.hardware import Gpu, Vendor
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import keeps_packed_cache
from service.sizing.working_space import FIRST_ENGINE, Release, era_of


class Known(StrEnum):
    """How a working space is known."""

    FITTED = "fitted"
    EXTRAPOLATED = "extrapolated"
    LOW_CONFIDENCE = "low_confidence"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """How a working space is known, and why not better."""

    known: Known
    why: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of deployment whose predicted memory errs alike.

    Attributes
    ----------
    cards, era : str
        Architecture of the GPUs, with the compute capability where they have one; releases that divide memory alike.
    has_experts : bool
        Whether the model has experts.
    """

    cards: str
    era: str
    has_experts: bool

    def __str__(self) -> str:
        return f"{'models with experts' if self.has_experts else 'dense models'} on {self.cards} cards, vLLM {self.era}"


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """How far the predicted cache memory of measured startups was off, absolute, % of the measured one."""

    startups: int
    median_percent: float
    p90_percent: float


HELD_OUT = MeasuredError(startups=163, median_percent=0.2, p90_percent=2.2)
"""The same over public startups that were kept out of the fit (docs/memory.md)."""


@lru_cache(maxsize=4096)
def kind_of(model: ModelShape, gpu: Gpu, release: Release) -> Kind:
    """The kind that a deployment is of."""
    capability = ".".join(map(str, gpu.compute_capability or ()))
    return Kind(f"{gpu.architecture} {capability}".strip(), era_of(release).name, model.experts > 0)


MEASURED_CAPABILITIES = frozenset({(8, 0), (8, 9), (9, 0), (10, 0)})
"""Compute capabilities of which startups with weights and cache were fitted."""


def evidence_of(model: ModelShape, layout: Layout, gpu: Gpu, release: Release) -> Evidence:
    """How well the working space of a layout is known."""
    if keeps_packed_cache(model):
        return Evidence(Known.UNKNOWN, "compressed latent attention keeps buffers that no formula here covers")
    if gpu.vendor is not Vendor.NVIDIA:
        return Evidence(
            Known.LOW_CONFIDENCE,
            f"{gpu.name} follows figures of MI300X with vLLM 0.11 to 0.19; 16-bit experts took up to 1.37 times their "
            "weights in some builds, and CUDA graphs 3 to 9 GiB",
        )
    reasons = list[str]()
    if not era_of(release).measured:
        reasons.append(f"no startup of vLLM {release[0]}.{release[1]} was fitted, so its source was followed")
    if era_of(release) is FIRST_ENGINE:
        reasons.append("vLLM's first engine was fitted to a dozen startups of small cards")
    if gpu.compute_capability not in MEASURED_CAPABILITIES:
        reasons.append(f"no startup on cards like {gpu.name} was fitted")
    if layout.pipeline_parallel_size > 1:
        reasons.append("hardly any startup with pipeline stages was fitted")
    if layout.data_parallel_size > 1 and model.experts:
        reasons.append("no startup with data-parallel experts was fitted")
    return Evidence(Known.EXTRAPOLATED if reasons else Known.FITTED, "; ".join(reasons))
