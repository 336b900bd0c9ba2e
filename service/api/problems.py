"""The one way to fail: RFC 9457 problem details."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from service.api.head import allowed
from service.sizing.quantities import Doc
from service.storage.engine import DatabaseUnavailable
from service.telemetry import logger

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with one field."""

    field: Annotated[str, Doc("dotted path of the field in the request", example="workload.context_tokens")]
    message: Annotated[str, Doc("what is wrong and what would be accepted")]


@dataclass(frozen=True, slots=True)
class ProblemDetails:
    """RFC 9457 problem details."""

    type: Annotated[str, Doc("identifies the kind of problem", example="/problems/invalid_request")]
    title: Annotated[str, Doc("the kind of problem in a few words", example="Invalid request")]
    status: Annotated[int, Doc("the HTTP status", example=400)]
    detail: Annotated[str, Doc("what was wrong here, with which value, and what would be accepted")]
    errors: Annotated[tuple[FieldError, ...], Doc("one entry a field, where fields are to blame")] = ()
    nearest: Annotated[tuple[str, ...], Doc("nearest known names, where a name is unknown")] = ()


class Problem(Exception):
    """A failure that has an answer of its own.

    `code` is the stable last part of the problem's `type`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        detail: str,
        *,
        errors: tuple[FieldError, ...] = (),
        nearest: tuple[str, ...] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.details = ProblemDetails(f"/problems/{code}", title, status, detail, errors, nearest)
        self.headers = headers or {}


def invalid(errors: tuple[FieldError, ...]) -> Problem:
    """400: fields of the request are wrong."""
    detail = "; ".join(f"{error.field}: {error.message}" if error.field else error.message for error in errors[:5])
    return Problem(400, "invalid_request", "Invalid request", detail, errors=errors)


def malformed(detail: str) -> Problem:
    """400: the request could not be read at all."""
    return Problem(400, "malformed_request", "Malformed request", detail)


def unknown(kind: str, name: str, nearest: tuple[str, ...], field_name: str | None = None) -> Problem:
    """404: no catalogue entry of that name."""
    hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
    errors = (FieldError(field_name, f"unknown {kind} {name!r}"),) if field_name else ()
    return Problem(
        404, f"unknown_{kind}", f"Unknown {kind}", f"no {kind} {name!r}{hint}", errors=errors, nearest=nearest
    )


def conflict(code: str, title: str, detail: str, fields: tuple[str, ...] = ()) -> Problem:
    """409: well formed, but refused in the current state."""
    return Problem(409, code, title, detail, errors=tuple(FieldError(name, detail) for name in fields))


def unauthenticated(detail: str) -> Problem:
    """401: no key, or none that is valid."""
    headers = {"WWW-Authenticate": 'Bearer realm="shardwise"'}
    return Problem(401, "unauthenticated", "Unauthenticated", detail, headers=headers)


def forbidden(detail: str) -> Problem:
    """403: the key is valid and may not do this."""
    return Problem(403, "forbidden", "Forbidden", detail)


def unavailable(detail: str, retry_after_seconds: int = 5) -> Problem:
    """503: try again."""
    return Problem(503, "unavailable", "Unavailable", detail, headers={"Retry-After": str(retry_after_seconds)})


def respond(problem: Problem) -> Response[bytes]:
    """The response of a problem."""
    return Response(
        msgspec.json.encode(problem.details),
        status_code=problem.details.status,
        media_type=MEDIA_TYPE,
        headers=problem.headers,
    )


def handle_problem(_: Request[Any, Any, Any], problem: Problem) -> Response[bytes]:
    """Answer a problem raised on purpose."""
    return respond(problem)


def handle_http(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answer what the framework refuses: no such path, wrong method, too large."""
    status = HTTPStatus(error.status_code)
    details = {
        404: "there is nothing at this path; see /docs for what there is",
        405: "this path does not take that method; see the Allow header",
        413: "the body is too large",
        415: "send application/json",
    }
    code = status.phrase.lower().replace(" ", "_").replace("-", "_")
    headers = dict(error.headers or {})
    if methods := headers.get("allow"):
        headers["allow"] = allowed(methods.split(", "))
    problem = Problem(
        status.value,
        code,
        status.phrase,
        details.get(status.value, error.detail or status.description),
        headers=headers,
    )
    return respond(problem)


def handle_outage(request: Request[Any, Any, Any], error: DatabaseUnavailable) -> Response[bytes]:
    """Answer while the database is away."""
    logger.warning("database unavailable", path=request.scope["path"], method=request.method, error=str(error))
    return respond(unavailable("the database does not answer; try again"))


def handle_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer a fault of ours without showing its insides."""
    logger.error("unexpected", path=request.scope["path"], method=request.method, exc_info=error)
    return respond(Problem(500, "internal_error", "Internal error", "the service failed; the fault has been logged"))


EXCEPTION_HANDLERS: dict[int | type[Exception], Any] = {
    Problem: handle_problem,
    HTTPException: handle_http,
    DatabaseUnavailable: handle_outage,
    Exception: handle_unexpected,
}
