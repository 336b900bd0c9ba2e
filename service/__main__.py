"""The command line: `python -m service COMMAND`."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from service import __version__
from service.settings import Settings, StartupError

COMMANDS = {
    "serve": "start the service, with a database of its own unless DATABASE_URL names one",
    "migrate": "bring the database's schema up to date",
    "seed": "put the shipped catalogue into the database",
    "plan": "size a deployment and print it",
    "ingest": "read configurations of models and put them into the catalogue",
    "import": "read a list of prices into the catalogue",
    "calibrate": "keep startup logs and results of load and link tests as measurements that correct predictions",
    "accuracy": "compare predicted memory with the measured startups of the catalogue",
    "keys": "make, list and revoke the API keys that writes need",
    "architectures": "write the list of what is understood to docs/architectures.md",
    "export-openapi": "write the service's contract to openapi/openapi.json",
}
"""Every command with its summary; the module of the same name in `service.cli` does the work."""

MODULES = {"import": "import_prices"}
"""Commands whose name no module can have."""

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; what keeps it from starting is one sentence on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="shardwise", description="Size, price and configure vLLM deployments.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        settings = Settings.from_environment()
        for name, summary in COMMANDS.items():
            command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
            if name == wanted:
                importlib.import_module(_module(name)).configure(command)
        parsed = parser.parse_args(arguments)
        return importlib.import_module(_module(parsed.command)).run(parsed, settings)
    except StartupError as error:
        print(f"shardwise: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _module(command: str) -> str:
    return f"service.cli.{MODULES.get(command, command.replace('-', '_'))}"


if __name__ == "__main__":
    sys.exit(main())
