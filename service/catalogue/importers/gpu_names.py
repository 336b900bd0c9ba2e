"""What price lists call the cards, and which card of the catalogue each name means. Data, reviewed by hand.

A name is looked up by its letters and digits alone (`key`): "RTX-6000-Ada", "RTX 6000 Ada" and "RTX6000Ada" are one.
A name that is not found is looked up without its form factor, memory and words of no account, which must then fit.
Where a name fits several cards it lists them all, and only evidence in the same row (`gpu_match`) decides.
"""

import re
from collections.abc import Mapping

MEMORY_GB: Mapping[str, int] = {
    "t4": 16,
    "v100-sxm2-16gb": 16,
    "v100-sxm2-32gb": 32,
    "v100-pcie-16gb": 16,
    "v100-pcie-32gb": 32,
    "a100-pcie-40gb": 40,
    "a100-pcie-80gb": 80,
    "a100-sxm4-40gb": 40,
    "a100-sxm4-80gb": 80,
    "a800-80gb": 80,
    "a30": 24,
    "a10": 24,
    "a10g": 24,
    "a40": 48,
    "rtx-a6000": 48,
    "rtx-a5000": 24,
    "rtx-a4000": 16,
    "rtx-3090": 24,
    "rtx-3090-ti": 24,
    "l4": 24,
    "l40": 48,
    "l40s": 48,
    "l20": 48,
    "rtx-4090": 24,
    "rtx-4000-ada": 20,
    "rtx-5000-ada": 32,
    "rtx-6000-ada": 48,
    "h100-sxm": 80,
    "h100-pcie": 80,
    "h100-nvl": 94,
    "h800-sxm": 80,
    "h20": 96,
    "h200-sxm": 141,
    "h200-nvl": 141,
    "gh200-96gb": 96,
    "gh200-144gb": 144,
    "b200-sxm": 180,
    "b300-sxm": 288,
    "gb200": 186,
    "gb300": 288,
    "rtx-pro-6000-server": 96,
    "rtx-pro-6000-workstation": 96,
    "rtx-pro-6000-max-q": 96,
    "rtx-pro-5000": 48,
    "rtx-pro-4500": 32,
    "rtx-5090": 32,
    "gb10": 128,
    "rubin-vr200": 288,
    "mi210": 64,
    "mi250x": 128,
    "mi300x": 192,
    "mi308x": 192,
    "mi325x": 256,
    "mi350x": 288,
    "mi355x": 288,
    "gaudi2": 96,
    "gaudi3": 128,
    "arc-pro-b60": 24,
}
"""Marketed memory of every catalogued card a price list may name, GB: it tells 40 GB from 80 GB and spots shares."""

FORM_FACTOR: Mapping[str, str] = {
    "v100-sxm2-16gb": "sxm",
    "v100-sxm2-32gb": "sxm",
    "v100-pcie-16gb": "pcie",
    "v100-pcie-32gb": "pcie",
    "a100-pcie-40gb": "pcie",
    "a100-pcie-80gb": "pcie",
    "a100-sxm4-40gb": "sxm",
    "a100-sxm4-80gb": "sxm",
    "a800-80gb": "sxm",
    "h100-sxm": "sxm",
    "h100-pcie": "pcie",
    "h100-nvl": "nvl",
    "h200-sxm": "sxm",
    "h200-nvl": "nvl",
}
"""Form factor of the cards that exist in more than one."""

_A100_40 = ("a100-sxm4-40gb", "a100-pcie-40gb")
_A100_80 = ("a100-sxm4-80gb", "a100-pcie-80gb")
_V100_16 = ("v100-sxm2-16gb", "v100-pcie-16gb")
_V100_32 = ("v100-sxm2-32gb", "v100-pcie-32gb")
_H100 = ("h100-sxm", "h100-pcie")
_RTX_PRO_6000 = ("rtx-pro-6000-server", "rtx-pro-6000-workstation", "rtx-pro-6000-max-q")

