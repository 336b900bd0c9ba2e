"""What `serve` prints when it is ready: where it is, and one worked plan."""

import http.client
import json
import time
from typing import Any

from service.settings import Settings

QUESTION: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "hardware": {"gpus": ["h100-sxm"]},
    "workload": {"context_tokens": 8192, "concurrent_sequences": 16},
}
PATIENCE_S = 60.0
PAUSE_S = 0.05
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def show(settings: Settings, how_to_write: str) -> None:
    """Wait until the service answers, then print its address, a plan it made and which key writes."""
    host = ANY_ADDRESS.get(settings.host, settings.host)
    answer = _ask_when_ready(host, settings.port)
    if answer is None:
        return
    from rich.console import Console

    from service.cli.table import plan_table

    address = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n[bold]shardwise[/] is ready at [bold]{address}[/], the API page is {address}/docs\n")
    console.print(plan_table(answer))
    console.print(
        "\nAsked with:\n"
        f"  curl -s {address}/plan -H 'Content-Type: application/json' -d '{json.dumps(QUESTION)}'\n"
        f"\n{how_to_write}\n"
        "\nCtrl-C stops it.\n",
        markup=False,
    )


def _ask_when_ready(host: str, port: int) -> dict[str, Any] | None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/ready")
            response = connection.getresponse()
            response.read()
            if response.status == http.HTTPStatus.OK:
                connection.request("POST", "/plan", json.dumps(QUESTION), {"Content-Type": "application/json"})
                return json.loads(connection.getresponse().read())
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(PAUSE_S)
    return None
