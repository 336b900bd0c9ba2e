"""From the report of a load or link test to measurements that are kept."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from math import isclose
from typing import TypeVar

from service.api.calibrations.requests import BenchmarkRequest
from service.api.calibrations.taking import storable
from service.api.contract import MAX_NAMES
from service.api.problems import FieldError, invalid, unknown
from service.catalogue.importers.benchmark import MEANING, BenchmarkRow
from service.catalogue.importers.benchmark import vllm as vllm_tool
from service.catalogue.importers.gpu_match import Match, Unknown, match_gpu
from service.catalogue.importers.measurements import MissingConditions, Value, link_measurement, serving_measurement
from service.catalogue.importers.nccl import LinkTest
from service.catalogue.importers.report import ReportNotUnderstood, read_report
from service.catalogue.records.calibration import LinkMeasurement, ServingMeasurement, Status
from service.catalogue.records.calibration_checks import link_outliers, serving_outliers
from service.catalogue.servings import LinkRecord, ServingRecord
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing.question import MOST_GPUS

OF_LINKS = frozenset({"operation", "world_size", "nodes", "link"})
"""Conditions of link tests; all others are of load tests."""

OF_ONE = ("input_tokens_mean", "output_tokens_mean", "concurrency")
"""Figures that differ between the tests of a report, so that one value fills one gap."""

ENGINE_TAKEN = "The engine was not said; for a report of `vllm bench serve` it was taken to be vLLM."

SAME_LENGTH = 0.1
"""Relative difference between lengths of requests that are the same load."""

Test = TypeVar("Test", BenchmarkRow, LinkTest)
M = TypeVar("M", ServingMeasurement, LinkMeasurement)


def records_of_report(
    asked: BenchmarkRequest, text: str, snapshot: Snapshot, who: str, today: date
) -> tuple[ServingRecord, ...] | tuple[LinkRecord, ...]:
    """The measurements of a report, in its order.

    Parameters
    ----------
    asked : BenchmarkRequest
        What is said beside the text.
    text : str
        The report, as it can be stored.
    who : str
        Who reports it.

    Raises
    ------
    Problem
        400: it is no report that is understood, or conditions are missing, which the problem names; 404: unknown card.
    """
    try:
        tests = read_report(text)
    except ReportNotUnderstood as error:
        raise invalid((FieldError("text", str(error)),)) from None
    given, source = asked.given(), asked.source or who
    loads = [(test, (test.gpu,) if test.gpu else ()) for test in tests if isinstance(test, BenchmarkRow)]
    if loads:
        _refuse(OF_LINKS & given.keys(), "is of link tests, and the text holds load tests")
        _refuse(_several(loads, given), "is left out by several tests of the report: give them one at a time")
        served = _each(loads, asked, snapshot, lambda row, gpu: _serving(row, gpu, asked, source))
        return tuple(ServingRecord(_checked_load(each, snapshot), who, today) for each in served)
    said = given.keys() | ({"measured_on"} if asked.measured_on else set[str]())
    _refuse(said - OF_LINKS, "is of load tests, and the text holds link tests")
    links = [(test, test.gpus) for test in tests if isinstance(test, LinkTest)]
    run = _each(links, asked, snapshot, lambda test, gpu: _link(test, gpu, asked, source))
    return tuple(LinkRecord(_checked_link(each, snapshot), who, today) for each in run)


def _refuse(fields: Iterable[str], reason: str) -> None:
    """Refuse what would be ignored."""
    errors = tuple(FieldError(name, reason) for name in sorted(fields))
    if errors:
        raise invalid(errors)


def _several(rows: Sequence[tuple[BenchmarkRow, Sequence[str]]], given: Mapping[str, Value]) -> list[str]:
    """Given figures that would fill more than one gap."""
    gaps = {name: sum(getattr(row.figures, name) is None for row, _ in rows) for name in OF_ONE if name in given}
    return [name for name, count in gaps.items() if count > 1]


def _each(
    tests: Sequence[tuple[Test, Sequence[str]]],
    asked: BenchmarkRequest,
    snapshot: Snapshot,
    make: Callable[[Test, str], M],
) -> list[M]:
    """The measurements of all tests, or one problem that names all that any of them lacks.

    Parameters
    ----------
    tests : sequence of (test, names)
        Each with what it calls its cards.
    make : callable
        Takes a test and the slug of its card.
    """
    made, errors = list[M](), dict[str, FieldError]()
    for test, names in tests:
        gpu, doubts = "", tuple[str, ...]()
        try:
            gpu, doubts = card_of(asked.gpu, names, snapshot)
        except CardNotTold as error:
            errors["gpu"] = FieldError("gpu", f"the report {error}: give its catalogue slug beside the text")
        try:
            made.append(_storable(_doubted(make(test, gpu), doubts)))
        except MissingConditions as error:
            errors |= {name: _asked_for(name) for name in error.names}
    if errors:
        raise invalid(tuple(errors.values()))
    return made


def _asked_for(name: str) -> FieldError:
    if name == "tpot":
        return FieldError("text", "the report holds neither time per output token nor throughput")
    meaning = f" ({MEANING[name]})" if name in MEANING else ""
    return FieldError(name, f"the report does not say it{meaning}: give it beside the text")


def _serving(row: BenchmarkRow, gpu: str, asked: BenchmarkRequest, source: str) -> ServingMeasurement:
    given, note = asked.given(), asked.note
    if row.engine is None and asked.engine is None and row.format.startswith(vllm_tool.NAME):
        # It speaks to most servers as "openai", and so names its own engine the least.
        given["engine"] = "vllm"
        note = f"{note} {ENGINE_TAKEN}".strip()
    measurement = serving_measurement(row, source=source, gpu=gpu, given=given, note=note)
    sizes = {name: value for name, value in asdict(measurement).items() if name.endswith(("_size", "gpu_count"))}
    _refuse((name for name, value in sizes.items() if value > MOST_GPUS), f"is more than {MOST_GPUS}")
    if len(measurement.model) > MAX_NAMES:
        raise invalid((FieldError("model", f"the report's name has more than {MAX_NAMES} characters"),))
    return replace(measurement, measured_on=asked.measured_on)


def _link(test: LinkTest, gpu: str, asked: BenchmarkRequest, source: str) -> LinkMeasurement:
    measurement = link_measurement(test, source=source, gpu=gpu, given=asked.given(), note=asked.note)
    if measurement.nodes > measurement.world_size:
        raise invalid((FieldError("nodes", f"is more than the {measurement.world_size} GPUs that took part"),))
    return measurement


def _storable(measurement: M) -> M:
    """A measurement whose texts the database can keep: a report in JSON can spell any character.

    Raises
    ------
    Problem
        400: a condition is written with characters that cannot be printed.
    """
    quoting = {"note": storable(measurement.note), "reason": storable(measurement.reason)}
    texts = {name: value for name, value in asdict(measurement).items() if isinstance(value, str)}
    for name, value in texts.items():
        if name not in quoting and not value.isprintable():
            raise invalid((FieldError(name, "the report gives it with characters that cannot be printed"),))
    return replace(measurement, **quoting)


class CardNotTold(ValueError):
    """A report does not say which card was measured; the message says what it says."""


def card_of(given: str | None, names: Sequence[str], snapshot: Snapshot) -> tuple[str, tuple[str, ...]]:
    """Slug of the card that was measured, and where given and reported names disagree.

    Parameters
    ----------
    given : str or None
        As the caller says.
    names : sequence of str
        As the report says, distinct.

    Raises
    ------
    Problem
        404 for an unknown card, 400 for one given by a name that several have.
    CardNotTold
        No single one is said.
    """
    may_be = {name: cards_named(name, snapshot) for name in names}
    if given is None:
        found = set(may_be.values())
        if len(found) == 1 and len(slugs := found.pop() or ()) == 1:
            return slugs[0], ()
        raise CardNotTold(_told(may_be))
    try:
        slug = snapshot.gpu(given).slug
    except UnknownName as error:
        match cards_named(given, snapshot):
            case (slug,):
                pass
            case (_, *_) as slugs:
                raise invalid((FieldError("gpu", f"{given!r} may be {', '.join(slugs)}: give one of them"),)) from None
            case _:
                raise unknown("gpu", error.name, error.nearest, "gpu") from None
    return slug, tuple(
        f"gpu was given as {slug}, the report says {name}"
        for name, slugs in may_be.items()
        if slugs is not None and slug not in slugs
    )


def cards_named(name: str, snapshot: Snapshot) -> tuple[str, ...] | None:
    """Slugs of the cards that a driver's name may stand for; empty: a card not in the catalogue; None: unknown."""
    verdict = match_gpu({}, name, provider="")
    if isinstance(verdict, Match):
        return verdict.ambiguous if verdict.gpu is None else (verdict.gpu,)
    if not isinstance(verdict, Unknown):
        return ()
    try:
        return (snapshot.gpu(name).slug,)
    except UnknownName:
        return None


