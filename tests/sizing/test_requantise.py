"""What a 16-bit checkpoint becomes in each precision."""

from typing import Any

import pytest

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.quantization import PRECISIONS, AlreadyQuantised, Quantization, read_quantization, requantise
from service.sizing.model.schemes import UNQUANTISED

QWEN3_MOE: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
LAYER = "model.layers.3"
QKV = tuple(f"{LAYER}.self_attn.{part}_proj" for part in "qkv")


def read(config: Any) -> Quantization:
    """Read the quantisation of a whole configuration."""
    root = Fields(config)
    return read_quantization(root, root.child("text_config") or root)


@pytest.mark.parametrize(
    ("precision", "method", "bits", "compute", "group", "block"),
    [
        ("fp8", "compressed-tensors", 8, "fp8", None, None),
        ("fp8_block", "fp8", 8, "fp8", None, (128, 128)),
        ("int8", "compressed-tensors", 8, "int8", None, None),
        ("int4", "compressed-tensors", 4, "bf16", 128, None),
        ("nvfp4", "compressed-tensors", 4, "fp4", 16, None),
        ("mxfp4", "compressed-tensors", 4, "fp4", 32, None),
    ],
)
def test_precisions(
    precision: str, method: str, bits: int, compute: str, group: int | None, block: tuple[int, int] | None
) -> None:
    """Layers and experts take the format that published checkpoints of that precision have."""
    quantization = read(requantise(QWEN3_MOE, precision))
    assert quantization.method == method
    assert quantization.refusal is None
    for scheme in (quantization.linear(*QKV), quantization.experts(f"{LAYER}.mlp.experts")):
        assert (scheme.bits, scheme.compute.value, scheme.group_size, scheme.block_shape) == (
            bits,
            compute,
            group,
            block,
        )


@pytest.mark.parametrize("precision", ["fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"])
@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}.mlp.gate",
        f"{LAYER}.mlp.shared_expert_gate",
        f"{LAYER}.feed_forward.router",
        f"{LAYER}.linear_attn.conv1d",
        "model.visual.blocks.0.attn.qkv",
        "vision_tower.encoder.layers.0.mlp.fc1",
        "multi_modal_projector.linear_1",
        "model.audio_tower.layers.0.fc1",
    ],
)
def test_what_stays_in_16_bits(precision: str, name: str) -> None:
    """Routers, convolutions of linear attention and towers stay as they are."""
    assert read(requantise(QWEN3_MOE, precision)).linear(name) is UNQUANTISED


@pytest.mark.parametrize("precision", ["fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"])
def test_head_and_embedding_stay(precision: str) -> None:
    """So do head and embedding."""
    quantization = read(requantise(QWEN3_MOE, precision))
    assert quantization.head("lm_head") is UNQUANTISED
    assert quantization.embedding("model.embed_tokens") is UNQUANTISED


@pytest.mark.parametrize("precision", ["checkpoint", "bf16"])
def test_nothing_to_do(precision: str) -> None:
    """A 16-bit checkpoint is bf16 already."""
    assert requantise(QWEN3_MOE, precision) == QWEN3_MOE


@pytest.mark.parametrize("precision", [precision for precision in PRECISIONS if precision != "checkpoint"])
def test_a_quantised_checkpoint_stays_as_it_is(precision: str) -> None:
    """Any precision but its own is refused, naming how it is quantised."""
    quantised = {**QWEN3_MOE, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    assert requantise(quantised, "checkpoint") == quantised
    with pytest.raises(AlreadyQuantised, match=rf"\(fp8\): precision must be checkpoint, not {precision}") as refused:
        requantise(quantised, precision)
    assert refused.value.method == "fp8"


def test_a_file_beside_counts() -> None:
    """A checkpoint that ModelOpt describes in a file beside its configuration is quantised too."""
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": []}}
    with pytest.raises(AlreadyQuantised):
        requantise(QWEN3_MOE, "int4", beside)


def test_unknown_precision() -> None:
    """What is accepted is said."""
    with pytest.raises(InvalidConfig, match=r"must be one of checkpoint, bf16, fp8, .* not 'fp6'"):
        requantise(QWEN3_MOE, "fp6")
