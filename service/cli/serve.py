"""`serve`: the service, and where nobody names a database, the database too."""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Generator
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from service.cli import banner
from service.settings import Settings, StartupError
from service.storage import provision

if TYPE_CHECKING:
    from service.telemetry import Telemetry

METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
KILL_AFTER_S = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--quiet", action="store_true", help="do not print the address and a worked plan when ready")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Serve until interrupted."""
    check_port(settings)
    # While the database starts; what is imported before the workers are forked is there in every one of them.
    importing = threading.Thread(target=importlib.import_module, args=("service.app",), daemon=True)
    if multiprocessing.get_start_method() == "fork":
        importing.start()
    with provision.database(settings) as provided, shared_metrics(provided):
        if importing.ident is not None:
            importing.join()
        provision.migrate(provided)
        provision.fill(provided)
        # The workers read their settings from the environment, as every process does.
        os.environ["DATABASE_URL"] = str(provided.database_url)
        if not arguments.quiet:
            from service.cli.keys import how_to_write

            own = provided.data_dir if settings.database_url is None else None
            threading.Thread(target=banner.show, args=(provided, how_to_write(provided, own)), daemon=True).start()
        return serve(provided)


def check_port(settings: Settings) -> None:
    """Bind the address for a moment.

    Raises
    ------
    StartupError
        It is taken, not ours or not to be had.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StartupError(
            f"Port {settings.port} on {settings.host} cannot be used ({reason}): "
            "stop what holds it, or set SHARDWISE_PORT or SHARDWISE_HOST."
        ) from None


@contextlib.contextmanager
def shared_metrics(settings: Settings) -> Generator[None]:
    """With several workers, a directory in which they share their metrics."""
    if settings.workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="shardwise-metrics-") as directory:
        os.environ[METRICS_DIRECTORY] = directory
        yield


def serve(settings: Settings, target: str = "service.cli.serve:application") -> int:
    """Run the workers of a target until a signal; their exit status."""
    from granian.constants import Interfaces
    from granian.log import LogLevels
    from granian.server import Server

    server = Server(
        target,
        address=settings.host,
        port=settings.port,
        workers=settings.workers,
        interface=Interfaces.ASGI,
        factory=True,
        websockets=False,
        log_level=LogLevels.warning,
        workers_kill_timeout=KILL_AFTER_S,
    )
    # A closed terminal ends the service as Ctrl-C does; the server would start it anew.
    server.on_startup(lambda: signal.signal(signal.SIGHUP, _end))
    try:
        server.serve()
    except OSError as error:
        raise StartupError(f"Port {settings.port} on {settings.host} cannot be used ({error.strerror}).") from None
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def application() -> "Telemetry":
    """The service in a worker process."""
    from service.app import build_app
    from service.telemetry import Telemetry, configure_logging

    # A process group of its own: Ctrl-C reaches the parent alone, which then stops the workers in order.
    os.setpgid(0, 0)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    settings = Settings.from_environment()
    configure_logging(settings.log_level, settings.log_format)
    return Telemetry(build_app(settings))


def _end(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _end_with(sentinel: int) -> None:
    """End this worker when its parent is gone, however that ended."""
    wait([sentinel])
    _end()
