"""From `config.json` to a ModelShape: find the text part, choose the family, refuse what is not understood."""

from dataclasses import replace
from typing import cast

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.architectures import BASE_CLASSES, CONFIGURED_CLASSES, LAST_SERVED, WITHOUT_PIPELINE
from service.sizing.model.families import POOLING, READERS
from service.sizing.model.fields import Fields, Json
from service.sizing.model.quantization import attention_scales, read_quantization
from service.sizing.model.registry import PLUGINS, REGISTERED, TRANSFORMERS_BACKEND
from service.sizing.model.resolution import Conversion, Resolution, converted, resolve
from service.sizing.model.shape import ModelShape, Status
from service.sizing.model.source import Source

READER_VERSION = 1
"""Raised whenever the same configuration may be read differently."""

TEXT_FIELDS = ("text_config", "llm_config", "language_config")
"""Where multimodal configurations keep the language model."""

DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16", "float32": "float32", "float": "float32"}
"""Types of a checkpoint by their names."""

BFLOAT16_ONLY = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Model types that the engine does not serve in float16 (vLLM 0.33 `config/model.py`)."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "moe_num_primary_experts")
STATES = ("mamba_d_state", "mamba_num_heads", "mamba_n_heads", "mamba_d_ssm", "ssm_state_size", "state_size")
LAYER_KINDS = ("hybrid_override_pattern", "layers_block_type", "attn_layer_indices", "attn_layer_period")
WINDOWS = ("sliding_window", "layer_types", "attention_chunk_size", "interleaved_sliding_window")
TOWERS = ("vision_config", "audio_config", "visual", "vision_tower", "mm_vision_tower")

STRUCTURAL = (
    frozenset({*EXPERTS, *LAYER_KINDS}),
    frozenset({*STATES, *LAYER_KINDS, "linear_num_value_heads", "linear_attn_config", "conv_L_cache"}),
    frozenset({*WINDOWS, "hybrid_layer_pattern", "sliding_window_layout"}),
    frozenset({"kv_lora_rank", "q_lora_rank", "v_head_dim"}),
    frozenset({"index_topk"}),
    frozenset({"compress_ratios"}),
    frozenset({"sparse_attention_config"}),
    frozenset({"num_kv_shared_layers"}),
    frozenset({"use_cla"}),
    frozenset({"num_global_key_value_heads", "global_head_dim"}),
    frozenset({"num_attention_heads_per_layer", "attention_other_setting"}),
    frozenset({"block_configs"}),
    frozenset({"altup_num_inputs"}),
    frozenset({"hidden_size_per_layer_input"}),
    frozenset({"param_sink_number"}),
    frozenset({"hc_mult"}),
    frozenset({"dual_chunk_attention_config"}),
    frozenset({"cross_attention_layers", "add_cross_attention", "is_encoder_decoder", "encoder_layers"}),
    frozenset(TOWERS),
)
"""Fields that change memory in some family, those that spell one thing together.

A reader that looked at none of them covers no model that has one.
"""


def read_model(name: str, config: Json, hf_quant_config: Json | None = None) -> ModelShape:
    """Read a published configuration.

    Parameters
    ----------
    name : str
        The model's name, for messages and flags.
    config : mapping
        `config.json`.
    hf_quant_config : mapping, optional
        `hf_quant_config.json`, which ModelOpt checkpoints publish beside it.

    Raises
    ------
    InvalidConfig
        A field is missing, of the wrong type or contradicts another.
    NotUnderstood
        The architecture, a layer kind or the quantisation is covered by no rule.
    """
    root = Fields(config)
    named, resolution = find_architecture(root)
    text = text_part(root)
    quantization = read_quantization(root, text, hf_quant_config)
    source = Source(
        name=name,
        architecture=named,
        model_type=text.text("model_type", default=root.text("model_type", default="")),
        root=root,
        text=text,
        quantization=quantization,
        dtype=engine_dtype(root, text, pooling=resolution.conversion is not Conversion.NONE or named in POOLING),
    )
    shape = converted(READERS[resolution.architecture], resolution.conversion, source)
    text.refuse_unread(STRUCTURAL, named)
    return replace(
        shape,
        architecture_refusal=architecture_refusal(named),
        supports_pipeline=shape.supports_pipeline and resolution.architecture not in WITHOUT_PIPELINE,
        quantization=quantization.method,
        quantization_refusal=quantization.refusal,
        attention_scales=attention_scales(quantization, resolution.architecture),
        kv_cache_dtype=shape.kv_cache_dtype or quantization.kv_cache_dtype,
        status=shape.status if quantization.exact else Status.ESTIMATED,
        notes=shape.notes + quantization.notes,
    )


