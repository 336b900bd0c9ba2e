"""The flags alone, written in every form."""

import shlex

import pytest
from litestar import Litestar
from litestar.testing import TestClient

QUESTION = "/flags?model=Qwen/Qwen3-32B&gpu=h100-sxm&context_tokens=4096&tensor_parallel_size=2"


def test_the_flags_are_those_of_the_plan(client: TestClient[Litestar]) -> None:
    """`GET /flags` repeats what `GET /plan` recommends."""
    alone = client.get(QUESTION).json()
    whole = client.get(QUESTION.replace("/flags", "/plan")).json()["recommended"]
    assert alone["engine"] == whole["engine"]
    assert alone["gpu_count"] == 2


def test_a_shell_command_is_one_line_a_machine(client: TestClient[Litestar]) -> None:
    """The command splits into the words of the JSON answer."""
    response = client.get(QUESTION + "&format=shell")
    assert response.headers["content-type"].startswith("text/plain")
    words = shlex.split(response.text)
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert words[3:] == client.get(QUESTION).json()["engine"]["args"]


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("docker", ["--gpus '\"device=0,1\"'", "--ipc=host", "-p 127.0.0.1:8000:8000", "-e HF_TOKEN"]),
        ("compose", ['- "--tensor-parallel-size"', "count: 2", '- "127.0.0.1:8000:8000"']),
        ("kubernetes", ["nvidia.com/gpu: 2", '- "--tensor-parallel-size"', "kind: Service"]),
    ],
)
def test_a_manifest_asks_for_the_cards(client: TestClient[Litestar], form: str, lines: list[str]) -> None:
    """Containers get two cards, the arguments and a loopback or cluster port."""
    text = client.get(f"{QUESTION}&format={form}").text
    assert all(line in text for line in lines), text


def test_nothing_that_serves_is_said_in_json_and_refused_as_text(client: TestClient[Litestar]) -> None:
    """JSON carries the reasons; a command that would not start is a 409."""
    hopeless = "/flags?model=meta-llama/Llama-3.1-405B&gpu=l4&max_gpus=2&context_tokens=4096"
    answer = client.get(hopeless)
    assert answer.status_code == 200
    assert answer.json()["engine"] is None
    assert answer.json()["rejected"]
    assert client.get(hopeless + "&format=shell").status_code == 409


def test_an_unknown_form_is_named(client: TestClient[Litestar]) -> None:
    """A form that does not exist is a 400 on `format`."""
    response = client.get(QUESTION + "&format=helm")
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == "format"
