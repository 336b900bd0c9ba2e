"""`keys`: who may write."""

import argparse
import os
import secrets
import sys
from pathlib import Path

from service.settings import Settings, StartupError
from service.storage import provision
from service.storage.engine import Engine, create_engine
from service.storage.keys import FORM, ROLES, all_keys, create, find, revoke

OWNER_KEY = "api-key"
"""File in the data directory of a database of our own: a key for whoever may read it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the three things that can be done with keys."""
    done = parser.add_subparsers(metavar="create | list | revoke", required=True)
    made = done.add_parser("create", help="make a key and print it, this once")
    made.add_argument("name", help="whom or what it is for; catalogue revisions made with it carry this name")
    made.add_argument("--role", choices=ROLES, default="curator", help="what it may do (default: curator)")
    made.set_defaults(do=create_key)
    done.add_parser("list", help="print what is known of every key").set_defaults(do=list_keys)
    ended = done.add_parser("revoke", help="end a key at once")
    ended.add_argument("prefix", help="its prefix, as `keys list` prints it, or the whole key")
    ended.set_defaults(do=revoke_key)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Create, list or revoke."""
    with provision.database(settings) as provided:
        provision.migrate(provided)
        arguments.do(create_engine(provided, pooled=False), arguments)
    return 0


def create_key(engine: Engine, arguments: argparse.Namespace) -> None:
    """Make a key and print it."""
    name: str = arguments.name
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise StartupError("A key's name takes 1 to 200 printable characters.")
    with engine.begin() as connection:
        key = create(connection, name, arguments.role)
    # Alone on standard output, for scripts.
    print(key)
    print(f"The key of {name} ({arguments.role}) is shown this once.", file=sys.stderr)


def list_keys(engine: Engine, arguments: argparse.Namespace) -> None:
    """Print what is known of every key; the keys themselves are not kept."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    with engine.begin() as connection:
        known = all_keys(connection)
    table = Table("Prefix", "Name", "Role", "Created", "Last used", "Revoked", box=box.SIMPLE_HEAD)
    for key in known:
        dates = (key.created_at, key.last_used_at, key.revoked_at)
        table.add_row(key.prefix, key.name, key.role, *(f"{date:%Y-%m-%d %H:%M}" if date else "" for date in dates))
    Console(soft_wrap=True, markup=False).print(table)


def revoke_key(engine: Engine, arguments: argparse.Namespace) -> None:
    """End a key."""
    form = FORM.fullmatch(arguments.prefix)
    with engine.begin() as connection:
        ended = revoke(connection, form[1] if form else arguments.prefix)
    if ended is None:
        raise StartupError(f"No key has the prefix {arguments.prefix!r}; `keys list` shows those there are.")
    print(f"{ended.prefix} ({ended.name}) is revoked.")


def how_to_write(settings: Settings, directory: Path | None) -> str:
    """Which key writes: the owner's, where `directory` is that of a database of our own."""
    if directory and (key := owner_key(settings, directory)):
        return f"Writing takes an API key; yours, kept in {directory / OWNER_KEY}, is:\n  {key}"
    return "Writing takes an API key: python -m service keys create NAME"


def owner_key(settings: Settings, directory: Path) -> str | None:
    """The key of whoever owns a database of our own: made once, kept in a file that only they can read.

    None where the file can be neither read nor written.
    """
    file = directory / OWNER_KEY
    try:
        kept = file.read_text().strip() if file.exists() else ""
        with create_engine(settings, pooled=False).begin() as connection:
            if find(connection, kept):
                return kept
            key = create(connection, "owner", "admin")
        fresh = file.with_name(f"{OWNER_KEY}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
            output.write(f"{key}\n")
        fresh.replace(file)
    except OSError:
        return None
    return key
