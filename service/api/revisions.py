"""The catalogue's history: its revisions, and what changed between two of them."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from litestar import Request, Response
from pydantic import Field

from service.api import responding
from service.api.contract import INTEGRAL, ONE_LINE, Contract, Text
from service.api.operation import Operation
from service.api.paging import DEFAULT_LIMIT, PageQuery, read_parameters
from service.api.problems import unknown
from service.catalogue.records.gpu import GpuRecord
from service.catalogue.records.model import ModelRecord
from service.catalogue.records.revision import RevisionRecord
from service.sizing.errors import SizingError
from service.sizing.quantities import Doc
from service.sizing.weights import total_parameters
from service.storage import json_values
from service.storage.catalogue import current_revision, revisions
from service.storage.engine import Engine, transaction
from service.storage.history import Change, changed_keys, changes

MOST_REVISIONS = (1 << 31) - 1
MOST_FIELDS = 40
"""Changed fields shown of one entry."""

LONGEST_TEXT = 200
UNTOLD = frozenset({"reader_version", "config_sha256"})
"""Columns that follow from others."""

RevisionNumber = Annotated[int, Field(ge=0, le=MOST_REVISIONS), INTEGRAL]


class RevisionQuery(Contract):
    """Which revisions, the newest first."""

    limit: Annotated[int, Field(ge=1, le=500), INTEGRAL] = Field(
        default=DEFAULT_LIMIT, description="most entries to return"
    )
    after: RevisionNumber | None = Field(default=None, description="the last revision seen; null: from the newest")


class DiffQuery(PageQuery):
    """Which two revisions."""

    after: Annotated[str, Field(min_length=1, max_length=2000, pattern=ONE_LINE)] | None = Field(
        default=None, description="key of the last entry seen; null: from the start"
    )
    kind: Text | None = Field(default=None, description="one kind alone, such as models; null: all")
    from_: RevisionNumber = Field(alias="from", description="the revision to start from; 0: the empty catalogue")
    to: RevisionNumber | None = Field(default=None, description="the revision to compare with; null: the newest")


@dataclass(frozen=True, slots=True)
class RevisionView:
    """One step of the catalogue."""

    revision: Annotated[int, Doc("its number, from 1", example=1)]
    created_at: Annotated[str, Doc("when it was made", example="2026-11-30T09:00:00+00:00")]
    author: Annotated[str, Doc("who made it: the seed, or the name and prefix of an API key", example="seed")]
    summary: Annotated[str, Doc("what it brings", example="Model my-org/my-model")]


@dataclass(frozen=True, slots=True)
class RevisionPage:
    """Revisions, the newest first."""

    catalogue_revision: Annotated[int, Doc("newest catalogue revision", example=1)]
    items: Annotated[tuple[RevisionView, ...], Doc("revisions")]
    next: Annotated[int | None, Doc("give it as `after` for the next page; null at the end")]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that differs."""

    field: Annotated[str, Doc("dotted path", example="config.num_hidden_layers")]
    before: Annotated[str | None, Doc("as JSON, shortened; null: absent", example="32")]
    after: Annotated[str | None, Doc("as JSON, shortened; null: absent", example="36")]


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One thing that two revisions hold differently."""

    key: Annotated[str, Doc("kind and key", example="models/my-org/my-model")]
    kind: Annotated[str, Doc("list it belongs to", example="models")]
    change: Annotated[str, Doc("added, changed or removed", example="changed")]
    before: Annotated[str | None, Doc("what the first revision holds, in a line; null: nothing")]
    after: Annotated[str | None, Doc("what the second one holds, in a line; null: nothing")]
    fields: Annotated[tuple[FieldChange, ...], Doc("fields that differ, where both hold it")]
    fields_left_out: Annotated[int, Doc("differing fields beyond those shown", example=0)]


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed between two revisions, by kind and key."""

    catalogue_revision: Annotated[int, Doc("the second of the two revisions", example=2)]
    from_revision: Annotated[int, Doc("the first of the two revisions", example=1)]
    items: Annotated[tuple[ChangeView, ...], Doc("changes")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


async def list_revisions(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A page of revisions, read from the database: this worker may not have heard of the newest."""
    query = read_parameters(request, RevisionQuery)
    newest_first = await asyncio.to_thread(_revisions, request.app.state.engine)
    older = [each for each in newest_first if query.after is None or each.revision < query.after]
    chosen = older[: query.limit]
    newest = newest_first[0].revision if newest_first else 0
    following = chosen[-1].revision if len(chosen) < len(older) else None
    return responding.conditional(
        request, RevisionPage(newest, tuple(revision_view(each) for each in chosen), following), newest
    )


def revision_view(record: RevisionRecord) -> RevisionView:
    """A revision for its readers."""
    return RevisionView(record.revision, record.created_at.isoformat(), record.author, record.summary)


async def diff(request: Request[Any, Any, Any]) -> Response[bytes]:
    """What changed between two revisions."""
    query = read_parameters(request, DiffQuery)
    later, views, following = await asyncio.to_thread(_changes, request.app.state.engine, query)
    return responding.conditional(request, Diff(later, query.from_, views, following), later)


def change_key(change: Change) -> str:
    """What a change is about, as one text."""
    return "/".join((change.kind, *change.key))


def change_view(change: Change) -> ChangeView:
    """A change for its readers."""
    before, after = change.before_row, change.after_row
    differing = tuple(differences(before, after)) if before is not None and after is not None else ()
    return ChangeView(
        key=change_key(change),
        kind=change.kind,
        change="added" if before is None else "removed" if after is None else "changed",
        before=None if change.before is None else in_a_line(change.before, before),
        after=None if change.after is None else in_a_line(change.after, after),
        fields=differing[:MOST_FIELDS],
        fields_left_out=max(0, len(differing) - MOST_FIELDS),
    )


def in_a_line(record: object, row: Mapping[str, Any] | None) -> str:
    """What a record says, shortened to a line."""
    match record:
        case ModelRecord():
            shape = record.reading
            if isinstance(shape, SizingError):
                return shortened(f"refused: {shape}")
            return f"{total_parameters(shape):,} parameters, {shape.max_context_tokens:,} tokens, {shape.status.value}"
        case GpuRecord():
            memory, bandwidth = record.figures["memory_total_gib"], record.figures["memory_bandwidth_gb_per_s"]
            return f"{record.name}: {memory.value:g} GiB, {bandwidth.value:g} GB/s"
        case _:
            plain = (
                f"{name} {value}" for name, value in (row or {}).items() if not isinstance(value, dict | list | None)
            )
            return shortened(", ".join(plain))


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    """Fields in which two rows differ, in the order of their paths."""
    old, new = dict(flattened(json_values.decode(before))), dict(flattened(json_values.decode(after)))
    for path in sorted(old.keys() | new.keys()):
        if path not in UNTOLD and old.get(path) != new.get(path):
            was, became = (None if path not in row else shortened(row[path]) for row in (old, new))
            yield FieldChange(path, was, became)


def flattened(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted paths of a row's values, each value as JSON; lists are values."""
    if isinstance(value, Mapping) and value:
        for name, item in cast("Mapping[str, object]", value).items():
            yield from flattened(item, f"{path}.{name}" if path else name)
    else:
        yield path, json.dumps(value, default=str, ensure_ascii=False)


def shortened(text: str) -> str:
    """A text cut to what fits in a table."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _revisions(engine: Engine) -> list[RevisionRecord]:
    with transaction(engine) as connection:
        return revisions(connection)


def _changes(engine: Engine, query: DiffQuery) -> tuple[int, tuple[ChangeView, ...], str | None]:
    with transaction(engine) as connection:
        newest = current_revision(connection)
        later = newest if query.to is None else query.to
        for field, number in (("from", query.from_), ("to", later)):
            if number > newest:
                raise unknown("revision", str(number), (str(newest),), field)
        keys = changed_keys(connection, query.from_, later, kind=query.kind, after=query.after, most=query.limit + 1)
        chosen = keys[: query.limit]
        views = tuple(change_view(change) for change in changes(connection, query.from_, later, chosen))
        return later, views, str(chosen[-1]) if len(chosen) < len(keys) else None


OPERATIONS = (
    Operation(
        method="GET",
        path="/catalogue/revisions",
        name="list_revisions",
        summary="List catalogue revisions",
        description="Every step of the catalogue, the newest first: who made it, when, and what it brings.",
        tag="catalogue",
        handler=list_revisions,
        answer=RevisionPage,
        query=RevisionQuery,
        problems=(400, 503),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/catalogue/diff",
        name="diff_revisions",
        summary="Compare two catalogue revisions",
        description="What was added, changed or removed between two revisions, by kind and key, with the fields that "
        "differ before and after.",
        tag="catalogue",
        handler=diff,
        answer=Diff,
        query=DiffQuery,
        problems=(400, 404, 503),
        cacheable=True,
    ),
)
