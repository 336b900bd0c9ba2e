"""From `quantization_config`, `compression_config` or `hf_quant_config.json` to a Quantization.

Source: vLLM 0.33 `transformers_utils/config.py`, `transformers_utils/model_arch_config_convertor.py`,
`config/model.py: _verify_quantization`, `model_loader/weight_utils.py: get_quant_config`.
"""

from dataclasses import replace

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.fields import Fields, Json
from service.sizing.model.quantization import fp8, integers, modelopt, other, quark
from service.sizing.model.quantization.base import NotQuantised, Quantization
from service.sizing.model.quantization.compressed_tensors import read_compressed_tensors
from service.sizing.model.quantization.mxfp4 import read_mxfp4

DEEPSEEK_V4 = frozenset({"deepseek_v4", "deepseek_v4_text", "deepseek_v41", "deepseek_v41_text"})

UNDERSTOOD = (
    "awq, gptq, auto-round, fp8, fbgemm_fp8, compressed-tensors, modelopt, mxfp4, mxfp8, quark, torchao, experts_int8, "
    "bitsandbytes, gguf"
)


def read_quantization(root: Fields, text: Fields, hf_quant_config: Json | None = None) -> Quantization:
    """How a checkpoint is quantised.

    Parameters
    ----------
    root, text : Fields
        The whole configuration and its language part.
    hf_quant_config : mapping, optional
        `hf_quant_config.json`; it counts where `config.json` has no `quantization_config` at its root, and for the
        layers of a mixture that `config.json` does not list.

    Raises
    ------
    InvalidConfig
        A field is missing, of the wrong type or contradicts another.
    NotUnderstood
        The method, a format or an algorithm is covered by no rule.
    """
    config = root.child("quantization_config")
    if config is None and hf_quant_config:
        config = Fields(hf_quant_config, "hf_quant_config")
    config = config or root.child("compression_config")
    if config is None and text is not root:
        config = text.child("quantization_config", "compression_config")
    if config is None or not config.values:
        return NotQuantised()
    beside = Fields(hf_quant_config, "hf_quant_config") if hf_quant_config else None
    return _read(config, root, text, beside)


def _method(config: Fields) -> str:
    """`quant_method` as the engine normalises it; a ModelOpt producer names its algorithm instead."""
    inner, producer = config.child("quantization"), config.child("producer")
    is_modelopt = producer is not None and producer.text("name", default="") == "modelopt"
    if inner is not None and (is_modelopt or "modelopt_quant_config" in inner):
        algorithm = inner.text("quant_algo", default="").upper()
        if algorithm in modelopt.BLOCK_FP8 or algorithm in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
            return "modelopt"
        if algorithm == "NVFP4":
            return "modelopt_fp4"
        if algorithm == modelopt.MIXED:
            return "modelopt_mixed"
        if algorithm:
            field = inner.named("quant_algo")
            raise NotUnderstood((field,), f"{field} {algorithm!r} is not understood: no sizing rule covers it")
    return config.text("quant_method", default="").lower().replace("compressed_tensors", "compressed-tensors")


def _read(config: Fields, root: Fields, text: Fields, beside: Fields | None) -> Quantization:
    method = _method(config)
    model_type = root.text("model_type", default="")
    match method:
        case "":
            return NotQuantised(
                notes=(
                    f"{config.path} names no quant_method or producer: the engine takes the weights as not quantised",
                )
            )
        case "fp8" | "deepseek_v4_fp8":
            if model_type in DEEPSEEK_V4:
                return fp8.read_deepseek_v4(config, root)
            return fp8.read_fp8(config)
        case "fbgemm_fp8":
            return fp8.read_fbgemm_fp8(config)
        case "compressed-tensors":
            if config.text("format", default="") == "mxfp4-pack-quantized" and _is_kimi_k3(root):
                return read_mxfp4(gpt_oss=False)
            return read_compressed_tensors(config, latent="kv_lora_rank" in text)
        case "awq":
            return integers.read_awq(config, "auto_awq")
        case "awq_marlin" | "auto_awq":
            return integers.read_awq(config, method)
        case "gptq":
            return integers.read_gptq(config, "auto_gptq")
        case "gptq_marlin" | "auto_gptq":
            return integers.read_gptq(config, method)
        case "auto-round" | "inc":
            return integers.read_inc(config)
        case "intel/auto-round":
            return replace(integers.read_inc(config), refusal=other.unknown_method(method))
        case "modelopt" | "modelopt_fp4" | "modelopt_mxfp8" | "modelopt_mixed":
            return _read_modelopt(config, beside)
        case "mxfp4" | "gpt_oss_mxfp4":
            return read_mxfp4(gpt_oss=model_type == "gpt_oss" or method == "gpt_oss_mxfp4")
        case "mxfp8":
            return modelopt.read_mxfp8(config)
        case "quark":
            return quark.read_quark(config, gpt_oss=model_type == "gpt_oss")
        case "torchao":
            return other.read_torchao(config)
        case "experts_int8":
            return other.read_experts_int8()
        case "bitsandbytes":
            return other.read_bitsandbytes(config)
        case "gguf":
            return other.read_gguf(config)
        case _:
            field = config.named("quant_method")
            raise NotUnderstood(
                (field,),
                f"{field} {method!r} is not understood: no sizing rule covers it; understood are {UNDERSTOOD}",
            )


def _is_kimi_k3(root: Fields) -> bool:
    return any(name.startswith("KimiK3") for name in root.texts("architectures") or ())


def _read_modelopt(config: Fields, beside: Fields | None) -> Quantization:
    if modelopt.algorithm_of(config) != modelopt.MIXED:
        return modelopt.read_modelopt(config)
    layers = (config.child("quantization") or config).child("quantized_layers")
    if layers is None and beside is not None:
        config = beside
        layers = (config.child("quantization") or config).child("quantized_layers")
    if layers is None or not layers.values:
        field = config.named("quantized_layers")
        raise InvalidConfig(field, f"{field} is missing: give the algorithm of each layer, or hf_quant_config.json")
    return modelopt.read_mixed(config, layers)
