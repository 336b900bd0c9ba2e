"""What a configuration was read as, against published counts and hand arithmetic."""

import json

import pytest

from service.sizing.inspection import ModelReading, reading
from service.sizing.model.reader import read_model
from service.storage.seed import DATA
from tests.sizing.test_checkpoint import LLAMA, LLAMA_PARAMETERS


def shipped(name: str) -> ModelReading:
    """The reading of a model of the shipped catalogue."""
    file = json.loads((DATA / "models" / f"{name.replace('/', '--')}.json").read_text())
    return reading(read_model(name, file["config"], file.get("hf_quant_config")))


def test_classes_add_up_to_the_published_count() -> None:
    """Llama 3.1 8B by hand: hidden 4,096, MLP 14,336, 8 KV heads of 128, 32 layers, vocabulary 128,256."""
    read = reading(read_model("x", LLAMA))
    assert {each.tensor_class.value: each.parameters for each in read.classes} == {
        "mlp": 32 * 3 * 4096 * 14336,
        "attention": 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024),
        "embedding": 128256 * 4096,
        "head": 128256 * 4096,
        "norm": 65 * 4096,
    }
    assert read.parameters == read.active_parameters == LLAMA_PARAMETERS
    assert read.checkpoint_bytes == 2 * LLAMA_PARAMETERS
    assert read.kv_bytes_per_token == 32 * 2 * 1024 * 2
    assert read.max_context_tokens == 131072


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        # Counted on transformers' own modules.
        (
            "mistralai/Mixtral-8x7B-v0.1",
            {"experts": 45_097_156_608, "attention": 1_342_177_280, "router": 1_048_576, "norm": 266_240},
        ),
        (
            "deepseek-ai/DeepSeek-V2-Lite",
            {"experts": 14_394_851_328, "shared_experts": 449_839_104, "mlp": 67_239_936, "router": 3_407_872},
        ),
    ],
)
def test_experts_are_counted_apart(name: str, classes: dict[str, int]) -> None:
    """Routed experts, shared ones, dense MLPs and routers."""
    found = {each.tensor_class.value: each.parameters for each in shipped(name).classes}
    assert classes.items() <= found.items(), found


def test_only_the_experts_visited_are_active() -> None:
    """Two of Mixtral's eight."""
    experts = next(each for each in shipped("mistralai/Mixtral-8x7B-v0.1").classes if each.tensor_class == "experts")
    assert experts.active_parameters * 4 == experts.parameters


def test_tensor_sizes_that_do_not_divide_are_refused_in_the_engines_words() -> None:
    """SmolLM2 135M has nine heads."""
    shares = {
        each.tensor_parallel_size: each
        for each in shipped("HuggingFaceTB/SmolLM2-135M-Instruct").weights_by_tensor_parallel_size
    }
    assert shares[1].refusal is None
    assert shares[1].weights_bytes is not None
    for size in (2, 4, 8):
        assert shares[size].weights_bytes is None
        assert f"(9) must be divisible by tensor parallel size ({size})" in str(shares[size].engine_error)


def test_the_shares_of_tensor_sizes_shrink() -> None:
    """Two GPUs of a Llama hold more than half each: norms and rotary tables are on both."""
    one, two, four, eight = (
        each.weights_bytes for each in reading(read_model("x", LLAMA)).weights_by_tensor_parallel_size
    )
    assert one is not None
    assert two is not None
    assert four is not None
    assert eight is not None
    norms = 65 * 4096 * 2
    split = 2 * LLAMA_PARAMETERS - norms
    assert one - two == split // 2
    assert two - four == split // 4
    assert four - eight == split // 8
