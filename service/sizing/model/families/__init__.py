"""One small module per family of architectures; each maps architecture names to its reader."""

from collections.abc import Callable

from service.sizing.model.families import deepseek, llama
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

READERS: dict[str, Callable[[Source], ModelShape]] = {**llama.READERS, **deepseek.READERS}
"""Reader of every architecture that is understood, by the engine's class name."""