def find_architecture(root: Fields) -> tuple[str, Resolution]:
    """The first class named that is understood, and how it is served.

    Where a configuration names no class, the engine takes what its own configuration class fills in, else transformers'
    base class of the model type, which it serves as an embedding model.
    """
    model_type = root.text("model_type", default="")
    named = root.texts("architectures")
    if not named and (default := CONFIGURED_CLASSES.get(model_type) or BASE_CLASSES.get(model_type)):
        named = [default]
    if not named:
        raise InvalidConfig("architectures", "architectures is missing: give a list with the model's class name")
    for architecture in named:
        if resolution := resolve(architecture, READERS):
            return architecture, resolution
    raise NotUnderstood(("architectures", "model_type"), why_not_understood(named, model_type))


def why_not_understood(named: list[str], model_type: str) -> str:
    """Why no reader covers the classes of a configuration: the engine serves none of them, or no rule is known.

    Source: vLLM 0.33 `model_executor/models/registry.py: _raise_for_unsupported`.
    """
    first = named[0]
    if any(served(architecture) for architecture in named):
        return f"architecture {first} (model_type {model_type or 'absent'}) is not understood: no sizing rule covers it"
    reason = f"Model architectures {named} are not supported for now."
    for architecture in named:
        if refusal := architecture_refusal(architecture):
            reason = refusal
            break
        if architecture in PLUGINS:
            reason = (
                f"Model architecture {architecture} is not supported in-tree anymore. Please install the plugin at "
                f"{PLUGINS[architecture]} if you want to use this model architecture."
            )
            break
    return f"vLLM 0.33 does not serve {first} (model_type {model_type or 'absent'}): {reason}"


def served(architecture: str) -> bool:
    """Whether the engine serves a class, under its own name or as what its ending turns a registered decoder into."""
    return architecture in TRANSFORMERS_BACKEND or resolve(architecture, REGISTERED) is not None


def text_part(root: Fields) -> Fields:
    """The part of a configuration that describes the language model: often the whole."""
    if thinker := root.child("thinker_config"):
        root = thinker
    return next((child for key in TEXT_FIELDS if (child := root.child(key))), root)


def engine_dtype(root: Fields, text: Fields, *, pooling: bool) -> str:
    """The engine's type of unquantised weights: the checkpoint's, but 16 bits for float32 and absent ones.

    Source: vLLM 0.33 `config/model.py: _resolve_auto_dtype`, on a card that has bfloat16.
    """
    nested = (root.values.get(name) for name in ("vision_config", "encoder_config"))
    parts = (root, text, *(Fields(cast("Json", values)) for values in nested if isinstance(values, dict)))
    named = next((part.text("dtype", "torch_dtype") for part in parts if part.raw("dtype", "torch_dtype")[1]), None)
    preferred = "float16" if pooling else "bfloat16"
    if named is not None and named not in DTYPES:
        raise InvalidConfig("torch_dtype", f"torch_dtype must be one of {', '.join(DTYPES)}, not {named!r}")
    dtype = DTYPES[named] if named else "float32"
    dtype = preferred if dtype == "float32" else dtype
    return "bfloat16" if root.values.get("model_type") in BFLOAT16_ONLY else dtype


def architecture_refusal(architecture: str) -> str | None:
    """Why the engine no longer serves an architecture; None: it does."""
    version = LAST_SERVED.get(architecture)
    if version is None:
        return None
    return (
        f"Model architecture {architecture} was supported in vLLM until v{version}, and is not supported anymore. "
        "Please use an older version of vLLM if you want to use this model architecture."
    )