def _told(may_be: Mapping[str, tuple[str, ...] | None]) -> str:
    if not may_be:
        return "does not name the GPU"
    if len(may_be) > 1:
        return f"names several GPUs, {', '.join(may_be)}"
    ((name, slugs),) = may_be.items()
    return f"names the GPU {name[:100]!r}, which " + (f"may be {', '.join(slugs)}" if slugs else "is not known")


def _checked_load(measurement: ServingMeasurement, snapshot: Snapshot) -> ServingMeasurement:
    """A load test, quarantined where its likes contradict it."""
    likes = (each.measurement for each in snapshot.servings if each.is_accepted)
    return _doubted(
        measurement, serving_outliers(measurement, [other for other in likes if _same_load(other, measurement)])
    )


def _same_load(one: ServingMeasurement, other: ServingMeasurement) -> bool:
    names = (
        "gpu",
        "gpu_count",
        "engine",
        "engine_version",
        "precision",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "expert_parallel_size",
        "enforce_eager",
        "speculative",
    )
    return (
        one.model.casefold() == other.model.casefold()
        and all(getattr(one, name) == getattr(other, name) for name in names)
        and (one.figures.concurrency, one.figures.request_rate)
        == (other.figures.concurrency, other.figures.request_rate)
        and all(
            isclose(getattr(one.figures, name) or 0.0, getattr(other.figures, name) or 0.0, rel_tol=SAME_LENGTH)
            for name in ("input_tokens_mean", "output_tokens_mean")
        )
    )


def _checked_link(measurement: LinkMeasurement, snapshot: Snapshot) -> LinkMeasurement:
    """A link test, quarantined where its likes contradict it."""
    names = ("gpu", "link", "operation", "world_size", "nodes")
    likes = (each.measurement for each in snapshot.links if each.is_accepted)
    same = [other for other in likes if all(getattr(other, name) == getattr(measurement, name) for name in names)]
    return _doubted(measurement, link_outliers(measurement, same))


def _doubted(measurement: M, reasons: Iterable[str]) -> M:
    """A measurement, quarantined where there are reasons, beside those it has."""
    found = [*filter(None, (measurement.reason,)), *reasons]
    return replace(measurement, status=Status.QUARANTINED, reason="; ".join(found)) if found else measurement
