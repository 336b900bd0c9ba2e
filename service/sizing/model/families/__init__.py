"""One small module per family of architectures; each maps architecture names to its reader."""

from collections.abc import Callable

from service.sizing.model.families import (
    deepseek,
    falcon_h1,
    granite_hybrid,
    jamba,
    lfm2,
    llama,
    mamba,
    nemotron_h,
    zamba2,
)
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

READERS: dict[str, Callable[[Source], ModelShape]] = {
    **llama.READERS,
    **deepseek.READERS,
    **falcon_h1.READERS,
    **granite_hybrid.READERS,
    **jamba.READERS,
    **lfm2.READERS,
    **mamba.READERS,
    **nemotron_h.READERS,
    **zamba2.READERS,
}
"""Reader of every architecture that is understood, by the engine's class name."""
