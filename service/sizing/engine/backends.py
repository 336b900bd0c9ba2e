"""Which attention kernels the engine picks, and the block sizes they take.

Source: vLLM 0.33 `platforms/cuda.py: _get_backend_priorities`, `v1/attention/backends/`. Kernels that need FlashInfer
are left out where another kernel stores the same bytes: `note` says where an installation that has it differs.
"""

from dataclasses import dataclass, replace

from service.sizing.engine import kv_dtypes
from service.sizing.engine.device import Device
from service.sizing.engine.refusal import Refusal, leave_out, use
from service.sizing.hardware import Vendor

FA4_HEAD_256_BLOCK = 128
"""The dedicated kernel for heads of 256 on Blackwell reads pages of 128 tokens."""

SM90_FP8_HEAD_512_BLOCK = 64
"""FlashAttention 4 on Hopper reads an 8-bit cache of heads of 512 in pages of 64 tokens."""


@dataclass(frozen=True, slots=True)
class AttentionQuery:
    """What the engine asks when it picks the kernels of one attention layer.

    Attributes
    ----------
    head_size, value_head_size : int
        Elements of a key and of a value; latent and rotary elements together for latent attention.
    heads : int
        Query heads on a rank.
    dtype, kv_cache_dtype : str
        Types of computation and of the cache.
    block_size : int or None
        As the caller fixed it.
    latent, indexed : bool
        Latent attention; with an indexer that picks tokens.
    blockwise_sparse : bool
        Plain attention over blocks that an indexer picks (MiniMax M3).
    windowed, sinks, softcap, image_prefix, context_split : bool
        Sliding window; sink logits; capped logits; images that attend both ways; cache split by tokens over ranks.
    model_head_size : int
        Head size the engine takes for the whole model before it has seen the layers.
    mixed_heads : bool
        Gemma 4 with heads of several sizes, which one generation of kernels serves throughout.
    only_flash_attention_2 : bool
        Some layer's cache is TurboQuant's, which knows no newer generation.
    flash_mla_first : bool
        Releases that put FlashMLA before FlashAttention on Hopper.
    rope_free : bool
        Latent attention without a rotary part.
    """

    head_size: int
    value_head_size: int
    heads: int
    dtype: str
    kv_cache_dtype: str
    block_size: int | None
    latent: bool
    indexed: bool
    blockwise_sparse: bool
    windowed: bool
    sinks: bool
    softcap: bool
    image_prefix: bool
    context_split: bool
    model_head_size: int
    mixed_heads: bool = False
    only_flash_attention_2: bool = False
    flash_mla_first: bool = False
    rope_free: bool = False


