"""The Postgres of our own starts once, serves all and stops with its last user."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from service.settings import CHECKOUT, StartupError
from service.storage import embedded
from tests.conftest import QUICK


def test_two_users_share_one_server_until_the_last_one_leaves(data_dir: Path) -> None:
    """What the first wrote the second reads, and a later start finds it again."""
    running = data_dir / "postgres" / "postmaster.pid"
    with embedded.running(data_dir, QUICK) as first:
        with embedded.running(data_dir) as second, psycopg.connect(second) as connection:
            assert first == second
            connection.execute("CREATE TABLE kept (note text)")
        assert running.exists()
    assert not running.exists()
    with embedded.running(data_dir, QUICK) as again, psycopg.connect(again) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_another_process_keeps_the_server_while_it_needs_it(data_dir: Path) -> None:
    """Its starter may leave first."""
    program = (
        "import sys; from pathlib import Path; import psycopg; from service.storage import embedded\n"
        "with embedded.running(Path(sys.argv[1])) as url:\n"
        "    print('in', flush=True); sys.stdin.readline()\n"
        "    psycopg.connect(url).close(); print('still there')\n"
    )
    with embedded.running(data_dir, QUICK):
        other = subprocess.Popen(
            [sys.executable, "-c", program, data_dir],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdout
        assert other.stdout.readline() == "in\n"
    assert other.communicate("leave\n")[0] == "still there\n"


def test_the_server_is_open_to_its_user_alone(data_dir: Path) -> None:
    """No network port, and a socket in a directory closed to others."""
    with embedded.running(data_dir, QUICK) as url, psycopg.connect(url) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        sockets = Path(str(conninfo_to_dict(url)["host"]))
        assert sockets.stat().st_mode & 0o077 == 0
    assert not sockets.exists()


def test_files_of_a_first_start_that_was_cut_off_are_made_anew(data_dir: Path) -> None:
    """Half an initialisation is not taken for a database."""
    (data_dir / "postgres.partial" / "base").mkdir(parents=True)
    data_dir.chmod(0o711)
    with embedded.running(data_dir, QUICK) as url:
        psycopg.connect(url).close()
    assert not (data_dir / "postgres.partial").exists()


def test_a_server_that_does_not_start_says_why(data_dir: Path) -> None:
    """In Postgres's own words, with the log to read."""
    with (
        pytest.raises(StartupError, match=r"\(parameter \"fsync\" requires a Boolean value\): see .*postgres\.log"),
        embedded.running(data_dir, {"fsync": "perhaps"}),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
def test_root_keeps_its_closed_directories_closed(tmp_path: Path) -> None:
    """A data directory that the other user cannot enter is refused, not opened."""
    tmp_path.chmod(0o700)
    with pytest.raises(StartupError, match="cannot enter"), embedded.running(tmp_path / "data", QUICK):
        pass
    assert tmp_path.stat().st_mode & 0o077 == 0
