"""Which scheme each weight is stored in, from `quantization_config` or `hf_quant_config.json`."""

from service.sizing.model.quantization.attention import attention_scales
from service.sizing.model.quantization.base import NotQuantised, Quantization
from service.sizing.model.quantization.reading import read_quantization
from service.sizing.model.quantization.requantise import PRECISIONS, AlreadyQuantised, requantise

__all__ = [
    "PRECISIONS",
    "AlreadyQuantised",
    "NotQuantised",
    "Quantization",
    "attention_scales",
    "read_quantization",
    "requantise",
]
