"""Rules on parallel sizes against the model's heads and experts.

Source: vLLM 0.33 `engine/arg_utils.py: create_engine_config`, `config/parallel.py`, `config/scheduler.py`,
`config/model.py: verify_with_parallel_config`.
"""

from service.sizing.engine.defaults import resolve_defaults
from service.sizing.engine.device import Device
from service.sizing.engine.profile import profile_for
from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity.setting import Rule, Setting
from service.sizing.model.summary import is_latent


def context_ranks_divide_tensor_ranks(setting: Setting) -> Refusal | None:
    """Decode context ranks are a part of the tensor ranks."""
    tensor, context = setting.layout.tensor_parallel_size, setting.layout.decode_context_parallel_size
    if tensor % context == 0:
        return None
    return Refusal(
        "decode_context_not_divisible",
        f"decode context parallel size {context} must divide tensor parallel size {tensor}",
        f"tp_size={tensor} must be divisible by dcp_size={context}.",
    )


def batch_holds_sequences(setting: Setting) -> Refusal | None:
    """A step holds a token of every sequence, and a whole prompt where prompts are not cut."""
    profile, _ = profile_for(setting.options.version)
    defaults = resolve_defaults(setting.model, setting.layout, Device.of(setting.gpu), setting.options, profile)
    return defaults if isinstance(defaults, Refusal) else None


def attention_heads_divide(setting: Setting) -> Refusal | None:
    """Query heads are split evenly over tensor ranks."""
    heads, tensor = setting.model.attention_heads, setting.layout.tensor_parallel_size
    if heads % tensor == 0:
        return None
    return Refusal(
        "attention_heads_not_divisible",
        f"{heads} attention heads do not split evenly over {tensor} GPUs",
        f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tensor}).",
    )


def experts_exist(setting: Setting) -> Refusal | None:
    """Expert parallelism needs experts."""
    if not setting.layout.expert_parallel or setting.model.experts:
        return None
    return Refusal(
        "no_experts",
        "expert parallelism is asked for, but the model has no experts",
        "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
    )


def pipeline_supported(setting: Setting) -> Refusal | None:
    """The architecture must be one that splits into stages."""
    if setting.layout.pipeline_parallel_size == 1 or setting.model.supports_pipeline:
        return None
    return Refusal(
        "pipeline_not_supported",
        f"{setting.model.architecture} cannot be split into pipeline stages",
        "Pipeline parallelism is not supported for this model. Supported models implement the `SupportsPP` interface.",
    )


def context_ranks_share_heads(setting: Setting) -> Refusal | None:
    """Without latent attention, decode context ranks are those that would hold copies of a KV head."""
    model, tensor = setting.model, setting.layout.tensor_parallel_size
    context = setting.layout.decode_context_parallel_size
    if context == 1 or is_latent(model):
        return None
    if model.kv_heads == 0:
        return Refusal(
            "decode_context_without_attention",
            f"decode context parallelism splits the attention cache, and {model.architecture} keeps none",
            "integer division or modulo by zero",
        )
    if tensor <= model.kv_heads:
        return Refusal(
            "decode_context_needs_more_ranks",
            f"decode context parallelism needs more tensor ranks ({tensor}) than KV heads ({model.kv_heads})",
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({tensor}) to be greater than "
            f"the model's total number of KV heads ({model.kv_heads}). Increase `--tensor-parallel-size` or set "
            "`--decode-context-parallel-size 1`.",
        )
    most = tensor // model.kv_heads
    if context > most:
        return Refusal(
            "decode_context_too_large",
            f"at most {most} ranks can share a cache of {model.kv_heads} KV heads over {tensor} tensor ranks",
            f"`--decode-context-parallel-size` ({context}) exceeds the maximum supported value ({most}) for "
            f"`--tensor-parallel-size` ({tensor}) and {model.kv_heads} model KV heads.",
        )
    per_head = model.attention_heads // model.kv_heads
    if per_head % context:
        return Refusal(
            "decode_context_heads_not_divisible",
            f"{per_head} query heads per KV head do not split evenly over {context} ranks",
            f"The model's number of query heads per KV head ({per_head}) must be divisible by "
            f"`--decode-context-parallel-size` ({context}) for GQA/MQA.",
        )
    return None


RULES: tuple[Rule, ...] = (
    context_ranks_divide_tensor_ranks,
    batch_holds_sequences,
    attention_heads_divide,
    experts_exist,
    pipeline_supported,
    context_ranks_share_heads,
)
