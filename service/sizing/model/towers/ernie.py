"""The tower of ERNIE 4.5 VL and the resampler behind it.

Source: vLLM 0.33 `model_executor/models/ernie45_vl.py`.
"""

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised, Quantization
from service.sizing.model.towers.parts import (
    PROJECTOR,
    TOWER,
    layer_norm,
    tower_linear,
    tower_query_key_value,
    whole_linear,
)

FLOAT32_BYTES = 4


def ernie_tower(quantization: Quantization, vision: Fields, *, path: str = "vision_model") -> tuple[Module, ...]:
    """The tower."""
    hidden, heads = vision.integer("embed_dim"), vision.integer("num_heads")
    if hidden % heads:
        field = vision.named("num_heads")
        raise InvalidConfig(field, f"{field} ({heads}) must divide embed_dim ({hidden})")
    size, width = hidden // heads, int(hidden * vision.number("mlp_ratio"))
    pixels = vision.integer("in_channels", "in_chans", default=3) * vision.integer("patch_size") ** 2
    modules: list[Module] = [
        whole_linear("patch_embed.proj", pixels, hidden, bias=False),
        Tensor("inv_freq", TOWER, (Units(size // 4),), element_bytes=FLOAT32_BYTES, buffer=True),
    ]
    for number in range(vision.layers("depth")):
        block = f"{path}.blocks.{number}"
        modules += (
            tower_query_key_value(quantization, f"{block}.attn", "qkv", hidden, heads, size, bias=True),
            tower_linear(quantization, f"{block}.attn", "proj", Units(heads, size), hidden, Split.ROW, bias=True),
            tower_linear(quantization, f"{block}.mlp", "fc1", hidden, width, Split.COLUMN, bias=True),
            tower_linear(quantization, f"{block}.mlp", "fc2", width, hidden, Split.ROW, bias=True),
            layer_norm("norms", 2 * hidden),
        )
    return (*modules, layer_norm("ln", vision.integer("hidden_size")))


def column(name: str, inputs: int, outputs: int) -> Linear:
    """A linear layer of the resampler, split by outputs and never quantised."""
    return tower_linear(NotQuantised(), "", name, inputs, outputs, Split.COLUMN, bias=True, tensor_class=PROJECTOR)


def resampler(merged: int, moments: int, outputs: int) -> tuple[Module, ...]:
    """Linear layers over `merged` patches and, where there are `moments`, over those of that many frames."""
    return (
        column("spatial_linear1", merged, merged),
        column("spatial_linear2", merged, merged),
        layer_norm("spatial_norm", merged, tensor_class=PROJECTOR),
        *(
            (
                column("temporal_linear1", merged * moments, merged),
                column("temporal_linear2", merged, merged),
                layer_norm("temporal_norm", merged, tensor_class=PROJECTOR),
            )
            if moments
            else ()
        ),
        column("mlp", merged, outputs),
        layer_norm("after_norm", outputs, bias=False, tensor_class=PROJECTOR),
    )
