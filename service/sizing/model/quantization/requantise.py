"""What a 16-bit checkpoint would become if it were quantised as published checkpoints of each kind are.

All but the FP8 blocks are written as llm-compressor writes them (its schemes FP8_DYNAMIC, W8A8, W4A16, NVFP4, MXFP4);
the blocks as model makers publish them, in the engine's native FP8.
"""

from typing import Any

from service.sizing.errors import InvalidConfig, SizingError
from service.sizing.model.fields import Fields, Json
from service.sizing.model.quantization.reading import read_quantization

LEFT_ALONE = (
    r"re:.*lm_head",
    r"re:.*embed_tokens",
    r"re:.*\.(gate|router|shared_expert_gate|classifier)(\.\w+)?$",
    r"re:.*(conv1d|in_proj_ba|in_proj_a|in_proj_b)$",
    r"re:.*(vision|visual|audio|image|tower|projector|resampler|aligner|merger|whisper|siglip|clip)",
)
"""What published checkpoints leave in 16 bits: head, embedding, routers, small parts of linear attention, towers."""

TOKENS = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}


def _compressed_tensors(file_format: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": file_format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
        "ignore": list(LEFT_ALONE),
    }


def _weights(bits: int, kind: str, strategy: str, group_size: int | None = None) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group_size, "symmetric": True}


QUANTISED: dict[str, dict[str, Any]] = {
    "fp8": _compressed_tensors("float-quantized", _weights(8, "float", "channel"), {**TOKENS, "type": "float"}),
    "fp8_block": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "patterns_to_not_convert": list(LEFT_ALONE),
    },
    "int8": _compressed_tensors("int-quantized", _weights(8, "int", "channel"), {**TOKENS, "type": "int"}),
    "int4": _compressed_tensors("pack-quantized", _weights(4, "int", "group", 128), None),
    "nvfp4": _compressed_tensors(
        "nvfp4-pack-quantized",
        _weights(4, "float", "tensor_group", 16),
        {**_weights(4, "float", "tensor_group", 16), "dynamic": "local"},
    ),
    "mxfp4": _compressed_tensors(
        "mxfp4-pack-quantized",
        {**_weights(4, "float", "group", 32), "scale_dtype": "torch.uint8"},
        {**_weights(4, "float", "group", 32), "dynamic": True, "scale_dtype": "torch.uint8"},
    ),
}
"""`quantization_config` of each precision."""

PRECISIONS = ("checkpoint", "bf16", *QUANTISED)
"""What weights can be asked to be in."""


class AlreadyQuantised(SizingError):
    """Another precision was asked of a checkpoint that is quantised already.

    Attributes
    ----------
    method : str
        How it is quantised.
    precision : str
        What was asked.
    """

    def __init__(self, method: str, precision: str) -> None:
        super().__init__(
            f"the checkpoint is quantised already ({method}): precision must be checkpoint, not {precision}; "
            "give the 16-bit checkpoint to ask what it would become"
        )
        self.method = method
        self.precision = precision


def requantise(config: Json, precision: str, hf_quant_config: Json | None = None) -> Json:
    """`config.json` of a 16-bit checkpoint after quantising it to `precision`; "checkpoint" and "bf16" leave it alone.

    Raises
    ------
    AlreadyQuantised
        The checkpoint is quantised and `precision` is not "checkpoint".
    InvalidConfig
        `precision` is none of `PRECISIONS`, or the quantisation of the checkpoint cannot be read.
    NotUnderstood
        The checkpoint is quantised in a way that no rule covers.
    """
    if precision not in PRECISIONS:
        raise InvalidConfig("precision", f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if precision == "checkpoint":
        return config
    root = Fields(config)
    text = root.child("text_config", "llm_config", "language_config") or root
    method = read_quantization(root, text, hf_quant_config).method
    if method is not None:
        raise AlreadyQuantised(method, precision)
    return config if precision == "bf16" else {**config, "quantization_config": QUANTISED[precision]}
