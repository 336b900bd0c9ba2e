"""Quantised checkpoints against the parameters vLLM 0.33 itself builds for them.

`engine.json` holds small models, `quantization_config`s in the styles of llm-compressor, AutoAWQ, GPTQModel, ModelOpt,
AutoRound and Quark, and for pairs of them the bytes and method of vLLM's own model classes; under `requantised`, the
bytes of the 16-bit models after quantising them to each precision.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from service.sizing.layouts import Layout
from service.sizing.model.quantization import requantise
from service.sizing.model.reader import read_model
from service.sizing.weights import stage_weights

ENGINE = json.loads((Path(__file__).parents[1] / "data" / "quantization" / "engine.json").read_text())


def identifier(case: list[Any]) -> str:
    """A short name of a case."""
    model, quantization, gpu, (tensor, pipeline, data, spread), *_ = case
    return f"{model}-{quantization}-{gpu}-tp{tensor}pp{pipeline}dp{data}{'ep' if spread else ''}"


@pytest.mark.parametrize(
    ("model", "quantization", "gpu", "layout", "method", "parameter_bytes"),
    ENGINE["cases"],
    ids=map(identifier, ENGINE["cases"]),
)
def test_parameter_bytes(
    model: str, quantization: str, gpu: str, layout: list[Any], method: str, parameter_bytes: list[int]
) -> None:
    """Every stage holds the parameters vLLM builds, to the byte, under the method's own name."""
    config = {**ENGINE["models"][model], "quantization_config": ENGINE["quantizations"][quantization]}
    shape = read_model(model, config)
    stages = stage_weights(shape, Layout(*layout), router_kernels=gpu == "H100")
    assert [stage.parameter_bytes for stage in stages] == parameter_bytes
    assert shape.quantization == method


@pytest.mark.parametrize(("model", "precision", "ranks", "parameter_bytes"), ENGINE["requantised"])
def test_requantised(model: str, precision: str, ranks: int, parameter_bytes: int) -> None:
    """What a 16-bit model becomes in each precision takes the parameters vLLM builds for such a checkpoint."""
    shape = read_model(model, requantise(ENGINE["models"][model], precision))
    assert stage_weights(shape, Layout(ranks))[0].parameter_bytes == parameter_bytes
