"""Matching the names of layers against the lists of a quantised checkpoint, as the engine does.

Source: vLLM 0.33 `quantization/utils/quant_utils.py: is_layer_skipped`, `utils/config_utils.py`.
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from functools import lru_cache
from itertools import pairwise

from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.quantization.base import Skip

FUSED = {
    ("q_proj", "k_proj", "v_proj"): "qkv_proj",
    ("query", "key", "value"): "qkv_proj",
    ("gate_proj", "up_proj"): "gate_up_proj",
    ("w1", "w3"): "gate_up_proj",
    ("w1", "w2"): "gate_up_proj",
    ("q_a_proj", "kv_a_proj_with_mqa"): "fused_qkv_a_proj",
    ("in_proj_qkv", "in_proj_z"): "in_proj_qkvz",
    ("in_proj_b", "in_proj_a"): "in_proj_ba",
}
"""The engine's names of the layers it fuses, by the names of their parts."""

TEXT_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
"""Where checkpoints keep the language model; ignore lists may use another spelling than the weights."""

HEADS = ("lm_head", "language_model.lm_head", "model.lm_head")

MAX_PATTERN = 2000
MAX_REPETITIONS = 4
REPEATS = frozenset("*+{")
"""Limits on regular expressions, so that matching a name stays quick, and what repeats in them."""

LAYER = re.compile(r"layers\.(\d+)\.")
WILDCARDS = frozenset("*?[")

Match = Callable[[str], bool]


def fused_name(names: tuple[str, ...]) -> str | None:
    """The engine's name for the layer fused from `names`; None where it is not known."""
    if len(names) == 1:
        return names[0]
    parents, parts = zip(*(name.rpartition(".")[::2] for name in names), strict=True)
    fused = FUSED.get(parts)
    if fused is None or len(set(parents)) > 1:
        return None
    return f"{parents[0]}.{fused}" if parents[0] else fused


@lru_cache(maxsize=65536)
def spellings(name: str) -> tuple[str, ...]:
    """A name under every prefix that checkpoints of the same model use."""
    if name in HEADS:
        return HEADS
    for prefix in (*TEXT_PREFIXES, "backbone."):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return tuple(dict.fromkeys((name, *(other + rest for other in TEXT_PREFIXES), rest)))
    return (name, f"model.{name}")


def every_part(names: tuple[str, ...], matches: Match, field: str) -> bool:
    """Whether a fused layer matches: under its own name, or else in all its parts.

    Raises
    ------
    InvalidConfig
        When some parts match and others do not: the engine loads no such layer.
    """
    fused = fused_name(names)
    if len(names) > 1 and fused is not None and matches(fused):
        return True
    found = [matches(name) for name in names]
    if any(found) and not all(found):
        raise InvalidConfig(
            field,
            f"{field} names only some of the parts of one fused layer ({', '.join(names)}): "
            "the engine needs all of them stored in the same way",
        )
    return all(found)


def exact(entries: Iterable[str]) -> Match:
    """Matches names that are in the list."""
    listed = frozenset(entries)

    def matches(name: str) -> bool:
        return any(spelling in listed for spelling in spellings(name))

    return matches


def substring(entries: Iterable[str]) -> Match:
    """Matches names that contain an entry of the list.

    Entries about one layer are looked through for names of that layer only: lists may hold several a layer.
    """
    general, by_layer = _by_layer(entries)

    @lru_cache(maxsize=8192)
    def matches(name: str) -> bool:
        candidates = [*general, *(entry for layer in LAYER.findall(name) for entry in by_layer.get(layer, ()))]
        return any(entry in spelling for entry in candidates for spelling in spellings(name))

    return matches


