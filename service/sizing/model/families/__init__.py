"""One small module per family of architectures; each maps architecture names to its reader."""

from collections.abc import Callable

from service.sizing.model.families import (
    deepseek,
    dense,
    falcon_h1,
    granite_hybrid,
    jamba,
    kimi_k25,
    lfm2,
    mamba,
    nemotron_h,
    qwen3_next,
    zamba2,
)
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

READERS: dict[str, Callable[[Source], ModelShape]] = {
    **deepseek.READERS,
    **dense.READERS,
    **falcon_h1.READERS,
    **granite_hybrid.READERS,
    **jamba.READERS,
    **kimi_k25.READERS,
    **lfm2.READERS,
    **mamba.READERS,
    **nemotron_h.READERS,
    **qwen3_next.READERS,
    **zamba2.READERS,
}
"""Reader of every architecture that is understood, by the engine's class name."""
