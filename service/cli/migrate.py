"""`migrate`: the schema."""

import argparse

from service.settings import Settings
from service.storage import migrations, provision


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--sql", action="store_true", help="print the SQL of every migration and change nothing")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Bring the schema up to date and say what was done."""
    if arguments.sql:
        print(migrations.sql(), end="")
        return 0
    with provision.database(settings) as provided:
        done = provision.migrate(provided)
    print(f"Migrated to {migrations.head()}." if done else f"The schema is at {migrations.head()} already.")
    return 0
