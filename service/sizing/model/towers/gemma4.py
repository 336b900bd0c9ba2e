"""The towers of Gemma 4, whose linear layers every rank holds whole.

Source: transformers 5.20 `models/gemma4/modeling_gemma4.py`; vLLM 0.33 `model_executor/models/gemma4_mm.py`,
`gemma4_unified.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.towers.parts import PROJECTOR, TOWER, layer_norm, tower_linear

VISION: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "patch_size": 16,
    "position_embedding_size": 10240,
}
AUDIO: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "subsampling_conv_channels": [128, 32],
    "conv_kernel_size": 5,
    "output_proj_dims": 1536,
}
UNIFIED: Mapping[str, Any] = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
    "output_proj_dims": 3840,
}

WIDTH_MULTIPLE = 64
"""What a tower's widths must be multiples of to be quantised, but for the methods that take any size."""

ANY_SIZE = frozenset({"bitsandbytes", "torchao", "compressed-tensors"})

FLOAT32_BYTES = 4


def tower_quantization(quantization: Quantization, *widths: int) -> Quantization:
    """The checkpoint's quantisation, or none where the widths do not suit it."""
    suits = quantization.method in ANY_SIZE or all(width % WIDTH_MULTIPLE == 0 for width in widths)
    return quantization if suits else NotQuantised()


