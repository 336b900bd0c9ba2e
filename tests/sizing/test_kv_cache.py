"""The cache planner against arithmetic written out by hand and against what vLLM 0.33 prints for it."""

import pytest

from service.sizing.engine.kv_dtypes import attention_cell, indexer_cell, latent_cell
from service.sizing.errors import Indivisible
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token
from service.sizing.kv_cache.planner import largest_context, plan_cache, sequences_refusal
from service.sizing.layouts import Layout
from service.sizing.model.modules import Units
from service.sizing.model.shape import AttentionCache, CrossCache, IndexerCache, StateCache, StateKind, StateTensor
from service.sizing.quantities import GIB
from tests.sizing.cache_models import attempt, delta_net, full, laid_out, latent, model, planned, refusal, window


def test_dense_model_fills_memory_with_blocks_of_sixteen_tokens() -> None:
    """Qwen3-0.6B, 4 GiB: 28 layers x 16 x 8 heads x 256 x 2 B = 1,835,008 B a block, so 2,340 blocks, 37,440 tokens."""
    cache = laid_out(model(*[(full(8, 128),)] * 28), max_model_len=8192)
    assert cache.block_bytes == (1835008,)
    plan = planned(cache, 4 * GIB)
    assert (plan.num_blocks, plan.tokens, cache.block_size) == (2340, 37440, 16)


def test_windowed_layers_reserve_what_is_in_flight() -> None:
    """gpt-oss-120b on an H100: 131072/16 + ceil((127 + 2 x 8192)/16) + 1 = 8192 + 1033 blocks a request."""
    cache = laid_out(model(*[(window(128, 8, 64),), (full(8, 64),)] * 18, attention_sinks=True))
    assert cache.group_blocks_reserved(131072) == (1033, 8192)
    plan = planned(cache, 10 * GIB)
    assert (plan.num_blocks, plan.tokens) == (18204, 258648)
    assert plan.max_concurrency == pytest.approx(1.9733, abs=1e-4)


def test_latent_attention_takes_the_same_on_every_tensor_rank() -> None:
    """DeepSeek V3 with 20 GiB: 61 layers x 1,152 B = 70,272 B a token on each of 8 ranks; 19,099 blocks."""
    shape = model(*[(latent(),)] * 61, context_tokens=163840)
    for tensor in (1, 8):
        cache = laid_out(shape, "H200", Layout(tensor_parallel_size=tensor))
        assert cache.token_bytes == (70272,)
        assert planned(cache, 20 * GIB).tokens == 305584


def test_more_ranks_than_kv_heads_keep_a_head_each() -> None:
    """8 KV heads over 16 ranks: one head a rank, as over 8."""
    shape = model(*[(full(8, 128),)] * 4)
    eight, sixteen = (laid_out(shape, layout=Layout(tensor_parallel_size=ranks)) for ranks in (8, 16))
    assert eight.block_bytes == sixteen.block_bytes == (4 * 16 * 512,)


def test_blocks_of_attention_grow_to_cover_a_recurrent_state() -> None:
    """Qwen3-Next on 2 ranks: 1,024 B a token and a state of 548,864 B: 576 tokens with cached prefixes, 544 without.

    The state is (3 x 4096 + 16 x 128 x 128) x 2 B. Cached prefixes align blocks to 64 tokens on an H100.
    """
    layers = [*[(delta_net(),)] * 3, (full(2, 256),)] * 12
    two = Layout(tensor_parallel_size=2)
    cache = laid_out(model(*layers, context_tokens=262144), layout=two)
    assert cache.block_size == 576
    assert [group.members[0][0].page_bytes for group in cache.groups] == [589824] * 4
    assert [group.layers for group in cache.groups] == [12] * 4
    assert cache.group_blocks_reserved(262144) == (3, 3, 3, 456)
    assert laid_out(model(*layers), layout=two, enable_prefix_caching=False).block_size == 544


