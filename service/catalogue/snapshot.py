"""The catalogue in memory: immutable, with a revision."""

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from service.catalogue.accuracy import Compared, compared, errors_by_kind
from service.catalogue.offers import PricesWanted, best_offers, is_comparable, other_currencies
from service.catalogue.records.gpu import GpuRecord
from service.catalogue.records.model import ModelRecord
from service.catalogue.records.price import HostedPrice, InstanceType, Price, typical_per_gpu_hour
from service.catalogue.records.source import SourceRecord
from service.catalogue.servings import LinkRecord, ServingRecord, link_tests_by_gpu
from service.catalogue.servings import points_by_model as serving_points_by_model
from service.catalogue.startup_models import startup_model
from service.catalogue.startups import StartupRecord, point_of, points_by_model
from service.sizing.calibration import Neighbour, StartupPoint
from service.sizing.cost.offer import Offer
from service.sizing.engine.profile import release
from service.sizing.errors import SizingError
from service.sizing.evidence import Kind, MeasuredError
from service.sizing.fit import predicted_at
from service.sizing.hardware import Gpu, Link
from service.sizing.model.shape import ModelShape
from service.sizing.performance.link_tests import LinkTest
from service.sizing.performance.measured import ServingPoint
from service.sizing.working_space import Release, era_of

Record = TypeVar("Record")

OFFERS_REMEMBERED = 4096
NEAREST = 3
SIMILAR_ENOUGH = 0.3
SIMILAR_PROVIDER = 0.5

WORD = re.compile(r"(?:nv|mx)?fp\d+|bf\d+|int\d+|w\d+a\d+|\d+(?:\.\d+)*[a-z]*|[^\W\d_]+")
"""A word of a name: a format of numbers, a number with its unit, or letters. `qwen3-8b-fp8` has four."""

SIZED = ("gpus", "models", "startups")
"""What predictions of startups rest on."""

