"""A database that is there and up to date."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from service.settings import Settings
from service.storage import embedded
from service.storage.url import check_reachable


@contextmanager
def database(settings: Settings) -> Generator[Settings]:
    """The settings with the URL of a database that answers: the one named, or our own for as long as it is used.

    Of our own the settings name the data directory too.

    Raises
    ------
    StartupError
        There is none.
    """
    if settings.database_url is not None:
        check_reachable(settings.database_url)
        yield settings
        return
    with embedded.running(settings.data_dir) as url:
        yield replace(settings, database_url=url, data_dir=embedded.data_directory(settings.data_dir))


def migrate(settings: Settings) -> bool:
    """Bring the schema up to date; whether anything was to be done."""
    from service.storage import migrations

    if settings.database_url is None or migrations.is_current(settings.database_url):
        return False
    from service.storage.engine import create_engine

    with create_engine(settings, pooled=False).connect() as connection:
        migrations.upgrade(connection)
    return True


def fill(settings: Settings) -> bool:
    """Put the shipped catalogue into the database; whether anything was to be done."""
    from service.storage import seed

    if settings.database_url is None or seed.is_seeded(settings.database_url):
        return False
    from service.storage.engine import create_engine

    with create_engine(settings, pooled=False).begin() as connection:
        seed.seed(connection)
    return True
