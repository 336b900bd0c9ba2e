"""How the errors of predictions are shown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from service.catalogue.accuracy import RULES, Compared, Errors, errors, grouped, left_out, token_errors
from service.catalogue.serving_accuracy import ComparedRun, LeftOut, accuracy_by, compared_runs
from service.catalogue.snapshot import Snapshot
from service.sizing.performance.accuracy import ServingAccuracy, evaluate
from service.sizing.quantities import Doc


@dataclass(frozen=True, slots=True)
class GroupAccuracy:
    """Errors over the startups of one GPU, architecture, release or kind of deployment."""

    name: Annotated[str, Doc("GPU slug, architecture, minor release or kind", example="h100-sxm")]
    predicted: Annotated[Errors, Doc("by the formulas alone")]
    calibrated: Annotated[Errors, Doc("corrected by other startups, the same one and its repeats left out")]


@dataclass(frozen=True, slots=True)
class GroupServingAccuracy:
    """Errors over the load tests of one GPU, architecture or release."""

    name: Annotated[str, Doc("GPU slug, architecture or minor release", example="h200-sxm")]
    errors: Annotated[ServingAccuracy, Doc("errors by what was predicted")]


@dataclass(frozen=True, slots=True)
class ServingView:
    """How far predicted times and throughput were from measured.

    No correction rests on the configuration it is compared with. The formulas' parameters were fitted to public runs,
    shipped ones among them; errors of fits that had not seen a run are in docs/performance.md.
    """

    runs: Annotated[int, Doc("accepted load tests of vLLM that were compared", example=428)]
    left_out: Annotated[tuple[LeftOut, ...], Doc("accepted load tests that were not")]
    all: Annotated[ServingAccuracy | None, Doc("over every run; null: there are none")]
    by_gpu: Annotated[tuple[GroupServingAccuracy, ...], Doc("by GPU")]
    by_architecture: Annotated[tuple[GroupServingAccuracy, ...], Doc("by model class")]
    by_release: Annotated[tuple[GroupServingAccuracy, ...], Doc("by minor release of vLLM")]


@dataclass(frozen=True, slots=True)
class AccuracyView:
    """How far predictions were from what was measured: cache memory after a startup, times under load."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    startups: Annotated[int, Doc("accepted startups whose model and GPU can be sized", example=43)]
    within_band_percent: Annotated[float | None, Doc("share that lies in the predicted band", "%", 97.7)]
    rules: Annotated[
        dict[str, Errors], Doc("errors of the cache memory by our prediction and by common rules, by rule")
    ]
    tokens: Annotated[Errors | None, Doc("errors of the printed cache size in tokens, by the formulas alone")]
    by_gpu: Annotated[tuple[GroupAccuracy, ...], Doc("by GPU")]
    by_architecture: Annotated[tuple[GroupAccuracy, ...], Doc("by model class")]
    by_release: Annotated[tuple[GroupAccuracy, ...], Doc("by minor release of vLLM")]
    by_kind: Annotated[
        tuple[GroupAccuracy, ...],
        Doc("by cards, releases that divide memory alike, and dense models or experts: what a plan says of its error"),
    ]
    left_out: Annotated[tuple[LeftOut, ...], Doc("accepted startups that could not be compared")]
    serving: Annotated[ServingView, Doc("load tests")]


def accuracy(snapshot: Snapshot) -> AccuracyView:
    """How far predictions are from the measurements of the catalogue."""
    found = snapshot.compared_startups

    def by(key: Callable[[Compared], str]) -> tuple[GroupAccuracy, ...]:
        return tuple(
            GroupAccuracy(name, errors(startups, RULES["predicted"]), errors(startups, RULES["calibrated"]))
            for name, startups in grouped(found, key).items()
        )

    return AccuracyView(
        catalogue_revision=snapshot.revision,
        startups=len(found),
        within_band_percent=100 * sum(each.within for each in found) / len(found) if found else None,
        rules={name: errors(found, rule) for name, rule in RULES.items()} if found else {},
        tokens=token_errors(found),
        by_gpu=by(lambda each: each.record.measurement.gpu),
        by_architecture=by(lambda each: each.architecture),
        by_release=by(lambda each: each.release),
        by_kind=by(lambda each: str(each.kind)),
        left_out=left_out(snapshot.startups, found),
        serving=_serving(snapshot),
    )


def _serving(snapshot: Snapshot) -> ServingView:
    runs, left = compared_runs(snapshot, (record.measurement for record in snapshot.servings))

    def by(key: Callable[[ComparedRun], str]) -> tuple[GroupServingAccuracy, ...]:
        return tuple(GroupServingAccuracy(name, errors) for name, errors in accuracy_by(runs, key).items())

    return ServingView(
        runs=len(runs),
        left_out=left,
        all=evaluate(each.run for each in runs) if runs else None,
        by_gpu=by(lambda each: each.gpu),
        by_architecture=by(lambda each: each.architecture),
        by_release=by(lambda each: each.release),
    )
