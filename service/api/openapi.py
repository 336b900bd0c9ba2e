"""The published contract, made from what is enforced."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from service import __version__
from service.api.contract import MAX_NAMES, ONE_LINE
from service.api.operation import Operation
from service.api.problems import MEDIA_TYPE, ProblemDetails
from service.storage.keys import ROLES

REFERENCE = "#/components/schemas/{model}"

DESCRIPTION = """\
How to run an open-weights model on vLLM: which GPUs, how many, which parallel sizes, what fits, how fast, at what
price, with which flags, and why. Sizes are bytes (GiB = 2^30, GB = 10^9), money is exact decimals in strings, times
are in the unit that the field's name ends with. An infeasible question is answered (200) with the reasons and the
nearest fix; bad input is a problem (RFC 9457) that names the field. Every path that answers GET answers HEAD with the
same status and headers, and no body.\
"""

Schema = dict[str, Any]

LOCKED_PROBLEMS = (401, 403, 503)
"""What an operation with a role may also fail with."""

PATH_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAMES, "pattern": ONE_LINE}
"""A name in a path; others are not found."""


def document(operations: Sequence[Operation], parameters: Mapping[str, Mapping[str, Schema]]) -> Schema:
    """The OpenAPI 3.1 document of the operations.

    `parameters` gives the schema of path parameters, by operation name and parameter.
    """
    adapters: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        ("problem", "serialization", TypeAdapter(ProblemDetails))
    ]
    for operation in operations:
        if operation.body is not None:
            adapters.append((f"{operation.name}:body", "validation", TypeAdapter(operation.body)))
        if operation.query is not None:
            adapters.append((f"{operation.name}:query", "validation", TypeAdapter(operation.query)))
        if operation.answer is not None:
            adapters.append((f"{operation.name}:answer", "serialization", TypeAdapter(operation.answer)))
    keyed, definitions = TypeAdapter.json_schemas(adapters, ref_template=REFERENCE)
    schemas = {key[0]: schema for key, schema in keyed.items()}
    paths: dict[str, Schema] = {}
    for operation in operations:
        item = paths.setdefault(operation.path, {})
        item[operation.method.lower()] = _operation(operation, schemas, definitions, parameters.get(operation.name, {}))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shardwise",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {
                "api_key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, as `keys create` prints it once. Roles, each with all that those "
                    f"before it may: {', '.join(ROLES)}.",
                }
            },
        },
    }


def _operation(
    operation: Operation, schemas: Mapping[str, Schema], definitions: Schema, parameters: Mapping[str, Schema]
) -> Schema:
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description + _needed(operation.role),
        "tags": [operation.tag],
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": text,
                "schema": parameters.get(name, PATH_TEXT),
            }
            for name, text in operation.path_parameters.items()
        ]
        + (_query(schemas[f"{operation.name}:query"], definitions) if operation.query else []),
        "responses": _responses(operation, schemas),
    }
    if operation.body is not None:
        content: Schema = {"schema": schemas[f"{operation.name}:body"]}
        if operation.examples:
            content["examples"] = {
                title.lower().replace(" ", "_"): {"summary": title, "value": value}
                for title, value in operation.examples.items()
            }
        bodies: Schema = {operation.body_media_type: content}
        if operation.plain_text_body:
            bodies["text/plain"] = {"schema": {"type": "string", "minLength": 1}}
        described["requestBody"] = {"required": True, "content": bodies}
    if operation.file_bodies:
        files: Schema = {kind: {"schema": {"type": "string"}} for kind in operation.file_bodies}
        described["requestBody"] = {"required": True, "content": files}
    if operation.role is not None:
        described["security"] = [{"api_key": [operation.role]}]
    if not described["parameters"]:
        del described["parameters"]
    return described


def _needed(role: str | None) -> str:
    return f" Needs an API key of the role {role} or a greater one." if role else ""


def _query(schema: Schema, definitions: Schema) -> list[Schema]:
    """Query parameters from the object schema of their model."""
    while "$ref" in schema:
        schema = definitions["$defs"][schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    found: list[Schema] = []
    for name, field in schema["properties"].items():
        described = dict(field)
        text = described.pop("description", "")
        described.pop("title", None)
        found.append(
            {"name": name, "in": "query", "required": name in required, "description": text, "schema": described}
        )
    return found


def _responses(operation: Operation, schemas: Mapping[str, Schema]) -> Schema:
    content: Schema = {"schema": schemas[f"{operation.name}:answer"]} if operation.answer is not None else {}
    headers: Schema = {
        "X-Catalogue-Revision": {"description": "catalogue revision answered from", "schema": {"type": "string"}},
        "X-Rules-Version": {"description": "version of the sizing rules", "schema": {"type": "string"}},
    }
    if operation.cacheable:
        headers["ETag"] = {"description": "validator for If-None-Match", "schema": {"type": "string"}}
    contents: Schema = {operation.media_type: content}
    for text in operation.text_answers:
        contents[text] = {"schema": {"type": "string"}}
    responses: Schema = {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "headers": headers,
            "content": contents,
        }
        for status in (operation.status, *operation.other_statuses)
    }
    if operation.cacheable:
        responses["304"] = {"description": "Not Modified"}
    locked = LOCKED_PROBLEMS if operation.role is not None else ()
    for status in sorted({*operation.problems, *locked, 500}):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schemas["problem"]}},
        }
    if "401" in responses:
        responses["401"]["headers"] = {
            "WWW-Authenticate": {"description": "how to send a key", "schema": {"type": "string"}}
        }
    return responses