COMMON: Mapping[str, tuple[str, ...]] = {
    "t4": ("t4",),
    "a10": ("a10",),
    "a10g": ("a10g",),
    "a30": ("a30",),
    "a40": ("a40",),
    "a800": ("a800-80gb",),
    "a10040gb": _A100_40,
    "a10080gb": _A100_80,
    "a10080g": _A100_80,
    "a100pcie": ("a100-pcie-40gb", "a100-pcie-80gb"),
    "a100sxm": ("a100-sxm4-40gb", "a100-sxm4-80gb"),
    "a100sxm4": ("a100-sxm4-40gb", "a100-sxm4-80gb"),
    "a100pcie40gb": ("a100-pcie-40gb",),
    "a100pcie80gb": ("a100-pcie-80gb",),
    "a10080gbpcie": ("a100-pcie-80gb",),
    "a10080gpcie": ("a100-pcie-80gb",),
    "a10080gpcienvlink": ("a100-pcie-80gb",),
    "a100sxm40gb": ("a100-sxm4-40gb",),
    "a100sxm80gb": ("a100-sxm4-80gb",),
    "a100sxm440gb": ("a100-sxm4-40gb",),
    "a100sxm480gb": ("a100-sxm4-80gb",),
    "a10080gbsxm": ("a100-sxm4-80gb",),
    "a10080gbsxm4": ("a100-sxm4-80gb",),
    "a10080gsxm4": ("a100-sxm4-80gb",),
    "a10040gbsxm4": ("a100-sxm4-40gb",),
    "v10016gb": _V100_16,
    "v10032gb": _V100_32,
    "v100sxm2": ("v100-sxm2-16gb", "v100-sxm2-32gb"),
    "v100pcie": ("v100-pcie-16gb", "v100-pcie-32gb"),
    "v100pcie16gb": ("v100-pcie-16gb",),
    "v100pcie32gb": ("v100-pcie-32gb",),
    "v100sxm216gb": ("v100-sxm2-16gb",),
    "v100sxm232gb": ("v100-sxm2-32gb",),
    "l4": ("l4",),
    "l20": ("l20",),
    "l40": ("l40",),
    "l40s": ("l40s",),
    "h100": _H100,
    "h10080gb": _H100,
    "h100sxm": ("h100-sxm",),
    "h100sxm5": ("h100-sxm",),
    "h100mega": ("h100-sxm",),
    "h10080gbhbm3": ("h100-sxm",),
    "h10080gsxm5": ("h100-sxm",),
    "h100pcie": ("h100-pcie",),
    "h10080gpcie": ("h100-pcie",),
    "h10080gpcienvlink": ("h100-pcie",),
    "h100nvl": ("h100-nvl",),
    "h10094gb": ("h100-nvl",),
    "h800": ("h800-sxm",),
    "h20": ("h20",),
    "h200": ("h200-sxm",),
    "h200sxm": ("h200-sxm",),
    "h200sxm5": ("h200-sxm",),
    "h200141gb": ("h200-sxm", "h200-nvl"),
    "h200nvl": ("h200-nvl",),
    "gh200": ("gh200-96gb", "gh200-144gb"),
    "gh200480gb": ("gh200-96gb",),
    "b200": ("b200-sxm",),
    "b200sxm": ("b200-sxm",),
    "b200sxm6": ("b200-sxm",),
    "b300": ("b300-sxm",),
    "b300sxm": ("b300-sxm",),
    "b300sxm6": ("b300-sxm",),
    "b300sxm6ac": ("b300-sxm",),
    "gb200": ("gb200",),
    "gb300": ("gb300",),
    "gb10": ("gb10",),
    "gb10dgxspark": ("gb10",),
    "dgxspark": ("gb10",),
    "vr200": ("rubin-vr200",),
    "rubinvr200": ("rubin-vr200",),
    "rtx3090": ("rtx-3090",),
    "rtx3090ti": ("rtx-3090-ti",),
    "rtx4090": ("rtx-4090",),
    "rtx5090": ("rtx-5090",),
    "rtxa4000": ("rtx-a4000",),
    "rtxa5000": ("rtx-a5000",),
    "rtxa6000": ("rtx-a6000",),
    "a4000": ("rtx-a4000",),
    "a5000": ("rtx-a5000",),
    "a6000": ("rtx-a6000",),
    "rtx4000ada": ("rtx-4000-ada",),
    "rtx4000adageneration": ("rtx-4000-ada",),
    "rtx5000ada": ("rtx-5000-ada",),
    "rtx5000adageneration": ("rtx-5000-ada",),
    "rtx6000ada": ("rtx-6000-ada",),
    "rtx6000adageneration": ("rtx-6000-ada",),
    "rtxada6000": ("rtx-6000-ada",),
    "6000ada": ("rtx-6000-ada",),
    "rtxpro6000": _RTX_PRO_6000,
    "rtxpro600096gb": _RTX_PRO_6000,
    "rtxpro6000blackwell": _RTX_PRO_6000,
    "rtxpro6000s": ("rtx-pro-6000-server",),
    "rtxpro6000se": ("rtx-pro-6000-server",),
    "rtxpro6000server": ("rtx-pro-6000-server",),
    "rtxpro6000blackwellserver": ("rtx-pro-6000-server",),
    "rtxpro6000blackwellserveredition": ("rtx-pro-6000-server",),
    "rtxpro6000ws": ("rtx-pro-6000-workstation",),
    "rtxpro6000wk": ("rtx-pro-6000-workstation",),
    "rtxpro6000workstation": ("rtx-pro-6000-workstation",),
    "rtxpro6000blackwellworkstation": ("rtx-pro-6000-workstation",),
    "rtxpro6000blackwellworkstationedition": ("rtx-pro-6000-workstation",),
    "rtxpro6000maxq": ("rtx-pro-6000-max-q",),
    "rtxpro6000maxqworkstation": ("rtx-pro-6000-max-q",),
    "rtxpro6000blackwellmaxq": ("rtx-pro-6000-max-q",),
    "rtxpro6000blackwellmaxqworkstation": ("rtx-pro-6000-max-q",),
    "rtxpro6000blackwellmaxqworkstationedition": ("rtx-pro-6000-max-q",),
    "rtxpro5000": ("rtx-pro-5000",),
    "rtxpro5000blackwell": ("rtx-pro-5000",),
    "rtxpro4500": ("rtx-pro-4500",),
    "rtxpro4500blackwell": ("rtx-pro-4500",),
    "mi210": ("mi210",),
    "mi250x": ("mi250x",),
    "mi300x": ("mi300x",),
    "mi300xoam": ("mi300x",),
    "mi308x": ("mi308x",),
    "mi325x": ("mi325x",),
    "mi350x": ("mi350x",),
    "mi355x": ("mi355x",),
    "gaudi2": ("gaudi2",),
    "gaudi3": ("gaudi3",),
    "arcprob60": ("arc-pro-b60",),
}
"""Names that mean the same in every list."""

