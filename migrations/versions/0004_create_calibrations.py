"""Create measurements that correct predictions."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "calibrations",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("recorded_by", sa.Text, nullable=False),
        sa.Column("recorded_on", sa.Date, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("gpu", sa.Text, nullable=False),
        sa.Column("gpu_total_gib", sa.Double),
        sa.Column("gpu_count", sa.Integer, nullable=False),
        sa.Column("link", sa.Text),
        sa.Column("engine", sa.Text),
        sa.Column("engine_version", sa.Text),
        sa.Column("dtype", sa.Text),
        sa.Column("quantization", sa.Text),
        sa.Column("kv_cache_dtype", sa.Text),
        sa.Column("tensor_parallel_size", sa.Integer, nullable=False),
        sa.Column("pipeline_parallel_size", sa.Integer, nullable=False),
        sa.Column("data_parallel_size", sa.Integer, nullable=False),
        sa.Column("decode_context_parallel_size", sa.Integer, nullable=False),
        sa.Column("expert_parallel", sa.Boolean, nullable=False),
        sa.Column("gpu_memory_utilization", sa.Double),
        sa.Column("kv_cache_memory_bytes", sa.BigInteger),
        sa.Column("max_model_len", sa.BigInteger),
        sa.Column("max_num_seqs", sa.BigInteger),
        sa.Column("max_num_batched_tokens", sa.BigInteger),
        sa.Column("assumed", pg.ARRAY(sa.Text), nullable=False),
        sa.Column("enforce_eager", sa.Boolean),
        sa.Column("prefix_caching", sa.Boolean),
        sa.Column("speculative", sa.Text),
        sa.Column("lora", sa.Boolean, nullable=False),
        sa.Column("other_arguments", sa.Text),
        sa.Column("weights_gib", sa.Double),
        sa.Column("available_kv_gib", sa.Double),
        sa.Column("kv_tokens", sa.BigInteger),
        sa.Column("gpu_blocks", sa.BigInteger),
        sa.Column("max_concurrency", sa.Double),
        sa.Column("concurrency_tokens", sa.BigInteger),
        sa.Column("cudagraph_gib", sa.Double),
        sa.Column("cudagraph_estimate_gib", sa.Double),
        sa.Column("activation_peak_gib", sa.Double),
        sa.Column("non_torch_gib", sa.Double),
        sa.Column("consumed_gib", sa.Double),
        sa.CheckConstraint("digest ~ '^[0-9a-f]{16}$'", name=op.f("ck_calibrations_digest_form")),
        sa.CheckConstraint("kind IN ('startup')", name=op.f("ck_calibrations_kind_known")),
        sa.CheckConstraint("source <> '' AND recorded_by <> ''", name=op.f("ck_calibrations_source_given")),
        sa.CheckConstraint(
            "status IN ('accepted', 'quarantined', 'withdrawn')", name=op.f("ck_calibrations_status_known")
        ),
        sa.CheckConstraint("(status = 'accepted') = (reason = '')", name=op.f("ck_calibrations_reason_given")),
        sa.CheckConstraint("char_length(model) BETWEEN 1 AND 200", name=op.f("ck_calibrations_model_length")),
        sa.CheckConstraint("gpu ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", name=op.f("ck_calibrations_gpu_form")),
        sa.CheckConstraint(
            "least(gpu_count, tensor_parallel_size, pipeline_parallel_size, data_parallel_size,"
            " decode_context_parallel_size) >= 1",
            name=op.f("ck_calibrations_sizes_positive"),
        ),
        sa.Column("from_revision", sa.Integer, nullable=False),
        sa.Column("to_revision", sa.Integer),
        sa.PrimaryKeyConstraint("id", name="pk_calibrations"),
        sa.ForeignKeyConstraint(
            ["from_revision"],
            ["catalogue_revisions.revision"],
            name="fk_calibrations_from_revision_catalogue_revisions",
        ),
        sa.ForeignKeyConstraint(
            ["to_revision"], ["catalogue_revisions.revision"], name="fk_calibrations_to_revision_catalogue_revisions"
        ),
        sa.CheckConstraint("to_revision > from_revision", name=op.f("ck_calibrations_revisions_ordered")),
    )
    op.create_index(
        "uq_calibrations_current",
        "calibrations",
        ["digest"],
        unique=True,
        postgresql_where=sa.text("to_revision IS NULL"),
    )
    op.execute(
        "CREATE TRIGGER calibrations_append_only BEFORE UPDATE OR DELETE ON calibrations"
        " FOR EACH ROW EXECUTE FUNCTION catalogue_append_only()"
    )
    op.create_table(
        "calibration_texts",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_calibration_texts"),
        sa.CheckConstraint("digest ~ '^[0-9a-f]{16}$'", name=op.f("ck_calibration_texts_digest_form")),
    )


def downgrade() -> None:
    op.drop_table("calibration_texts")
    op.drop_table("calibrations")
