"""`plan`: one question from a file or from flags, answered without a server."""

import argparse
import json
import sys
from pathlib import Path

from service.api.contract import PlanRequest, query_names
from service.api.plans import question_of, read_flat
from service.api.problems import Problem
from service.api.reading import read_body
from service.api.responding import ENCODER
from service.settings import Settings, StartupError
from service.sizing import plan
from service.storage import provision
from service.storage.catalogue import load_snapshot
from service.storage.engine import create_engine


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: a file, or every query parameter of `GET /plan` as a flag."""
    parser.add_argument("file", nargs="?", help="a JSON file with a body for POST /plan; - for standard input")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print the whole answer as JSON")
    flags = parser.add_argument_group("the question, where no file gives it")
    for name in query_names():
        flags.add_argument(f"--{name.replace('_', '-')}", action="append", dest=f"asked_{name}", metavar="VALUE")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Answer the question and print the plan."""
    try:
        asked = _asked(arguments)
        with provision.database(settings) as provided:
            provision.migrate(provided)
            provision.fill(provided)
            with create_engine(provided, pooled=False).connect() as connection:
                snapshot = load_snapshot(connection)
        answer = ENCODER.encode(plan(question_of(asked, snapshot)))
    except Problem as problem:
        raise StartupError(f"{problem.details.title}: {problem.details.detail}.") from None
    if arguments.as_json:
        print(json.dumps(json.loads(answer), indent=2))
    else:
        from rich.console import Console

        from service.cli.table import plan_table

        Console(soft_wrap=True).print(plan_table(json.loads(answer)))
    return 0


def _asked(arguments: argparse.Namespace) -> PlanRequest:
    given = [(name, value) for name in query_names() for value in getattr(arguments, f"asked_{name}") or ()]
    if arguments.file is None:
        return read_flat(given)
    if given:
        raise StartupError("give the question either in a file or as flags, not both.")
    try:
        body = sys.stdin.buffer.read() if arguments.file == "-" else Path(arguments.file).read_bytes()
    except OSError as error:
        raise StartupError(f"{arguments.file} cannot be read ({error.strerror}).") from None
    return read_body(body, PlanRequest)
