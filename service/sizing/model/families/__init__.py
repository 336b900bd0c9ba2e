"""One small module per family of architectures; each maps architecture names to its reader."""

from collections.abc import Callable

from service.sizing.model.families import (
    bailing_hybrid,
    deci,
    deepseek,
    deepseek_v4,
    dense,
    encoder,
    experts,
    falcon_h1,
    gemma,
    gemma3n,
    gemma4,
    gpt,
    gpt_oss,
    granite_hybrid,
    jamba,
    kimi_k25,
    kimi_linear,
    lfm2,
    llama4,
    longcat,
    loop_coder,
    mamba,
    minicpm,
    minimax_m3,
    nemotron_h,
    olmo_hybrid,
    pangu,
    pooling,
    qwen3_next,
    step3,
    transformers_backend,
    zamba2,
)
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

READERS: dict[str, Callable[[Source], ModelShape]] = {
    **bailing_hybrid.READERS,
    **deci.READERS,
    **deepseek.READERS,
    **deepseek_v4.READERS,
    **dense.READERS,
    **encoder.READERS,
    **experts.READERS,
    **falcon_h1.READERS,
    **gemma.READERS,
    **gemma3n.READERS,
    **gemma4.READERS,
    **gpt.READERS,
    **gpt_oss.READERS,
    **granite_hybrid.READERS,
    **jamba.READERS,
    **kimi_k25.READERS,
    **kimi_linear.READERS,
    **lfm2.READERS,
    **llama4.READERS,
    **longcat.READERS,
    **loop_coder.READERS,
    **mamba.READERS,
    **minicpm.READERS,
    **minimax_m3.READERS,
    **nemotron_h.READERS,
    **olmo_hybrid.READERS,
    **pangu.READERS,
    **pooling.READERS,
    **qwen3_next.READERS,
    **step3.READERS,
    **transformers_backend.READERS,
    **zamba2.READERS,
}
"""Reader of every architecture that is understood, by the engine's class name."""

POOLING = frozenset({*encoder.READERS, *pooling.READERS})
"""Architectures that the engine has classes for as embedding models or classifiers."""