def test_a_gated_delta_net_writes_no_states_midway_on_an_a100() -> None:
    """Without that kernel a request keeps two states instead of three and blocks are aligned to 16 tokens."""
    cache = laid_out(model(*[(delta_net(state_bytes=4),)] * 3, (full(4, 256),), context_tokens=262144), "A100")
    assert cache.block_size == 528
    assert cache.group_blocks_reserved(262144) == (2, 2, 2, 497)


def test_layers_of_two_kinds_are_dealt_into_groups_of_the_smaller_number() -> None:
    """Gemma 3 27B, 52 windowed and 10 full layers: 7 groups of 9, 9, 9, 9, 8, 8 and 10 layers, with padding."""
    layers = [*[(window(1024),)] * 5, (full(),)] * 10 + [(window(1024),)] * 2
    cache = laid_out(model(*layers))
    assert [group.layers for group in cache.groups] == [9, 9, 9, 9, 8, 8, 10]
    assert cache.warnings == ("Add 8 padding layers, may waste at most 15.38% KV cache memory",)
    assert cache.block_bytes == (10 * 16 * 8 * 512,)


def test_groups_take_the_larger_number_when_it_is_less_than_half_as_many_again() -> None:
    """13 full and 12 windowed layers: two groups, of 13 and 12; at 12 and 18 the smaller number decides."""
    near = laid_out(model(*[(window(128),)] * 12, *[(full(),)] * 13))
    assert [group.layers for group in near.groups] == [12, 13]
    far = laid_out(model(*[(window(128),)] * 12, *[(full(),)] * 18))
    assert [group.layers for group in far.groups] == [12, 9, 9]


def test_pages_of_unlike_layers_are_made_equal_by_larger_blocks() -> None:
    """Gemma 4: 4 heads of 256 beside 1 head of 512: twice the tokens a block where a token takes half the bytes."""
    cache = laid_out(model(*[*[(window(1024, 4, 256),)] * 5, (full(1, 512),)] * 5))
    assert {group.members[0][0].page_bytes for group in cache.groups} == {65536}
    assert [group.block_size for group in cache.groups] == [16, 16, 16, 16, 16, 32]


def test_pages_that_do_not_divide_are_padded() -> None:
    """3 heads beside 2: pages of 24,576 and 16,384 B both take 24,576 B."""
    cache = laid_out(model((window(64, 3),), (full(2),)))
    assert [(group.block_size, group.members[0][0].page_bytes) for group in cache.groups] == [(16, 24576), (16, 24576)]


def test_indexer_keys_share_the_table_of_latent_attention() -> None:
    """GLM-5.1 on an H100: 78 x 64 x (1,152 + 132) B a block, 78 x 64 x (656 + 132) B with an FP8 cache."""
    shape = model(*[(IndexerCache(128), latent(64, sparse=True))] * 78, context_tokens=202752)
    cache = laid_out(shape, layout=Layout(tensor_parallel_size=8))
    assert (cache.block_size, cache.block_bytes, len(cache.groups)) == (64, (78 * 64 * 1284,), 1)
    packed = laid_out(shape, layout=Layout(tensor_parallel_size=8), kv_cache_dtype="fp8")
    assert packed.block_bytes == (78 * 64 * 788,)


def test_without_the_hybrid_manager_windowed_layers_keep_every_token() -> None:
    """One group, and the windowed layers add bytes to every further token."""
    shape = model(*[(window(128, 8, 64),), (full(8, 64),)] * 18)
    cache = laid_out(shape, disable_hybrid_kv_cache_manager=True)
    assert [group.layers for group in cache.groups] == [36]
    assert cache.token_bytes == (36 * 8 * 128 * 2,)
    assert laid_out(shape).token_bytes == (18 * 8 * 128 * 2,)