SKYPILOT: Mapping[str, tuple[str, ...]] = {
    "a100": _A100_40 + _A100_80,
    "v100": _V100_16,
    "h100": (*_H100, "h100-nvl"),
    "h100nvlink": _H100,
}
"""SkyPilot `AcceleratorName`. "A100" is the 40 GB card unless the row says otherwise, "V100" always 16 GB."""

GPUHUNT: Mapping[str, tuple[str, ...]] = {
    "a100": _A100_40 + _A100_80,
    "v100": _V100_16 + _V100_32,
}
"""gpuhunt `gpu_name`: never the form factor; `gpu_memory` tells the 40 GB A100 from the 80 GB one."""

OWN: Mapping[str, tuple[str, ...]] = {
    **{re.sub("[^a-z0-9]", "", slug): (slug,) for slug in MEMORY_GB},
    "a100": _A100_40 + _A100_80,
    "v100": _V100_16 + _V100_32,
    "a10040gb": _A100_40,
    "a10080gb": _A100_80,
    "v10016gb": _V100_16,
    "v10032gb": _V100_32,
    "h10080gb": _H100,
}
"""Our own lists: catalogue slugs, and slugs without the form factor where it is not known."""

USUAL_MEMORY_GB: Mapping[str, int] = {"a100": 40}
"""SkyPilot names that mean this size where the row is silent about memory."""

