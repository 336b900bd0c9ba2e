"""From `config.json` to a ModelShape: find the text part, choose the family, refuse what is not understood."""

from dataclasses import replace

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.architectures import WITHOUT_PIPELINE
from service.sizing.model.families import READERS
from service.sizing.model.fields import Fields, Json
from service.sizing.model.quantization import read_quantization
from service.sizing.model.shape import ModelShape, Status
from service.sizing.model.source import Source

READER_VERSION = 1
"""Raised whenever the same configuration may be read differently."""

TEXT_FIELDS = ("text_config", "llm_config", "language_config")
"""Where multimodal configurations keep the language model."""

DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16", "float32": "bfloat16", "float": "bfloat16"}
"""The engine's type for a checkpoint's; float32 is served in bfloat16 on cards that have it."""


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
    architectures = root.texts("architectures")
    model_type = root.text("model_type", default="")
    if not architectures:
        raise InvalidConfig("architectures", "architectures is missing: give a list with the model's class name")
    architecture = architectures[0]
    reader = READERS.get(architecture)
    if reader is None:
        raise NotUnderstood(
            ("architectures", "model_type"),
            f"architecture {architecture} (model_type {model_type or 'absent'}) is not understood: "
            "no sizing rule covers it",
        )
    text = next((child for key in TEXT_FIELDS if (child := root.child(key))), root)
    quantization = read_quantization(root, text, hf_quant_config)
    dtype = text.text("dtype", "torch_dtype", default=root.text("dtype", "torch_dtype", default="bfloat16"))
    if dtype not in DTYPES:
        raise InvalidConfig("torch_dtype", f"torch_dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    source = Source(
        name=name,
        architecture=architecture,
        model_type=text.text("model_type", default=model_type),
        root=root,
        text=text,
        quantization=quantization,
        dtype=DTYPES[dtype],
    )
    shape = reader(source)
    return replace(
        shape,
        supports_pipeline=architecture not in WITHOUT_PIPELINE,
        quantization=quantization.method,
        quantization_refusal=quantization.refusal,
        attention_scales=quantization.attention,
        kv_cache_dtype=shape.kv_cache_dtype or quantization.kv_cache_dtype,
        status=shape.status if quantization.exact else Status.ESTIMATED,
        notes=shape.notes + quantization.notes,
    )
