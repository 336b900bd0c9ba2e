"""Which attention kernels and cache types the engine accepts, against vLLM 0.33's own selector without FlashInfer."""

import pytest

from service.sizing.engine.backends import Kernels
from service.sizing.layouts import Layout
from service.sizing.model.shape import AttentionCache, IndexerCache, ModelShape, PackedCache, PackedRole
from tests.sizing.cache_models import attempt, delta_net, full, laid_out, latent, model, refusal, window

DENSE = model((full(8, 128),) * 1)
LATENT = model((latent(),))
SPARSE = model((IndexerCache(128), latent(64, sparse=True)))
COMPRESSED = model((PackedCache(PackedRole.LATENT, 512, 584, 4),))
SINKS = model((full(8, 64),), attention_sinks=True)
IMAGES = model((window(1024, 4, 256),), (full(4, 256),), image_prefix=True)


@pytest.mark.parametrize(
    ("shape", "gpu", "dtype", "kernels", "block_size"),
    [
        (DENSE, "H100", "auto", "FLASH_ATTN", 16),
        (DENSE, "H100", "fp8", "FLASH_ATTN", 16),
        (DENSE, "H100", "fp8_e5m2", "TRITON_ATTN", 16),
        (DENSE, "L40S", "fp8", "TRITON_ATTN", 16),
        (DENSE, "B200", "fp8", "FLASH_ATTN", 16),
        (DENSE, "T4", "auto", "TRITON_ATTN", 16),
        (DENSE, "A100", "int8_per_token_head", "TRITON_ATTN", 16),
        (DENSE, "MI300X", "fp8", "TRITON_ATTN", 16),
        (LATENT, "H100", "auto", "FLASH_ATTN_MLA", 16),
        (LATENT, "H100", "fp8", "FLASHMLA", 64),
        (LATENT, "A100", "auto", "TRITON_MLA", 16),
        (LATENT, "B200", "auto", "CUTLASS_MLA", 128),
        (SINKS, "A100", "auto", "TRITON_ATTN", 16),
        (SINKS, "H100", "auto", "FLASH_ATTN", 16),
        (IMAGES, "H100", "auto", "TRITON_FLASH_ATTN", 16),
        (IMAGES, "A100", "auto", "TRITON_ATTN", 16),
        (IMAGES, "B200", "auto", "TRITON_ATTN", 16),
        (model((full(4, 256),)), "B200", "auto", "FLASH_ATTN", 128),
        (model((full(4, 256),)), "B200", "fp8", "TRITON_ATTN", 16),
        (model((full(4, 256),), logit_softcap=True), "B200", "auto", "FLASH_ATTN", 16),
        (model((full(1, 512),)), "H100", "fp8", "FLASH_ATTN", 64),
        (model((full(1, 512),)), "A100", "auto", "TRITON_ATTN", 16),
        (model((full(2, 100),)), "H100", "auto", "TRITON_ATTN", 16),
        (model((full(2, 20),)), "H100", "auto", "FLEX_ATTENTION", 16),
    ],
)
def test_kernels_by_gpu_and_cache_type(shape: ModelShape, gpu: str, dtype: str, kernels: str, block_size: int) -> None:
    """The first kernel in the engine's order that takes the layer, and the block size it prefers."""
    cache = laid_out(shape, gpu, kv_cache_dtype=dtype)
    assert (cache.kernels, cache.block_size) == ((kernels,), block_size)


@pytest.mark.parametrize(
    ("gpu", "heads", "dtype", "kernels"),
    [
        ("H100", 64, "auto", "FLASH_ATTN_MLA_SPARSE"),
        ("H100", 64, "fp8", "FLASHMLA_SPARSE"),
        ("B200", 64, "auto", "FLASHMLA_SPARSE"),
        ("B200", 8, "auto", "FLASHINFER_MLA_SPARSE"),
        ("B200", 64, "fp8", "FLASHINFER_MLA_SPARSE"),
    ],
)
def test_kernels_over_indexed_tokens(gpu: str, heads: int, dtype: str, kernels: str) -> None:
    """Latent attention with an indexer: blocks of 64 tokens, by GPU, cache type and number of heads."""
    cache = laid_out(model((IndexerCache(128), latent(heads, sparse=True))), gpu, kv_cache_dtype=dtype)
    assert (cache.kernels, cache.block_size) == (("DEEPSEEK_V32_INDEXER", kernels), 64)


