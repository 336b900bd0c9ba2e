"""`shardwise import`: a list of prices from a file."""

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.__main__ import main
from service.settings import Settings
from service.storage.catalogue import load_snapshot

LIST = """\
provider,region,instance_type,gpu_slug,gpu_count,price_per_instance_hour_usd,kind,observed_on
acme,north,x.8,h100-sxm,8,24.00,on_demand,2026-11-30
acme,north,x.9,h100-sxm,8,99999,on_demand,2026-11-30
"""


@pytest.fixture(autouse=True)
def environment(empty_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database with no rows."""
    monkeypatch.setenv("DATABASE_URL", str(empty_settings.database_url))


def test_a_file_is_taken_and_accounted_for(
    tmp_path: Path, engine: sa.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Good rows are in the catalogue under the file's name; the placeholder is left out with its reason."""
    file = tmp_path / "list.csv"
    file.write_text(LIST)
    assert main(["import", str(file), "--format", "csv", "--dry-run"]) == 0
    with engine.connect() as connection:
        assert load_snapshot(connection).prices == ()
    assert main(["import", str(file), "--format", "csv"]) == 0
    with engine.connect() as connection:
        (price,) = load_snapshot(connection).prices
    assert (price.instance_type, price.source) == ("x.8", "list.csv")
    told = capsys.readouterr().out
    assert "placeholder" in told
    assert re.search(r"2 rows in [0-9.]+ s, [0-9,]+ a second", told)


@pytest.mark.parametrize(
    ("name", "form", "said"),
    [
        ("list.csv", "gpuhunt", "--provider: is missing"),
        ("list.csv", "hosted-csv", "is not hosted-csv"),
        ("no", "csv", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_taken_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, form: str, said: str
) -> None:
    """A provider that is needed, another format, a file that is not there."""
    (tmp_path / "list.csv").write_text(LIST)
    assert main(["import", str(tmp_path / name), "--format", form]) == 1
    assert said in capsys.readouterr().err
