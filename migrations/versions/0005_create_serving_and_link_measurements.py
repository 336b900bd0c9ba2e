"""Create measured load tests and links."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0005"
down_revision = "0004"

TABLES = ("serving_calibrations", "link_calibrations")
TIMES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "median", "p90", "p95", "p99")
POINT = ("size_bytes", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "wrong")
WHOLE = ("size_bytes", "wrong")


def measured(table: str) -> tuple[Any, ...]:
    """Columns and constraints that both tables have."""

    def check(condition: str, name: str) -> sa.CheckConstraint:
        return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))

    return (
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("recorded_by", sa.Text, nullable=False),
        sa.Column("recorded_on", sa.Date, nullable=False),
        sa.Column("report", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("gpu", sa.Text, nullable=False),
        check("digest ~ '^[0-9a-f]{16}$'", "digest_form"),
        check("source <> '' AND recorded_by <> ''", "source_given"),
        check("status IN ('accepted', 'quarantined', 'withdrawn')", "status_known"),
        check("(status = 'accepted') = (reason = '')", "reason_given"),
        check("gpu ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", "gpu_form"),
        sa.ForeignKeyConstraint(["report"], ["calibration_texts.digest"], name=f"fk_{table}_report_calibration_texts"),
    )


def revisions(table: str) -> tuple[Any, ...]:
    """Columns and constraints by which the rows of one digest hold one after the other."""
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
            ["to_revision"], ["catalogue_revisions.revision"], name=f"fk_{table}_to_revision_catalogue_revisions"
        ),
        sa.CheckConstraint("to_revision > from_revision", name=op.f(f"ck_{table}_revisions_ordered")),
    )


def points(way: str) -> tuple[Any, ...]:
    """Results of a link test one way."""
    return (
        *(
            sa.Column(f"{way}_{name}", pg.ARRAY(sa.BigInteger if name in WHOLE else sa.Double), nullable=False)
            for name in POINT
        ),
        sa.CheckConstraint(
            " AND ".join(f"cardinality({way}_{name}) = cardinality({way}_size_bytes)" for name in POINT[1:]),
            name=op.f(f"ck_link_calibrations_{way}_even"),
        ),
    )


def upgrade() -> None:
    op.create_table(
        "serving_calibrations",
        *measured("serving_calibrations"),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("gpu_count", sa.Integer, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("engine_version", sa.Text),
        sa.Column("tensor_parallel_size", sa.Integer, nullable=False),
        sa.Column("pipeline_parallel_size", sa.Integer, nullable=False),
        sa.Column("data_parallel_size", sa.Integer, nullable=False),
        sa.Column("expert_parallel_size", sa.Integer, nullable=False),
        sa.Column("decode_context_parallel_size", sa.Integer, nullable=False),
        sa.Column("precision", sa.Text),
        sa.Column("kv_cache_dtype", sa.Text),
        sa.Column("enforce_eager", sa.Boolean),
        sa.Column("speculative", sa.Text),
        sa.Column("measured_on", sa.Date),
        sa.Column("derived", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("input_tokens_mean", sa.Double),
        sa.Column("output_tokens_mean", sa.Double),
        sa.Column("concurrency", sa.Double),
        sa.Column("request_rate", sa.Double),
        sa.Column("requests", sa.BigInteger),
        sa.Column("failed", sa.BigInteger),
        sa.Column("duration_s", sa.Double),
        *(sa.Column(f"{time}_{statistic}_ms", sa.Double) for time in TIMES for statistic in STATISTICS),
        sa.Column("output_tokens_per_s", sa.Double),
        sa.Column("total_tokens_per_s", sa.Double),
        sa.Column("requests_per_s", sa.Double),
        sa.CheckConstraint("char_length(model) BETWEEN 1 AND 200", name=op.f("ck_serving_calibrations_model_length")),
        sa.CheckConstraint("engine <> ''", name=op.f("ck_serving_calibrations_engine_given")),
        sa.CheckConstraint(
            "least(gpu_count, tensor_parallel_size, pipeline_parallel_size, data_parallel_size, expert_parallel_size,"
            " decode_context_parallel_size) >= 1",
            name=op.f("ck_serving_calibrations_sizes_positive"),
        ),
        sa.CheckConstraint("least(concurrency, request_rate) > 0", name=op.f("ck_serving_calibrations_load_positive")),
        sa.CheckConstraint("least(requests, failed) >= 0", name=op.f("ck_serving_calibrations_counts_not_negative")),
        *revisions("serving_calibrations"),
    )
    op.create_table(
        "link_calibrations",
        *measured("link_calibrations"),
        sa.Column("link", sa.Text),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("gpus", pg.ARRAY(sa.Text), nullable=False),
        *points("out_of_place"),
        *points("in_place"),
        sa.CheckConstraint("link IN ('nvlink', 'pcie', 'xgmi')", name=op.f("ck_link_calibrations_link_known")),
        sa.CheckConstraint(
            "operation IN ('all_reduce', 'all_gather', 'reduce_scatter', 'alltoall', 'broadcast', 'reduce', 'gather',"
            " 'scatter', 'sendrecv', 'hypercube')",
            name=op.f("ck_link_calibrations_operation_known"),
        ),
        sa.CheckConstraint(
            "world_size >= 1 AND nodes BETWEEN 1 AND world_size", name=op.f("ck_link_calibrations_sizes_positive")
        ),
        *revisions("link_calibrations"),
    )
    for table in TABLES:
        op.create_index(
            f"uq_{table}_current", table, ["digest"], unique=True, postgresql_where=sa.text("to_revision IS NULL")
        )
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION catalogue_append_only()"
        )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
