"""`seed`: the shipped catalogue."""

import argparse

from service.settings import Settings
from service.storage import provision


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Put the shipped catalogue into the database and say what was done."""
    with provision.database(settings) as provided:
        provision.migrate(provided)
        done = provision.fill(provided)
    print("The shipped catalogue was seeded." if done else "This shipped catalogue was seeded before.")
    return 0