class Whole:
    """Builds linear layers that every rank holds whole, with bounds where inputs and outputs are clipped."""

    def __init__(self, quantization: Quantization, *, clipped: bool) -> None:
        self.quantization = quantization
        self.clipped = clipped

    def linear(self, path: str, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
        """A plain linear layer."""
        parent, _, name = path.rpartition(".")
        return tower_linear(self.quantization, parent, name, inputs, outputs, Split.REPLICATED, bias=bias)

    def clippable(self, path: str, inputs: int, outputs: int) -> tuple[Module, ...]:
        """A linear layer that may have four bounds."""
        linear = self.linear(f"{path}.linear", inputs, outputs)
        return (linear, Tensor(f"{path}.bounds", TOWER, (Units(4),), buffer=True)) if self.clipped else (linear,)


def embedder(quantization: Quantization, path: str, inputs: int, hidden: int) -> Linear:
    """The projection into the language model."""
    return tower_linear(
        quantization, path, "embedding_projection", inputs, hidden, Split.REPLICATED, bias=False, tensor_class=PROJECTOR
    )


def vision_tower(quantization: Quantization, vision: Fields, text_hidden: int) -> tuple[Module, ...]:
    """The vision tower and its projection."""
    vision = vision.completed(VISION)
    hidden, width = vision.integer("hidden_size"), vision.integer("intermediate_size")
    heads, kv_heads = vision.integer("num_attention_heads"), vision.integer("num_key_value_heads")
    size, patch = vision.integer("head_dim"), vision.integer("patch_size")
    quantization = tower_quantization(quantization, hidden, width)
    whole = Whole(quantization, clipped=vision.flag("use_clipped_linears", default=False))
    modules: list[Module] = [
        Tensor("position_embedding_table", TOWER, (Units(2 * vision.integer("position_embedding_size")),), hidden),
        whole.linear("vision_tower.patch_embedder.input_proj", 3 * patch * patch, hidden),
        Tensor("rotary_emb", TOWER, (Units(2 * (size // 4)),), element_bytes=FLOAT32_BYTES, buffer=True),
    ]
    if vision.flag("standardize", default=False):
        modules.append(Tensor("standardisation", TOWER, (Units(2 * hidden),), buffer=True))
    for number in range(vision.layers("num_hidden_layers")):
        block = f"vision_tower.encoder.layers.{number}"
        modules += (
            *whole.clippable(f"{block}.self_attn.q_proj", hidden, heads * size),
            *whole.clippable(f"{block}.self_attn.k_proj", hidden, kv_heads * size),
            *whole.clippable(f"{block}.self_attn.v_proj", hidden, kv_heads * size),
            *whole.clippable(f"{block}.self_attn.o_proj", heads * size, hidden),
            *whole.clippable(f"{block}.mlp.gate_proj", hidden, width),
            *whole.clippable(f"{block}.mlp.up_proj", hidden, width),
            *whole.clippable(f"{block}.mlp.down_proj", width, hidden),
            Tensor("norms", TOWER, (Units(4 * hidden + 2 * size),)),
        )
    return (*modules, embedder(quantization, "embed_vision", hidden, text_hidden))


def audio_tower(quantization: Quantization, audio: Fields, text_hidden: int) -> tuple[Module, ...]:
    """The audio tower, a Conformer, and its projection."""
    audio = audio.completed(AUDIO)
    hidden, heads = audio.integer("hidden_size"), audio.integer("num_attention_heads")
    size, output = hidden // heads, audio.integer("output_proj_dims")
    channels = audio.integers("subsampling_conv_channels", minimum=1) or []
    if len(channels) != 2:
        field = audio.named("subsampling_conv_channels")
        raise InvalidConfig(field, f"{field} must list two widths, not {len(channels)}")
    quantization = tower_quantization(quantization, hidden)
    whole = Whole(quantization, clipped=audio.flag("use_clipped_linears", default=True))
    first, second = channels
    modules: list[Module] = [
        Tensor("subsample_conv_0", TOWER, (Units(first),), columns=9 + 1),
        Tensor("subsample_conv_1", TOWER, (Units(second),), columns=9 * first + 1),
        whole.linear("audio_tower.subsample_conv_projection.input_proj_linear", first // 4 * second, hidden),
        Tensor("rel_pos_enc", TOWER, (Units(hidden // 2),), buffer=True),
    ]
    for number in range(audio.layers("num_hidden_layers")):
        block = f"audio_tower.layers.{number}"
        for name in ("feed_forward1", "feed_forward2"):
            modules += (
                *whole.clippable(f"{block}.{name}.ffw_layer_1", hidden, 4 * hidden),
                *whole.clippable(f"{block}.{name}.ffw_layer_2", 4 * hidden, hidden),
            )
        for name in ("q_proj", "k_proj", "v_proj"):
            modules += whole.clippable(f"{block}.self_attn.{name}", hidden, heads * size)
        modules += (
            *whole.clippable(f"{block}.self_attn.post", hidden, hidden),
            whole.linear(f"{block}.self_attn.relative_k_proj", hidden, heads * size),
            Tensor("per_dim_scale", TOWER, (Units(size),)),
            Tensor("softcap", TOWER, (Units(1),), buffer=True),
            *whole.clippable(f"{block}.lconv1d.linear_start", hidden, 2 * hidden),
            *whole.clippable(f"{block}.lconv1d.linear_end", hidden, hidden),
            Tensor("depthwise_conv1d", TOWER, (Units(hidden),), columns=audio.integer("conv_kernel_size")),
            Tensor("norms", TOWER, (Units(9 * hidden),)),
        )
    return (
        *modules,
        whole.linear("audio_tower.output_proj", hidden, output, bias=True),
        embedder(quantization, "embed_audio", output or hidden, text_hidden),
    )


def unified_embedders(
    quantization: Quantization, vision: Fields, audio: Fields | None, text_hidden: int
) -> tuple[Module, ...]:
    """What brings images and sound into Gemma 4 Unified, which has no towers; the projections are never quantised."""
    vision = vision.completed(UNIFIED)
    pixels = 3 * (vision.integer("patch_size") * vision.integer("pooling_kernel_size")) ** 2
    width, output = vision.integer("mm_embed_dim"), vision.integer("output_proj_dims")
    plain = NotQuantised()
    return (
        layer_norm("patch_ln1", pixels),
        tower_linear(quantization, "vision_embedder", "patch_dense", pixels, width, Split.COLUMN, bias=True),
        layer_norm("patch_ln2", width),
        Tensor("pos_embedding", TOWER, (Units(2 * vision.integer("mm_posemb_size")),), columns=width),
        layer_norm("pos_norm", width),
        embedder(plain, "embed_vision", output, text_hidden),
        *(
            (embedder(plain, "embed_audio", audio.integer("audio_embed_dim", default=640), text_hidden),)
            if audio
            else ()
        ),
    )
