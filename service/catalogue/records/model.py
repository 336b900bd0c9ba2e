"""A model: its published configuration, and what the reader makes of it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any, cast

from service.sizing.errors import SizingError
from service.sizing.model.quantization import requantise
from service.sizing.model.reader import READER_VERSION, read_model
from service.sizing.model.shape import ModelShape

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)?", re.ASCII)
"""Names as model hubs accept them: an owner and a name, or a name alone."""


def canonical_json(value: object) -> str:
    """One spelling for equal JSON values: sorted keys, no spaces, ASCII; `NaN` and `Infinity` as Python writes them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def config_sha256(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration's canonical JSON, hexadecimal."""
    return hashlib.sha256(canonical_json(config).encode()).hexdigest()


def unkept_text(value: object, path: str = "") -> str | None:
    """Where a JSON value holds text that no database keeps: a NUL, or half of a surrogate pair; None: nowhere.

    Given as a dotted path under `path`.
    """
    match value:
        case str():
            return path if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value) else None
        case Mapping():
            members = cast("Mapping[str, object]", value).items()
            return next(
                (
                    found
                    for key, item in members
                    if (found := unkept_text(key, path) or unkept_text(item, f"{path}.{key}"))
                ),
                None,
            )
        case list():
            items = enumerate(cast("list[object]", value))
            return next((found for index, item in items if (found := unkept_text(item, f"{path}.{index}"))), None)
        case _:
            return None


def read_at(
    name: str, config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, precision: str
) -> ModelShape:
    """A model's structure after its weights are quantised to `precision`; "checkpoint" leaves them as published.

    Raises
    ------
    AlreadyQuantised
        The checkpoint is quantised, and another precision is asked for.
    SizingError
        The configuration is invalid or not understood.
    """
    quantised = requantise(config, precision, hf_quant_config)
    return read_model(name, quantised, hf_quant_config if precision == "checkpoint" else None)


@dataclass(frozen=True, eq=False)
class ModelRecord:
    """A model of the catalogue; equal to another whose files are the same JSON, to the spelling of their numbers.

    Attributes
    ----------
    name : str
        As its hub names it.
    config : mapping
        `config.json`.
    hf_quant_config : mapping or None
        `hf_quant_config.json`, where the checkpoint has one.
    weights_bytes : int or None
        Size of the checkpoint's weight files, where known.
    fidelity : str
        How close `config` is to the published file: "verbatim" (the file), "vendored" (a copy in another
        repository), "vendored-trimmed" (a copy without fields its owner did not need), "resaved" (loaded and saved
        by transformers), "transcribed" (from code or a database), "ingested" (given to this service).
    source, as_of : str, date
        Where the configuration comes from, and when it was collected.
    reader_version : int
        The reader's version at the time of storing.
    revision : str or None
        Commit of the model's repository that the configuration was read at, where known.

    Raises
    ------
    ValueError
        The name is not a model's.
    """

    name: str
    config: Mapping[str, Any]
    hf_quant_config: Mapping[str, Any] | None
    weights_bytes: int | None
    fidelity: str
    source: str
    as_of: date
    reader_version: int = READER_VERSION
    revision: str | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or len(self.name) > 200:
            raise ValueError(f"{self.name!r} is not a model's name; it takes owner/name, up to 200 characters")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelRecord) and self._compared == other._compared

    def __hash__(self) -> int:
        return hash((self.name, self.sha256))

    @property
    def _compared(self) -> tuple[object, ...]:
        origin = (self.fidelity, self.source, self.as_of, self.revision)
        return (self.name, *self._files, self.weights_bytes, *origin)

    @cached_property
    def _files(self) -> tuple[str, str]:
        return self.sha256, canonical_json(self.hf_quant_config)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the configuration's canonical JSON."""
        return config_sha256(self.config)

    def succeeded_by(self, given: "ModelRecord") -> "ModelRecord":
        """What to hold once a newer record of this model is given: this very one where both are sized alike.

        The name stays as it was first written, and a size of the weights that is not given anew stays with the
        configuration it was given for.
        """
        same = self._files == given._files
        weights_bytes = given.weights_bytes or (self.weights_bytes if same else None)
        if same and weights_bytes == self.weights_bytes:
            return self
        return replace(given, name=self.name, weights_bytes=weights_bytes)

    @cached_property
    def reading(self) -> ModelShape | SizingError:
        """The model's structure, or why it cannot be read."""
        try:
            return read_model(self.name, self.config, self.hf_quant_config)
        except SizingError as refusal:
            return refusal

    @cached_property
    def _shapes(self) -> dict[str, ModelShape]:
        return {}

    def shape_at(self, precision: str) -> ModelShape:
        """The model's structure at a precision; see `read_at`."""
        if precision == "checkpoint":
            return self.shape
        if precision not in self._shapes:
            self._shapes[precision] = read_at(self.name, self.config, self.hf_quant_config, precision)
        return self._shapes[precision]

    @property
    def shape(self) -> ModelShape:
        """The model's structure.

        Raises
        ------
        SizingError
            The configuration is invalid or not understood.
        """
        if isinstance(self.reading, SizingError):
            raise self.reading
        return self.reading
