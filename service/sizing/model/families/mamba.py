"""Mamba, Falcon Mamba and Mamba-2: recurrent layers only, no keys and values.

Source: vLLM 0.33 `model_executor/models/mamba.py`, `mamba2.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, auto_integer, build_layers, ends, with_defaults
from service.sizing.model.shape import LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import Mamba1, Mamba2
from service.sizing.quantities import ceil_div

MAMBA1: Mapping[str, Any] = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
}
MAMBA2: Mapping[str, Any] = {
    "num_heads": 128,
    "head_dim": 64,
    "vocab_size": 32768,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "expand": 2,
    "conv_kernel": 4,
    "n_groups": 8,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
}


def recurrent(source: Source, layer: Callable[[int], LayerShape]) -> ModelShape:
    """A stack of equal recurrent layers; every stage builds embedding, final norm and head."""
    text = source.text
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    around = ends(
        source,
        hidden,
        vocabulary,
        tied=source.tied(default=False),
        embedding="backbone.embeddings",
        norm="backbone.norm_f",
        embedding_everywhere=True,
        norm_everywhere=True,
        head_everywhere=True,
        quantised=False,
    )
    layers = build_layers(source, [0] * text.layers("num_hidden_layers"), layer)
    return assemble(source, layers, around, hidden=hidden, vocabulary=vocabulary, heads=0, kv_heads=0)


def read_mamba(source: Source) -> ModelShape:
    """Mamba and Falcon Mamba, whose norms inside the mixer have no weights."""
    source = with_defaults(source, MAMBA1)
    text = source.text
    hidden = text.integer("hidden_size")
    mixer = Mamba1(
        inner=text.integer("intermediate_size", default=int(text.number("expand") * hidden)),
        state=text.integer("state_size"),
        kernel=text.integer("conv_kernel"),
        step_rank=auto_integer(text, "time_step_rank", ceil_div(hidden, 16)),
        conv_bias=text.flag("use_conv_bias", default=True),
        bias=text.flag("use_bias", default=False),
        norms=False,
    )
    layer = LayerShape((mixer.cache(),), (*mixer.modules(hidden), blocks.norm("norm", hidden)))
    return recurrent(source, lambda _: layer)


def read_mamba2(source: Source) -> ModelShape:
    """Mamba-2."""
    source = with_defaults(source, MAMBA2)
    text = source.text
    hidden = text.integer("hidden_size")
    inner = text.integer("expand") * hidden
    mixer = Mamba2(
        inner=text.integer("intermediate_size", default=inner),
        state=text.integer("state_size"),
        kernel=text.integer("conv_kernel"),
        heads=text.integer("num_heads"),
        head_size=text.integer("head_dim"),
        groups=text.integer("n_groups"),
        conv_bias=text.flag("use_conv_bias", default=True),
        bias=text.flag("use_bias", default=False),
    )
    if mixer.inner != inner or mixer.heads * mixer.head_size != inner:
        raise source.invalid(
            "num_heads",
            f"num_heads x head_dim ({mixer.heads * mixer.head_size}) must be expand x hidden_size ({inner})",
        )

    def layer(index: int) -> LayerShape:
        modules = mixer.modules(source.quantization, f"backbone.layers.{index}.mixer", hidden)
        return LayerShape((mixer.cache(),), (*modules, blocks.norm("norm", hidden)))

    return recurrent(source, layer)


READERS = {
    "MambaForCausalLM": read_mamba,
    "FalconMambaForCausalLM": read_mamba,
    "Mamba2ForCausalLM": read_mamba2,
}
