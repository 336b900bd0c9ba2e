"""Reading a configuration with names for what is wrong."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from service.sizing.errors import InvalidConfig, NotUnderstood

Json = Mapping[str, Any]

MAX_LAYERS = 10_000
MAX_SIZE = 1 << 40
"""Largest count or width accepted anywhere: far above any model, small enough that products stay exact and quick."""


class Fields:
    """A JSON object whose fields are read by type, remembering which were read.

    Every reader takes several spellings and uses the first that is present and not null.
    """

    def __init__(self, values: Json, path: str = "") -> None:
        self.values = values
        self.path = path
        self.read: set[str] = set()
        self.spelled: Mapping[str, str] = {}

    def completed(self, defaults: Json) -> "Fields":
        """The same object with `defaults` for absent fields; reading it counts as reading this one."""
        return self._with({**defaults, **self.values}, {})

    def overridden(self, values: Json, spelled: Mapping[str, str] | None = None) -> "Fields":
        """The same object with `values` in place of what it says; reading it counts as reading this one.

        Messages call the fields in `spelled` as that says.
        """
        return self._with({**self.values, **values}, spelled or {})

    def _with(self, values: Json, spelled: Mapping[str, str]) -> "Fields":
        """The same object with other values."""
        other = Fields(values, self.path)
        other.read, other.spelled = self.read, {**self.spelled, **spelled}
        return other

    def named(self, field: str) -> str:
        """Dotted name of a field from the root of the configuration."""
        field = self.spelled.get(field, field)
        return f"{self.path}.{field}" if self.path else field

    def __contains__(self, field: str) -> bool:
        return self.values.get(field) is not None

    def raw(self, *names: str) -> tuple[str, Any]:
        """Name and value of the first field present, or the first name and None."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def ignore(self, *names: str) -> None:
        """Mark fields as understood and without effect on this model."""
        self.read.update(names)

    def integer(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; integral floats are taken.

        Raises
        ------
        InvalidConfig
            When it is absent without a default, of another type, or out of range.
        """
        name, value = self.raw(*names)
        if value is None:
            if default is not None:
                return default
            raise InvalidConfig(self.named(name), f"{self.named(name)} is missing: give a whole number")
        if isinstance(value, float) and value.is_integer() and abs(value) < MAX_SIZE:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidConfig(self.named(name), f"{self.named(name)} must be a whole number, not {_shown(value)}")
        if not minimum <= value <= MAX_SIZE:
            raise InvalidConfig(
                self.named(name), f"{self.named(name)} must be between {minimum} and {MAX_SIZE}, not {_shown(value)}"
            )
        return value

    def optional_integer(self, *names: str, minimum: int = 1) -> int | None:
        """A whole number, or None where it is absent or null."""
        name, value = self.raw(*names)
        return None if value is None else self.integer(name, minimum=minimum)

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number; whole or not."""
        name, value = self.raw(*names)
        if value is None:
            if default is not None:
                return default
            raise InvalidConfig(self.named(name), f"{self.named(name)} is missing: give a number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidConfig(self.named(name), f"{self.named(name)} must be a number, not {_shown(value)}")
        if not math.isfinite(value) or abs(value) > MAX_SIZE:
            raise InvalidConfig(
                self.named(name), f"{self.named(name)} must be between {-MAX_SIZE} and {MAX_SIZE}, not {_shown(value)}"
            )
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        name, value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidConfig(self.named(name), f"{self.named(name)} must be true or false, not {_shown(value)}")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """A string."""
        name, value = self.raw(*names)
        if value is None:
            if default is not None:
                return default
            raise InvalidConfig(self.named(name), f"{self.named(name)} is missing: give a string")
        if not isinstance(value, str):
            raise InvalidConfig(self.named(name), f"{self.named(name)} must be a string, not {_shown(value)}")
        return value

    def items(self, *names: str) -> Sequence[Any] | None:
        """A list, or None where it is absent or null."""
        name, value = self.raw(*names)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise InvalidConfig(self.named(name), f"{self.named(name)} must be a list, not {_shown(value)}")
        return cast("Sequence[Any]", value)

    def integers(self, *names: str, minimum: int = 0) -> list[int] | None:
        """A list of whole numbers, or None where it is absent or null."""
        name, _ = self.raw(*names)
        values = self.items(*names)
        if values is None:
            return None
        indexed = Fields({str(index): value for index, value in enumerate(values)}, self.named(name))
        return [indexed.integer(str(index), minimum=minimum) for index in range(len(values))]

    def texts(self, *names: str) -> list[str] | None:
        """A list of strings, or None where it is absent or null."""
        name, _ = self.raw(*names)
        values = self.items(*names)
        if values is None:
            return None
        indexed = Fields({str(index): value for index, value in enumerate(values)}, self.named(name))
        return [indexed.text(str(index)) for index in range(len(values))]

    def child(self, *names: str) -> "Fields | None":
        """A nested object, or None where it is absent or null."""
        name, value = self.raw(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InvalidConfig(self.named(name), f"{self.named(name)} must be an object, not {_shown(value)}")
        return Fields(cast("Json", value), self.named(name))

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers, bounded so that answering stays quick."""
        name, _ = self.raw(*names)
        count = self.integer(*names, default=default)
        if count > MAX_LAYERS:
            raise InvalidConfig(self.named(name), f"{self.named(name)} must be at most {MAX_LAYERS}, not {count}")
        return count

    def refuse_unread(self, structural: Iterable[frozenset[str]], architecture: str) -> None:
        """Refuse fields that change memory and that the reader of this architecture did not look at.

        Each set holds the fields that spell one thing: reading any of them is having looked at it.

        Raises
        ------
        NotUnderstood
            Naming them all.
        """
        unread = {name for spellings in structural if not spellings & self.read for name in spellings}
        strange = tuple(
            self.named(name) for name, value in self.values.items() if name in unread and not _trivial(value)
        )
        if strange:
            raise NotUnderstood(
                strange, f"{architecture} with {', '.join(strange)} is not understood: no sizing rule covers it"
            )


def _trivial(value: object) -> bool:
    """Whether a value of a structural field changes nothing: none, just one, layers of just one kind."""
    if isinstance(value, list) and value:
        kinds = cast("list[object]", value)
        return isinstance(kinds[0], str) and kinds.count(kinds[0]) == len(kinds)
    return not value or (value == 1 and not isinstance(value, bool))


def _shown(value: object) -> str:
    """A value short enough for a sentence."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 64:
        return "a number of more than 64 bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
