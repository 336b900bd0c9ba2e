"""What one layout takes of a GPU: weights, working space and the layout of the cache, predicted or measured."""

from dataclasses import dataclass, replace
from functools import lru_cache

from service.sizing import calibration
from service.sizing.engine.device import Device
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import profile_for, release
from service.sizing.engine.refusal import Refusal
from service.sizing.engine.validity import Setting, first_refusal
from service.sizing.errors import Indivisible
from service.sizing.hardware import Gpu, Link
from service.sizing.kv_cache.planner import CacheLayout, cache_layout
from service.sizing.layouts import Layout
from service.sizing.loaded_weights import loaded_beyond
from service.sizing.model.shape import ModelShape
from service.sizing.weights import StageWeights, stage_weights
from service.sizing.working_space import Band, Release, working_space

ROUTER_KERNEL_MAJORS = (9, 10)
"""Compute capability majors with the engine's router kernels (vLLM 0.33 `fused_moe/router/gate_linear.py`)."""


Points = tuple[calibration.StartupPoint, ...]
Neighbours = tuple[calibration.Neighbour, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """What a layout is on a GPU under the engine's rules, whatever is asked of it.

    Attributes
    ----------
    release : Release
        The engine's, by which memory is divided.
    weights : tuple of StageWeights
        Parameters and buffers of each pipeline stage.
    loaded : tuple of int
        Bytes each stage loads: those, and what the engine's kernels add.
    bands : tuple of Band
        Working space of each stage, with what is uncertain of `loaded`.
    measured : Measured or None
        The startup that corrected `loaded` and `bands`, or of another model, `bands` alone; None: they are predictions.
    """

    release: Release
    weights: tuple[StageWeights, ...]
    loaded: tuple[int, ...]
    cache: CacheLayout
    bands: tuple[Band, ...]
    measured: "Measured | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A measured startup used, and what was predicted without it."""

    match: calibration.Match
    predicted: Fitted

    @property
    def is_of_this_model(self) -> bool:
        """Whether it replaces or corrects the prediction rather than shifts it a little."""
        return self.match.tier is not calibration.Tier.OTHER_MODEL


@lru_cache(maxsize=4096)
def fit(model: ModelShape, layout: Layout, gpu: Gpu, link: Link, options: EngineOptions) -> Fitted | Refusal:
    """Weights, cache layout and working space, or the engine's first refusal."""
    profile, _ = profile_for(options.version)
    refusal = first_refusal(Setting(model, layout, gpu, options, profile.first))
    if refusal:
        return refusal
    try:
        cache = cache_layout(model, layout, Device.of(gpu), options)
        if isinstance(cache, Refusal):
            return cache
        router_kernels = gpu.compute_capability is not None and gpu.compute_capability[0] in ROUTER_KERNEL_MAJORS
        weights = stage_weights(model, layout, router_kernels)
        number = release(options.version or profile.version) or profile.first
        beyond = tuple(
            loaded_beyond(
                model,
                layout,
                gpu,
                each,
                version=options.version,
                release=number,
                max_num_batched_tokens=cache.defaults.max_num_batched_tokens,
            )
            for each in weights
        )
    except Indivisible as error:
        return Refusal(
            "dimension_not_divisible",
            f"a dimension of {error.dimension} does not split evenly over {error.ranks} GPUs",
            str(error),
        )
    bands = tuple(
        working_space(
            model,
            layout,
            gpu,
            link,
            version=options.version,
            release=number,
            stage=stage,
            max_num_seqs=cache.defaults.max_num_seqs,
            max_num_batched_tokens=cache.defaults.max_num_batched_tokens,
            graph_sizes=len(cache.defaults.cuda_graph_sizes),
            first_engine=cache.defaults.first_engine,
            cuts_prompts=cache.defaults.chunked_prefill,
        )
        + Band(extra.low - extra.value, 0, extra.high - extra.value)
        for stage, extra in enumerate(beyond)
    )
    loaded = tuple(each.total_bytes + round(extra.value) for each, extra in zip(weights, beyond, strict=True))
    return Fitted(number, weights, loaded, cache, bands)


def corrected(
    fitted: Fitted,
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    link: Link,
    options: EngineOptions,
    points: Points,
    neighbours: Neighbours = (),
) -> Fitted:
    """A layout with the measured startup that says most about it in place of the prediction, where there is one.

    `points` are startups of the model on the GPU, `neighbours` those of other models, which count where none does.
    """
    predictions = [
        (point, predicted) for point in points if (predicted := predicted_at(point, model, gpu, link)) is not None
    ]
    wanted = _predicted(fitted, layout, options.version or fitted.cache.profile.version)
    match = calibration.nearest(wanted, predictions)
    if match is not None:
        there = next(predicted for point, predicted in predictions if point is match.point)
        moved = calibration.corrected(wanted, match, there)
        return replace(fitted, loaded=moved.loaded, bands=moved.bands, measured=Measured(match, fitted))
    match = calibration.nearest_neighbour(wanted, model.experts > 0, neighbours)
    if match is None:
        return fitted
    neighbour = next(each for each in neighbours if each.point is match.point)
    return replace(fitted, bands=calibration.shifted(wanted, neighbour), measured=Measured(match, fitted))


def predicted_at(
    point: calibration.StartupPoint, model: ModelShape, gpu: Gpu, link: Link
) -> calibration.Predicted | None:
    """What is predicted of a measured startup of this model; None: the engine's rules refuse it."""
    there = fit(model, point.layout, gpu, link, point.options)
    return _predicted(there, point.layout, point.version) if isinstance(there, Fitted) else None


def _predicted(fitted: Fitted, layout: Layout, version: str) -> calibration.Predicted:
    defaults = fitted.cache.defaults
    return calibration.Predicted(
        version=version,
        release=fitted.release,
        layout=layout,
        max_num_seqs=defaults.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        eager=not defaults.cuda_graph_sizes,
        first_engine=defaults.first_engine,
        loaded=fitted.loaded,
        bands=fitted.bands,
    )
