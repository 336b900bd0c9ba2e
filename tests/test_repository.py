"""What is committed can be installed and read anywhere."""

import tomllib
from pathlib import Path

import pytest

from service import __version__
from service.settings import CHECKOUT

LOCKS = sorted((CHECKOUT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_name_no_host_and_carry_hashes(lock: Path) -> None:
    """A lock made beside one mirror installs from another."""
    text = lock.read_text()
    assert "://" not in text
    assert text.count("==") <= text.count("--hash=sha256:")


def test_the_version_is_one() -> None:
    """In the package and in `pyproject.toml`."""
    assert tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"] == __version__
