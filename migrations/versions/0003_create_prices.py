"""Create rentable machines, their prices and those of hosted models."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0003"
down_revision = "0002"

TABLES = ("instance_types", "prices", "hosted_prices")
OBSERVATIONS = {"prices": ("offer",), "hosted_prices": ("provider", "model", "observed_on", "source")}


def revisions(table: str) -> tuple[Any, ...]:
    """Columns and constraints of rows that hold from one revision until another."""
    return (
        sa.Column("from_revision", sa.Integer, nullable=False),
        sa.Column("to_revision", sa.Integer),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(
            ["from_revision"],
            ["catalogue_revisions.revision"],
            name=f"fk_{table}_from_revision_catalogue_revisions",
        ),
        sa.ForeignKeyConstraint(
            ["to_revision"],
            ["catalogue_revisions.revision"],
            name=f"fk_{table}_to_revision_catalogue_revisions",
        ),
        sa.CheckConstraint("to_revision > from_revision", name=op.f(f"ck_{table}_revisions_ordered")),
    )


def observed(table: str) -> tuple[Any, ...]:
    """Columns that say where and on which day something was seen."""
    return (
        sa.Column("observed_on", sa.Date, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.CheckConstraint("source <> ''", name=op.f(f"ck_{table}_source_given")),
    )


def one_card(table: str) -> tuple[Any, ...]:
    """Rules for a card, known or one of several, and how much of it."""
    return (
        sa.CheckConstraint("gpu ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", name=op.f(f"ck_{table}_gpu_form")),
        sa.CheckConstraint(
            "(gpu IS NULL) = (cardinality(ambiguous) > 0)", name=op.f(f"ck_{table}_gpu_known_or_ambiguous")
        ),
        sa.CheckConstraint("gpu_count >= 1", name=op.f(f"ck_{table}_gpu_count_positive")),
        sa.CheckConstraint(
            "gpu_fraction IS NULL OR (gpu_fraction > 0 AND gpu_fraction < 1 AND gpu_count = 1)",
            name=op.f(f"ck_{table}_gpu_fraction_of_one"),
        ),
    )


def upgrade() -> None:
    op.create_table(
        "instance_types",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("instance_type", sa.Text, nullable=False),
        sa.Column("gpu", sa.Text),
        sa.Column("gpu_name", sa.Text, nullable=False),
        sa.Column("ambiguous", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("gpu_count", sa.Integer, nullable=False),
        sa.Column("gpu_fraction", sa.Numeric),
        sa.Column("link", sa.Text),
        sa.Column("link_domain_gpus", sa.Integer, nullable=False),
        sa.Column("network", sa.Text, nullable=False),
        sa.Column("network_gbit_per_s", sa.Double),
        sa.Column("vcpu", sa.Integer),
        sa.Column("memory_gib", sa.Double),
        sa.Column("confidence", sa.Text, nullable=False),
        *observed("instance_types"),
        sa.CheckConstraint("provider <> '' AND instance_type <> ''", name=op.f("ck_instance_types_machine_given")),
        *one_card("instance_types"),
        sa.CheckConstraint("link IN ('nvlink', 'pcie', 'xgmi')", name=op.f("ck_instance_types_link_known")),
        sa.CheckConstraint(
            "link_domain_gpus BETWEEN 1 AND gpu_count", name=op.f("ck_instance_types_link_domain_within_machine")
        ),
        sa.CheckConstraint("confidence IN ('high', 'medium', 'low')", name=op.f("ck_instance_types_confidence_known")),
        *revisions("instance_types"),
        pg.ExcludeConstraint(
            (sa.column("provider"), "="),
            (sa.column("instance_type"), "="),
            (sa.text("int4range(from_revision, to_revision)"), "&&"),
            name="ex_instance_types_revisions",
            using="gist",
        ),
    )
    op.create_table(
        "prices",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("offer", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("instance_type", sa.Text, nullable=False),
        sa.Column("gpu", sa.Text),
        sa.Column("gpu_name", sa.Text, nullable=False),
        sa.Column("ambiguous", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("gpu_count", sa.Integer, nullable=False),
        sa.Column("gpu_fraction", sa.Numeric),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("amount_per_hour", sa.Numeric, nullable=False),
        sa.Column("host_included", sa.Boolean, nullable=False),
        *observed("prices"),
        sa.CheckConstraint("offer ~ '^[0-9a-f]{32}$'", name=op.f("ck_prices_offer_form")),
        sa.CheckConstraint("provider <> ''", name=op.f("ck_prices_provider_given")),
        *one_card("prices"),
        sa.CheckConstraint(
            "kind IN ('on_demand', 'spot', 'reserved_1y', 'reserved_3y', 'marketplace', 'community')",
            name=op.f("ck_prices_kind_known"),
        ),
        sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name=op.f("ck_prices_currency_form")),
        sa.CheckConstraint(
            "amount_per_hour > 0 AND amount_per_hour < 'Infinity'", name=op.f("ck_prices_amount_positive")
        ),
        *revisions("prices"),
    )
    op.create_table(
        "hosted_prices",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("family", sa.Text, nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("input_per_million", sa.Numeric, nullable=False),
        sa.Column("output_per_million", sa.Numeric, nullable=False),
        sa.Column("cached_input_per_million", sa.Numeric),
        sa.Column("context_tokens", sa.Integer),
        sa.Column("deprecated_on", sa.Date),
        *observed("hosted_prices"),
        sa.CheckConstraint("provider <> '' AND model <> ''", name=op.f("ck_hosted_prices_model_given")),
        sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name=op.f("ck_hosted_prices_currency_form")),
        sa.CheckConstraint(
            "input_per_million > 0 AND output_per_million > 0 AND coalesce(cached_input_per_million, 0) >= 0"
            " AND greatest(input_per_million, output_per_million, cached_input_per_million) < 'Infinity'",
            name=op.f("ck_hosted_prices_amounts_positive"),
        ),
        sa.CheckConstraint("context_tokens > 0", name=op.f("ck_hosted_prices_context_tokens_positive")),
        *revisions("hosted_prices"),
    )
    for table, key in OBSERVATIONS.items():
        op.create_index(
            f"uq_{table}_current", table, list(key), unique=True, postgresql_where=sa.text("to_revision IS NULL")
        )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION catalogue_append_only()"
        )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
