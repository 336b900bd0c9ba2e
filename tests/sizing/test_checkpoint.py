"""A given size of the weights beside the counted one: equal, explained, or not."""

import json
from typing import Any

import pytest

from service.sizing.checkpoint import Verdict, WeightsCheck, checkpoint_bytes, explain_weights_difference
from service.sizing.model.reader import read_model
from service.storage.seed import DATA

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA_PARAMETERS = 8_030_261_248
"""Llama 3.1 8B: `safetensors.total` of the hub."""


def published(name: str) -> dict[str, Any]:
    """A model of the shipped catalogue."""
    return json.loads((DATA / "models" / f"{name.replace('/', '--')}.json").read_text())


def checked(name: str, weights_bytes: int) -> WeightsCheck:
    """A shipped model's check against a size."""
    file = published(name)
    model = read_model(name, file["config"], file.get("hf_quant_config"))
    return explain_weights_difference(model, file["config"], weights_bytes)


def llama(weights_bytes: int, **changes: object) -> WeightsCheck:
    """The check of a Llama 3.1 8B, changed."""
    config = LLAMA | changes
    return explain_weights_difference(read_model("x", config), config, weights_bytes)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        # The sum of the tensors, as counted by a user of hf-mem (its issue 60).
        ("openai/gpt-oss-120b", 65_248_815_744),
        # 46,702,792,704 elements of two bytes, as the hub says.
        ("mistralai/Mixtral-8x7B-v0.1", 93_405_585_408),
        ("meta-llama/Llama-3.1-70B-Instruct", 2 * 70_553_706_496),
    ],
)
def test_a_size_that_is_the_count_is_equal(name: str, size: int) -> None:
    """To the byte, quantised experts with their scales included."""
    check = checked(name, size)
    assert (check.verdict, check.difference_bytes, check.explanations) == (Verdict.EQUAL, 0, ())


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        # The hub counts 2,031,739,904 elements; the embedding of 151,936 x 2,048 is in it twice.
        ("Qwen/Qwen3-1.7B", 2 * 2_031_739_904, ["head is stored although it is tied"]),
        ("tiiuae/falcon-7b", 2 * 7_217_189_760, ["head is stored although it is tied"]),
        ("google/gemma-4-26B-A4B", 2 * 26_544_131_376, ["head is stored although it is tied"]),
        # The hub: 680,571,043,840 elements in FP8, 3,918,786,560 in BF16, 41,555,600 scales in float32.
        (
            "deepseek-ai/DeepSeek-V3",
            680_571_043_840 + 2 * 3_918_786_560 + 4 * 41_555_600,
            ["a next-token-prediction layer", "copies of the embedding and head"],
        ),
        ("zai-org/GLM-4.5-Air", 2 * 110_468_824_832, ["a next-token-prediction layer", "copies of the embedding"]),
        ("zai-org/GLM-5", 2 * 753_864_139_008, ["a next-token-prediction layer stored with the model"]),
        ("XiaomiMiMo/MiMo-7B-Base", 2 * 7_833_409_536, ["a next-token-prediction layer stored with the model"]),
        ("Qwen/Qwen3.5-35B-A3B", 2 * 35_951_822_704, ["a next-token-prediction layer stored with the model"]),
        (
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
            2 * 123_611_012_096,
            ["a next-token-prediction layer stored with the model"],
        ),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2 * 81_324_862_720, ["which the configuration does not name"]),
        # Published for embeddings: 151,665 x 4,096 elements of the head are not there.
        ("Qwen/Qwen3-Embedding-8B", 2 * 7_567_295_488, ["the output head is not stored"]),
        # 7,298,617,344 elements of four bytes.
        ("allenai/OLMo-2-1124-7B", 29_194_469_376, ["stored in 32 bits"]),
        # The hub counts 137,022,720 elements, 12 masks of 1,024 x 1,024 among them.
        ("openai-community/gpt2", 4 * 137_022_720, ["stored in 32 bits", "causal masks"]),
        # The hub's element counts multiplied by the size of their types: it counts two 4-bit weights in a byte as two.
        ("openai/gpt-oss-20b", 2 * 1_804_459_584 + 19_707_494_400, ["packed 4-bit weights are counted as a byte"]),
    ],
)
def test_a_usual_difference_is_explained(name: str, size: int, words: list[str]) -> None:
    """Sizes that the hub publishes for models whose count is known to be right."""
    check = checked(name, size)
    assert check.verdict is Verdict.EXPLAINED, check
    assert all(word in "; ".join(check.explanations) for word in words), check
    assert len(check.explanations) <= len(words)
    assert abs(check.unexplained_bytes) <= 0.0002 * size


def test_a_file_is_a_little_larger_than_its_tensors() -> None:
    """The headers of the four files of Llama 3.1 8B, some 40 KB, are not worth a reason of their own."""
    check = llama(2 * LLAMA_PARAMETERS + 40_000)
    assert check.verdict is Verdict.EXPLAINED
    assert check.unexplained_bytes == 40_000


def test_a_number_of_parameters_is_recognised() -> None:
    """It is not a size."""
    check = llama(LLAMA_PARAMETERS)
    assert check.verdict is Verdict.UNEXPLAINED
    assert check.explanations == ("the figure is the number of parameters, not of bytes",)


def test_a_quantised_checkpoint_beside_an_unquantised_configuration_is_noticed() -> None:
    """The AWQ checkpoint of Llama 3.1 8B has 5.7 GB: 5.7 bits a parameter, and its base names no quantisation."""
    check = llama(5_730_000_000)
    assert check.verdict is Verdict.UNEXPLAINED
    assert "5.7 bits a parameter" in check.explanations[0]
    assert "no quantisation" in check.explanations[0]


def test_an_unquantised_size_beside_a_quantised_configuration_is_explained() -> None:
    """Twice the parameters, which the FP8 configuration halves."""
    check = llama(2 * LLAMA_PARAMETERS, quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    assert check.verdict is Verdict.EXPLAINED
    assert "16-bit weights" in check.explanations[0]


def test_the_count_of_a_packed_checkpoint_holds_its_scales() -> None:
    """GPTQ in groups of 128 by hand: 4 bits a weight, and for each group a 16-bit scale and 4 bits of zero point."""
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    hidden, mlp, keys, vocabulary = 4096, 14336, 1024, 128256
    weights = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * mlp
    layer = weights // 2 + weights // 128 * 2 + weights // 128 // 2
    expected = 32 * (layer + 2 * hidden * 2) + (2 * vocabulary * hidden + hidden) * 2
    assert checkpoint_bytes(read_model("x", LLAMA | {"quantization_config": quantised})) == expected


@pytest.mark.parametrize("layers", [10**9, 10**4000, -1, True, "three", None, {"num_nextn_predict_layers": 10**5000}])
def test_a_strange_number_of_next_token_layers_explains_nothing(layers: object) -> None:
    """Whatever the configuration says of them."""
    check = llama(12 * LLAMA_PARAMETERS, num_nextn_predict_layers=layers)
    assert check.verdict is Verdict.UNEXPLAINED


@pytest.mark.parametrize("size", [1, 1 << 60])
def test_any_size_is_answered(size: int) -> None:
    """From one byte to the largest the contract takes."""
    assert llama(size).verdict is Verdict.UNEXPLAINED