def test_blockwise_sparse_layers_take_blocks_of_128() -> None:
    """MiniMax M3: plain layers beside sparse ones with plain 16-bit indexer keys."""
    sparse = AttentionCache(64, 8, 128, 128, sparse=True)
    cache = laid_out(model((full(8, heads=64),), (sparse, IndexerCache(128, 2))))
    assert cache.block_size == 128
    assert cache.kernels == ("FLASH_ATTN", "MINIMAX_M3_SPARSE", "MINIMAX_M3_SPARSE_INDEXER")


def test_turboquant_leaves_two_layers_at_each_end_in_sixteen_bits() -> None:
    """Qwen3-0.6B: 4 layers of 131,072 B and 24 of 34,304 B a block of 32 tokens, as vLLM lays them out."""
    cache = laid_out(model(*[(full(8, 128),)] * 28), kv_cache_dtype="turboquant_4bit_nc")
    assert cache.block_size == 32
    (group,) = cache.groups
    assert [(spec.page_bytes, layers) for spec, layers in group.members] == [(131072, (4,)), (34304, (24,))]


def test_turboquant_covers_recurrent_models_throughout() -> None:
    """Qwen3.5-4B: no layer is left out, and a block of 2,048 tokens covers the state."""
    shape = model(*[*[(delta_net(state_bytes=4),)] * 3, (full(4, 256),)] * 8)
    assert laid_out(shape, kv_cache_dtype="turboquant_4bit_nc").block_size == 2048


NONE_FOUND = "No valid attention backend found for cuda with AttentionSelectorConfig(head_size="


@pytest.mark.parametrize(
    ("shape", "gpu", "dtype", "words"),
    [
        (
            DENSE,
            "H100",
            "fp7",
            "Invalid kv_cache_dtype: 'fp7'. Valid values are: ['auto', 'float16', 'bfloat16', 'fp8'",
        ),
        (
            DENSE,
            "H100",
            "float16",
            'kv_cache_dtype="float16" is incompatible with dtype="bfloat16". '
            "Please set `--kv-cache-dtype` to `auto` or `bfloat16`.",
        ),
        (
            DENSE,
            "T4",
            "fp8",
            "FP8 KV cache is not supported by the Triton attention backend on Tesla T4 (compute capability 7.5); "
            "native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype float16.",
        ),
        (
            LATENT,
            "A100",
            "fp8",
            "FP8 KV cache is not supported by the Triton MLA backend on NVIDIA A100-SXM4-80GB (compute capability "
            "8.0); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype bfloat16.",
        ),
        (COMPRESSED, "H100", "nvfp4", "nvfp4 KV cache is not supported with MLA"),
        (COMPRESSED, "H100", "bfloat16", "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16."),
        (
            LATENT,
            "H100",
            "nvfp4",
            "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a different "
            "--kv-cache-dtype (e.g., 'fp8', 'auto', or 'nvfp4_ds_mla' with a sparse MLA backend) for MLA models such "
            "as DeepSeek.",
        ),
        (
            LATENT,
            "H100",
            "fp8_e5m2",
            f"{NONE_FOUND}576, dtype=torch.bfloat16, kv_cache_dtype=fp8_e5m2, block_size=None, use_mla=True, "
            "has_sink=False, use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, "
            "attn_type=AttentionType.DECODER, has_sliding_window=False, use_non_causal=False, "
            "use_batch_invariant=False, use_kv_connector=False, use_adaptive_verification=False, use_pcp=False, "
            "use_dcp=False, use_rswa=False)",
        ),
        (SPARSE, "H100", "fp8_e4m3", NONE_FOUND),
        (DENSE, "H100", "nvfp4", NONE_FOUND),
        (DENSE, "H100", "octave_k3v4", NONE_FOUND),
        (DENSE, "H100", "fp8_inc", NONE_FOUND),
        (SINKS, "H100", "turboquant_k8v4", NONE_FOUND),
        (
            model((full(),), quantization="fp8"),
            "H100",
            "fp8_e5m2",
            "fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",
        ),
    ],
)
def test_cache_types_are_refused_in_the_engines_words(shape: ModelShape, gpu: str, dtype: str, words: str) -> None:
    """Cache types that no kernel, GPU or model takes."""
    assert words in refusal(attempt(shape, gpu, kv_cache_dtype=dtype))


