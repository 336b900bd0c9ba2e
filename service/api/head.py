"""HEAD: what GET answers, without the body."""

from collections.abc import Iterable

from litestar import HttpMethod
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send


def allowed(methods: Iterable[str]) -> str:
    """The value of `Allow` for a path that takes these methods: where GET is answered, so is HEAD."""
    found = {str(method) for method in methods}
    return ", ".join(sorted(found | {"HEAD"} if "GET" in found else found))


class HeadAsGet:
    """Answers HEAD as the application answers GET: the same status and headers, no body.

    It stands outside the framework, which would want a handler of its own for the method on every path.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and of the answer to a HEAD the start alone."""
        if scope["type"] != ScopeType.HTTP or scope["method"] != HttpMethod.HEAD:
            await self._app(scope, receive, send)
            return

        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        # What stands outside reads the scope afterwards, and shall see the method that was sent.
        scope["method"] = HttpMethod.GET
        try:
            await self._app(scope, receive, send_start)
        finally:
            scope["method"] = HttpMethod.HEAD
