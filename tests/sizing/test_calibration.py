"""A measured startup replaces or corrects a prediction as far as it reaches, and no farther."""

from dataclasses import replace
from typing import Any

import pytest

from service.sizing import plan
from service.sizing.calibration import Neighbour, Predicted, StartupPoint
from service.sizing.engine.options import EngineOptions
from service.sizing.evidence import MeasuredError, kind_of
from service.sizing.layouts import Layout
from service.sizing.quantities import GIB
from service.sizing.question import Assumptions, Question, Workload
from service.sizing.working_space import Band
from tests.sizing.test_plan import H100, SMALL, machine, recommended
from tests.sizing.test_working_space import fitted


def point(version: str = "0.18.0", **changes: Any) -> StartupPoint:
    """A startup that took half a GiB more than predicted and loaded 1 % more."""
    major, minor, patch = (int(part) for part in version.partition("+")[0].split("."))
    layout = changes.pop("layout", Layout())
    predicted = fitted(SMALL, H100, layout, version=version)
    return StartupPoint(
        id=f"startup-{version}",
        source="a log",
        model="example/llama-8b",
        version=version,
        release=(major, minor, patch),
        layout=layout,
        options=EngineOptions(version=version),
        weights_bytes=round(predicted.loaded[0] * 1.01),
        overhead_bytes=round(predicted.bands[0].value + 0.5 * GIB),
    )


ONE_CARD = Layout()


def question(*points: StartupPoint, version: str = "0.18.0", layout: Layout = ONE_CARD, **changes: Any) -> Question:
    """A question about Llama 8B on one kind of card, with measured startups."""
    return replace(
        Question(
            model=SMALL,
            precision="checkpoint",
            workload=Workload(4096, 1, 3584, 512),
            machines=(machine(H100),),
            engine=EngineOptions(version=version),
            layout=layout,
            calibrations={"h100": points},
        ),
        **changes,
    )


def test_the_same_deployment_is_copied() -> None:
    """Weights and overhead are the measured ones, and the plan says what it would have been without."""
    measured = point()
    found, without = recommended(plan(question(measured))), recommended(plan(question()))
    assert found.memory.weights_bytes == measured.weights_bytes
    assert found.memory.working_space_bytes == measured.overhead_bytes
    assert found.calibration is not None
    assert (found.calibration.id, found.calibration.tier, found.calibration.distance) == ("startup-0.18.0", "exact", 0)
    assert found.calibration.prediction_without.weights_bytes == without.memory.weights_bytes
    assert found.calibration.prediction_without.working_space_bytes == without.memory.working_space_bytes
    assert found.basis["memory.working_space_bytes"].basis == "measured"
    assert found.memory.working_space_high_bytes - measured.overhead_bytes == pytest.approx(0.05 * GIB, abs=2)


@pytest.mark.parametrize(
    ("measured", "tier"),
    [
        (point(layout=Layout(2)), "same_version"),
        (point("0.18.0+vendor.1"), "same_version"),
        (point("0.19.0"), "same_era"),
        (point("0.17.1"), "same_era"),
    ],
)
def test_a_near_deployment_corrects_by_what_was_missed(measured: StartupPoint, tier: str) -> None:
    """Half a GiB and 1 % are added to the prediction."""
    found = recommended(plan(question(measured)))
    assert found.calibration is not None
    assert found.calibration.tier == tier
    without = found.calibration.prediction_without
    assert found.memory.working_space_bytes - without.working_space_bytes == pytest.approx(0.5 * GIB, abs=4)
    assert found.memory.weights_bytes == pytest.approx(without.weights_bytes * 1.01, rel=1e-6)


@pytest.mark.parametrize("version", ["0.16.0", "0.20.0", "0.13.0"])
def test_nothing_reaches_over_an_era(version: str) -> None:
    """The engine divides memory differently there."""
    assert recommended(plan(question(point(version)))).calibration is None


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_weights_of_another_model_or_precision_are_not_believed(factor: float) -> None:
    """Half or twice the predicted bytes are not this checkpoint."""
    loaded = fitted(SMALL, H100, Layout(), version="0.18.0").loaded[0]
    other = replace(point(), weights_bytes=round(factor * loaded))
    assert recommended(plan(question(other))).calibration is None


def test_the_nearest_wins_and_repeats_give_their_middle() -> None:
    """The same release before another one; of three repeats the one between."""
    base = point()
    low, high = (
        replace(base, id=name, overhead_bytes=base.overhead_bytes + change)
        for name, change in (("low", -(1 << 20)), ("high", 1 << 20))
    )
    found = recommended(plan(question(point("0.19.0"), high, base, low)))
    assert found.calibration is not None
    assert found.calibration.id == base.id


def test_a_given_working_space_wins() -> None:
    """The caller's figure replaces prediction and measurement alike."""
    found = recommended(plan(question(point(), assumptions=Assumptions(working_space_bytes=2 * GIB))))
    assert found.calibration is None
    assert found.memory.working_space_bytes == 2 * GIB


