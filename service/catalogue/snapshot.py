"""The catalogue in memory: immutable, with a revision."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from service.catalogue.records.gpu import GpuRecord
from service.catalogue.records.model import ModelRecord
from service.catalogue.records.source import SourceRecord

Record = TypeVar("Record")

NEAREST = 3
SIMILAR_ENOUGH = 0.5


class UnknownName(LookupError):
    """Nothing in the catalogue has this name.

    Attributes
    ----------
    kind, name : str
        What was looked for ("GPU", "model"), and under which name.
    nearest : tuple of str
        Keys with a similar name, the most similar first.
    """

    def __init__(self, kind: str, name: str, nearest: tuple[str, ...]) -> None:
        hint = f" Nearest: {', '.join(nearest)}." if nearest else ""
        super().__init__(f"No {kind} is named {name!r}.{hint}")
        self.kind = kind
        self.name = name
        self.nearest = nearest


@dataclass(frozen=True)
class Snapshot:
    """The catalogue at one revision.

    Attributes
    ----------
    revision : int
        Its revision; 0 for an empty catalogue.
    gpus, models, sources : tuple of records
        In the order of their keys.

    Raises
    ------
    ValueError
        Two GPUs or two models answer to one name.
    """

    revision: int
    gpus: tuple[GpuRecord, ...] = ()
    models: tuple[ModelRecord, ...] = ()
    sources: tuple[SourceRecord, ...] = ()

    def __post_init__(self) -> None:
        # Computed here rather than on the first question, so that a catalogue that contradicts itself is refused.
        _ = self._gpus_by_name, self._models_by_name

    def gpu(self, name: str) -> GpuRecord:
        """The GPU with this slug, name or alias, in any case.

        Raises
        ------
        UnknownName
            With the nearest slugs.
        """
        return _find("GPU", name, self._gpus_by_name, lambda record: record.slug)

    def model(self, name: str) -> ModelRecord:
        """The model with this name, in any case.

        Raises
        ------
        UnknownName
            With the nearest names.
        """
        return _find("model", name, self._models_by_name, lambda record: record.name)

    def keeping(self, earlier: "Snapshot") -> "Snapshot":
        """This catalogue with the records of an earlier one where they are equal, and so with what was read of them."""
        held = {model.name: model for model in earlier.models}
        same = (held.get(model.name) for model in self.models)
        models = tuple(old if old == new else new for old, new in zip(same, self.models, strict=True))
        return replace(self, models=models)

    @cached_property
    def source_titles(self) -> Mapping[str, str]:
        """What each source key stands for."""
        return {source.key: source.title for source in self.sources}

    def spelled_out(self, source: str) -> str:
        """A figure's source with its keys replaced by what they stand for; what follows a key is kept."""
        parts: list[str] = []
        for part in source.split(", "):
            key, _, rest = part.partition(" ")
            title = self.source_titles.get(key)
            parts.append(part if title is None else f"{title}: {rest}" if rest else title)
        return "; ".join(parts)

    @cached_property
    def _gpus_by_name(self) -> Mapping[str, GpuRecord]:
        return _index("GPU", ((gpu, (gpu.slug, gpu.name, *gpu.aliases)) for gpu in self.gpus))

    @cached_property
    def _models_by_name(self) -> Mapping[str, ModelRecord]:
        return _index("model", ((model, (model.name,)) for model in self.models))


def _index(kind: str, named: Iterable[tuple[Record, Iterable[str]]]) -> dict[str, Record]:
    index: dict[str, Record] = {}
    for record, names in named:
        for name in names:
            if index.setdefault(name.casefold(), record) is not record:
                raise ValueError(f"two {kind}s answer to the name {name!r}")
    return index


def _find(kind: str, name: str, index: Mapping[str, Record], key: Callable[[Record], str]) -> Record:
    wanted = name.casefold()
    if wanted in index:
        return index[wanted]
    # A name without its owner is the likeliest slip, so both spellings are compared.
    short = {spelling.rpartition("/")[2]: spelling for spelling in index}
    close = difflib.get_close_matches(wanted, index, n=NEAREST, cutoff=SIMILAR_ENOUGH)
    close += [short[match] for match in difflib.get_close_matches(wanted.rpartition("/")[2], short, n=NEAREST)]
    raise UnknownName(kind, name, tuple(dict.fromkeys(key(index[spelling]) for spelling in close))[:NEAREST])
