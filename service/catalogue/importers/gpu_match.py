"""From a card's name and the rest of its row to the one catalogued card it is, or to an honest refusal."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from service.catalogue.importers import gpu_names


@dataclass(frozen=True, slots=True)
class Match:
    """A known card.

    Attributes
    ----------
    gpu : str or None
        Catalogue slug; None if several cards remain, then `ambiguous` lists them.
    fraction : Decimal or None
        Share of the card if less than a whole one is sold.
    """

    gpu: str | None
    ambiguous: tuple[str, ...] = ()
    fraction: Decimal | None = None


@dataclass(frozen=True, slots=True)
class NotCatalogued:
    """A known accelerator that the catalogue does not hold."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A name no table has."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The row says two things about its card that cannot both be true."""

    message: str


Verdict = Match | NotCatalogued | Unknown | Contradiction

Readings = tuple[tuple[Decimal, ...], ...]
"""What a memory figure may mean, GB of one GPU: readings in order of trust, each a set of sizes it would allow."""

MEMORY_TOLERANCE = Decimal("0.13")
"""Lists give marketed, usable or driver memory: from -9 % (B300) to +12.5 % (MI325X) of the marketed figure."""

_SXM = re.compile(r"sxm")
_PCIE = re.compile(r"pcie|(?<![a-z])pci(?![a-z])")
_NVL = re.compile(r"h[12]00[-_ ]?nvl(?!ink)|(?<![a-z0-9])nvl(?![a-z0-9])")
_SIZE_AFTER_NAME = re.compile(
    r"(?:a100|v100|h100|h200|gh200)(?:[-_ .]?(?:sxm|pcie)[0-9]?)?[-_ .]?([0-9]{2,3})gb?(?![a-z0-9])"
)


def match_gpu(
    table: Mapping[str, tuple[str, ...]],
    name: str,
    *,
    provider: str,
    instance_type: str = "",
    description: str = "",
    hints: str = "",
    memory: Readings = (),
    may_be_share: bool = False,
) -> Verdict:
    """Which card `name` is.

    The name gives the candidates. The provider's machine type, then any form factor and memory the row mentions,
    reduce them. Nothing is guessed: what remains open stays open, and evidence that leaves no candidate is a
    contradiction.

    Parameters
    ----------
    table : mapping
        The source's own names, asked before `gpu_names.COMMON`.
    description : str
        A second name of the card in the same row.
    hints : str
        Further words of the row that may name form factor or memory.
    memory : Readings
        Memory of one GPU, GB.
    may_be_share : bool
        Whether `memory` far below the card's means a share of it is sold (else it is a contradiction).
    """
    key = gpu_names.key(name)
    candidates = table.get(key) or gpu_names.COMMON.get(key)
    if candidates is None and (bare := _bare(name)) != key:
        key, candidates = bare, _qualified(table, name, bare)
    if candidates is None:
        return NotCatalogued() if gpu_names.NOT_CATALOGUED.fullmatch(key) else Unknown()
    pinned = _pinned(provider, key, instance_type)
    if pinned is not None:
        if pinned not in candidates:
            return Contradiction(f"{provider} {instance_type or name} has {pinned}, the row says {name}")
        return Match(pinned, fraction=_share(pinned, memory) if may_be_share else None)

    described = gpu_names.key(description)
    if described != key:
        candidates = tuple(s for s in candidates if s in gpu_names.COMMON.get(described, candidates)) or candidates

    words = f"{instance_type} {description} {hints}".casefold()
    forms = {form for form, pattern in (("sxm", _SXM), ("pcie", _PCIE), ("nvl", _NVL)) if pattern.search(words)}
    if forms and any(slug in gpu_names.FORM_FACTOR for slug in candidates):
        candidates = tuple(slug for slug in candidates if {gpu_names.FORM_FACTOR.get(slug)} == forms)
        if not candidates:
            return Contradiction(f"{name} and {', '.join(sorted(forms))} in {words.strip()!r} do not go together")

    if spelt := _SIZE_AFTER_NAME.search(words):
        memory = ((Decimal(spelt[1]),),)
    if memory:
        fitting = _fitting(candidates, memory)
        if not fitting:
            shares = {_share(slug, memory) for slug in candidates} if may_be_share else {None}
            if None in shares or len(shares) > 1:
                sizes = ", ".join(format(size.normalize(), "f") for size in memory[0])
                return Contradiction(f"{name} with {sizes} GB is none of {', '.join(candidates)}")
            return _match(candidates, shares.pop())
        candidates = fitting
    return _match(candidates, None)


_SIZE_APART = re.compile(r"(?<=[0-9])\s+(?=gi?b\b)")
_WORD = re.compile(r"[a-z0-9]+")
_MEMORY_WORD = re.compile(r"([0-9]{1,3})g(?:i?b)?")
_FORM_WORD = re.compile(r"(sxm|pcie)[0-9]?|hgx")
_NOISE = re.compile(r"hbm[0-9]e?|gddr[0-9]x?|oam|nvl[0-9]+|nvlink|edition|generation|tensor|core|per|gpus?|baremetal")


def _words(name: str) -> list[str]:
    return _WORD.findall(_SIZE_APART.sub("", name.casefold()))


def _bare(name: str) -> str:
    """The key of a name without what only qualifies the card: its form factor, its memory and words of no account."""
    qualifiers = (_MEMORY_WORD, _FORM_WORD, _NOISE)
    return gpu_names.key("".join(word for word in _words(name) if not any(each.fullmatch(word) for each in qualifiers)))


def _qualified(table: Mapping[str, tuple[str, ...]], name: str, bare: str) -> tuple[str, ...] | None:
    """Cards of a name that is known bare and whose other words fit them ("L40S_PCIE", "H100 SXM5 80GB"); else None."""
    fitting = table.get(bare) or gpu_names.COMMON.get(bare, ())
    for word in _words(name):
        if form := _FORM_WORD.fullmatch(word):
            fitting = tuple(slug for slug in fitting if _form(slug) == (form[1] or "sxm"))
        elif size := _MEMORY_WORD.fullmatch(word):
            fitting = _fitting(fitting, ((Decimal(size[1]),),))
    return fitting or None


def _form(slug: str) -> str:
    return gpu_names.FORM_FACTOR.get(slug, "sxm" if slug.endswith("-sxm") else "pcie")


def _match(candidates: tuple[str, ...], fraction: Decimal | None) -> Match:
    if len(candidates) == 1:
        return Match(candidates[0], fraction=fraction)
    return Match(None, candidates, fraction)


def _pinned(provider: str, key: str, instance_type: str) -> str | None:
    for pattern, slug in gpu_names.INSTANCE_GPUS.get(provider, ()):
        if pattern.match(instance_type):
            return slug
    return gpu_names.BARE_GPUS.get((provider, key))


def _fitting(candidates: tuple[str, ...], memory: Readings) -> tuple[str, ...]:
    for sizes in memory:
        fitting = tuple(slug for slug in candidates if any(_close(size, gpu_names.MEMORY_GB[slug]) for size in sizes))
        if fitting:
            return fitting
    return ()


def _close(size: Decimal, marketed: int) -> bool:
    return abs(size - marketed) <= marketed * MEMORY_TOLERANCE


def _share(slug: str, memory: Readings) -> Decimal | None:
    """1/n of the card if that is what the first reading holds; None if it is the whole card or no clean share."""
    sizes: Iterable[Decimal] = memory[0] if memory else ()
    marketed = gpu_names.MEMORY_GB[slug]
    for size in sizes:
        parts = round(marketed / size)
        if parts >= 2 and _close(size * parts, marketed):
            return (Decimal(1) / parts).quantize(Decimal("0.0001"))
    return None