def test_each_stage_is_counted_by_its_own_layers() -> None:
    """5 layers over 2 stages are 3 and 2: the larger stage has the fewest blocks and decides."""
    cache = laid_out(model(*[(full(1, 64),)] * 5), layout=Layout(pipeline_parallel_size=2))
    assert cache.block_bytes == (3 * 16 * 256, 2 * 16 * 256)
    assert planned(cache, 10 * GIB, 5 * GIB).num_blocks == 5 * GIB // (2 * 16 * 256)


def test_groups_are_those_of_the_whole_model_on_every_stage() -> None:
    """gpt-oss over 2 stages: each stage has 9 layers of each of the two groups."""
    cache = laid_out(model(*[(window(128, 4, 64),), (full(4, 64),)] * 18), layout=Layout(pipeline_parallel_size=2))
    assert [[stages for _, stages in group.members] for group in cache.groups] == [[(9, 9)], [(9, 9)]]
    assert cache.group_blocks_reserved(131072)[0] == (127 + 3 * 8192 + 15) // 16 + 1


def test_context_parallel_ranks_share_a_conversation() -> None:
    """DeepSeek V3 over 8 ranks, cache split in 2: half the blocks a request, twice the tokens (vLLM: 1,833,568)."""
    cache = laid_out(
        model(*[(latent(),)] * 61, context_tokens=163840),
        layout=Layout(tensor_parallel_size=8, decode_context_parallel_size=2),
    )
    plan = planned(cache, 60 * GIB)
    assert (plan.num_blocks, plan.tokens, cache.token_bytes) == (57299, 1833568, (35136,))


def test_encoder_decoder_reserves_cross_attention_for_a_whole_step() -> None:
    """Whisper large on an H200: 448/16 blocks of its own and 8,192/16 for the encoder; it keeps 1,500/16."""
    cross = CrossCache(20, 20, 64, 1500)
    cache = laid_out(
        model(*[(full(20, 64), cross)] * 32, context_tokens=448, is_encoder_decoder=True, dtype="float16"), "H200"
    )
    assert cache.group_blocks_reserved(448) == (28, 512)
    assert cache.group_blocks_kept(448) == (28, 94)


def test_a_model_that_keeps_nothing_has_one_block() -> None:
    """Encoder-only models print no cache."""
    cache = laid_out(model((), ()))
    assert planned(cache, GIB).num_blocks == 1
    assert largest_context(cache, [GIB]) == 131072


def test_recurrent_layers_alone_keep_a_state_a_request() -> None:
    """Falcon Mamba: 311,296 B a state, one block a request; two where prefixes are cached, as vLLM prints."""
    tensors = (StateTensor((Units(8192),), 3, 2), StateTensor((Units(8192),), 16, 2))
    shape = model(*[(StateCache(StateKind.MAMBA1, tensors),)] * 64, context_tokens=2048)
    assert planned(laid_out(shape), 60 * GIB).max_concurrency == 3233
    plan = planned(laid_out(shape, enable_prefix_caching=True), 60 * GIB)
    assert (plan.tokens, plan.max_concurrency) == (3310592, 1616.5)


def test_a_conversation_keeps_windows_and_states_whole() -> None:
    """4,096 tokens: 256 full blocks; 9 of a window of 128, which may begin inside a block; 4 states of 3 blocks."""
    windowed = laid_out(model(*[(window(128, 8, 64),), (full(8, 64),)] * 18))
    assert windowed.group_blocks_kept(4096) == (9, 256)
    assert windowed.group_blocks_kept(20) == (2, 2)
    assert windowed.conversation_bytes(4096, 0) == 265 * 18 * 16 * 8 * 256
    hybrid = laid_out(model(*[*[(delta_net(),)] * 3, (full(2, 256),)] * 12))
    assert hybrid.group_blocks_kept(4096)[:3] == (3, 3, 3)


