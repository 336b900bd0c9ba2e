"""IQuest's loop coder: every layer runs several times, and each further pass keeps a short cache of its own.

Source: vLLM 0.33 `model_executor/models/iquest_loopcoder.py`.
"""

from collections.abc import Callable

from service.sizing.model.families.dense import EVERYWHERE
from service.sizing.model.families.llama import attention_modules, read_attention, reader
from service.sizing.model.families.recipe import LayerParts, Recipe, Spelling
from service.sizing.model.families.windows import dual_chunk_refusal
from service.sizing.model.modules import Linear, Split, TensorClass, Units
from service.sizing.model.shape import AttentionCache, ModelShape
from service.sizing.model.source import Source

MAX_PASSES = 64
"""Passes of a layer that answering stays quick for."""

PLAIN = Recipe(spelling=Spelling(head_size=()))


def attention(source: Source, path: str, window: int | None) -> LayerParts:
    """Attention of all passes, and the gate between the first pass's cache and a later one's."""
    text, sizes = source.text, read_attention(source, PLAIN.spelling)
    passes, short = text.integer("loop_num", default=2), text.integer("loop_window_size", default=64)
    if passes > MAX_PASSES:
        raise source.invalid("loop_num", f"loop_num must be at most {MAX_PASSES}, not {passes}")
    caches = (
        AttentionCache(sizes.heads, sizes.kv_heads, sizes.head_size, sizes.head_size, kept)
        for kept in (window, *(short,) * (passes - 1))
    )
    layer = path.split(".")[2]
    gate = Linear(
        "gate_proj",
        TensorClass.ATTENTION,
        Units(sizes.head_size),
        (Units(sizes.heads),),
        Split.COLUMN,
        True,
        source.quantization.linear(f"model.gate_projections.{layer}"),
    )
    return tuple(caches), (*attention_modules(source, PLAIN, sizes, path, text.integer("hidden_size")), gate)


RECIPE = Recipe(
    spelling=PLAIN.spelling,
    may_encode=True,
    tied=True,
    attention=attention,
    refusal=dual_chunk_refusal,
    everywhere=EVERYWHERE,
)

READERS: dict[str, Callable[[Source], ModelShape]] = {"IQuestLoopCoderForCausalLM": reader(RECIPE)}