def _by_layer(entries: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Entries that name no layer, and those of each layer."""
    general, by_layer = list[str](), dict[str, list[str]]()
    for entry in dict.fromkeys(entries):
        layer = LAYER.search(entry)
        (by_layer.setdefault(layer[1], []) if layer else general).append(entry)
    return general, by_layer


def wildcards(entries: Iterable[str]) -> Match:
    """Matches names that an entry with shell wildcards covers whole; entries without wildcards are left out."""
    prefixes, others = list[str](), list[str]()
    for entry in entries:
        if entry.endswith("*") and not WILDCARDS & set(entry[:-1]):
            prefixes.append(entry[:-1])
        elif WILDCARDS & set(entry):
            others.append(translate(entry))
    starts, pattern = tuple(prefixes), re.compile("|".join(others)) if others else None

    @lru_cache(maxsize=8192)
    def matches(name: str) -> bool:
        return any(
            spelling.startswith(starts) or (pattern is not None and pattern.match(spelling) is not None)
            for spelling in spellings(name)
        )

    return matches


def exact_or_regex(entries: Iterable[str], field: str) -> Match:
    """Matches names in the list, or matched from their start by an entry "re:PATTERN"."""
    entries = tuple(entries)
    listed = frozenset(entry for entry in entries if not entry.startswith("re:"))
    patterns = tuple(compiled(entry[3:], field) for entry in entries if entry.startswith("re:"))

    @lru_cache(maxsize=8192)
    def matches(name: str) -> bool:
        return any(
            spelling in listed or any(pattern.match(spelling) for pattern in patterns) for spelling in spellings(name)
        )

    return matches


def listed(entries: Iterable[str], field: str) -> Skip:
    """Skips layers that are in the list; experts whose name is part of an entry about experts."""
    entries = tuple(entries)
    named = exact(entries)
    general, by_layer = _by_layer(entry for entry in entries if "experts" in entry)

    def part_of_entry(name: str) -> bool:
        layer = LAYER.search(name)
        candidates = by_layer.get(layer[1], ()) if layer else (*general, *(e for es in by_layer.values() for e in es))
        return any(spelling in entry for entry in candidates for spelling in spellings(name))

    def skips(names: tuple[str, ...]) -> bool:
        if len(names) == 1 and "experts" in names[0]:
            return part_of_entry(names[0])
        return every_part(names, named, field)

    return skips


def matching(entries: Iterable[str], field: str) -> Skip:
    """Skips layers that are in the list, or matched by an entry "re:PATTERN"."""
    matches = exact_or_regex(entries, field)
    return lambda names: every_part(names, matches, field)


@lru_cache(maxsize=1024)
def compiled(pattern: str, field: str) -> re.Pattern[str]:
    """A regular expression from a checkpoint.

    Raises
    ------
    InvalidConfig
        It is not one.
    NotUnderstood
        It is long, repeats a repetition or repeats too often: matching it could take too long.
    """
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError) as error:
        raise InvalidConfig(field, f"{field} holds {pattern!r}, which is no regular expression: {error}") from error
    if len(pattern) > MAX_PATTERN or _repetitions(pattern) > MAX_REPETITIONS:
        raise NotUnderstood(
            (field,),
            f"{field} holds a regular expression too complex to match ({pattern[:60]!r}): "
            f"at most {MAX_PATTERN} characters and {MAX_REPETITIONS} open repetitions, none inside another",
        )
    return expression


def _repetitions(pattern: str) -> int:
    """Open repetitions of a regular expression that may run over many characters; repeated ones count beyond all.

    Runs of digits (`\\d+`) do not count: names hold few.
    """
    count, inside, previous = 0, [False], ""
    tokens = re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL)
    for token, following in pairwise([*tokens, ""]):
        if token == "(":
            inside.append(False)
        elif token == ")" and len(inside) > 1:
            repeats = inside.pop()
            if repeats and following in REPEATS:
                return MAX_REPETITIONS + 1
            inside[-1] |= repeats
        elif token in REPEATS and previous != "\\d":
            count += 1
            inside[-1] = True
        previous = token
    return count
