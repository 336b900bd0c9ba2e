"""What makes a measurement doubtful.

A check gives its reasons for quarantine in words; an empty tuple means that nothing speaks against the measurement. The
caller chooses the others it is compared with: measurements of the same model, GPU, layout and release.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import isfinite
from statistics import median

from service.catalogue.records.calibration import (
    Collective,
    Latency,
    LinkMeasurement,
    LinkPoint,
    ServingFigures,
    ServingMeasurement,
    StartupMeasurement,
)

FEWEST_OTHERS = 3
"""An outlier needs this many others to be one."""

STARTUP_NOISE_GIB = 0.5
"""Repeats of one startup agree to 0.02 GiB; rebuilds of a release on other clusters within this."""

WEIGHTS_NOISE = 0.01
"""Loaded weights of one model, precision and layout agree to this share."""

SERVING_SPREAD = 2.0
"""Reruns of one point differ by up to 1.5 times (P90 over dates and versions); beyond this factor one is wrong."""

MOST_FAILED = 0.01
"""Share of requests that may fail."""

REQUESTS_FOR_EACH = 4
"""Requests for each allowed at once, from which on filling and emptying a run weighs little."""

LEAST_FILLED = 0.4
"""Share of the allowed concurrency that a closed loop keeps under way at the least."""

LINK_SPREAD = 2.0
"""Bus bandwidth of the same cards at the same message size differs by less than this factor between machines."""

_DEVIATIONS = 6
"""Median absolute deviations that are still noise."""


def check_startup(measurement: StartupMeasurement, others: Iterable[StartupMeasurement] = ()) -> tuple[str, ...]:
    """Reasons not to use a startup: figures that cannot be, or that the others contradict.

    Parameters
    ----------
    measurement : StartupMeasurement
        The startup in question.
    others : iterable of StartupMeasurement
        Startups of the same model, precision, GPU, layout and release; fewer than three decide nothing.
    """
    return (*_impossible_startup(measurement), *_startup_outlier(measurement, list(others)))


def _impossible_startup(startup: StartupMeasurement) -> Iterator[str]:
    weights, available, total = startup.weights_gib, startup.available_kv_gib, startup.gpu_total_gib
    if weights is None and available is None and startup.kv_tokens is None and startup.gpu_blocks is None:
        yield "it holds no figure: neither weights nor cache"
    if weights is not None and weights <= 0:
        yield f"the weights take {weights:g} GiB"
    if total is not None:
        for name, size in (("the weights take", weights), ("the cache has", available)):
            if size is not None and size > total + 0.01:
                yield f"{name} {size:g} GiB of a GPU of {total:g} GiB"
    overhead = startup.overhead_gib
    if overhead is not None and total is not None and overhead < -0.1 - 0.01 * total:
        yield f"weights and cache together exceed the budget by {-overhead:.2f} GiB"
    tokens, concurrency, length = startup.kv_tokens, startup.max_concurrency, startup.concurrency_tokens
    if tokens and concurrency and length and tokens > length * (concurrency + 0.005) * 1.5:
        yield f"{tokens} tokens are more than {concurrency:g} requests of {length} tokens"


def _startup_outlier(startup: StartupMeasurement, others: Sequence[StartupMeasurement]) -> Iterator[str]:
    overheads = [other.overhead_gib for other in others if other.overhead_gib is not None]
    if startup.overhead_gib is not None:
        yield from _far_from(
            startup.overhead_gib, overheads, STARTUP_NOISE_GIB, "memory beside weights and cache", "GiB"
        )
    loaded = [other.weights_gib for other in others if other.weights_gib is not None]
    if startup.weights_gib is not None and loaded:
        yield from _far_from(startup.weights_gib, loaded, WEIGHTS_NOISE * median(loaded), "weights", "GiB")


def _far_from(value: float, others: Sequence[float], noise: float, name: str, unit: str) -> Iterator[str]:
    """A reason where `value` is farther from the median of the others than noise and their own spread explain."""
    if len(others) < FEWEST_OTHERS:
        return
    middle = median(others)
    spread = median(abs(other - middle) for other in others)
    if abs(value - middle) > max(noise, _DEVIATIONS * spread):
        yield f"{name}: {value:.2f} {unit}, where {len(others)} others have {middle:.2f} {unit}"


def check_serving(
    measurement: ServingMeasurement, others: Iterable[ServingMeasurement] = (), tolerance: float = 0.05
) -> tuple[str, ...]:
    """Reasons not to use a load test: figures or sizes that contradict each other, or that the others contradict.

    Parameters
    ----------
    measurement : ServingMeasurement
        The load test in question.
    others : iterable of ServingMeasurement
        Tests of the same deployment under the same load; fewer than three decide nothing.
    tolerance : float
        As `contradictions_of` takes it.
    """
    return (
        *contradictions_of(measurement.figures, tolerance),
        *_sizes(measurement),
        *serving_outliers(measurement, others),
    )


def _sizes(measurement: ServingMeasurement) -> Iterator[str]:
    """Sizes that do not go together."""
    ranks, each = measurement.tensor_parallel_size * measurement.data_parallel_size, engine_gpus(measurement)
    if measurement.gpu_count % each:
        yield f"{measurement.gpu_count} GPUs are no whole engines of {each}"
    if measurement.expert_parallel_size not in (1, ranks):
        yield f"experts are spread over {measurement.expert_parallel_size} ranks, the layout has {ranks}"


def engine_gpus(measurement: ServingMeasurement) -> int:
    """GPUs that one engine of a layout takes."""
    return measurement.tensor_parallel_size * measurement.pipeline_parallel_size * measurement.data_parallel_size


def contradictions_of(figures: ServingFigures, tolerance: float = 0.05) -> Iterator[str]:
    """The ways in which the figures of a load test contradict each other, in words.

    Parameters
    ----------
    figures : ServingFigures
        The figures; absent ones contradict nothing.
    tolerance : float
        Relative difference that is still agreement between counted and stated rates. Tools that cut off the beginning
        and end of a run need a wide one.
    """
    for name, latency in (("TTFT", figures.ttft), ("TPOT", figures.tpot), ("ITL", figures.itl), ("E2E", figures.e2e)):
        yield from _disordered(name, latency)
    yield from _rates(figures, tolerance)
    yield from _in_flight(figures)
    yield from _failures(figures)
    yield from _no_time(figures)


def _disordered(name: str, latency: Latency) -> Iterator[str]:
    ordered = [
        (label, value)
        for label, value in (
            ("median", latency.median_ms),
            ("P90", latency.p90_ms),
            ("P95", latency.p95_ms),
            ("P99", latency.p99_ms),
        )
        if value is not None
    ]
    for (low_label, low), (high_label, high) in pairwise(ordered):
        if low > high * 1.001 + 0.01:
            yield f"{name}: the {low_label} of {low:g} ms is above the {high_label} of {high:g} ms"
    stated = (latency.mean_ms, latency.median_ms, latency.p99_ms)
    if any(value is not None and (value < 0 or not isfinite(value)) for value in stated):
        yield f"{name} is negative or not a number"


def _rates(figures: ServingFigures, tolerance: float) -> Iterator[str]:
    requests, duration = figures.requests, figures.duration_s
    if requests is None or duration is None or duration <= 0:
        return
    counted = [("requests", float(requests), figures.requests_per_s)]
    if figures.output_tokens_mean is not None:
        counted.append(("output tokens", requests * figures.output_tokens_mean, figures.output_tokens_per_s))
    for what, count, stated in counted:
        if stated is not None and abs(count / duration - stated) > tolerance * stated + 0.006:
            yield f"{count:.0f} {what} in {duration:g} s are not {stated:g} a second"


def _in_flight(figures: ServingFigures) -> Iterator[str]:
    """Little's law: what was under way on average is at most what was allowed, and near it where nothing held it back.

    A run of few requests for its concurrency, or at a rate, need not fill it.
    """
    if figures.in_flight is None or figures.concurrency is None:
        return
    rate, time_ms, found = figures.answered_per_s, figures.request_ms, figures.in_flight
    told = f"{rate:g} requests a second of {time_ms:g} ms are {found:.1f} in flight"
    if found > figures.concurrency * 1.25 + 1:
        yield f"{told}, more than the {figures.concurrency:g} allowed"
    enough = figures.requests is None or figures.requests >= REQUESTS_FOR_EACH * figures.concurrency
    if enough and not figures.has_rate and found < LEAST_FILLED * figures.concurrency:
        yield f"{told}, far fewer than the {figures.concurrency:g} kept waiting for each other"


def _failures(figures: ServingFigures) -> Iterator[str]:
    """Requests that failed leave the others faster than they would have been."""
    failed, answered = figures.failed or 0, figures.requests
    if answered == 0:
        yield "no request was answered"
    elif failed > MOST_FAILED * (failed + (answered or 0)):
        yield f"{failed} requests failed" if answered is None else f"{failed} of {failed + answered} requests failed"


def _no_time(figures: ServingFigures) -> Iterator[str]:
    """Times of zero were not measured: nothing was streamed."""
    for name, latency in (("TTFT", figures.ttft), ("TPOT", figures.tpot)):
        if latency.central_ms == 0:
            yield f"{name} is 0 ms"


def serving_outliers(measurement: ServingMeasurement, others: Iterable[ServingMeasurement]) -> Iterator[str]:
    """Where a load test is far from others of the same deployment under the same load; three are needed."""
    others, figures = tuple(others), measurement.figures
    times = [other.figures.tpot.central_ms for other in others if other.figures.tpot.central_ms]
    yield from _factor_from(figures.tpot.central_ms, times, SERVING_SPREAD, "TPOT", "ms")
    rates = [other.figures.output_tokens_per_s for other in others if other.figures.output_tokens_per_s]
    yield from _factor_from(figures.output_tokens_per_s, rates, SERVING_SPREAD, "throughput", "tokens/s")


def _factor_from(value: float | None, others: Sequence[float], factor: float, name: str, unit: str) -> Iterator[str]:
    if not value or len(others) < FEWEST_OTHERS:
        return
    middle = median(others)
    if not middle / factor <= value <= middle * factor:
        yield f"{name}: {value:.2f} {unit}, where {len(others)} others have {middle:.2f} {unit}"


def bus_factor(operation: Collective, world_size: int) -> float:
    """Bus bandwidth over algorithm bandwidth of a collective among `world_size` GPUs.

    All-reduce 2(n-1)/n; all-gather, reduce-scatter, all-to-all, gather and scatter (n-1)/n; the others 1 (nccl-tests
    `doc/PERFORMANCE.md`).
    """
    share = (world_size - 1) / world_size
    if operation is Collective.ALL_REDUCE:
        return 2 * share
    if operation in _EACH_BUT_ITSELF:
        return share
    return 1.0


_EACH_BUT_ITSELF = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.GATHER,
    Collective.SCATTER,
)


def check_link(measurement: LinkMeasurement, others: Iterable[LinkMeasurement] = ()) -> tuple[str, ...]:
    """Reasons not to use a link test: rows that contradict themselves, wrong results, or others far away.

    Parameters
    ----------
    measurement : LinkMeasurement
        The link test in question.
    others : iterable of LinkMeasurement
        Tests of the same collective over as many of the same cards; fewer than three decide nothing.
    """
    factor = bus_factor(measurement.operation, measurement.world_size)
    points = (*measurement.out_of_place, *measurement.in_place)
    reasons = [reason for point in points for reason in point_contradictions(point, factor)]
    if measurement.world_size < 2:
        reasons.append(f"{measurement.world_size} GPU takes part: there is no link")
    if not points:
        reasons.append("it holds no row")
    return (*reasons, *link_outliers(measurement, others))


def point_contradictions(point: LinkPoint, factor: float) -> Iterator[str]:
    """The ways in which one row of a link test contradicts itself; `factor` as `bus_factor` gives it."""
    if point.wrong:
        yield f"{point.size_bytes} bytes: {point.wrong} wrong elements"
    if point.size_bytes == 0 or point.time_us <= 0:
        return
    computed = point.size_bytes / point.time_us / 1000
    if abs(computed - point.algbw_gb_per_s) > 0.02 * computed + 0.011:
        yield f"{point.size_bytes} bytes in {point.time_us:g} us are {computed:.2f} GB/s, not {point.algbw_gb_per_s:g}"
    expected = point.algbw_gb_per_s * factor
    if abs(expected - point.busbw_gb_per_s) > 0.02 * expected + 0.011 * max(1.0, factor):
        yield f"{point.size_bytes} bytes: a bus bandwidth of {point.busbw_gb_per_s:g} GB/s, expected {expected:.2f}"


def link_outliers(measurement: LinkMeasurement, others: Iterable[LinkMeasurement]) -> Iterator[str]:
    """Where a link test is far from others of as many of the same cards; three are needed.

    At the largest message, where bandwidth and not latency decides.
    """
    largest = max(measurement.out_of_place or measurement.in_place, key=lambda point: point.size_bytes, default=None)
    if largest is None:
        return
    same_size = [
        point.busbw_gb_per_s
        for other in others
        for point in (other.out_of_place or other.in_place)
        if point.size_bytes == largest.size_bytes
    ]
    yield from _factor_from(largest.busbw_gb_per_s, same_size, LINK_SPREAD, f"{largest.size_bytes} bytes", "GB/s")
