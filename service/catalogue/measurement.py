"""A measurement as the catalogue keeps it."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Generic, Self, TypeVar

from service.catalogue.records.calibration import LinkMeasurement, ServingMeasurement, StartupMeasurement, Status

Measurement = TypeVar("Measurement", StartupMeasurement, ServingMeasurement, LinkMeasurement)

SHIPPED_BY = "seed"
"""Who recorded what came with the package."""

NOT_MEASURED = frozenset({"source", "note", "measured_on", "status", "reason"})
"""What a report says beside conditions and figures: two reports that differ in nothing else are of one measurement."""


@dataclass(frozen=True, slots=True)
class MeasurementRecord(Generic[Measurement]):
    """A measurement in the catalogue.

    Attributes
    ----------
    measurement : StartupMeasurement, ServingMeasurement or LinkMeasurement
        Conditions, figures, source and status.
    recorded_by, recorded_on : str, date
        Who put it into the catalogue, and when.
    """

    measurement: Measurement
    recorded_by: str
    recorded_on: date

    @property
    def id(self) -> str:
        """Digest of conditions and figures: the same measurement has the same id, whoever reports it."""
        return digest(self.measurement)

    @property
    def is_shipped(self) -> bool:
        """Whether it came with the package."""
        return self.recorded_by == SHIPPED_BY

    @property
    def is_accepted(self) -> bool:
        """Whether it may correct predictions."""
        return self.measurement.status is Status.ACCEPTED

    def judged(self, status: Status, reason: str) -> Self:
        """The same measurement with another status."""
        return replace(self, measurement=replace(self.measurement, status=status, reason=reason))


def digest(measurement: StartupMeasurement | ServingMeasurement | LinkMeasurement) -> str:
    """Sixteen hexadecimal digits that name a measurement by its conditions and figures."""
    measured = {name: value for name, value in asdict(measurement).items() if name not in NOT_MEASURED}
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:16]