DERIVED: Mapping[str, tuple[str, ...]] = {
    "compared_startups": SIZED,
    "memory_errors": SIZED,
    "_neighbours": SIZED,
    "_unfitted_startups": ("startups",),
    "_startups_by_model": ("startups",),
    "_servings_by_model": ("servings",),
    "link_tests": ("links",),
    "typical_per_gpu_hour": ("prices",),
    "providers": ("prices",),
    "newest_price_on": ("prices",),
    "_prices_by_gpu": ("prices",),
    "_offers": ("prices",),
}
"""What a snapshot remembers of what it computed, and the records that each rests on."""


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
    gpus, models, sources, instance_types, prices, hosted_prices, startups, servings, links : tuple of records
        In the order of their keys; prices in the order they came, those of one revision by their keys.

    Raises
    ------
    ValueError
        Two GPUs or two models answer to one name.
    """

    revision: int
    gpus: tuple[GpuRecord, ...] = ()
    models: tuple[ModelRecord, ...] = ()
    sources: tuple[SourceRecord, ...] = ()
    instance_types: tuple[InstanceType, ...] = ()
    prices: tuple[Price, ...] = ()
    hosted_prices: tuple[HostedPrice, ...] = ()
    startups: tuple[StartupRecord, ...] = ()
    servings: tuple[ServingRecord, ...] = ()
    links: tuple[LinkRecord, ...] = ()

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

    def instance(self, name: str) -> InstanceType:
        """The rentable machine `provider/instance_type`, or of that instance type where one provider has it.

        Raises
        ------
        UnknownName
            With the nearest full names; for a bare name that several providers have, with theirs.
        """
        found = self._instances_by_name.get(name.casefold(), ())
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownName("instance", name, tuple(f"{each.provider}/{each.instance_type}" for each in found))
        return _find(
            "instance",
            name,
            {spelling: several[0] for spelling, several in self._instances_by_name.items()},
            lambda record: f"{record.provider}/{record.instance_type}",
        )

    def offers(self, wanted: PricesWanted, gpu: str, instance: tuple[str, str] | None = None) -> tuple[Offer, ...]:
        """The cheapest offer of each machine size for a card, or of one machine.

        Of each machine and place only the newest price seen up to the day asked is looked at. Left out are prices
        without the host, in a currency that the rate given does not cover, of a share of a card, and of a card that
        is not certain.

        Parameters
        ----------
        gpu : str
            Catalogue slug.
        instance : tuple of str, optional
            Provider and instance type of the only machine considered.
        """
        key = wanted, gpu, instance
        found = self._offers.get(key)
        if found is None:
            if len(self._offers) >= OFFERS_REMEMBERED:
                self._offers.clear()
            found = self._offers[key] = best_offers(
                self._prices_by_gpu.get(gpu, ()), wanted, instance, self.newest_price_on
            )
        return found

    def other_currencies(
        self, wanted: PricesWanted, gpu: str, instance: tuple[str, str] | None = None
    ) -> tuple[str, ...]:
        """Currencies of the prices left out of `offers` for their currency alone."""
        return other_currencies(self._prices_by_gpu.get(gpu, ()), wanted, instance)

    def nearest_providers(self, name: str) -> tuple[str, ...]:
        """Providers with a similar name, the most similar first."""
        return tuple(difflib.get_close_matches(name.casefold(), self.providers, n=NEAREST, cutoff=SIMILAR_PROVIDER))

    @cached_property
    def providers(self) -> tuple[str, ...]:
        """Who rents machines whose price is known, in order."""
        return tuple(sorted({price.provider for price in self.prices}))

    @cached_property
    def newest_price_on(self) -> date | None:
        """The day of the newest price; the age of others is counted from it."""
        return max((price.observed_on for price in self.prices), default=None)

    @cached_property
    def typical_per_gpu_hour(self) -> Mapping[str, Decimal]:
        """Usual USD per GPU and hour of each card, to find outliers among new prices."""
        return typical_per_gpu_hour(self.prices)

    def keeping(self, earlier: "Snapshot") -> "Snapshot":
        """This catalogue with the records of an earlier one where they are equal, and so with what was read of them.

        What an earlier one derived from records that are all unchanged is kept too.
        """
        models = {model.name: model for model in earlier.models}
        gpus = {gpu.slug: gpu for gpu in earlier.gpus}
        kept = replace(
            self,
            models=tuple(old if (old := models.get(new.name)) == new else new for new in self.models),
            gpus=tuple(old if (old := gpus.get(new.slug)) == new else new for new in self.gpus),
        )
        unchanged = {field.name for field in fields(self) if getattr(kept, field.name) == getattr(earlier, field.name)}
        for name, needs in DERIVED.items():
            if name in vars(earlier) and unchanged.issuperset(needs):
                vars(kept)[name] = vars(earlier)[name]
        return kept

    def startup_points(self, model: str) -> Mapping[str, tuple[StartupPoint, ...]]:
        """Accepted startups of a model that correct predictions, by GPU slug."""
        return self._startups_by_model.get(model.casefold(), {})

    def serving_points(self, model: str) -> Mapping[str, tuple[ServingPoint, ...]]:
        """Accepted load tests of a model that correct predictions, by GPU slug."""
        return self._servings_by_model.get(model.casefold(), {})

    @cached_property
    def calibrations(self) -> Mapping[str, StartupRecord | ServingRecord | LinkRecord]:
        """Measurements of every kind by their ids, in order."""
        every = (*self.startups, *self.servings, *self.links)
        return dict(sorted(((record.id, record) for record in every), key=lambda each: each[0]))

    @cached_property
    def _servings_by_model(self) -> Mapping[str, Mapping[str, tuple[ServingPoint, ...]]]:
        return serving_points_by_model(self.servings)

    @cached_property
    def link_tests(self) -> Mapping[str, tuple[LinkTest, ...]]:
        """Accepted link tests that correct predictions, by GPU slug."""
        return link_tests_by_gpu(self.links)

    def neighbours(self, gpu: str, number: Release) -> tuple[Neighbour, ...]:
        """Accepted startups of every model on a card with a release, beside what is predicted of them.

        Empty for releases of an era that the formulas were fitted to, where they would add nothing.
        """
        key = gpu, number
        if key not in self._neighbours:
            found = self._unfitted_startups.get(key, ())
            self._neighbours[key] = tuple(each for record in found for each in self._neighbour(record))
        return self._neighbours[key]

    def _neighbour(self, record: StartupRecord) -> Iterator[Neighbour]:
        point, measured = point_of(record), record.measurement
        model, gpu = self.started_model(measured.model), self.known_gpu(measured.gpu)
        if point is None or model is None or gpu is None:
            return
        link = gpu.link if measured.link is None else Link(measured.link)
        predicted = predicted_at(point, model, gpu, link)
        if predicted is not None:
            yield Neighbour(point, model.experts > 0, predicted)

    @cached_property
    def _neighbours(self) -> dict[tuple[str, Release], tuple[Neighbour, ...]]:
        # A memory of what was asked, not part of the catalogue.
        return {}

    @cached_property
    def _unfitted_startups(self) -> Mapping[tuple[str, Release], Sequence[StartupRecord]]:
        """Usable startups of releases whose era was not fitted, by GPU slug and release."""
        found: defaultdict[tuple[str, Release], list[StartupRecord]] = defaultdict(list)
        for record in self.startups:
            number = release(record.measurement.engine_version or "")
            if number is not None and not era_of(number).measured and point_of(record) is not None:
                found[record.measurement.gpu, number].append(record)
        return found

    def started_model(self, name: str) -> ModelShape | None:
        """The checkpoint that a startup names: of the catalogue, else composed; None: not known, or not understood."""
        record = self.known_model(name)
        if record is None:
            return startup_model(name)
        return None if isinstance(record.reading, SizingError) else record.reading

    def known_model(self, name: str) -> ModelRecord | None:
        """The model that a measurement names, where the catalogue holds it."""
        return self._models_by_name.get(name.casefold())

    def known_gpu(self, slug: str) -> Gpu | None:
        """The card that a measurement names, where the catalogue holds it."""
        record = self._gpus_by_name.get(slug.casefold())
        return None if record is None else record.gpu()

    def prepare(self) -> "Snapshot":
        """This catalogue with its measurements compared, so that no question waits for it."""
        _ = self.memory_errors
        for gpu, number in self._unfitted_startups:
            self.neighbours(gpu, number)
        return self

    @cached_property
    def compared_startups(self) -> tuple[Compared, ...]:
        """Every accepted startup that can be sized, beside its prediction; takes a second for a catalogue just read."""
        return compared(self)

    @cached_property
    def memory_errors(self) -> Mapping[Kind, MeasuredError]:
        """How far predictions of memory were off, by kind of deployment."""
        return errors_by_kind(self.compared_startups)

    @cached_property
    def _startups_by_model(self) -> Mapping[str, Mapping[str, tuple[StartupPoint, ...]]]:
        return points_by_model(self.startups)

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
    def _instances_by_name(self) -> Mapping[str, tuple[InstanceType, ...]]:
        named: dict[str, tuple[InstanceType, ...]] = {}
        for each in self.instance_types:
            for name in (f"{each.provider}/{each.instance_type}".casefold(), each.instance_type.casefold()):
                named[name] = (*named.get(name, ()), each)
        return named

    @cached_property
    def _prices_by_gpu(self) -> Mapping[str, Sequence[Price]]:
        by_gpu: defaultdict[str, list[Price]] = defaultdict(list)
        for price in self.prices:
            if price.gpu is not None and is_comparable(price):
                by_gpu[price.gpu].append(price)
        return by_gpu

    @cached_property
    def _offers(self) -> dict[tuple[PricesWanted, str, tuple[str, str] | None], tuple[Offer, ...]]:
        # A memory of what was asked, not part of the catalogue.
        return {}

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
    wording = _Wording.of(wanted)
    likeness = {spelling: wording.likeness(_Wording.of(spelling)) for spelling in index}
    close = sorted(likeness, key=lambda spelling: (-likeness[spelling], len(spelling), spelling))
    nearest = (key(index[spelling]) for spelling in close if likeness[spelling] >= SIMILAR_ENOUGH)
    raise UnknownName(kind, name, tuple(dict.fromkeys(nearest))[:NEAREST])


@dataclass(frozen=True)
class _Wording:
    """A name in lower case, taken apart: its owner, its words, and what characters stand side by side in it."""

    owner: str
    words: frozenset[str]
    pairs: frozenset[str]

    @classmethod
    def of(cls, name: str) -> "_Wording":
        owner, _, tail = name.rpartition("/")
        words = WORD.findall(tail or owner)
        return cls(owner, frozenset(words), frozenset(map("".join, pairwise("".join(words)))))

    def likeness(self, known: "_Wording") -> float:
        """How well a known name answers to this one, from 0 to 1.

        Most of it is the words of this name found in the other, in any order, so that a name still finds itself without
        its owner, with other separators or with a word more or less. The rest is the characters in common, which finds
        what was misspelt, and the owner.
        """
        words = _share(*(sum(map(_weight, part)) for part in _parted(self.words, known.words)))
        pairs = _share(*map(len, _parted(self.pairs, known.pairs)))
        return 0.65 * words + 0.3 * pairs + 0.05 * (self.owner == known.owner)


def _parted(wanted: frozenset[str], known: frozenset[str]) -> tuple[frozenset[str], ...]:
    """What is in both, what is wanted and missing, and what is there beside it."""
    return wanted & known, wanted - known, known - wanted


def _share(common: int, missing: int, extra: int) -> float:
    """How much of what is wanted is there, from 0 to 1: what is missing counts more than what is there beside it."""
    return common / max(1.0, common + 0.8 * missing + 0.2 * extra)


def _weight(word: str) -> int:
    """A size or a version weighs double: a base model is nearer to one tuned from it than one of another size."""
    return 2 if word[0].isdigit() else 1
