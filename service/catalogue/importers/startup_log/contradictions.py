"""Where a startup log disagrees with itself.

The arithmetic is vLLM's own (0.6.6 `worker/worker.py`; 0.11.2 and 0.33 `v1/worker/gpu_worker.py`,
`v1/core/kv_cache_utils.py`); the tolerances are the rounding of what it prints.
"""

from collections.abc import Iterator

from service.catalogue.importers.startup_log.reading import N, Readings, StartupLog
from service.sizing.engine.profile import release

_ROUNDING_GIB = 0.011
"""Two figures printed to 0.01 GiB differ by no more than this when they are the same."""

_SUM_ROUNDING_GIB = 0.04
"""The same for a sum of up to five of them."""

_PRODUCT_SINCE = (0, 20, 1)
"""From here the printed tokens are concurrency times length (0.33 `v1/core/kv_cache_utils.py`)."""

_V0_BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


def contradictions_in(log: StartupLog) -> Iterator[str]:
    """The places where the figures of one startup cannot all be true, in words."""
    yield from _one_process_two_values(log)
    yield from _capacity(log)
    yield from _budget(log)
    yield from _impossible(log)


def _one_process_two_values(log: StartupLog) -> Iterator[str]:
    """The same rank printed a figure twice, differently."""
    for name in ("weights_gib", "available_kv_gib", "gpu_total_gib", "consumed_gib", "activation_peak_gib"):
        readings: Readings[float] | None = getattr(log, name)
        if readings is None:
            continue
        first: dict[str, float] = {}
        unlabelled = 0
        for reading in readings.each:
            unlabelled += reading.process == ""
            before = first.setdefault(reading.process, reading.value) if reading.process else reading.value
            if abs(before - reading.value) > _ROUNDING_GIB:
                yield f"{name} of {reading.process} is {before:g} and, on line {reading.line}, {reading.value:g}"
        if unlabelled > _ranks(log) and not readings.agree:
            yield f"{name} is printed {unlabelled} times with different values, for {_ranks(log)} rank(s)"


def _capacity(log: StartupLog) -> Iterator[str]:
    """Tokens, blocks and concurrency."""
    length = _only(log.concurrency_tokens)
    concurrency = _only(log.max_concurrency)
    if length is not None and log.max_model_len is not None and length != log.max_model_len.value:
        yield f"concurrency is given for {length} tokens a request, but max_model_len is {log.max_model_len.value}"
    if log.concurrency_tokens is not None and not log.concurrency_tokens.agree:
        lengths = log.concurrency_tokens
        yield f"concurrency is given for {lengths.low} and for {lengths.high} tokens a request"
    if length is None or concurrency is None:
        return
    tokens, blocks = _only(log.kv_tokens), _only(log.gpu_blocks)
    if tokens is not None:
        product_low, product_high = length * (concurrency - 0.005), length * (concurrency + 0.005)
        # Up to 0.20.0 hybrid models print fewer tokens than the product; blocks larger than a request allow a few more.
        slack = 1 + 0.02 + 2 * _block_size(log) / length
        if tokens > product_high * slack + 1 or (_prints_product(log) and tokens < product_low / slack - 1):
            yield f"{tokens} tokens are not {concurrency:g} requests of {length} tokens"
    elif blocks is not None:
        sizes = (log.block_size.value,) if log.block_size else _V0_BLOCK_SIZES
        if all(abs(blocks * size / length - concurrency) > 0.0051 for size in sizes):
            yield f"{blocks} blocks are not {concurrency:g} requests of {length} tokens at any block size"


def _budget(log: StartupLog) -> Iterator[str]:
    """Total, utilisation, requested memory, and its parts."""
    total, requested, available = _only(log.gpu_total_gib), _only(log.requested_gib), _only(log.available_kv_gib)
    share = log.gpu_memory_utilization
    if total is not None and requested is not None and share is not None:
        # V0 prints the share to two digits.
        rounding = 0.005 if log.kv_in_use_gib is None else 0.0
        if abs(total * share.value - requested) > _ROUNDING_GIB + total * rounding:
            yield f"{share.value:g} of {total:g} GiB is not the {requested:g} GiB requested"
    in_use = _only(log.kv_in_use_gib)
    if in_use is not None and available is not None and abs(in_use - available) > _ROUNDING_GIB:
        yield f"the KV cache has {available:g} GiB available and {in_use:g} GiB in use"
    kept = in_use if in_use is not None else available
    if requested is None or kept is None or _sized_in_bytes(log):
        return
    base = log.consumed_gib or log.weights_gib
    parts = [_only(base), _only(log.activation_peak_gib)]
    if log.consumed_gib is None:
        parts.append(_only(log.non_torch_gib))
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return
    # The estimate of CUDA graphs is part of the printed peak in some versions, and charged beside it in others.
    estimate = _only(log.cudagraph_estimate_gib) or 0.0
    if all(abs(requested - sum(known) - graphs - kept) > _SUM_ROUNDING_GIB for graphs in (0.0, estimate)):
        summed = " + ".join(f"{part:g}" for part in known)
        yield f"{requested:g} GiB requested less {summed} GiB used does not leave {kept:g} GiB for the KV cache"


def _impossible(log: StartupLog) -> Iterator[str]:
    """More memory than there is."""
    total, weights, available = _only(log.gpu_total_gib), log.weights_gib, log.available_kv_gib
    if total is None:
        return
    for name, readings in (("weights take", weights), ("the KV cache has", available)):
        if readings is not None and readings.high > total + _ROUNDING_GIB:
            yield f"{name} {readings.high:g} GiB of a GPU of {total:g} GiB"
    share = log.gpu_memory_utilization
    if weights is None or available is None or share is None or _sized_in_bytes(log):
        return
    if weights.low + available.low > total * share.value * 1.01 + 0.1:
        both = f"{weights.low:g} GiB of weights and {available.low:g} GiB of KV cache"
        yield f"{both} exceed {share.value:g} of {total:g} GiB"


def _sized_in_bytes(log: StartupLog) -> bool:
    """Whether the cache was given its size, so that utilisation says nothing about it."""
    return log.kv_cache_memory_bytes is not None or log.reserved_kv_gib is not None


def _only(readings: Readings[N] | None) -> N | None:
    """The value all ranks agree on, to rounding; None where they differ or the log is silent."""
    if readings is None or readings.high - readings.low > _ROUNDING_GIB:
        return None
    return readings.low


def _ranks(log: StartupLog) -> int:
    sizes = (log.tensor_parallel_size, log.pipeline_parallel_size, log.data_parallel_size)
    ranks = 1
    for size in sizes:
        ranks *= size.value if size else 1
    return ranks


def _prints_product(log: StartupLog) -> bool:
    if log.engine_version is None:
        return False
    built_from = release(log.engine_version.value)
    return built_from is not None and built_from >= _PRODUCT_SINCE


def _block_size(log: StartupLog) -> int:
    for stated in (log.attention_block_size, log.block_size):
        if stated is not None:
            return stated.high if isinstance(stated, Readings) else stated.value
    return 16
