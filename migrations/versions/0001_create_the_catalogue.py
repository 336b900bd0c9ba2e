"""Create the catalogue.

Rows of the catalogue are append-only: `catalogue_append_only()` lets an update close a row and refuses everything
else. A later table of the same kind takes `REVISIONS` and the trigger too.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0001"
down_revision = None

TABLES = ("sources", "gpus", "models")


def revisions(table: str, key: str) -> tuple[Any, ...]:
    """Columns and constraints by which the rows of one key hold one after the other, never two at once."""
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
        pg.ExcludeConstraint(
            (sa.column(key), "="),
            (sa.text("int4range(from_revision, to_revision)"), "&&"),
            name=f"ex_{table}_revisions",
            using="gist",
        ),
    )


def upgrade() -> None:
    # A trusted extension: the owner of the database may create it.
    op.execute("CREATE EXTENSION IF NOT EXISTS btree_gist")
    op.create_table(
        "catalogue_revisions",
        sa.Column("revision", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_catalogue_revisions"),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_catalogue_revisions_revision_positive")),
        sa.CheckConstraint("author <> ''", name=op.f("ck_catalogue_revisions_author_given")),
    )
    op.create_table(
        "sources",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.CheckConstraint("title <> ''", name=op.f("ck_sources_title_given")),
        *revisions("sources", "key"),
    )
    op.create_table(
        "gpus",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("slug", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("aliases", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("vendor", sa.Text, nullable=False),
        sa.Column("architecture", sa.Text, nullable=False),
        sa.Column("compute_capability", sa.Text),
        sa.Column("gfx", sa.Text),
        sa.Column("form_factor", sa.Text, nullable=False),
        sa.Column("memory_type", sa.Text, nullable=False),
        sa.Column("release_year", sa.Integer),
        sa.Column("link", sa.Text, nullable=False),
        sa.Column("gpus_per_domain", sa.Integer, nullable=False),
        sa.Column("max_bridged", sa.Integer),
        sa.Column("node_sizes", pg.ARRAY(sa.Integer), nullable=False),
        sa.Column("has_rules", sa.Boolean, nullable=False),
        sa.Column("vllm_support", sa.Text, nullable=False),
        sa.Column("figures", pg.JSONB, nullable=False),
        sa.Column("disagreements", pg.JSONB, nullable=False),
        sa.Column("notes", sa.Text),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("as_of", sa.Date, nullable=False),
        sa.CheckConstraint("slug ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", name=op.f("ck_gpus_slug_form")),
        sa.CheckConstraint(
            "vendor IN ('nvidia', 'amd', 'intel', 'google', 'aws', 'other')", name=op.f("ck_gpus_vendor_known")
        ),
        sa.CheckConstraint("compute_capability ~ '^[0-9]+[.][0-9]+$'", name=op.f("ck_gpus_compute_capability_form")),
        sa.CheckConstraint("link IN ('nvlink', 'pcie', 'xgmi')", name=op.f("ck_gpus_link_known")),
        sa.CheckConstraint("gpus_per_domain >= 1", name=op.f("ck_gpus_gpus_per_domain_positive")),
        sa.CheckConstraint(
            "cardinality(node_sizes) >= 1 AND 1 <= ALL (node_sizes)", name=op.f("ck_gpus_node_sizes_positive")
        ),
        sa.CheckConstraint(
            "coalesce((figures #>> '{memory_total_gib,value}')::numeric, 0) > 0"
            " AND coalesce((figures #>> '{memory_bandwidth_gb_per_s,value}')::numeric, 0) > 0"
            " AND coalesce((figures #>> ARRAY[link || '_gb_per_s', 'value'])::numeric, 0) > 0",
            name=op.f("ck_gpus_figures_needed"),
        ),
        sa.CheckConstraint("source <> ''", name=op.f("ck_gpus_source_given")),
        *revisions("gpus", "slug"),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("config", pg.JSONB, nullable=False),
        sa.Column("config_sha256", sa.Text, nullable=False),
        sa.Column("hf_quant_config", pg.JSONB),
        sa.Column("weights_bytes", sa.BigInteger),
        sa.Column("fidelity", sa.Text, nullable=False),
        sa.Column("reader_version", sa.Integer, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("as_of", sa.Date, nullable=False),
        sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name=op.f("ck_models_name_length")),
        sa.CheckConstraint("jsonb_typeof(config) = 'object'", name=op.f("ck_models_config_object")),
        sa.CheckConstraint("config_sha256 ~ '^[0-9a-f]{64}$'", name=op.f("ck_models_config_sha256_form")),
        sa.CheckConstraint("jsonb_typeof(hf_quant_config) = 'object'", name=op.f("ck_models_hf_quant_config_object")),
        sa.CheckConstraint("weights_bytes > 0", name=op.f("ck_models_weights_bytes_positive")),
        sa.CheckConstraint(
            "fidelity IN ('verbatim', 'vendored', 'vendored-trimmed', 'resaved', 'transcribed', 'ingested')",
            name=op.f("ck_models_fidelity_known"),
        ),
        sa.CheckConstraint("source <> ''", name=op.f("ck_models_source_given")),
        *revisions("models", "name"),
    )
    op.execute(
        """
        CREATE FUNCTION catalogue_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'UPDATE'
                AND to_jsonb(OLD) -> 'to_revision' = 'null'::jsonb
                AND to_jsonb(OLD) - 'to_revision' = to_jsonb(NEW) - 'to_revision'
            THEN
                RETURN NEW;
            END IF;
            RAISE EXCEPTION USING
                MESSAGE = 'rows of ' || TG_TABLE_NAME || ' are closed by a newer revision, never changed or deleted',
                ERRCODE = 'restrict_violation';
        END
        $$
        """
    )
    for table in ("catalogue_revisions", *TABLES):
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION catalogue_append_only()"
        )


def downgrade() -> None:
    for table in (*reversed(TABLES), "catalogue_revisions"):
        op.drop_table(table)
    op.execute("DROP FUNCTION catalogue_append_only()")
