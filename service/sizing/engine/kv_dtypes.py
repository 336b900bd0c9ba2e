"""Types the KV cache can be stored in, and the bytes of one token under each.

Source: vLLM 0.33 `config/cache.py`, `v1/kv_cache_interface.py`, `utils/torch_utils.py`, and the attention backends'
`customize_spec`.
"""

from service.sizing.engine.device import Device
from service.sizing.engine.refusal import Refusal, use
from service.sizing.hardware import Vendor
from service.sizing.model.shape import IndexerCache, LatentCache, ModelShape, PackedCache, RingCache
from service.sizing.quantities import ceil_div, round_up

KV_CACHE_DTYPES = (
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "octave_k3v4",
    "octave_k3v3",
    "octave_k3v3_compact",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
)
"""What `--kv-cache-dtype` accepts, in the engine's order."""

SIXTEEN_BIT = frozenset({"auto", "float16", "bfloat16"})

FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
"""8-bit floating point with one scale for the whole tensor."""

PER_TOKEN_HEAD = frozenset({"int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"})
"""A float32 scale each for key and value of every token and head."""

NVFP4 = frozenset({"nvfp4", "nvfp4_4over6"})

TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits of a key and a value element."""

PACKED_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""One token of latent attention in the packed formats of the sparse kernels: quantised latent, rotary part, scales."""

IGNORES_KV_CACHE_DTYPE = frozenset({"FalconForCausalLM", "RWForCausalLM"})
"""Architectures whose attention layers never hear of `--kv-cache-dtype` (vLLM 0.33 `models/falcon.py`)."""

