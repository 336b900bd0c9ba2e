"""What a machine offers: the GPU, the link between GPUs, the node."""

from dataclasses import dataclass
from enum import StrEnum


class Link(StrEnum):
    """What joins the GPUs of one node."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    XGMI = "xgmi"


class Vendor(StrEnum):
    """Who makes the accelerator."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    GOOGLE = "google"
    AWS = "aws"
    OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """An accelerator as the sizing rules see it; compared by identity.

    Attributes
    ----------
    slug, name : str
        Catalogue key, and the name the driver prints.
    compute_capability : tuple of int or None
        (major, minor) of NVIDIA cards; None elsewhere.
    memory_total_bytes : int
        The total a CUDA or HIP process sees: what vLLM multiplies by the utilisation.
    memory_driver_bytes : int or None
        The total the driver reports (`nvidia-smi`): what decides vLLM's batch-size tier.
    memory_bandwidth_bytes_per_s : float
        Rated memory bandwidth.
    dense_flops : dict of str to float
        Rated dense FLOP/s (OP/s for int8) by "bf16", "fp16", "fp8", "int8", "fp4"; absent where unsupported.
    link : Link
        What joins these cards in their usual node. A bridge is never assumed.
    link_bandwidth_bytes_per_s : float
        Per GPU and direction over `link`.
    gpus_per_domain : int
        Most GPUs that reach each other over `link` at full speed in the usual node (1: none).
    gpus_per_node : int
        GPUs of the usual node: 8 where the catalogue lists it, else the largest it lists.
    has_rules : bool
        Whether vLLM's rules for this accelerator are restated here.
    """

    slug: str
    name: str
    vendor: Vendor
    architecture: str
    compute_capability: tuple[int, int] | None
    memory_total_bytes: int
    memory_driver_bytes: int | None
    memory_bandwidth_bytes_per_s: float
    dense_flops: dict[str, float]
    link: Link
    link_bandwidth_bytes_per_s: float
    gpus_per_domain: int
    gpus_per_node: int
    has_rules: bool
