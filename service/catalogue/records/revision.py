"""A state of the catalogue."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """One step of the catalogue: who made it, when and why. Revisions count up from 1."""

    revision: int
    created_at: datetime
    author: str
    summary: str
