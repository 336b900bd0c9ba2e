"""Ultravox: language models of any class behind a Whisper encoder and a projector of stacked frames.

Source: vLLM 0.33 `model_executor/models/ultravox.py`, `transformers_utils/configs/ultravox.py`.
"""

from service.sizing.model.families.language import language, text_width
from service.sizing.model.families.multimodal import Tied, behind, tower_config
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, layer_norm, tower_linear
from service.sizing.model.towers.whisper import WHISPER, encoder_layer, whisper_encoder

HIDDEN, STACK = 4096, 8
"""Width of the projector, and frames of sound that become one token, where the configuration names none."""

PATH = "multi_modal_projector"


def feed_forward(source: Source, merged: int, width: int) -> tuple[Module, ...]:
    """Two linear layers, gated between them under `swiglu`, with a norm in the middle or at the end."""
    root, quantization = source.root, source.quantization
    hidden = root.integer("hidden_size", default=HIDDEN)
    middle = hidden // 2 if root.text("projector_act", default="swiglu") == "swiglu" else hidden
    return (
        projection(quantization, "linear_1", merged, hidden, bias=False),
        projection(quantization, "linear_2", middle, width, bias=False),
        layer_norm(
            "ln_mid_or_post",
            middle if root.flag("projector_ln_mid", default=False) else width,
            bias=False,
            tensor_class=PROJECTOR,
        ),
    )


def transformer(source: Source, audio: Fields, layers: int, merged: int, width: int) -> tuple[Module, ...]:
    """Layers of the encoder's kind between two linear layers, with learned positions."""
    hidden, quantization = audio.integer("d_model"), source.quantization
    modules: list[Module] = [
        projection(quantization, "linear_in", merged, hidden, bias=True),
        Tensor("embed_positions", PROJECTOR, (Units(audio.integer("max_source_positions")),), columns=hidden),
    ]
    for number in range(layers):
        modules += encoder_layer(quantization, audio, f"{PATH}.layers.{number}")
    return (
        *modules,
        layer_norm("ln_post", hidden, bias=False, tensor_class=PROJECTOR),
        projection(quantization, "linear_out", hidden, width, bias=True),
    )


def projection(quantization: Quantization, name: str, inputs: int, outputs: int, *, bias: bool) -> Module:
    """A linear layer of the projector, which every rank holds whole."""
    return tower_linear(quantization, PATH, name, inputs, outputs, Split.REPLICATED, bias=bias, tensor_class=PROJECTOR)


def tower(source: Source) -> tuple[Module, ...]:
    """The encoder and the projector."""
    root, audio = source.root, tower_config(source, "audio_config").completed(WHISPER)
    width, merged = text_width(source, "llama"), audio.integer("d_model") * root.integer("stack_factor", default=STACK)
    layers = root.integer("num_projector_layers", default=0, minimum=0)
    return (
        *whisper_encoder(source.quantization, audio, path="audio_tower"),
        layer_norm("ln_pre", merged, bias=False, tensor_class=PROJECTOR),
        *(transformer(source, audio, layers, merged, width) if layers else feed_forward(source, merged, width)),
    )


def read_ultravox(source: Source) -> ModelShape:
    """Ultravox, where the configuration holds those of its parts.

    Raises
    ------
    NotUnderstood
        When it only names another repository for one.
    """
    for field, part in (("text_model_id", "text_config"), ("audio_model_id", "audio_config")):
        if field in source.root:
            raise source.refuse(
                field, because=f"{field} names another repository: give its configuration as {part} instead"
            )
    model_type = tower_config(source, "audio_config").text("model_type", default="whisper")
    if model_type != "whisper":
        raise source.refuse("audio_config.model_type", because=f"an encoder {model_type} is not known")
    return behind(tower, language("llama"), tied=Tied.ROOT_IF_NAMED)(source)


READERS = {"UltravoxModel": read_ultravox}
