"""Embedding, reward and ranking models built on decoders, which the engine has classes of their own for.

Source: vLLM 0.33 `model_executor/models/` (`internlm2.py`, `qwen2_rm.py`, `gpt2.py`, `jamba.py`, `jina.py`,
`voyage.py`, `llama.py`, `config.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from service.sizing.model.families import dense, gpt, jamba
from service.sizing.model.families.llama import FLOAT32_BYTES, read
from service.sizing.model.families.recipe import Recipe
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.resolution import score, without_head
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

JINA_EMBEDDING = 512
"""Width of Jina's ranking embedding, which the engine fixes."""

Heads = Callable[[Source, int], tuple[Module, ...]]
"""What stands on a decoder's hidden state of the given width, on every stage."""


def reward_heads(source: Source, hidden: int, *, outputs: int) -> tuple[Module, ...]:
    """Two float32 layers with biases, the first split by outputs and the second by inputs."""
    quantised = source.quantization.method is not None
    if quantised:
        raise source.refuse("quantization_config", because="a quantised reward head is not understood")
    return (
        Tensor("score.0", TensorClass.OTHER, (Units(hidden),), hidden + 1, split=True, element_bytes=FLOAT32_BYTES),
        Tensor("score.2", TensorClass.OTHER, (Units(hidden),), outputs, split=True, element_bytes=FLOAT32_BYTES),
        Tensor("score.2.bias", TensorClass.OTHER, (Units(outputs),), element_bytes=FLOAT32_BYTES),
    )


def value_head(source: Source, hidden: int) -> tuple[Module, ...]:
    """One float32 output, split by inputs."""
    return (Tensor("v_head", TensorClass.OTHER, (Units(hidden),), split=True, element_bytes=FLOAT32_BYTES),)


def classifier(source: Source, hidden: int) -> tuple[Module, ...]:
    """The float32 head of a classifier."""
    return (score(source, hidden),)


def ranking_projector(source: Source, hidden: int) -> tuple[Module, ...]:
    """Jina's projector: to half the width, then to the embedding's."""
    half = hidden // 2
    return (
        Tensor("projector.0", TensorClass.PROJECTOR, (Units(half),), hidden),
        Tensor("projector.2", TensorClass.PROJECTOR, (Units(JINA_EMBEDDING),), half),
    )


def embedding_projector(source: Source, hidden: int) -> tuple[Module, ...]:
    """Voyage's projection to as many outputs as the configuration names labels."""
    return (Tensor("linear", TensorClass.PROJECTOR, (Units(source.labels()),), hidden),)


def bidirectional(source: Source) -> Source:
    """A decoder whose tokens attend both ways."""
    return source.overridden({"is_causal": False})


def on_decoder(
    source: Source,
    decoder: Callable[[Source], ModelShape],
    heads: Heads | None = None,
    prepare: Callable[[Source], Source] | None = None,
) -> ModelShape:
    """A decoder without its output head, with other heads on top."""
    source = prepare(source) if prepare else source
    model = without_head(decoder(source))
    top = heads(source, model.hidden_size) if heads else ()
    return replace(model, every_stage=(*model.every_stage, *top))


def read_jamba_classifier(source: Source) -> ModelShape:
    """Jamba's classifier keeps the decoder's own head, unused."""
    model = jamba.READERS["JambaForCausalLM"](source)
    columns = model.hidden_size + int(source.root.flag("score_bias", default=False))
    labels = (Units(source.labels()),)
    scores = Tensor("score", TensorClass.OTHER, labels, columns, element_bytes=FLOAT32_BYTES)
    return replace(model, every_stage=(*model.every_stage, scores))


def recipe_reader(recipe: Recipe) -> Callable[[Source], ModelShape]:
    """A reader of the decoder underneath."""
    return partial(read, recipe=recipe)


LLAMA = recipe_reader(dense.LLAMA)
QWEN2 = dense.READERS["Qwen2ForCausalLM"]
QWEN3 = dense.READERS["Qwen3ForCausalLM"]

READERS: dict[str, Callable[[Source], ModelShape]] = {
    "InternLM2ForRewardModel": partial(on_decoder, decoder=dense.READERS["InternLM2ForCausalLM"], heads=value_head),
    "Qwen2ForRewardModel": partial(on_decoder, decoder=QWEN2, heads=partial(reward_heads, outputs=1)),
    "Qwen2ForProcessRewardModel": partial(on_decoder, decoder=QWEN2, heads=partial(reward_heads, outputs=2)),
    "GPT2ForSequenceClassification": partial(on_decoder, decoder=gpt.READERS["GPT2LMHeadModel"], heads=classifier),
    "JambaForSequenceClassification": read_jamba_classifier,
    "JinaForRanking": partial(on_decoder, decoder=QWEN3, heads=ranking_projector),
    "VoyageQwen3BidirectionalEmbedModel": partial(
        on_decoder, decoder=QWEN3, heads=embedding_projector, prepare=bidirectional
    ),
    "LlamaBidirectionalModel": partial(on_decoder, decoder=LLAMA, prepare=bidirectional),
    "LlamaBidirectionalForSequenceClassification": partial(
        on_decoder, decoder=LLAMA, heads=classifier, prepare=bidirectional
    ),
}
