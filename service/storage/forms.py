"""Forms of the tables: dated rows, observations, and the columns they share."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.schema import SchemaItem

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


@dataclass(frozen=True, slots=True)
class CatalogueTable:
    """A table of dated rows, and the columns that say which rows are about the same thing."""

    table: sa.Table
    key: tuple[str, ...]

    @property
    def current(self) -> sa.ColumnElement[bool]:
        """Whether a row is in the newest revision."""
        return self.table.c.to_revision.is_(None)

    def at(self, revision: int) -> sa.ColumnElement[bool]:
        """Whether a row is in a revision."""
        end = self.table.c.to_revision
        return (self.table.c.from_revision <= revision) & (end.is_(None) | (end > revision))


def catalogue_table(name: str, *elements: SchemaItem, key: tuple[str, ...]) -> CatalogueTable:
    """A table whose rows hold from one revision until another; of one key no two rows hold at once."""
    holds = sa.func.int4range(sa.column("from_revision", sa.Integer), sa.column("to_revision", sa.Integer))
    same = [(sa.column(column, sa.Text), "=") for column in key]
    table = sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *elements,
        sa.Column("from_revision", sa.Integer, sa.ForeignKey("catalogue_revisions.revision"), nullable=False),
        sa.Column("to_revision", sa.Integer, sa.ForeignKey("catalogue_revisions.revision")),
        sa.CheckConstraint("to_revision > from_revision", name="revisions_ordered"),
        pg.ExcludeConstraint(*same, (holds, "&&"), name=f"ex_{name}_revisions", using="gist"),
    )
    return CatalogueTable(table, key)


def provenance() -> tuple[SchemaItem, ...]:
    """Columns that say where a row comes from and when it was collected."""
    return (
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("as_of", sa.Date, nullable=False),
        sa.CheckConstraint("source <> ''", name="source_given"),
    )


def observations_table(name: str, *elements: SchemaItem, key: tuple[str, ...]) -> CatalogueTable:
    """A table of dated observations: of one key there is one at a time, and a new day is a new key.

    Uniqueness is an ordinary index, for these tables grow by many thousand rows at once.
    """
    table = sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *elements,
        sa.Column("from_revision", sa.Integer, sa.ForeignKey("catalogue_revisions.revision"), nullable=False),
        sa.Column("to_revision", sa.Integer, sa.ForeignKey("catalogue_revisions.revision")),
        sa.CheckConstraint("to_revision > from_revision", name="revisions_ordered"),
        sa.Index(f"uq_{name}_current", *key, unique=True, postgresql_where=sa.text("to_revision IS NULL")),
    )
    return CatalogueTable(table, key)


def observed() -> tuple[SchemaItem, ...]:
    """Columns that say where and on which day something was seen."""
    return (
        sa.Column("observed_on", sa.Date, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.CheckConstraint("source <> ''", name="source_given"),
    )


def one_card() -> tuple[SchemaItem, ...]:
    """Rules for a card, known or one of several, and how much of it."""
    return (
        sa.CheckConstraint("gpu ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", name="gpu_form"),
        sa.CheckConstraint("(gpu IS NULL) = (cardinality(ambiguous) > 0)", name="gpu_known_or_ambiguous"),
        sa.CheckConstraint("gpu_count >= 1", name="gpu_count_positive"),
        sa.CheckConstraint(
            "gpu_fraction IS NULL OR (gpu_fraction > 0 AND gpu_fraction < 1 AND gpu_count = 1)",
            name="gpu_fraction_of_one",
        ),
    )


LATENCIES = tuple(
    f"{time}_{statistic}_ms"
    for time in ("ttft", "tpot", "itl", "e2e")
    for statistic in ("mean", "median", "p90", "p95", "p99")
)
"""Columns of times."""


def measured() -> tuple[SchemaItem, ...]:
    """Columns that every measurement has, and the text that it was read from."""
    return (
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("recorded_by", sa.Text, nullable=False),
        sa.Column("recorded_on", sa.Date, nullable=False),
        sa.Column("report", sa.Text, sa.ForeignKey("calibration_texts.digest")),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("gpu", sa.Text, nullable=False),
        sa.CheckConstraint("digest ~ '^[0-9a-f]{16}$'", name="digest_form"),
        sa.CheckConstraint("source <> '' AND recorded_by <> ''", name="source_given"),
        sa.CheckConstraint("status IN ('accepted', 'quarantined', 'withdrawn')", name="status_known"),
        sa.CheckConstraint("(status = 'accepted') = (reason = '')", name="reason_given"),
        sa.CheckConstraint("gpu ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", name="gpu_form"),
    )


POINT_COLUMNS = ("size_bytes", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "wrong")
"""Of one message size of a link test; each is a column of lists, for either way of running it."""


def points(way: str) -> tuple[SchemaItem, ...]:
    """Columns of a link test's results one way, as lists of equal length."""
    whole = {"size_bytes", "wrong"}
    return (
        *(
            sa.Column(f"{way}_{name}", pg.ARRAY(sa.BigInteger if name in whole else sa.Double), nullable=False)
            for name in POINT_COLUMNS
        ),
        sa.CheckConstraint(
            " AND ".join(f"cardinality({way}_{name}) = cardinality({way}_size_bytes)" for name in POINT_COLUMNS[1:]),
            name=f"{way}_even",
        ),
    )