@pytest.mark.parametrize(("shape", "block_size"), [(DENSE, 8), (SPARSE, 16), (model((full(4, 20),)), 24)])
def test_block_sizes_that_no_kernel_takes_are_refused(shape: ModelShape, block_size: int) -> None:
    """Kernels read whole multiples of 16 tokens, over indexed tokens of 64."""
    assert NONE_FOUND in refusal(attempt(shape, block_size=block_size))


def test_sparse_attention_splits_tokens_only_in_its_packed_format() -> None:
    """Decode context parallelism over indexed tokens."""
    layout = Layout(tensor_parallel_size=8, decode_context_parallel_size=2)
    words = "DCP for FlashMLA sparse requires an fp8_ds_mla kv-cache; the bf16 sparse path is not supported under DCP."
    assert refusal(attempt(SPARSE, layout=layout)) == words
    assert laid_out(SPARSE, layout=layout, kv_cache_dtype="fp8").kernels[1] == "FLASHMLA_SPARSE"


def test_checkpoints_choose_their_cache_type() -> None:
    """ "auto" follows the checkpoint; GLM takes FP8 on Blackwell; Falcon never hears of the flag."""
    assert laid_out(model((full(),), kv_cache_dtype="fp8_e4m3")).dtype == "fp8_e4m3"
    glm = model((IndexerCache(128), latent(64, sparse=True)), architecture="GlmMoeDsaForCausalLM")
    assert (laid_out(glm, "B200").dtype, laid_out(glm, "H100").dtype) == ("fp8_e4m3", "auto")
    falcon = model((full(1, 64),), architecture="FalconForCausalLM")
    assert laid_out(falcon, kv_cache_dtype="fp8").token_bytes == (256,)
    compressed = model((latent(),), kv_cache_dtype="fp8", quantization="compressed-tensors")
    assert laid_out(compressed).token_bytes == (1152,)


def test_a_note_says_where_an_installation_differs() -> None:
    """On Blackwell FlashInfer changes the block size, never the bytes; elsewhere there is nothing to say."""
    assert "FLASHINFER_MLA" in laid_out(LATENT, "B200").notes[0]
    assert laid_out(LATENT, "H100").notes == ()


def test_a_given_block_size_is_kept_unless_a_state_needs_more() -> None:
    """48 tokens on plain attention; 576 rounded up to a multiple of 48 and 64 beside a state."""
    assert laid_out(DENSE, block_size=48).block_size == 48
    hybrid = model(*[*[(delta_net(),)] * 3, (full(2, 256),)] * 12)
    assert laid_out(hybrid, layout=Layout(tensor_parallel_size=2), block_size=48).block_size == 576


def test_kernel_blocks_within_a_block() -> None:
    """The largest kernel block that a block holds, else the smallest there is."""
    assert Kernels("A", (16,)).largest_within(100) == 96
    assert Kernels("A", (16,)).largest_within(8) == 16
    assert Kernels("A", (16, 32, 64), multiples=False).largest_within(48) == 32
    assert Kernels("A", (128,), multiples=False).largest_within(16) == 128
