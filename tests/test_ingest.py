"""Configurations from files: what is found, named, taken and refused."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import main
from service.cli import keys
from service.cli.ingest import Found, Refused, find
from service.settings import Settings
from service.storage.catalogue import load_snapshot, revisions
from service.storage.engine import create_engine
from service.storage.keys import find as find_key
from service.storage.keys import revoke
from tests.api.writing import LLAMA, SMALL_CACHE

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def shardwise(empty_settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on an empty catalogue: its exit status and what it printed."""
    monkeypatch.setenv("DATABASE_URL", str(empty_settings.database_url))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("service.storage.provision.fill", lambda settings: False)

    def run(*arguments: str) -> tuple[int, str]:
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def write(folder: Path, config: object = LLAMA, **files: object) -> Path:
    """A folder with the files of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def names(path: Path) -> list[str]:
    """Names of the models found under a path."""
    found = list(find(str(path), None))
    assert all(isinstance(each, Found) for each in found), found
    return [each.body["name"] for each in found if isinstance(each, Found)]


def test_folders_give_names(tmp_path: Path) -> None:
    """owner/name below the folder given, owner--name, a hub's cache with its commit, or the folder's own name."""
    write(tmp_path / "tree" / "example" / "one")
    write(tmp_path / "tree" / "other--two")
    write(tmp_path / "tree" / "models--third--three" / "snapshots" / "0e9e39f")
    write(tmp_path / "tree" / "four")
    assert names(tmp_path / "tree") == ["example/one", "four", "third/three", "other/two"]
    (cached,) = find(str(tmp_path / "tree" / "models--third--three"), None)
    assert isinstance(cached, Found)
    assert cached.body["revision"] == "0e9e39f"
    assert names(tmp_path / "tree" / "four" / "config.json") == ["four"]


def test_the_parts_of_a_model_are_no_models(tmp_path: Path) -> None:
    """A configuration below another one, or in a hidden folder, is left alone."""
    write(tmp_path / "a--b")
    write(tmp_path / "a--b" / "vision")
    write(tmp_path / ".cache" / "c--d")
    assert names(tmp_path) == ["a/b"]


def test_files_beside_a_configuration_are_read_with_it(tmp_path: Path) -> None:
    """The quantisation of ModelOpt, and the total of the index."""
    index = {"metadata": {"total_size": 16_060_522_496}, "weight_map": {}}
    write(tmp_path / "a--b", hf_quant_config={"quantization": {}}, **{"model.safetensors.index": index})
    (found,) = find(str(tmp_path), None)
    assert isinstance(found, Found)
    assert found.body["hf_quant_config"] == {"quantization": {}}
    assert found.body["weights_bytes"] == 16_060_522_496


@pytest.mark.parametrize("index", [[], {}, {"metadata": None}, {"metadata": {"total": 1}}])
def test_an_index_without_a_total_says_nothing(tmp_path: Path, index: object) -> None:
    """Some are published like that."""
    write(tmp_path / "a--b", **{"model.safetensors.index": index})
    (found,) = find(str(tmp_path), None)
    assert isinstance(found, Found)
    assert "weights_bytes" not in found.body


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        (json.dumps(LLAMA), "a/b", ["a/b"]),
        (json.dumps({"name": "a/b", "config": LLAMA}), None, ["a/b"]),
        (json.dumps([{"name": "a/b", "config": LLAMA}, {"name": "c/d", "config": LLAMA}]), None, ["a/b", "c/d"]),
        (
            "\n".join(json.dumps({"name": name, "config": LLAMA}) for name in ("a/b", "c/d")) + "\n",
            None,
            ["a/b", "c/d"],
        ),
        (json.dumps(LLAMA), None, ["says no name"]),
        ("{", "a/b", ["not JSON"]),
        ("7", "a/b", ["not a JSON object"]),
        ('{"name": "a/b", "config": {}}\nnonsense\n', None, ["a/b", "not JSON"]),
        ("[" * 100_000, "a/b", ["not JSON"]),
        ("", "a/b", ["not JSON"]),
    ],
)
def test_standard_input_holds_configurations_or_bodies(
    monkeypatch: pytest.MonkeyPatch, text: str, name: str | None, found: list[str]
) -> None:
    """One, a list, or one a line."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    results = list(find("-", name))
    assert len(results) == len(found), results
    for result, words in zip(results, found, strict=True):
        assert words in (result.reason if isinstance(result, Refused) else result.body["name"])


def test_many_are_taken_as_one_revision(shardwise: Run, tmp_path: Path, empty_settings: Settings) -> None:
    """Again they are held already; a changed one shows what changes."""
    for number in range(3):
        write(tmp_path / f"example--model-{number}")
    status, printed = shardwise("ingest", str(tmp_path))
    assert (status, "3 taken, 0 held already, 0 refused." in printed) == (0, True), printed
    status, printed = shardwise("ingest", str(tmp_path))
    assert (status, "0 taken, 3 held already, 0 refused." in printed) == (0, True), printed
    write(tmp_path / "example--model-1", SMALL_CACHE)
    status, printed = shardwise("ingest", str(tmp_path))
    assert (status, "1 taken, 2 held already, 0 refused." in printed) == (0, True), printed
    assert "kv_bytes_per_token: 131072 -> 65536" in printed
    with create_engine(empty_settings, pooled=False).connect() as connection:
        assert [(each.author, each.summary) for each in revisions(connection)] == [
            ("ingest", "3 models"),
            ("ingest", "3 models"),
        ]
        assert len(load_snapshot(connection).models) == 3


