"""What a 16-bit checkpoint would become."""

from service.sizing.errors import SizingError
from service.sizing.model.fields import Json

PRECISIONS = ("checkpoint", "bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4")


class AlreadyQuantised(SizingError):
    """A precision was asked of a checkpoint that is quantised already."""


def requantise(config: Json, precision: str) -> Json:
    """The configuration after quantising it."""
    raise NotImplementedError(precision, config)
