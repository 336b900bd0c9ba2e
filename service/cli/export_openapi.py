"""`export-openapi`: the contract as a file."""

import argparse
from pathlib import Path

from service.app import openapi_bytes
from service.settings import CHECKOUT, Settings, StartupError

FILE = CHECKOUT / "openapi" / "openapi.json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--output", type=Path, default=FILE, help="where to write it (default: openapi/openapi.json)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file differs")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Write the contract, or compare it."""
    contract = openapi_bytes()
    if arguments.check:
        if not arguments.output.is_file() or arguments.output.read_bytes() != contract:
            raise StartupError(
                f"{arguments.output} is not what the service does; run `python -m service export-openapi`."
            )
        return 0
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(contract)
    return 0