def test_a_chunk_keeps_at_most_itself() -> None:
    """Chunks of 8,192 tokens: 512 blocks of a long conversation, all of a short one."""
    chunked = AttentionCache(8, 8, 128, 128, chunk=8192)
    cache = laid_out(model(*[(chunked,)] * 3, (full(),)))
    assert cache.group_blocks_kept(100000)[0] == 512
    assert cache.group_blocks_kept(160)[0] == 10
    assert cache.group_blocks_reserved(131072)[0] == (8192 + 2 * 8192) // 16


def test_kv_bytes_per_token_count_full_and_latent_layers_only() -> None:
    """Llama 3.1 70B: 80 x 8 x 256 x 2 B = 327,680 B; windows and states add nothing; a checkpoint may ask for FP8."""
    llama = model(*[(full(8, 128),)] * 80)
    assert kv_bytes_per_token(llama, "auto") == 327680
    assert kv_bytes_per_token(llama, "fp8") == 163840
    assert kv_bytes_per_token(model((full(),), kv_cache_dtype="fp8"), "auto") == 8 * 256
    assert kv_bytes_per_token(model((full(),), (window(128),), (delta_net(),)), "auto") == 8 * 512
    assert kv_bytes_per_token(model((IndexerCache(128), latent(sparse=True))), "auto") == 1152 + 132


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", 512),
        ("fp8_e5m2", 256),
        ("int8_per_token_head", 264),
        ("fp8_per_token_head", 264),
        ("int4_per_token_head", 136),
        ("nvfp4", 144),
        ("turboquant_k8v4", 196),
        ("turboquant_4bit_nc", 134),
        ("turboquant_k3v4_nc", 118),
        ("turboquant_3bit_nc", 102),
    ],
)
def test_bytes_of_one_token_and_head_of_128(dtype: str, expected: int) -> None:
    """Key and value of 128 elements each: elements, then scales (8 B a token and head) or norms as the format adds.

    nvfp4: 2 x (64 + 8). turboquant_4bit_nc: 64 + 2 and 64 + 4; k8v4: 128 and 68; 3bit: 48 + 2 and 48 + 4.
    """
    assert attention_cell(dtype, 128, 128) == expected


