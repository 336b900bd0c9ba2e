"""The spelled-out form of a source key."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """What a short key in a figure's source stands for."""

    key: str
    title: str