def neighbour(
    missed_gib: float, version: str = "0.30.0", *, has_experts: bool = False, layout: Layout = ONE_CARD
) -> Neighbour:
    """A startup of another model whose working space was missed by `missed_gib`; 2 GiB were predicted."""
    major, minor, patch = (int(part) for part in version.split("."))
    measured = StartupPoint(
        id=f"neighbour {missed_gib}",
        source="a log",
        model="example/other",
        version=version,
        release=(major, minor, patch),
        layout=layout,
        options=EngineOptions(version=version),
        weights_bytes=8 * GIB,
        overhead_bytes=round((2 + missed_gib) * GIB),
    )
    predicted = Predicted(
        version=version,
        release=measured.release,
        layout=layout,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        eager=False,
        loaded=(8 * GIB,),
        bands=(Band(1 * GIB, 2 * GIB, 3 * GIB),),
    )
    return Neighbour(measured, has_experts, predicted)


@pytest.mark.parametrize(("missed", "moved"), [(0.4, 0.2), (-0.4, -0.2), (2.0, 0.3), (-2.0, -0.3)])
def test_another_model_moves_an_unfitted_release_by_half_of_what_it_missed(missed: float, moved: float) -> None:
    """0.3 GiB at most; weights stay as predicted, and the band only grows."""
    asked = question(version="0.30.0", neighbours={"h100": (neighbour(missed),)})
    found, without = recommended(plan(asked)), recommended(plan(question(version="0.30.0")))
    assert found.calibration is not None
    assert (found.calibration.tier, found.calibration.model) == ("other_model", "example/other")
    assert found.memory.working_space_bytes - without.memory.working_space_bytes == pytest.approx(moved * GIB, abs=2)
    assert found.calibration.prediction_without.working_space_bytes == without.memory.working_space_bytes
    assert found.memory.weights_bytes == without.memory.weights_bytes
    assert found.memory.working_space_low_bytes <= without.memory.working_space_low_bytes
    assert found.memory.working_space_high_bytes >= without.memory.working_space_high_bytes
    assert found.basis["memory.working_space_bytes"].basis == "assumed"
    assert found.basis["memory.weights_bytes"].basis == "computed"
    # Llama 8B loads 15 GiB, the other 8: one for the model and 0.9 doublings.
    assert found.calibration.distance == pytest.approx(1.9, abs=0.05)
    assert any("example/other" in line and "distance 1.9" in line for line in found.warnings)


@pytest.mark.parametrize(
    "other",
    [
        neighbour(1.0, "0.30.1"),
        neighbour(1.0, "0.26.0"),
        neighbour(1.0, has_experts=True),
    ],
)
def test_a_startup_of_another_model_reaches_its_own_release_and_class_only(other: Neighbour) -> None:
    """Another release, or experts where there are none, tell nothing."""
    asked = question(version="0.30.0", neighbours={"h100": (other,)})
    assert recommended(plan(asked)).calibration is None


def test_fitted_releases_are_not_moved_by_another_model() -> None:
    """There it made held-out predictions slightly worse."""
    asked = question(version="0.18.0", neighbours={"h100": (neighbour(1.0, "0.18.0"),)})
    assert recommended(plan(asked)).calibration is None


def test_a_startup_of_this_model_comes_before_one_of_another() -> None:
    """Though that one is of another release of the era."""
    own = point("0.31.0")
    found = recommended(plan(question(own, version="0.30.0", neighbours={"h100": (neighbour(1.0),)})))
    assert found.calibration is not None
    assert (found.calibration.tier, found.calibration.model) == ("same_era", "example/llama-8b")


def test_the_nearest_of_other_models_is_taken() -> None:
    """One card before four; of several alike the one that missed the middle amount."""
    far = neighbour(-0.5, layout=Layout(4))
    near = tuple(neighbour(missed) for missed in (0.5, 0.1, 0.3))
    found = recommended(plan(question(version="0.30.0", neighbours={"h100": (far, *near)})))
    assert found.calibration is not None
    assert found.calibration.id == "neighbour 0.3"


def test_the_error_of_the_kind_is_said() -> None:
    """As measured, or that nothing was."""
    kind = kind_of(SMALL, H100, (0, 18, 0))
    measured = {kind: MeasuredError(startups=43, median_percent=0.13, p90_percent=0.84)}
    found = recommended(plan(question(memory_errors=measured)))
    said = next(line for line in found.warnings if line.startswith("measured error"))
    assert "43 measured startups" in said
    assert "0.1 % in the median and 0.8 % in nine of ten" in said
    assert said in found.basis["memory.working_space_bytes"].source
    unmeasured = recommended(plan(question(version="0.33.0", memory_errors=measured)))
    assert any(line.startswith("measured error: extrapolated, no measurement") for line in unmeasured.warnings)
