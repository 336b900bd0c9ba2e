"""The service with a bare handler beside it, to be measured by `benchmarks.plan`."""

import os
import sys
from typing import TYPE_CHECKING, Any

from service.cli import serve
from service.settings import Settings
from service.storage import provision

if TYPE_CHECKING:
    from service.telemetry import Telemetry


def application() -> "Telemetry":
    """The service in a worker process, with `/bare/{size}` registered."""
    from litestar import Request, Response, post

    from service.app import build_app
    from service.telemetry import Telemetry, configure_logging

    settings = Settings.from_environment()
    configure_logging(settings.log_level, settings.log_format)
    answers: dict[int, bytes] = {}

    @post("/bare/{size:int}")
    async def bare(request: Request[Any, Any, Any]) -> Response[bytes]:
        await request.json()
        size: int = request.path_params["size"]
        content = answers.setdefault(size, b" " * size)
        return Response(content, status_code=200, media_type="application/json")

    app = build_app(settings)
    app.register(bare)
    return Telemetry(app)


def main() -> int:
    """Serve until terminated."""
    settings = Settings.from_environment()
    with provision.database(settings) as provided:
        provision.migrate(provided)
        provision.fill(provided)
        os.environ["DATABASE_URL"] = str(provided.database_url)
        return serve.serve(provided, "benchmarks.serve:application")


if __name__ == "__main__":
    sys.exit(main())
