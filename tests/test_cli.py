"""The command line: what it starts it stops, and what keeps it from starting is one sentence."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.__main__ import main
from service.settings import CHECKOUT, Settings

PATIENCE_S = 120.0


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDWISE_", "DATABASE_URL"))}
    return kept | changes


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    printed: str
    said: str

    def one_sentence(self) -> str:
        """What a command that cannot start says, after checking that it says no more."""
        assert self.status == 1, self.said
        assert self.printed == ""
        assert self.said.count("\n") == 1, self.said
        assert "Traceback" not in self.said
        return self.said


Shardwise = Callable[..., Done]


@pytest.fixture
def shardwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shardwise:
    """Runs a command to its end, in an environment of its own."""

    def run(*arguments: str, **changes: str) -> Done:
        for name in os.environ.keys() - environment().keys():
            monkeypatch.delenv(name)
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        status = main(arguments)
        captured = capsys.readouterr()
        return Done(status, captured.out, captured.err)

    return run


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes true before patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


class Service:
    """A service of the test's own, started as `make run` starts it."""

    def __init__(self, data_dir: Path) -> None:
        self.port = free_port()
        self.data_dir = data_dir
        self.log = data_dir.parent / "output"
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "service", "serve"],
                cwd=CHECKOUT,
                env=environment(SHARDWISE_PORT=str(self.port), SHARDWISE_DATA_DIR=str(data_dir)),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def postgres(self) -> Path:
        """The file that is there as long as Postgres runs."""
        return self.data_dir / "postgres" / "postmaster.pid"

    def answers(self) -> bool:
        """Whether it is ready."""
        return answers(self.port)

    def is_gone(self) -> bool:
        """Whether neither Postgres nor a worker is left."""
        with closing(socket.socket()) as probe:
            return not self.postgres.exists() and probe.connect_ex(("127.0.0.1", self.port)) != 0


@pytest.fixture
def service(data_dir: Path) -> Iterator[Service]:
    """A service that is ready."""
    service = Service(data_dir)
    try:
        assert eventually(lambda: service.answers() or service.process.poll() is not None)
        assert service.process.poll() is None, service.log.read_text()
        yield service
    finally:
        if service.process.poll() is None:
            os.killpg(service.process.pid, signal.SIGKILL)
            service.process.wait()


def test_ctrl_c_stops_everything_that_serve_started(service: Service) -> None:
    """The terminal sends it to the whole process group; when the prompt is back, nothing runs any more."""
    assert eventually(lambda: "Ctrl-C stops it" in service.log.read_text()), service.log.read_text()
    os.killpg(service.process.pid, signal.SIGINT)
    assert service.process.wait(PATIENCE_S) == 0
    assert service.is_gone()
    printed = service.log.read_text()
    assert f"http://127.0.0.1:{service.port}/docs" in printed
    assert f"curl -s http://127.0.0.1:{service.port}/plan" in printed
    assert "meta-llama/Llama-3.1-70B-Instruct on" in printed
    assert (service.data_dir / "api-key").read_text().strip() in printed
    assert "error" not in printed.lower()


def test_a_killed_service_leaves_nothing_behind(service: Service) -> None:
    """Not even when it had no chance to clean up."""
    os.kill(service.process.pid, signal.SIGKILL)
    service.process.wait()
    assert eventually(service.is_gone)


def test_a_port_in_use_is_one_sentence(shardwise: Shardwise, data_dir: Path) -> None:
    """It names the port and the setting."""
    with closing(socket.socket()) as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        said = shardwise("serve", SHARDWISE_PORT=port, SHARDWISE_DATA_DIR=str(data_dir)).one_sentence()
    assert port in said
    assert "SHARDWISE_PORT" in said
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root@localhost/x", "DATABASE_URL is not a Postgres URL"),
        ("postgresql://user:s3cret@host:port/x", "DATABASE_URL is not a Postgres URL"),
        ("postgresql://user:s3cret@127.0.0.1:1/x", "Connection refused"),
        ("postgresql://user:s3cret@no-such-host.invalid/x", "cannot be used"),
        ("s3cret", "DATABASE_URL is not a Postgres URL"),
    ],
)
def test_a_broken_database_url_is_one_sentence_without_its_password(shardwise: Shardwise, url: str, says: str) -> None:
    """Whether it cannot be read or leads nowhere."""
    said = shardwise("migrate", DATABASE_URL=url).one_sentence()
    assert says in said
    assert "s3cret" not in said


