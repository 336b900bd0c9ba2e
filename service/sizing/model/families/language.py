"""The language models that multimodal classes are built around.

A multimodal configuration names its language model by class or by model type, and may leave most sizes to the class
(transformers 5.20 `configuration_*.py`).

Source: vLLM 0.33 `model_executor/models/utils.py: init_vllm_registered_model`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model.families import (
    cohere,
    deepseek,
    dense,
    experts,
    falcon_h1,
    gemma,
    gpt_oss,
    granite_hybrid,
    laguna,
    lfm2,
    llama4,
    transformers_backend,
)
from service.sizing.model.fields import Fields
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source

LANGUAGE_READERS: Mapping[str, Callable[[Source], ModelShape]] = {
    **dense.READERS,
    **experts.READERS,
    **transformers_backend.READERS,
    **cohere.READERS,
    **deepseek.READERS,
    **falcon_h1.READERS,
    **gemma.READERS,
    **gpt_oss.READERS,
    **granite_hybrid.READERS,
    **laguna.READERS,
    **lfm2.READERS,
    **llama4.READERS,
}
"""Readers of the language models, by the engine's class."""

CLASSES: Mapping[str, str] = {
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}
"""Class of a model type (transformers 5.20 `MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`)."""


def sizes(vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int) -> Mapping[str, Any]:
    """Sizes under the names that most configurations have for them."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


SIZES: Mapping[str, Mapping[str, Any]] = {
    "gemma": sizes(256000, 3072, 24576, 28, 16, 16),
    "llama": sizes(32000, 4096, 11008, 32, 32, 32),
    "ministral3": sizes(131072, 4096, 14336, 34, 32, 8),
    "mistral": sizes(32000, 4096, 14336, 32, 32, 8),
    "mixtral": sizes(32000, 4096, 14336, 32, 32, 8),
    "phi3": sizes(32064, 3072, 8192, 32, 32, 32),
    "qwen2": sizes(151936, 4096, 22016, 32, 32, 32),
    "qwen3": {**sizes(151936, 4096, 22016, 32, 32, 32), "head_dim": 128},
}
"""What the classes fill in for absent sizes. Other classes' sizes must be given."""


TEXT_HIDDEN: Mapping[str, int] = {"gemma": 3072, "gemma2": 2304, "cohere2": 8192}
"""Width of language models that a configuration leaves to the class; 4096 otherwise."""


def text_width(source: Source, default_type: str) -> int:
    """Width of the language model."""
    model_type = source.text.text("model_type", default=default_type)
    return source.text.integer("hidden_size", default=TEXT_HIDDEN.get(model_type, 4096))


def read_language(source: Source, default_type: str) -> ModelShape:
    """The language model inside a multimodal configuration.

    Parameters
    ----------
    source : Source
        The whole configuration; its text part describes the language model.
    default_type : str
        Model type of a text part that names none.

    Raises
    ------
    NotUnderstood
        No rule covers its class.
    """
    text = source.text
    model_type = text.text("model_type", default=default_type) if text is not source.root else default_type
    named = text.texts("architectures") if text is not source.root else None
    architecture = next((name for name in named or () if name in LANGUAGE_READERS), None) or CLASSES.get(model_type)
    if architecture is None:
        shown = ", ".join(named or ()) or model_type
        raise source.refuse(
            text.named("architectures"), text.named("model_type"), because=f"the language model {shown} is not known"
        )
    inner = replace(source.with_defaults(SIZES.get(model_type, {})), model_type=model_type)
    return LANGUAGE_READERS[architecture](inner)


def described(source: Source, default_type: str, whole: Mapping[str, Any] | None = None) -> Source:
    """The configuration with a text part: `whole`, or one of `default_type`, where it has none."""
    if source.text is not source.root:
        return source
    text = Fields(whole if whole is not None else {"model_type": default_type}, "text_config")
    return replace(source, text=text, model_type=default_type)


def language(default_type: str, whole: Mapping[str, Any] | None = None) -> Callable[[Source], ModelShape]:
    """A reader of the language model, which is `whole` where the configuration describes none."""

    def read(source: Source) -> ModelShape:
        return read_language(described(source, default_type, whole), default_type)

    return read