@dataclass(frozen=True, slots=True)
class Kernels:
    """An attention backend: its name, and the block sizes it takes.

    With `multiples` any multiple of the one size in `blocks`; without, exactly one of them (a block that is a multiple
    is cut into such).
    """

    name: str
    blocks: tuple[int, ...] = (16,)
    multiples: bool = True

    def accepts(self, block_size: int) -> bool:
        """Whether a block of `block_size` tokens can be cut into kernel blocks."""
        return any(block_size % block == 0 for block in self.blocks)

    def largest_within(self, block_size: int) -> int:
        """Largest kernel block of at most `block_size` tokens; the smallest where none is."""
        if self.multiples:
            return max(self.blocks[0], block_size // self.blocks[0] * self.blocks[0])
        return max((block for block in self.blocks if block <= block_size), default=min(self.blocks))


def flash_attention_version(query: AttentionQuery, device: Device, head_size: int | None, value_size: int) -> int:
    """The FlashAttention generation used for a head size (None: asked in general).

    Source: vLLM 0.33 `fa_utils.py: get_flash_attn_version`.
    """
    major = device.capability[0]
    if query.only_flash_attention_2:
        return 2
    version = {9: 3, 10: 4}.get(major, 2)
    if version == 3 and head_size is not None and head_size > 256:
        version = 4
    if version == 4 and major >= 10 and head_size is not None and head_size > 128:
        whole = head_size == value_size == 256 and not _no_head_256_kernel(query)
        if not whole and (head_size, value_size) != (192, 128):
            version = 2
    return version


def _no_head_256_kernel(query: AttentionQuery) -> bool:
    """Whether something keeps Blackwell's kernel for heads of 256 from being used."""
    return (
        query.sinks
        or query.softcap
        or query.image_prefix
        or query.context_split
        or kv_dtypes.is_quantised(query.kv_cache_dtype)
    )


def flash_attention(query: AttentionQuery, device: Device, head_size: int, value_size: int) -> Kernels:
    """FlashAttention and its block sizes for a head size."""
    if (
        device.capability[0] == 9
        and head_size == 512
        and query.kv_cache_dtype in ("fp8", "fp8_e4m3")
        and device.runs_flash_attention_4
    ):
        return Kernels("FLASH_ATTN", (SM90_FP8_HEAD_512_BLOCK,), multiples=False)
    if (
        device.capability[0] == 10
        and head_size == value_size == 256
        and flash_attention_version(query, device, head_size, value_size) == 4
    ):
        return Kernels("FLASH_ATTN", (FA4_HEAD_256_BLOCK,), multiples=False)
    return Kernels("FLASH_ATTN")


def _flash_attention_serves(query: AttentionQuery, device: Device, *, image_prefix: bool) -> bool:
    """Whether FlashAttention takes this layer (`FlashAttentionBackend.validate_configuration`)."""
    head, dtype = query.head_size, query.kv_cache_dtype
    general = flash_attention_version(query, device, None, query.value_head_size)
    exact = flash_attention_version(query, device, head, query.head_size)
    if device.capability < (8, 0) or head % 8 or head > (512 if device.runs_flash_attention_4 else 256):
        return False
    if query.sinks and general not in (3, 4):
        return False
    if image_prefix and (exact != 4 or (kv_dtypes.is_quantised(dtype) and device.capability == (9, 0))):
        return False
    whole_model = flash_attention(query, device, query.model_head_size, query.model_head_size)
    if query.block_size is not None and not whole_model.accepts(query.block_size):
        return False
    if not kv_dtypes.is_quantised(dtype):
        return True
    if dtype not in ("fp8", "fp8_e4m3"):
        return False
    if device.capability[0] == 9:
        return exact == 3 or head == 512
    return device.capability[0] == 10 and exact == 4


def _plain(query: AttentionQuery, device: Device) -> Kernels | None:
    """Kernels of grouped-query attention, by priority."""
    dtype, head = query.kv_cache_dtype, query.head_size
    if query.blockwise_sparse:
        serves = dtype in kv_dtypes.SIXTEEN_BIT or dtype in ("fp8", "fp8_e4m3", "fp8_e5m2")
        return Kernels("MINIMAX_M3_SPARSE", (128,), multiples=False) if serves else None
    sixteen = query.block_size is None or query.block_size % 16 == 0
    only_triton = query.mixed_heads and not device.runs_flash_attention_4
    composite = query.image_prefix and device.capability[0] == 9 and head in (256, 512)
    if not only_triton and _flash_attention_serves(query, device, image_prefix=query.image_prefix and not composite):
        kernels = flash_attention(query, device, head, query.value_head_size)
        return replace(kernels, name="TRITON_FLASH_ATTN") if composite else kernels
    if not sixteen:
        return None
    if dtype in kv_dtypes.NVFP4:
        serves = device.capability[0] == 10 and head in (64, 128, 256, 512) and not query.image_prefix
        return Kernels("FLASHINFER", (16, 32, 64), multiples=False) if serves else None
    if dtype in kv_dtypes.TURBOQUANT_BITS:
        serves = not (query.windowed or query.sinks or query.image_prefix or query.context_split)
        return Kernels("TURBOQUANT", (16, 32, 64, 128), multiples=False) if serves else None
    if dtype not in TRITON_DTYPES or query.context_split:
        return None
    if head >= 32:
        return Kernels("TRITON_ATTN")
    return Kernels("FLEX_ATTENTION") if dtype in kv_dtypes.SIXTEEN_BIT and not query.sinks else None


TRITON_DTYPES = kv_dtypes.SIXTEEN_BIT | kv_dtypes.PER_TOKEN_HEAD | {"fp8", "fp8_e4m3", "fp8_e5m2"}

LATENT_HEADS = (320, 512, 576)
"""Sizes of latent and rotary part together that the dense latent kernels but Triton's take."""


def _latent(query: AttentionQuery, device: Device) -> Kernels | None:
    """Kernels of dense latent attention, by priority."""
    dtype, block, major = query.kv_cache_dtype, query.block_size, device.capability[0]
    wide = dtype in ("fp8", "fp8_e4m3") or dtype in kv_dtypes.SIXTEEN_BIT

    def takes(size: int) -> bool:
        return block is None or block % size == 0

    known = query.head_size in LATENT_HEADS and wide
    if major == 10 and known and takes(128):
        return Kernels("CUTLASS_MLA", (128,), multiples=False)
    if major == 9 and known and dtype in kv_dtypes.SIXTEEN_BIT and takes(16) and not query.flash_mla_first:
        return Kernels("FLASH_ATTN_MLA")
    if major == 9 and known and takes(64):
        return Kernels("FLASHMLA", (64,), multiples=False)
    return Kernels("TRITON_MLA") if wide and takes(16) else None


def _indexed(query: AttentionQuery, device: Device) -> Kernels | None:
    """Kernels of latent attention over the tokens an indexer picks, by priority."""
    dtype, major = query.kv_cache_dtype, device.capability[0]

    def takes(size: int) -> bool:
        return query.block_size is None or query.block_size % size == 0

    flash_mla = Kernels("FLASHMLA_SPARSE", (64,))
    can_flash_mla = (
        takes(64)
        and query.dtype == "bfloat16"
        and dtype in {"auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"}
        and (query.head_size == 576 or (query.head_size == 512 and query.rope_free and major == 9 and dtype != "fp8"))
        and (dtype != "nvfp4_ds_mla" or major == 10)
    )
    if major == 9:
        if takes(64) and dtype in kv_dtypes.SIXTEEN_BIT and not query.context_split:
            return Kernels("FLASH_ATTN_MLA_SPARSE", (64,))
        return flash_mla if can_flash_mla else None
    if major == 10:
        flash_infer = Kernels("FLASHINFER_MLA_SPARSE", (32,))
        can_flash_infer = takes(32) and dtype in {*kv_dtypes.SIXTEEN_BIT, "fp8", "fp8_e4m3"}
        order = [(flash_infer, can_flash_infer), (flash_mla, can_flash_mla)]
        if not kv_dtypes.is_quantised(dtype) and query.heads > 16:
            order.reverse()
        return next((kernels for kernels, serves in order if serves), None)
    return None


def _amd(query: AttentionQuery) -> Kernels | None:
    """The kernels that stand for all of AMD's (vLLM 0.33 `platforms/rocm.py`); Octave's formats are not restated."""
    dtype = query.kv_cache_dtype
    if query.indexed or query.blockwise_sparse:
        return None
    if query.latent:
        return Kernels("TRITON_MLA") if dtype in kv_dtypes.SIXTEEN_BIT | {"fp8", "fp8_e4m3"} else None
    if dtype in kv_dtypes.TURBOQUANT_BITS:
        return Kernels("TURBOQUANT", (16, 32, 64, 128), multiples=False)
    return Kernels("TRITON_ATTN") if dtype in TRITON_DTYPES else None


def choose_kernels(query: AttentionQuery, device: Device) -> Kernels | Refusal:
    """The kernels of one attention layer, or why none serves it.

    On AMD the Triton kernels stand for all: their blocks have the same bytes.
    """
    if device.vendor is not Vendor.NVIDIA:
        return _amd(query) or _none_found(query, device)
    if query.latent:
        kernels = _indexed(query, device) if query.indexed else _latent(query, device)
    else:
        kernels = _plain(query, device)
    if kernels is None:
        return _none_found(query, device)
    return _construction_fault(kernels, query, device) or kernels


def _construction_fault(kernels: Kernels, query: AttentionQuery, device: Device) -> Refusal | None:
    """What a kernel refuses only when its layer is built."""
    major, minor = device.capability
    triton = {"TRITON_ATTN": "Triton attention", "TRITON_MLA": "Triton MLA"}.get(kernels.name)
    if triton and query.kv_cache_dtype.startswith("fp8") and device.capability < (8, 9):
        other = "bfloat16" if device.capability >= (8, 0) else "float16"
        return Refusal(
            "kv_cache_dtype_unsupported",
            f"{device.name} has no 8-bit floating point, so an FP8 cache needs kernels beyond vLLM's own",
            f"FP8 KV cache is not supported by the {triton} backend on {device.name} (compute capability "
            f"{major}.{minor}); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype {other}.",
            (use("kv_cache_dtype", other),),
        )
    if triton and query.kv_cache_dtype == "bfloat16" and device.capability < (8, 0):
        return Refusal(
            "kv_cache_dtype_unsupported",
            f"{device.name} has no bfloat16",
            f"bfloat16 KV cache is not supported on {device.name} (compute capability {major}.{minor}); bfloat16 "
            "requires SM80+. Re-run with --kv-cache-dtype float16.",
            (use("kv_cache_dtype", "float16"),),
        )
    if kernels.name == "FLASHMLA_SPARSE" and query.context_split and not kv_dtypes.is_quantised(query.kv_cache_dtype):
        return Refusal(
            "context_parallel_unsupported",
            "sparse latent attention splits its cache by tokens only in the FP8 format",
            "DCP for FlashMLA sparse requires an fp8_ds_mla kv-cache; the bf16 sparse path is not supported under DCP.",
            (use("kv_cache_dtype", "fp8"),),
        )
    return None


def _none_found(query: AttentionQuery, device: Device) -> Refusal:
    """No kernel serves the layer."""
    platform = "cuda" if device.vendor is Vendor.NVIDIA else "rocm"
    fixes = (leave_out("block_size"),) if query.block_size is not None else ()
    if kv_dtypes.is_quantised(query.kv_cache_dtype):
        fixes = (*fixes, use("kv_cache_dtype", "auto"), use("kv_cache_dtype", query.dtype))
    return Refusal(
        "no_attention_backend",
        f"no attention kernel on {device.name} stores heads of {query.head_size} as {query.kv_cache_dtype}"
        + (f" in blocks of {query.block_size} tokens" if query.block_size is not None else ""),
        f"No valid attention backend found for {platform} with AttentionSelectorConfig(head_size={query.head_size}, "
        f"dtype=torch.{query.dtype}, kv_cache_dtype={query.kv_cache_dtype}, block_size={query.block_size}, "
        f"use_mla={query.latent}, has_sink={query.sinks}, use_sparse={query.indexed}, "
        f"use_mm_prefix={query.image_prefix}, use_per_head_quant_scales=False, attn_type=AttentionType.DECODER, "
        f"has_sliding_window={query.windowed}, use_non_causal=False, use_batch_invariant=False, "
        f"use_kv_connector=False, use_adaptive_verification=False, use_pcp=False, use_dcp={query.context_split}, "
        "use_rswa=False).",
        fixes,
    )


def for_whole_model(kernels: Kernels, query: AttentionQuery, device: Device) -> Kernels:
    """The same kernels with the block sizes the engine sees before it looks at layers, by the model's head size."""
    if kernels.name not in ("FLASH_ATTN", "TRITON_FLASH_ATTN"):
        return kernels
    return replace(flash_attention(query, device, query.model_head_size, query.model_head_size), name=kernels.name)


def stored_dtype(kernels: Kernels, kv_cache_dtype: str) -> str:
    """The type a layer's cache is really stored in: the sparse kernel of FlashMLA packs any 8-bit latent its own way.

    Source: vLLM 0.33 `mla_attention.py: _canonicalize_sparse_mla_kv_cache_dtype`.
    """
    if kernels.name == "FLASHMLA_SPARSE" and kv_cache_dtype in kv_dtypes.FP8:
        return "fp8_ds_mla"
    return kv_cache_dtype


def note(query: AttentionQuery, kernels: Kernels, device: Device) -> str | None:
    """Where an installation with FlashInfer picks other kernels than those restated here."""
    if device.vendor is not Vendor.NVIDIA:
        return f"attention kernels on {device.name} are taken as {kernels.name}: the engine may pick others"
    if device.capability[0] != 10 or query.indexed or query.blockwise_sparse or kernels.name == "FLASHINFER":
        return None
    other, block = ("FLASHINFER_MLA", 32) if query.latent else ("FLASHINFER", 16)
    return (
        f"{kernels.name} is assumed; with FlashInfer installed the engine picks {other}: the same bytes a token, "
        f"in blocks of {block}"
    )