FP8_CHECKPOINTS = frozenset({"fp8", "modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "quark"})
"""Weight quantisations whose checkpoints may hold scales for an FP8 cache."""


CELL_DTYPES = SIXTEEN_BIT | FP8 | PER_TOKEN_HEAD | NVFP4 | frozenset(TURBOQUANT_BITS)
"""Types of keys and values whose bytes are known."""

LATENT_DTYPES = frozenset(PACKED_LATENT_BYTES)
"""Types that only latent attention has."""


def is_quantised(dtype: str) -> bool:
    """Whether the cache is stored in another type than the model computes in."""
    return dtype not in SIXTEEN_BIT


def attention_cell(dtype: str, key_size: int, value_size: int) -> int:
    """Bytes of key and value of one token and head, of `key_size` and `value_size` elements.

    Raises
    ------
    ValueError
        For a type no attention kernel stores.
    """
    if dtype in SIXTEEN_BIT:
        return (key_size + value_size) * 2
    if dtype in FP8:
        return key_size + value_size
    if dtype == "int4_per_token_head":
        return key_size // 2 + value_size // 2 + 8
    if dtype in PER_TOKEN_HEAD:
        return key_size + value_size + 8
    if dtype in NVFP4:
        return 2 * (key_size // 2 + key_size // 16)
    if dtype in TURBOQUANT_BITS:
        key_bits, value_bits = TURBOQUANT_BITS[dtype]
        key = key_size if key_bits == 8 else ceil_div(key_size * key_bits, 8) + 2
        return round_up(key + ceil_div(key_size * value_bits, 8) + 4, 2)
    raise ValueError(f"no attention kernel stores a cache as {dtype}")


def latent_cell(dtype: str, size: int) -> int:
    """Bytes of the latent of one token, `size` elements."""
    return PACKED_LATENT_BYTES.get(dtype) or (size if dtype in FP8 else size * 2)


def indexer_cell(cache: IndexerCache) -> int:
    """Bytes of an indexer's key: 8-bit elements, with a float32 scale each 128 or without, or plain 16-bit ones."""
    size = cache.head_size
    return size + size // 128 * 4 if cache.element_bytes == 1 and cache.scaled else size * cache.element_bytes


def may_hold_fp8_scales(model: ModelShape) -> bool:
    """Whether the checkpoint's quantisation loads scales for an FP8 cache.

    Source: vLLM 0.33 `attention.py: _init_kv_cache_quant`.
    """
    if model.quantization == "compressed-tensors":
        return model.kv_cache_dtype is not None
    return model.quantization in FP8_CHECKPOINTS


def compute_dtype(model: ModelShape, device: Device) -> str:
    """The type the engine computes in: cards before compute capability 8.0 have no bfloat16."""
    before_ampere = device.vendor is Vendor.NVIDIA and device.capability < (8, 0)
    return "float16" if before_ampere else model.dtype


def is_latent(model: ModelShape) -> bool:
    """Whether any layer has latent attention."""
    return any(isinstance(cache, LatentCache) for layer in model.distinct for cache in layer.caches)


def checkpoint_dtype(model: ModelShape, asked: str) -> str:
    """The type asked for, a checkpoint's own choice in place of "auto", on any GPU.

    Compressed-tensors schemes are applied by attention layers themselves, and latent attention is not one of those.
    """
    if model.architecture in IGNORES_KV_CACHE_DTYPE:
        return "auto"
    if model.architecture == "DeepseekV32ForCausalLM" and asked == "bfloat16":
        return "auto"
    if asked == "auto" and model.kv_cache_dtype:
        return "auto" if model.quantization == "compressed-tensors" and is_latent(model) else model.kv_cache_dtype
    return asked


def is_packed(model: ModelShape) -> bool:
    """Whether any layer has compressed attention."""
    return any(isinstance(cache, PackedCache) for layer in model.distinct for cache in layer.caches)


def no_latent_nvfp4() -> Refusal:
    """An NVFP4 cache asked for a model of latent or compressed attention."""
    return Refusal(
        "kv_cache_dtype_unsupported",
        "an NVFP4 cache does not exist for latent attention",
        "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a different "
        "--kv-cache-dtype (e.g., 'fp8', 'auto', or 'nvfp4_ds_mla' with a sparse MLA backend) for MLA models such "
        "as DeepSeek.",
        (use("kv_cache_dtype", "fp8"),),
    )


def keeps_ring(model: ModelShape) -> bool:
    """Whether any layer pools its index keys (Step 5 keeps a ring of open regions instead)."""
    return any(isinstance(cache, RingCache) and cache.slots > 0 for layer in model.distinct for cache in layer.caches)


def packed_dtype(asked: str) -> str | Refusal:
    """What compressed attention stores its cache in: its own format of FP8, and no other.

    Source: vLLM 0.33 `models/deepseek_v4/attention.py: _resolve_dsv4_kv_cache_dtype`.
    """
    if asked == "auto" or asked.startswith("fp8"):
        return "fp8_ds_mla"
    if asked in NVFP4:
        return no_latent_nvfp4()
    return Refusal(
        "kv_cache_dtype_unsupported",
        "compressed attention stores its cache in FP8",
        f"DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got {asked}. Please set `--kv-cache-dtype fp8` or "
        "select a backend that supports bfloat16 KV cache.",
        (use("kv_cache_dtype", "fp8"),),
    )


def resolve_kv_cache_dtype(model: ModelShape, asked: str, device: Device) -> str | Refusal:
    """What the engine makes of `--kv-cache-dtype asked`: a checkpoint's own choice replaces "auto".

    Sources: vLLM 0.33 `resolve_kv_cache_dtype_string`, `models/config.py` (DeepSeek V3.2, GLM), `config/vllm.py`.
    """
    if asked not in KV_CACHE_DTYPES:
        return Refusal(
            "kv_cache_dtype_unknown",
            f"{asked!r} is not a type the KV cache can be stored in; accepted are {', '.join(KV_CACHE_DTYPES)}",
            f"Invalid kv_cache_dtype: {asked!r}. Valid values are: {list(KV_CACHE_DTYPES)}",
            (use("kv_cache_dtype", "auto"),),
        )
    if is_packed(model):
        return packed_dtype(asked)
    follows = checkpoint_dtype(model, asked)
    if follows == asked == "auto" and keeps_ring(model) and device.capability[0] == 10:
        return "fp8"
    if follows == asked == "auto" and model.architecture == "GlmMoeDsaForCausalLM" and device.capability[0] == 10:
        return "fp8_e4m3"
    asked, dtype = follows, compute_dtype(model, device)
    if asked in ("float16", "bfloat16") and asked != dtype:
        return Refusal(
            "kv_cache_dtype_differs",
            f"the cache cannot be {asked} beside a model in {dtype}",
            f'kv_cache_dtype="{asked}" is incompatible with dtype="{dtype}". '
            f"Please set `--kv-cache-dtype` to `auto` or `{dtype}`.",
            (use("kv_cache_dtype", dtype),),
        )
    if asked in NVFP4 and is_latent(model):
        return no_latent_nvfp4()
    return asked