def test_bytes_of_latents_and_indexer_keys() -> None:
    """576 elements: 1,152 B, 576 B in FP8, 656 B and 352 B packed; a key of 128 elements with a scale: 132 B.

    Step 5's 8-bit keys have no scale.
    """
    assert [latent_cell(d, 576) for d in ("auto", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")] == [1152, 576, 656, 352]
    keys = (IndexerCache(128), IndexerCache(128, 2), IndexerCache(256, scaled=False))
    assert [indexer_cell(key) for key in keys] == [132, 256, 256]


def test_asymmetric_heads_count_keys_and_values() -> None:
    """Keys of 192 and values of 128 elements take 640 B a token and head."""
    assert attention_cell("auto", 192, 128) == 640


def test_one_request_too_long_is_refused_in_the_engines_words() -> None:
    """Qwen3-0.6B, 4 GiB and 40,960 tokens: 2,560 blocks of 1,835,008 B are 4.38 GiB, and a null block is kept back.

    2,340 - 1 = 2,339 blocks hold 37,424 tokens.
    """
    cache = laid_out(model(*[(full(8, 128),)] * 28), max_model_len=40960)
    words = refusal(plan_cache(cache, [4 * GIB]))
    assert words == (
        "To serve at least one request with the model's max seq len (40960), (4.38 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (4.0 GiB). Based on the available memory, the estimated maximum "
        "model length is 37424. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
        "backend) or decreasing `max_model_len` when initializing the engine. See "
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
    )


def test_no_memory_is_refused_in_the_engines_words() -> None:
    """A block's worth of memory or less leaves nothing beside the null block."""
    cache = laid_out(model((full(),)))
    assert refusal(plan_cache(cache, [cache.block_bytes[0]])).startswith(
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine"
    )


def test_auto_fit_takes_the_longest_context_that_fits() -> None:
    """Gemma 3 27B with 1 GiB: vLLM 0.33 fits 1,856 tokens, of which it prints 1,858."""
    layers = [*[(window(1024, 16),)] * 5, (full(16),)] * 10 + [(window(1024, 16),)] * 2
    cache = laid_out(model(*layers, image_prefix=True), max_model_len=-1)
    plan = planned(cache, GIB)
    assert (plan.max_model_len, plan.num_blocks, plan.tokens) == (1856, 819, 1858)
    assert largest_context(cache, [GIB]) == 1856


def test_auto_fit_without_room_for_a_token_is_refused() -> None:
    """Fewer blocks than the groups of one token need."""
    cache = laid_out(model(*[(window(64),), (full(),)] * 2), max_model_len=-1)
    words = refusal(plan_cache(cache, [2 * cache.block_bytes[0]]))
    assert words.startswith("Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single")


def test_the_longest_context_is_limited_by_the_tightest_stage() -> None:
    """5 layers over 2 stages with equal memory: the stage of 3 layers decides."""
    cache = laid_out(model(*[(full(1, 64),)] * 5), layout=Layout(pipeline_parallel_size=2))
    memory = 1000 * cache.block_bytes[0]
    assert largest_context(cache, [memory, memory]) == 999 * 16


def test_more_sequences_than_blocks_for_their_states_are_refused() -> None:
    """A captured graph needs a block for every sequence; eager execution and fewer sequences do not."""
    layers = [*[(delta_net(),)] * 3, (full(2, 256),)] * 12
    refused = sequences_refusal(laid_out(model(*layers), max_num_seqs=600), 512)
    assert refusal(refused) == (
        "max_num_seqs (600) exceeds available Mamba cache blocks (512). Each decode sequence requires one Mamba cache "
        "block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 512 or increase "
        "gpu_memory_utilization."
    )
    assert sequences_refusal(laid_out(model(*layers), max_num_seqs=512), 512) is None
    assert sequences_refusal(laid_out(model(*layers), max_num_seqs=600, enforce_eager=True), 512) is None
    assert sequences_refusal(laid_out(model((full(),)), max_num_seqs=600), 512) is None


def test_windows_cannot_be_split_by_tokens() -> None:
    """Decode context parallelism beside sliding windows."""
    layout = Layout(tensor_parallel_size=8, decode_context_parallel_size=2)
    assert refusal(attempt(model((window(128, 1),), (full(1),)), layout=layout)) == "DCP not support sliding window."


def test_unlike_layers_need_the_hybrid_manager() -> None:
    """Recurrent or cross-attention layers beside full ones cannot be promoted, nor windows of two sizes."""
    hybrid = model((delta_net(),), (full(2, 256),))
    words = "Failed to promote local KV cache specs to one unified type."
    assert refusal(attempt(hybrid, disable_hybrid_kv_cache_manager=True)) == words
    two = model((window(128),), (window(256),), (full(),))
    assert "must have the same window size" in refusal(attempt(two, disable_hybrid_kv_cache_manager=True))


def test_latent_pages_that_fit_no_other_make_windows_full() -> None:
    """16 x 1,152 B does not divide 16 x 2,048 B and a latent page cannot be padded: all layers keep every token."""
    cache = laid_out(model((latent(),), (window(512, 8, 64),)))
    assert len(cache.groups) == 1
    assert cache.token_bytes == (1152 + 2048,)


def test_a_stage_without_any_cache_stops_the_engine() -> None:
    """Two layers over two stages, the second of which keeps nothing: the engine divides by zero."""
    cache = laid_out(model((full(),), ()), layout=Layout(pipeline_parallel_size=2))
    assert "modulo by zero" in refusal(plan_cache(cache, [GIB, GIB]))


def test_a_state_that_does_not_divide_raises() -> None:
    """32 value heads over 12 ranks."""
    with pytest.raises(Indivisible):
        attempt(model((delta_net(),), (full(2, 256),)), layout=Layout(tensor_parallel_size=12))
