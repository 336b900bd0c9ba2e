"""Cache scales of attention operators, which depend on how the engine's class builds its attention."""

from dataclasses import replace

from service.sizing.model.quantization.base import NO_SCALES, Quantization
from service.sizing.model.shape import AttentionScales

NEVER_SCALED = frozenset(
    {
        "BailingMoeForCausalLM",
        "BailingMoeV2ForCausalLM",
        "JambaForCausalLM",
        "Lfm2BidirectionalModel",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "ModernBertForSequenceClassification",
        "ModernBertForTokenClassification",
        "ModernBertModel",
        "Plamo3ForCausalLM",
        "Step3TextForCausalLM",
        "Step3VLForConditionalGeneration",
        "Step5ForCausalLM",
        "Step5ForConditionalGeneration",
        "Zamba2ForCausalLM",
    }
)
"""Classes that build their attention without the checkpoint's quantisation (vLLM 0.33 `model_executor/models/`)."""

THROUGH_TRANSFORMERS = frozenset(
    {
        "ArceeForCausalLM",
        "CwmForCausalLM",
        "Emu3ForConditionalGeneration",
        "FlexOlmoForCausalLM",
        "GPTBigCodeForCausalLM",
        "GPTNeoXForCausalLM",
        "GlmForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "HunYuanVLForConditionalGeneration",
        "Jais2ForCausalLM",
        "Kolibri1ForCausalLM",
        "MellumForCausalLM",
        "NanbeigeForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "OlmoForCausalLM",
        "PhiForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
        "Starcoder2ForCausalLM",
        "VaultGemmaForCausalLM",
        "VibeVoiceAsrForConditionalGeneration",
    }
)
"""Classes the engine runs through transformers (`models/registry.py`), which casts the scales to the model's type."""

CAST_SCALE_BYTES = 6 * 2
"""Scales and zero points of query, key and value in the model's type."""


def attention_scales(quantization: Quantization, architecture: str) -> AttentionScales:
    """Parameters that quantisation adds to the attention operators of a class."""
    if architecture in NEVER_SCALED:
        return NO_SCALES
    if architecture in THROUGH_TRANSFORMERS and quantization.method == "compressed-tensors":
        return replace(quantization.attention, attention_bytes=CAST_SCALE_BYTES)
    return quantization.attention
