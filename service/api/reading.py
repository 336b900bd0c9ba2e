"""Reading requests: bytes and queries into models, faults into problems that name the field."""

import difflib
from collections.abc import Iterator
from typing import Any, TypeVar, get_args

from litestar import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from service.api.problems import FieldError, Problem, invalid, malformed

Model = TypeVar("Model", bound=BaseModel)

MAX_BODY_BYTES = 8 << 20
"""Largest JSON body: published configurations reach 3 MB."""

MAX_ERRORS = 20


async def read_bytes(request: Request[Any, Any, Any], *, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body, refused where it is too large.

    Raises
    ------
    Problem
        413 beyond `limit`.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large(limit)
    body = await request.body()
    if len(body) > limit:
        raise too_large(limit)
    return body


def too_large(limit: int) -> Problem:
    """413: the body is larger than the service reads."""
    return Problem(413, "too_large", "Too large", f"the body is larger than {limit} bytes")


def require_json(request: Request[Any, Any, Any]) -> None:
    """Refuse bodies that are not declared JSON.

    Raises
    ------
    Problem
        415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            "unsupported_media_type",
            "Unsupported media type",
            f"send application/json, not {kind or 'a body without Content-Type'}",
        )


def read_body(body: bytes, model: type[Model]) -> Model:
    """Validate a JSON body.

    Raises
    ------
    Problem
        400, naming each field at fault.
    """
    if not body.strip():
        raise malformed("the body is empty; send a JSON object")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise problem_of(error, model) from None
    except RecursionError:
        raise malformed("the body is nested too deeply") from None


def read_query(values: dict[str, Any], model: type[Model]) -> Model:
    """Validate query parameters, whose values are text.

    Raises
    ------
    Problem
        400, naming each parameter at fault.
    """
    try:
        return model.model_validate(values, strict=False)
    except ValidationError as error:
        raise problem_of(error, model) from None


def problem_of(error: ValidationError, model: type[BaseModel]) -> Problem:
    """The problem that a failed validation is."""
    details = error.errors(include_url=False, include_context=True, include_input=True)
    if details[0]["type"] == "json_invalid":
        reason = str(details[0].get("ctx", {}).get("error", details[0]["msg"]))
        return malformed(f"the body is not valid JSON: {reason}")
    return invalid(tuple(_field_error(detail, model) for detail in details[:MAX_ERRORS]))


def _field_error(detail: ErrorDetails, model: type[BaseModel]) -> FieldError:
    location = _dotted(detail["loc"])
    if detail["type"] == "extra_forbidden":
        accepted = _fields_at(model, detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), accepted, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return FieldError(location, f"unknown field{hint} (accepted: {', '.join(accepted)})")
    if detail["type"] == "missing":
        return FieldError(location, "is missing")
    # Of a check of our own, the sentence alone.
    message = detail["msg"].removeprefix("Value error, ")
    shown = _shown(detail["input"])
    return FieldError(location, f"{message}, not {shown}" if shown else message)


def _dotted(location: tuple[int | str, ...]) -> str:
    """Dotted path without the names of union branches."""
    parts = list(location)
    branch = 2 if location[:1] == ("models",) else 1
    if len(parts) > branch and parts[0] in ("model", "models") and parts[branch] in ("name", "inline"):
        del parts[branch]
    return ".".join(str(part) for part in parts)


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names accepted by the object at a location."""
    current = model
    for part in location:
        field = current.model_fields.get(str(part))
        if field is not None:
            current = next(_models_in(field.annotation), current)
    return sorted(field.alias or name for name, field in current.model_fields.items())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Request objects named by a type, inside unions and annotations."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _shown(value: object) -> str:
    """A value short enough for a sentence; nothing for objects."""
    if isinstance(value, dict | list):
        return ""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