WRONG_MEMORY_GB: Mapping[str, int] = {"mi308x": 128}
"""gpuhunt names whose `gpu_memory` is not the card's (`rocm-smi` shows 192 GB): the figure proves nothing."""

NOT_CATALOGUED = re.compile(
    r"(tpu|v2|v3|v4|v5e|v5p|v5litepod|v6e)[0-9a-z]*|gtx[0-9a-z]+|k80|m4000|m60|p4|p40|p100|p4000|p5000|p6000|t4g|a2|a16|"
    r"rtx(2060|2070|2080|3050|3060|3070|3080|4060|4070|4080|5060|5070|5080)(s|ti|super|tisuper|sti|laptop|d)?|"
    r"rtx[45]090(d|laptop)|(quadro|q)rtx[0-9]+|rtx(4000|5000|6000|8000)|titan[a-z0-9]*|a100x|rtxa2000|a2000|rtxa4500|a4500|rtxa5500|rtx2000ada|"
    r"rtx4500ada|rtx5880ada|rtxpro(2000|4000)(blackwell)?|a800pcie|"
    r"mi25|mi50|mi60|mi100|mi250|mi300a|radeon[a-z0-9]+|v520|v620|v710|rx[0-9]+[a-z]*|"
    r"gaudi|gaudi1|gaudihl205|trainium[0-9n]*|inferentia[0-9]*|qualcomm[a-z0-9]*|"
    r"n150|n300|p100a|p150[a-z]?|p300|ttgalaxy(wh|bh)"
)
"""Accelerators that price lists name and the catalogue does not hold: known, and left out."""

_PREFIXES = ("nvidiageforce", "nvidia", "geforce", "tesla", "amdinstinct", "amd", "instinct", "intel", "habana")
_SUFFIXES = ("baremetal",)


def key(name: str) -> str:
    """A name as the tables spell it: lower-case letters and digits, without the maker."""
    bare = re.sub("[^a-z0-9]", "", name.casefold())
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    for suffix in _SUFFIXES:
        bare = bare.removesuffix(suffix)
    return bare


