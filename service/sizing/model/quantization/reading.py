"""From `quantization_config`, `compression_config` or `hf_quant_config.json` to a Quantization."""

from service.sizing.errors import NotUnderstood
from service.sizing.model.fields import Fields, Json
from service.sizing.model.quantization.base import NotQuantised, Quantization


def read_quantization(root: Fields, text: Fields, hf_quant_config: Json | None = None) -> Quantization:
    """How a checkpoint is quantised."""
    if root.raw("quantization_config")[1] or hf_quant_config:
        raise NotUnderstood(("quantization_config",), "quantised checkpoints are not understood")
    return NotQuantised()
