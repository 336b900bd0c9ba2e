"""What becomes of each row of an imported file, and the account of them all."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from service.catalogue.records.price import HostedPrice, InstanceType, Price

Record = Price | HostedPrice | InstanceType
R = TypeVar("R", bound=Record)


class WrongFormat(ValueError):
    """The file as a whole is not of the format it was given as."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that holds nothing to take: no GPU, an unknown card, a repeat.

    Attributes
    ----------
    row : int
        Number of the row, the header being 1 (in JSON: of the entry, the first being 1).
    reason : str
        Short code, the same for every row skipped on the same ground.
    detail : str
        The value it was skipped for, in a sentence.
    gpu_name : str
        The card's name where that is what was not known; else empty.
    """

    row: int
    reason: str
    detail: str
    gpu_name: str = ""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row that cannot be trusted: malformed, a placeholder, an outlier, a contradiction.

    Attributes
    ----------
    record : Price, HostedPrice, InstanceType or None
        What it would have become; None if it could not be read.
    """

    row: int
    reason: str
    detail: str
    record: Record | None = None


UNKNOWN_GPU = "unknown_gpu"
"""The one skip reason that asks for work: the name belongs into `gpu_names`."""

EXAMPLES_PER_REASON = 5
DISTINCT_NAMES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The account of one import.

    Attributes
    ----------
    taken : int
        Records taken (one row may give two: on demand and spot).
    skipped, quarantined : dict of str to int
        Rows by reason.
    unknown_names : dict of str to int
        GPU names no table knows, with their rows.
    examples : dict of str to tuple of str
        Reason -> the first few rows it befell, "row 12: ...".
    """

    taken: int
    skipped: dict[str, int]
    quarantined: dict[str, int]
    unknown_names: dict[str, int]
    examples: dict[str, tuple[str, ...]]

    @property
    def read(self) -> int:
        """Prices read, whatever became of them."""
        return self.taken + sum(self.skipped.values()) + sum(self.quarantined.values())


@dataclass(slots=True)
class Tally:
    """Counts outcomes as they stream by, in memory that does not grow with the file."""

    taken: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])
    quarantined: Counter[str] = field(default_factory=Counter[str])
    unknown_names: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def records(self, outcomes: Iterable[R | Skipped | Quarantined]) -> Iterator[R]:
        """Yield the records among `outcomes`, counting everything."""
        for outcome in outcomes:
            if isinstance(outcome, Skipped):
                self.skipped[outcome.reason] += 1
                if outcome.gpu_name and (
                    outcome.gpu_name in self.unknown_names or len(self.unknown_names) < DISTINCT_NAMES_KEPT
                ):
                    self.unknown_names[outcome.gpu_name] += 1
                self._keep_example(outcome)
            elif isinstance(outcome, Quarantined):
                self.quarantined[outcome.reason] += 1
                self._keep_example(outcome)
            else:
                self.taken += 1
                yield outcome

    def report(self) -> ImportReport:
        """The account so far."""
        return ImportReport(
            taken=self.taken,
            skipped=dict(self.skipped),
            quarantined=dict(self.quarantined),
            unknown_names=dict(self.unknown_names),
            examples={reason: tuple(rows) for reason, rows in self.examples.items()},
        )

    def _keep_example(self, outcome: Skipped | Quarantined) -> None:
        kept = self.examples.setdefault(outcome.reason, [])
        if len(kept) < EXAMPLES_PER_REASON:
            kept.append(f"row {outcome.row}: {outcome.detail}")