INSTANCE_GPUS: Mapping[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    provider: tuple((re.compile(pattern, re.IGNORECASE), slug) for pattern, slug in rules)
    for provider, rules in {
        "aws": (
            (r"p3dn\.", "v100-sxm2-32gb"),
            (r"p3\.", "v100-sxm2-16gb"),
            (r"p4d\.", "a100-sxm4-40gb"),
            (r"p4de\.", "a100-sxm4-80gb"),
            (r"p5\.", "h100-sxm"),
            (r"p5en?\.", "h200-sxm"),
            (r"p6-b200\.", "b200-sxm"),
            (r"p6-b300\.", "b300-sxm"),
            (r"p6e-gb200\.", "gb200"),
            (r"p6e-gb300\.", "gb300"),
            (r"g4dn\.", "t4"),
            (r"g5\.", "a10g"),
            (r"gr?6f?\.", "l4"),
            (r"g6e\.", "l40s"),
            (r"g7e\.", "rtx-pro-6000-server"),
            (r"g7\.", "rtx-pro-4500"),
        ),
        "azure": (
            (r"(standard_)?nc\d+r?s_v3$", "v100-pcie-16gb"),
            (r"(standard_)?nd\d+rs_v2$", "v100-sxm2-32gb"),
            (r"(standard_)?nc\d+as_t4_v3$", "t4"),
            (r"(standard_)?n[cv]\d+adm?s_a10_v[45]$", "a10"),
            (r"(standard_)?nc\d+ads_a100_v4$", "a100-pcie-80gb"),
            (r"(standard_)?nd\d+asr_(a100_)?v4$", "a100-sxm4-40gb"),
            (r"(standard_)?nd\d+amsr_a100_v4$", "a100-sxm4-80gb"),
            (r"(standard_)?ncc?\d+adi?s_h100_v5$", "h100-nvl"),
            (r"(standard_)?nd\d+isr?f?_h100_v5$", "h100-sxm"),
            (r"(standard_)?nd\d+isr?f?_h200_v5$", "h200-sxm"),
            (r"(standard_)?nd\d+isr?_mi300x_v5$", "mi300x"),
            (r"(standard_)?nd\d+isr_ndr_gb200_v6$", "gb200"),
            (r"(standard_)?nd\d+isr_(ndr_|xdr_)?gb300_v6$", "gb300"),
        ),
        "gcp": (
            (r"a2-(high|mega)gpu-", "a100-sxm4-40gb"),
            (r"a2-ultragpu-", "a100-sxm4-80gb"),
            (r"a3-(high|mega|edge)gpu-", "h100-sxm"),
            (r"a3-ultragpu-", "h200-sxm"),
            (r"a4-highgpu-", "b200-sxm"),
            (r"a4x-highgpu-", "gb200"),
            (r"g2-standard-", "l4"),
            (r"g4-standard-", "rtx-pro-6000-server"),
        ),
        "oci": (
            (r"(bm|vm)\.gpu3\.", "v100-sxm2-16gb"),
            (r"bm\.gpu4\.", "a100-sxm4-40gb"),
            (r"bm\.gpu\.a100-v2\.", "a100-sxm4-80gb"),
            (r"bm\.gpu\.h100\.", "h100-sxm"),
            (r"bm\.gpu\.h200\.", "h200-sxm"),
            (r"bm\.gpu\.rtxpro\.", "rtx-pro-6000-server"),
        ),
        "lambda": (
            (r"gpu_8x_v100$", "v100-sxm2-16gb"),
            (r"gpu_8x_a100$", "a100-sxm4-40gb"),
            (r"gpu_[124]x_a100$", "a100-pcie-40gb"),
        ),
        "verda": (
            (r"\d+v100\.", "v100-sxm2-16gb"),
            (r"\d+a100\.40s\.", "a100-sxm4-40gb"),
            (r"\d+a100\.\d+v", "a100-sxm4-80gb"),
            (r"\d+h100\.80s\.", "h100-sxm"),
        ),
        "vultr": (
            (r"v(cg|dm)-a100-", "a100-pcie-80gb"),
            (r"vbm-112c-2048gb-8-a100-gpu$", "a100-sxm4-80gb"),
            (r"(vbm-112c-2048gb-8-h100-gpu|vcg-h100-216c-)", "h100-sxm"),
        ),
        "hyperstack": (
            (r"n3-a100x\d+(-nvlink)?$", "a100-pcie-80gb"),
            (r"n3-h100x\d+(-nvlink)?$", "h100-pcie"),
        ),
    }.items()
}
"""Provider -> patterns of its machine types (from their start) -> the card in them, where names leave it open."""

BARE_GPUS: Mapping[tuple[str, str], str] = {
    ("gcp", "v100"): "v100-sxm2-16gb",
    ("gcp", "a100"): "a100-sxm4-40gb",
    ("gcp", "a10080gb"): "a100-sxm4-80gb",
    ("gcp", "h100"): "h100-sxm",
    ("runpod", "a10080gb"): "a100-pcie-80gb",
}
"""(provider, name) -> the card, where the provider sells only one of the cards the name fits."""

PROVIDERS: Mapping[str, str] = {
    "lambdalabs": "lambda",
    "lambda-labs": "lambda",
    "vast": "vast-ai",
    "vastai": "vast-ai",
    "vast.ai": "vast-ai",
    "datacrunch": "verda",
    "jarvislabs": "jarvis-labs",
    "do": "digitalocean",
    "amazon": "aws",
    "google": "gcp",
    "oracle": "oci",
    "crusoecloud": "crusoe",
}
"""Names of one provider -> ours. A provider not listed keeps its own name in lower case."""


def provider_slug(name: str) -> str:
    """Our name of a provider."""
    bare = name.strip().casefold()
    return PROVIDERS.get(bare, bare)
