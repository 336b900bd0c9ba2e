"""One HTTP operation: its handler beside all that the contract says about it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from litestar import HttpMethod, Request, Response
from litestar.handlers import HTTPRouteHandler
from pydantic import BaseModel

from service.api import auth
from service.api.head import allowed

Handler = Callable[[Request[Any, Any, Any]], Response[bytes] | Awaitable[Response[bytes]]]


@dataclass(frozen=True)
class Operation:
    """A method on a path.

    Attributes
    ----------
    method, path : str
        "GET", "/gpus/{slug}": the path as the contract writes it.
    name : str
        Operation id.
    summary, description, tag : str
        For readers of the contract.
    handler : callable
        Takes the request, gives the response; coroutine functions and plain ones alike.
    answer : type or None
        Dataclass of the 200 (or `status`) response; None: bytes of `media_type`.
    text_answers : tuple of str
        Media types of the same answer as text.
    body, query : pydantic model or None
        What it validates, and so what it documents.
    plain_text_body : bool
        Whether the body may also be sent raw as text/plain.
    file_bodies : tuple of str
        Media types of a file that is the body as it is.
    path_parameters : mapping
        Description of each path parameter.
    problems : tuple of int
        Statuses it may fail with, besides 500.
    examples : mapping
        Worked request bodies by title.
    other_statuses : tuple of int
        Statuses that carry the same answer, besides `status`.
    role : str or None
        Role an API key must have, at least; None: open. The handler finds the key in `request.state.key`.
    """

    method: str
    path: str
    name: str
    summary: str
    description: str
    tag: str
    handler: Handler
    answer: Any = None
    status: int = 200
    media_type: str = "application/json"
    text_answers: tuple[str, ...] = ()
    body: type[BaseModel] | None = None
    body_media_type: str = "application/json"
    plain_text_body: bool = False
    file_bodies: tuple[str, ...] = ()
    query: type[BaseModel] | None = None
    path_parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: tuple[int, ...] = ()
    examples: Mapping[str, Any] = field(default_factory=dict[str, Any])
    other_statuses: tuple[int, ...] = ()
    role: str | None = None
    cacheable: bool = False


def routes_of(operations: Sequence[Operation], kinds: Mapping[str, str]) -> list[HTTPRouteHandler]:
    """The framework's handlers of all operations; `kinds` gives the converter of path parameters that are not "str"."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    return [
        handler
        for path, together in by_path.items()
        for handler in (
            # First, for the framework adds an OPTIONS of its own to a path that has none.
            _options(_route_path(together[0], kinds), [operation.method for operation in together], path),
            *(_handler(operation, _route_path(operation, kinds)) for operation in together),
        )
    ]


def _route_path(operation: Operation, kinds: Mapping[str, str]) -> str:
    """The path as the framework writes it, with a converter for each parameter."""
    path = operation.path
    for parameter in operation.path_parameters:
        path = path.replace("{" + parameter + "}", "{" + parameter + ":" + kinds.get(parameter, "str") + "}")
    return path


def _handler(operation: Operation, path: str) -> HTTPRouteHandler:
    handler = operation.handler

    async def handle(request: Request[Any, Any, Any]) -> Response[bytes]:
        if operation.role is not None:
            request.state.key = await auth.require(request, operation.role)
        response = handler(request)
        return response if isinstance(response, Response) else await response

    return HTTPRouteHandler(path, http_method=[HttpMethod(operation.method)], name=operation.name)(handle)


def _options(path: str, methods: list[str], name: str) -> HTTPRouteHandler:
    """The answer to OPTIONS: all methods of the path, where the framework would name those of one handler."""
    allow = allowed({*methods, "OPTIONS"})

    async def handle() -> Response[None]:
        return Response(None, status_code=204, headers={"Allow": allow})

    return HTTPRouteHandler(path, http_method=[HttpMethod.OPTIONS], name=f"OPTIONS {name}", status_code=204)(handle)
