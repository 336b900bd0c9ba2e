"""`shardwise calibrate`: measurements of whichever kind from files."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from service.__main__ import main
from service.catalogue.records.gpu import GpuRecord
from service.settings import Settings
from service.storage import provision
from service.storage.catalogue import load_snapshot, publish
from service.storage.seed import shipped
from tests.api.test_calibrations import LOG
from tests.api.test_measured_reports import NCCL, TABLE, run

LOAD = ("--model", "google/gemma-3-27b-it", "--engine", "vllm", "--engine-version", "0.15.0")


@pytest.fixture(autouse=True)
def environment(empty_settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database with the shipped cards and nothing else."""
    monkeypatch.setenv("DATABASE_URL", str(empty_settings.database_url))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(provision, "fill", lambda _: False)
    with engine.begin() as connection:
        cards = [record for record in shipped() if isinstance(record, GpuRecord)]
        publish(connection, cards, author="test", summary="cards")


def files(folder: Path, **texts: str) -> list[str]:
    """Files with these texts."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in texts]


def test_files_of_every_kind_are_told_apart(
    tmp_path: Path, engine: sa.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each takes the options that fit it; the same again is held already."""
    given = [*files(tmp_path, log=LOG, table=TABLE, result=run(), links=NCCL), "--gpu", "h100-sxm"]
    options = ["--engine", "vllm", "--engine-version", "0.19.0", "--tensor-parallel-size", "1", "--link", "nvlink"]
    assert main(["calibrate", *given, *options]) == 1
    assert "model: the report does not say it" in capsys.readouterr().err
    with engine.connect() as connection:
        assert load_snapshot(connection).calibrations == {}
    given.remove(str(tmp_path / "table"))
    assert main(["calibrate", *given, *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "startup: example/llama-8b on h100-sxm" in printed
    assert "serving: openai/gpt-oss-20b on h100-sxm" in printed
    assert "link: all_reduce on h100-sxm" in printed
    with engine.connect() as connection:
        snapshot = load_snapshot(connection)
    assert (len(snapshot.startups), len(snapshot.servings), len(snapshot.links)) == (1, 1, 1)
    assert {record.measurement.status.value for record in snapshot.calibrations.values()} == {"accepted"}
    assert snapshot.links[0].measurement.link == "nvlink"
    assert snapshot.servings[0].measurement.source == "report result"
    assert main(["calibrate", *given, *options]) == 0
    assert capsys.readouterr().out.count("was held already, accepted") == 3


def test_one_file_that_is_not_understood_keeps_the_others_out(
    tmp_path: Path, engine: sa.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """All or nothing, with a sentence on the file."""
    given = files(tmp_path, links=NCCL, other="hello")
    assert main(["calibrate", *given]) == 1
    said = capsys.readouterr().err
    assert "other is no report" in said
    assert "no startup log" in said
    with engine.connect() as connection:
        assert load_snapshot(connection).calibrations == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "gpu: the report does not name the GPU"),
        (("--gpu", "h100-smx", *LOAD, "--tensor-parallel-size", "1"), "no gpu 'h100-smx'; nearest: h100-sxm"),
        (("--gpu", "h100-sxm", *LOAD), "tensor_parallel_size: the report does not say it"),
        (("--gpu", "h100-sxm", *LOAD, "--tensor-parallel-size", "two"), "tensor_parallel_size: "),
        (("--gpu", "h100-sxm", *LOAD, "--tensor-parallel-size", "1", "--nodes", "2"), "takes --nodes"),
    ],
)
def test_what_is_missing_or_wrong_is_told_in_a_sentence(
    tmp_path: Path, engine: sa.Engine, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    """By the name of the condition; nothing is kept."""
    assert main(["calibrate", *files(tmp_path, table=TABLE), *options]) == 1
    assert said in capsys.readouterr().err
    with engine.connect() as connection:
        assert load_snapshot(connection).calibrations == {}