def test_what_cannot_be_read_is_reported_and_the_rest_taken(
    shardwise: Run, tmp_path: Path, empty_settings: Settings
) -> None:
    """Each with its file and the reason; the exit status says so."""
    write(tmp_path / "a--good", LLAMA | {"limit": float("inf")})
    write(tmp_path / "a--strange", LLAMA | {"architectures": ["NoSuchForCausalLM"]})
    write(tmp_path / "a--wrong", LLAMA | {"hidden_size": "wide"})
    write(tmp_path / "a--nul", LLAMA | {"note": "\0"})
    write(tmp_path / "a--half", LLAMA | {"note": "\ud800"})
    (write(tmp_path / "a--broken") / "config.json").write_text('{"a": ')
    write(tmp_path / "a b")
    write(tmp_path / "A--GOOD", SMALL_CACHE)
    status, printed = shardwise("ingest", str(tmp_path))
    assert status == 1
    assert "1 taken, 0 held already, 7 refused." in printed
    for words in (
        "NoSuchForCausalLM",
        "config.hidden_size",
        "config.note",
        "not JSON",
        "given twice",
        "a b/config.json",
    ):
        assert words in printed
    with create_engine(empty_settings, pooled=False).connect() as connection:
        (model,) = load_snapshot(connection).models
    assert model.name == "A/GOOD"


def test_a_size_that_is_not_explained_is_told(shardwise: Run, tmp_path: Path) -> None:
    """The model is taken all the same."""
    write(tmp_path / "a--b", **{"model.safetensors.index": {"metadata": {"total_size": 5_730_000_000}}})
    status, printed = shardwise("ingest", str(tmp_path))
    assert status == 0
    assert "5.7 bits a parameter" in printed


@pytest.mark.parametrize("arguments", [["no-such-file"], ["."], ["{folder}", "--name", "a/b"]])
def test_nothing_to_read_is_one_sentence(shardwise: Run, tmp_path: Path, arguments: list[str]) -> None:
    """A file that is not there, a folder without a configuration, one name for two models."""
    write(tmp_path / "two" / "a--b")
    write(tmp_path / "two" / "c--d")
    (tmp_path / "empty").mkdir()
    words = {"{folder}": str(tmp_path / "two"), ".": str(tmp_path / "empty")}
    status, printed = shardwise("ingest", *(words.get(argument, argument) for argument in arguments))
    assert status == 1
    assert printed.startswith("shardwise: ")
    assert printed.count("\n") == 1


def test_keys_are_made_listed_and_revoked(shardwise: Run, empty_settings: Settings) -> None:
    """The key stands alone on standard output, once; the list never shows it."""
    status, printed = shardwise("keys", "create", "ana", "--role", "admin")
    key, note = printed.splitlines()
    assert (status, key[:3]) == (0, "sw_")
    assert "ana (admin)" in note
    engine = create_engine(empty_settings, pooled=False)
    with engine.begin() as connection:
        assert find_key(connection, key) is not None
    status, printed = shardwise("keys", "list")
    assert key.split("_")[1] in printed
    assert key not in printed
    assert "ana" in printed
    assert shardwise("keys", "revoke", key)[0] == 0
    with engine.begin() as connection:
        assert find_key(connection, key) is None
    status, printed = shardwise("keys", "revoke", "000000000000")
    assert (status, "000000000000" in printed) == (1, True)
    assert shardwise("keys", "create", "a\nb")[0] == 1


def test_the_owner_of_a_database_has_a_key_that_lasts(empty_settings: Settings, tmp_path: Path) -> None:
    """Kept in a file for nobody else, the same at every start, and made anew once it is revoked."""
    key = keys.owner_key(empty_settings, tmp_path)
    file = tmp_path / keys.OWNER_KEY
    assert key is not None
    assert file.read_text().strip() == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert keys.owner_key(empty_settings, tmp_path) == key
    assert key in keys.how_to_write(empty_settings, tmp_path)
    engine = create_engine(empty_settings, pooled=False)
    with engine.begin() as connection:
        found = find_key(connection, key)
        assert found is not None
        assert found.role == "admin"
        revoke(connection, found.prefix)
    other = keys.owner_key(empty_settings, tmp_path)
    assert other not in (None, key)
    assert file.read_text().strip() == other
    assert sorted(each.name for each in tmp_path.iterdir()) == [keys.OWNER_KEY]


def test_a_key_that_cannot_be_kept_is_not_made(empty_settings: Settings, tmp_path: Path) -> None:
    """The hint then is the command."""
    (tmp_path / keys.OWNER_KEY).mkdir()
    assert keys.owner_key(empty_settings, tmp_path) is None
    assert "keys create" in keys.how_to_write(empty_settings, tmp_path)
    assert "keys create" in keys.how_to_write(empty_settings, None)


def test_what_is_understood_is_written_and_compared(shardwise: Run, tmp_path: Path) -> None:
    """Every architecture and every shipped model; a page that says otherwise is refused."""
    page = tmp_path / "architectures.md"
    assert shardwise("architectures", "--output", str(page))[0] == 0
    text = page.read_text()
    for words in ("| `LlamaForCausalLM` |", "| `GPT2LMHeadModel` |", "| openai/gpt-oss-120b |"):
        assert words in text
    assert shardwise("architectures", "--output", str(page), "--check")[0] == 0
    page.write_text(text + "more\n")
    status, printed = shardwise("architectures", "--output", str(page), "--check")
    assert status == 1
    assert "python -m service architectures" in printed


JSON_VALUES: tuple[Any, ...] = (None, True, 1, 1.5, "a", [], {})


@pytest.mark.parametrize("value", JSON_VALUES, ids=repr)
def test_any_json_in_a_configuration_is_a_reason(shardwise: Run, tmp_path: Path, value: object) -> None:
    """Never a fault."""
    write(tmp_path / "a--b", value)
    status, printed = shardwise("ingest", str(tmp_path))
    assert status == 1
    assert "1 refused" in printed
    assert "Traceback" not in printed
