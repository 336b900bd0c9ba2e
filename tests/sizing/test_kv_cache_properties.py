"""What holds for the cache of any model, on any layout."""

from hypothesis import given
from hypothesis import strategies as st

from service.sizing.engine.refusal import Refusal
from service.sizing.kv_cache.groups import dealt
from service.sizing.kv_cache.planner import CacheLayout, CachePlan, largest_context, plan_cache
from service.sizing.layouts import Layout
from service.sizing.model.modules import Units
from service.sizing.model.shape import (
    AttentionCache,
    Cache,
    ModelShape,
    StateCache,
    StateKind,
    StateTensor,
)
from tests.sizing.cache_models import attempt, laid_out, latent, model

HEAD_SIZES = st.sampled_from([64, 96, 128, 192, 256])
HEADS = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def attention(draw: st.DrawFn) -> Cache:
    """Full, windowed or chunked attention."""
    heads, size = draw(HEADS), draw(HEAD_SIZES)
    span = draw(st.integers(16, 4096))
    kind = draw(st.sampled_from(["full", "window", "chunk"]))
    window, chunk = span if kind == "window" else None, span if kind == "chunk" else None
    return AttentionCache(heads * 8, heads, size, size, window=window, chunk=chunk)


STATES = st.builds(
    lambda kind, rows, columns: StateCache(kind, (StateTensor((Units(rows * 8),), columns, 2),)),
    st.sampled_from(list(StateKind)),
    st.integers(1, 512),
    st.sampled_from([4, 64, 128]),
)
CACHES = st.one_of(attention(), st.just(latent()), STATES)


@st.composite
def models(draw: st.DrawFn) -> ModelShape:
    """Models of up to 40 layers of up to 3 kinds, some of which keep nothing."""
    kinds = draw(st.lists(CACHES, min_size=1, max_size=3))
    choices = st.sampled_from([(kind,) for kind in kinds] + [()])
    layers = [(kinds[0],), *draw(st.lists(choices, max_size=39))]
    return model(*layers, context_tokens=draw(st.integers(1, 1_000_000)))


LAYOUTS = st.builds(
    Layout,
    tensor_parallel_size=st.sampled_from([1, 2, 4, 8]),
    pipeline_parallel_size=st.sampled_from([1, 2, 3, 4]),
)
GPUS = st.sampled_from(["A100", "H100", "B200", "L40S"])
MEMORY = st.integers(0, 1 << 40)


def found(shape: ModelShape, gpu: str, layout: Layout) -> CacheLayout | None:
    """The layout of the cache, where the engine accepts it."""
    cache = attempt(shape, gpu, layout)
    return None if isinstance(cache, Refusal) else cache


@given(models(), GPUS, LAYOUTS)
def test_groups_hold_every_layer_once(shape: ModelShape, gpu: str, layout: Layout) -> None:
    """Whatever the kinds and the stages: no cache is left out and none is in two groups."""
    cache = found(shape, gpu, layout)
    if cache is None:
        return
    held = sum(group.layers for group in cache.groups)
    assert held == sum(len(layer.caches) for layer in shape.layers)
    pages = {spec.page_bytes for group in cache.groups for spec, _ in group.members}
    assert len(pages) <= 1 or len(cache.groups) == 1


@given(models(), GPUS, LAYOUTS, MEMORY, MEMORY)
def test_more_memory_never_lowers_anything(shape: ModelShape, gpu: str, layout: Layout, one: int, other: int) -> None:
    """Blocks, tokens, concurrency and the longest context grow with memory; a refusal never comes back."""
    cache = found(shape, gpu, layout)
    if cache is None:
        return
    less, more = ([memory] * layout.pipeline_parallel_size for memory in sorted((one, other)))
    small, large = plan_cache(cache, less), plan_cache(cache, more)
    assert largest_context(cache, less) <= largest_context(cache, more)
    if isinstance(small, CachePlan):
        assert isinstance(large, CachePlan)
        assert small.num_blocks <= large.num_blocks
        assert small.tokens <= large.tokens
        assert small.max_concurrency <= large.max_concurrency


@given(models(), GPUS, LAYOUTS, MEMORY)
def test_the_longest_context_is_what_the_engine_accepts(
    shape: ModelShape, gpu: str, layout: Layout, memory: int
) -> None:
    """A context of that length is planned; one token more is refused, unless it is the model's own limit."""
    cache = found(shape, gpu, layout)
    if cache is None or not all(cache.block_bytes):
        return
    room = [memory] * layout.pipeline_parallel_size
    longest = largest_context(cache, room)
    if longest:
        shorter = attempt(shape, gpu, layout, max_model_len=longest)
        assert isinstance(shorter, CacheLayout)
        assert isinstance(plan_cache(shorter, room), CachePlan)
    if longest < shape.default_context_tokens:
        blocks = min(memory // block - 1 for block in cache.block_bytes)
        assert cache.blocks_reserved(longest + 1) > blocks


@given(models(), GPUS, LAYOUTS, st.integers(1, 100_000), st.integers(1, 100_000))
def test_conversations_keep_no_more_than_is_reserved(
    shape: ModelShape, gpu: str, layout: Layout, one: int, other: int
) -> None:
    """A longer conversation keeps at least as much, and never more than the planner reserves for it."""
    cache = found(shape, gpu, layout)
    if cache is None:
        return
    shorter, longer = sorted((one, other))
    assert cache.conversation_blocks(shorter) <= cache.conversation_blocks(longer)
    assert cache.conversation_blocks(longer) <= cache.blocks_reserved(longer)


@given(st.integers(1, 61), st.sampled_from([1, 2, 4, 8, 16]), GPUS, MEMORY)
def test_latent_attention_never_shrinks_with_tensor_ranks(layers: int, tensor: int, gpu: str, memory: int) -> None:
    """Every rank keeps the whole latent."""
    shape = model(*[(latent(),)] * layers)
    alone, split = laid_out(shape, gpu), laid_out(shape, gpu, Layout(tensor_parallel_size=tensor))
    assert alone.block_bytes == split.block_bytes
    assert plan_cache(alone, [memory]) == plan_cache(split, [memory])


@given(HEADS, HEAD_SIZES, st.integers(1, 80), st.sampled_from([1, 2, 4]))
def test_attention_is_split_by_heads(heads: int, size: int, layers: int, ranks: int) -> None:
    """A rank keeps its share of the heads and at least one."""
    shape = model(*[(AttentionCache(heads, heads, size, size),)] * layers)
    cache = laid_out(shape, layout=Layout(tensor_parallel_size=ranks))
    assert cache.token_bytes == (layers * max(1, heads // ranks) * size * 4,)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 12))
def test_dealing_is_fair_and_complete(stages: list[int], groups: int) -> None:
    """Dealt in turn, groups differ by at most a layer over the model and on each stage, and none is lost."""
    hands = [dealt(tuple(stages), index, groups) for index in range(groups)]
    assert [sum(shares) for shares in zip(*hands, strict=True)] == stages
    for shares in (*zip(*hands, strict=True), [sum(hand) for hand in hands]):
        assert max(shares) - min(shares) <= 1