def test_a_database_that_is_not_there_is_one_sentence(shardwise: Shardwise, settings: Settings) -> None:
    """The server answers, the database does not exist."""
    url = sa.make_url(str(settings.database_url)).set(database="no_such_database")
    said = shardwise("migrate", DATABASE_URL=url.render_as_string(hide_password=False)).one_sentence()
    assert 'database "no_such_database" does not exist' in said


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_a_data_directory_that_cannot_be_made_is_one_sentence(shardwise: Shardwise, command: str) -> None:
    """It names the directory and the two ways out."""
    said = shardwise(command, SHARDWISE_DATA_DIR="/dev/null/x", SHARDWISE_PORT=str(free_port())).one_sentence()
    assert "/dev/null/x" in said
    assert "SHARDWISE_DATA_DIR" in said
    assert "DATABASE_URL" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHARDWISE_PORT", "eighty"),
        ("SHARDWISE_PORT", "65536"),
        ("SHARDWISE_WORKERS", "0"),
        ("SHARDWISE_LOG_LEVEL", "loud"),
        ("SHARDWISE_LOG_FORMAT", "xml"),
    ],
)
def test_a_setting_out_of_range_is_named_with_what_it_takes(shardwise: Shardwise, name: str, value: str) -> None:
    """One sentence with the setting, its value and the accepted ones."""
    said = shardwise("migrate", **{name: value}).one_sentence()
    assert f"{name} is {value!r}; it takes" in said


def test_commands_share_one_database_at_a_time(shardwise: Shardwise, data_dir: Path) -> None:
    """Two that start at once: one starts Postgres, both do their work, and it stops after the second."""
    command = [sys.executable, "-m", "service", "seed"]
    both = [
        subprocess.Popen(command, cwd=CHECKOUT, env=environment(SHARDWISE_DATA_DIR=str(data_dir))) for _ in range(2)
    ]
    assert [process.wait(PATIENCE_S) for process in both] == [0, 0]
    assert eventually(lambda: not (data_dir / "postgres" / "postmaster.pid").exists())
    again = shardwise("seed", SHARDWISE_DATA_DIR=str(data_dir))
    assert again.printed == "This shipped catalogue was seeded before.\n"


def test_migrate_prints_its_sql(shardwise: Shardwise) -> None:
    """For whoever runs it by hand; no database is needed."""
    done = shardwise("migrate", "--sql", DATABASE_URL="postgresql://127.0.0.1:1/x")
    assert done.status == 0
    assert "CREATE TABLE gpus" in done.printed


def test_a_plan_is_printed_from_flags(shardwise: Shardwise, settings: Settings) -> None:
    """As a table for people."""
    flags = ("--model", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "h100-sxm", "--context-tokens", "4096")
    done = shardwise("plan", *flags, "--concurrent-sequences", "1", DATABASE_URL=str(settings.database_url))
    assert done.status == 0, done.said
    assert "meta-llama/Llama-3.1-70B-Instruct on" in done.printed
    assert "vllm serve" in done.printed


def test_a_plan_for_an_unknown_card_names_the_nearest(shardwise: Shardwise, settings: Settings) -> None:
    """One sentence."""
    flags = ("--model", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "h100sxm", "--context-tokens", "4096")
    said = shardwise("plan", *flags, DATABASE_URL=str(settings.database_url)).one_sentence()
    assert "h100-sxm" in said
