"""Rules on the GPU, the model's type and its length: what the engine checks before it looks at the layout.

Source: vLLM 0.33 `config/model.py`, `config/vllm.py: _get_quantization_config`.
"""

from service.sizing.engine.profile import release
from service.sizing.engine.refusal import Fix, Refusal, use
from service.sizing.engine.validity.setting import Rule, Setting
from service.sizing.model.architectures import LAST_SERVED

NO_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Model types the engine does not run in float16, which is all that cards below compute capability 8.0 have."""

BFLOAT16_CAPABILITY = (8, 0)


def rules_known(setting: Setting) -> Refusal | None:
    """The accelerator must be one whose rules are restated here."""
    if setting.gpu.has_rules:
        return None
    return Refusal(
        "no_rules_for_this_gpu",
        f"{setting.gpu.name} is in the catalogue, but how vLLM uses it is not restated here, so nothing is promised",
        fixes=(Fix("choose an NVIDIA GPU or an AMD Instinct from MI300X on"),),
    )


def architecture_served(setting: Setting) -> Refusal | None:
    """The release must still have the model class."""
    last = LAST_SERVED.get(setting.model.architecture)
    if last is None:
        return None
    asked = (release(setting.options.version) if setting.options.version else None) or setting.release
    if asked <= (release(last) or asked):
        return None
    return Refusal(
        "architecture_not_served",
        f"vLLM has not served {setting.model.architecture} since {last}",
        setting.model.architecture_refusal,
        (Fix(f"use vLLM {last}", (("engine.version", last),)), Fix("choose another model")),
    )


def context_within_model(setting: Setting) -> Refusal | None:
    """A given length may not exceed what the configuration derives."""
    given, model = setting.options.max_model_len, setting.model
    if given is None or given == -1 or given <= model.max_context_tokens:
        return None
    return Refusal(
        "max_model_len_exceeds_model",
        f"a maximum length of {given} tokens is longer than the {model.max_context_tokens} the model was made for",
        f"User-specified max_model_len ({given}) is greater than the derived max_model_len "
        f"({model.context_field}={float(model.max_context_tokens)} or model_max_length=None in model's config.json). "
        "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
        (use("max_model_len", model.max_context_tokens, "less"),),
    )


def float16_allowed(setting: Setting) -> Refusal | None:
    """Cards without bfloat16 serve in float16, which some models cannot take."""
    capability, model = setting.gpu.compute_capability, setting.model
    served_in_float16 = model.dtype == "float16" or (capability is not None and capability < BFLOAT16_CAPABILITY)
    if not served_in_float16 or model.model_type not in NO_FLOAT16:
        return None
    return Refusal(
        "float16_not_supported",
        f"{model.model_type} models are not served in float16, and {setting.gpu.name} has no bfloat16",
        f"The model type {model.model_type!r} does not support float16. Reason: Numerical instability. "
        "Please use bfloat16 or float32 instead.",
        (Fix("choose a GPU of compute capability 8.0 or newer (Ampere or later)"),),
    )


RULES: tuple[Rule, ...] = (rules_known, architecture_served, context_within_model, float16_allowed)
