"""The API page: every operation, field and example of the contract, with a form to try them; it needs no network."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from markupsafe import Markup, escape

Schema = Any
"""A JSON schema or another part of the contract: nested objects and lists."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
NONE: Sequence[Any] = ()

DEEPEST = 6
"""Levels of nested objects shown: the contract has fewer, and a loop would have no end."""

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"

STATIC = {"docs.css": "text/css", "docs.js": "text/javascript", "icon.svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One line of a table of fields."""

    depth: int
    name: str
    kind: str
    required: bool
    description: str
    limits: str
    example: str


@dataclass(frozen=True, slots=True)
class Section:
    """One operation on the page."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[FieldRow, ...]
    body: tuple[FieldRow, ...]
    body_media_type: str
    answer: tuple[FieldRow, ...]
    problems: tuple[tuple[str, str], ...]
    examples: tuple[tuple[str, str], ...]
    locked: bool


def sections(contract: Schema) -> dict[str, list[Section]]:
    """The operations of a contract, by tag."""
    found: dict[str, list[Section]] = {tag["name"]: [] for tag in contract["tags"]}
    for path, item in contract["paths"].items():
        for method, operation in item.items():
            found[operation["tags"][0]].append(_section(contract, method.upper(), path, operation))
    return found


def _section(contract: Schema, method: str, path: str, operation: Schema) -> Section:
    body = operation.get("requestBody", NOTHING).get("content", NOTHING)
    media_type, content = next(iter(body.items()), ("", NOTHING))
    responses = operation["responses"]
    answered = next((code for code in responses if code.startswith("2")), "200")
    answer = next(iter(responses[answered].get("content", NOTHING).values()), NOTHING).get("schema", NOTHING)
    return Section(
        id=operation["operationId"],
        method=method,
        path=path,
        summary=operation["summary"],
        description=operation["description"],
        parameters=tuple(
            _row(contract, 0, each["name"], {**each["schema"], "description": each["description"]}, each["required"])
            for each in operation.get("parameters", NONE)
        ),
        body=tuple(_rows(contract, content.get("schema", NOTHING), 0)),
        body_media_type=media_type,
        answer=tuple(_rows(contract, answer, 0)),
        problems=tuple((code, each["description"]) for code, each in responses.items() if code >= "400"),
        examples=tuple(
            (example["summary"], json.dumps(example["value"], indent=2, ensure_ascii=False))
            for example in content.get("examples", NOTHING).values()
        ),
        locked="security" in operation,
    )


def _resolve(contract: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = contract["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _rows(contract: Schema, schema: Schema, depth: int) -> Iterator[FieldRow]:
    """Fields of an object schema, nested ones after their parent."""
    resolved = _resolve(contract, schema)
    required = resolved.get("required", NONE)
    for name, field in resolved.get("properties", NOTHING).items():
        yield _row(contract, depth, name, field, name in required)
        if depth < DEEPEST:
            for nested in _objects(contract, field):
                yield from _rows(contract, nested, depth + 1)


def _objects(contract: Schema, schema: Schema) -> Iterator[Schema]:
    """Object schemas inside a field: itself, alternatives, items."""
    resolved = _resolve(contract, schema)
    if "properties" in resolved:
        yield resolved
    for alternative in (*resolved.get("anyOf", NONE), *resolved.get("oneOf", NONE)):
        yield from _objects(contract, alternative)
    for inner in (resolved.get("items"), resolved.get("additionalProperties")):
        if isinstance(inner, Mapping):
            yield from _objects(contract, inner)


def _row(contract: Schema, depth: int, name: str, schema: Schema, required: bool) -> FieldRow:
    resolved = _resolve(contract, schema)
    examples = schema.get("examples") or resolved.get("examples") or NONE
    return FieldRow(
        depth=depth,
        name=name,
        kind=_kind(contract, schema),
        required=required,
        description=schema.get("description") or resolved.get("description", ""),
        limits=_limits(resolved),
        example=json.dumps(examples[0], ensure_ascii=False) if examples else "",
    )


def _kind(contract: Schema, schema: Schema) -> str:
    resolved = _resolve(contract, schema)
    if "enum" in resolved:
        return " | ".join(json.dumps(value) for value in resolved["enum"])
    if "const" in resolved:
        return json.dumps(resolved["const"])
    alternatives = [*resolved.get("anyOf", NONE), *resolved.get("oneOf", NONE)]
    if alternatives:
        return " or ".join(dict.fromkeys(_kind(contract, each) for each in alternatives))
    if resolved.get("type") == "array":
        return f"list of {_kind(contract, resolved.get('items', NOTHING))}"
    return str(resolved.get("type", "any"))


def _limits(schema: Schema) -> str:
    found = [
        f"{sign} {schema[key]:,}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("minLength", "length ≥"),
            ("maxLength", "length ≤"),
            ("minItems", "items ≥"),
            ("maxItems", "items ≤"),
        )
        if key in schema
    ]
    if not found:
        return next((limits for each in schema.get("anyOf", NONE) if (limits := _limits(each))), "")
    return ", ".join(found)


def marked(text: str) -> Markup:
    """A description as HTML: what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("service.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(contract: Schema) -> bytes:
    """The page for a contract."""
    return (
        _environment()
        .get_template("docs.html")
        .render(contract=contract, sections=sections(contract), marked=marked)
        .encode()
    )


def handlers(page: Callable[[], bytes]) -> tuple[HTTPRouteHandler, ...]:
    """The page, made when it is first wanted, and what it loads."""
    static = {name: files("service.web").joinpath("static", name).read_bytes() for name in STATIC}

    @get("/docs", name="docs", include_in_schema=False)
    async def docs() -> Response[bytes]:
        return Response(
            await asyncio.to_thread(page), media_type=MediaType.HTML, headers={"Content-Security-Policy": POLICY}
        )

    @get("/docs/{name:str}", name="docs_static", include_in_schema=False)
    async def docs_static(request: Request[Any, Any, Any]) -> Response[bytes]:
        name = request.path_params["name"]
        if name not in static:
            return Response(b"", status_code=404)
        return Response(static[name], media_type=STATIC[name], headers={"Cache-Control": "no-cache"})

    return docs, docs_static
