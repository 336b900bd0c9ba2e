"""The image encoder of Segment Anything that DeepSeek-OCR compresses pages with; every rank holds it whole.

Source: vLLM 0.33 `model_executor/models/deepencoder.py`.
"""

from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.towers.parts import TOWER, convolution, layer_norm, whole_linear

HIDDEN, DEPTH, HEAD_SIZE, CHANNELS = 768, 12, 64, 256
SIDE, WINDOW = 64, 14
"""Patches along the side of an image, and of a window."""

PATCH = 16
GLOBAL_LAYERS = frozenset({2, 5, 8, 11})


def sam_tower(outputs: int) -> tuple[Module, ...]:
    """SAM's base encoder and two further convolutions down to `outputs` channels."""
    modules: list[Module] = [
        convolution("patch_embed", 3, HIDDEN, PATCH * PATCH),
        Tensor("pos_embed", TOWER, (Units(SIDE * SIDE),), columns=HIDDEN),
    ]
    for layer in range(DEPTH):
        seen = SIDE if layer in GLOBAL_LAYERS else WINDOW
        modules += (
            whole_linear("attn.qkv", HIDDEN, 3 * HIDDEN),
            whole_linear("attn.proj", HIDDEN, HIDDEN),
            Tensor("attn.rel_pos", TOWER, (Units(2 * (2 * seen - 1)),), columns=HEAD_SIZE),
            whole_linear("mlp.lin1", HIDDEN, 4 * HIDDEN),
            whole_linear("mlp.lin2", 4 * HIDDEN, HIDDEN),
            layer_norm("norms", 2 * HIDDEN),
        )
    return (
        *modules,
        convolution("neck.0", HIDDEN, CHANNELS, 1, bias=False),
        convolution("neck.2", CHANNELS, CHANNELS, 9, bias=False),
        layer_norm("neck.norms", 2 * CHANNELS),
        convolution("net_2", CHANNELS, 2 * CHANNELS, 9, bias=False),
        convolution("net_3", 2 * CHANNELS, outputs, 9, bias=False),
    )
