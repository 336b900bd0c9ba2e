"""MXFP4 checkpoints: experts in four bits, everything else in the model's own type.

Source: vLLM 0.33 `quantization/mxfp4.py`, `fused_moe/oracle/mxfp4.py`.
"""

from service.sizing.model.quantization.base import NotQuantised, Uniform
from service.sizing.model.schemes import Compute, formats


def read_mxfp4(*, gpt_oss: bool) -> NotQuantised:
    """Experts in MXFP4, with biases in bfloat16; padded for the kernel that takes them on the card."""
    padding = formats.TRITON_OR_MARLIN_PADDING if gpt_oss else formats.MARLIN_PADDING
    return Uniform(
        method="gpt_oss_mxfp4" if gpt_oss else "mxfp4",
        stacks=formats.mx(4, compute=Compute.SIXTEEN_BIT, padding=padding),
    )
