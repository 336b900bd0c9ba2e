"""Create API keys, and keep the commit a model's configuration was read at."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("prefix", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("prefix", name="uq_api_keys_prefix"),
        sa.CheckConstraint("prefix ~ '^[0-9a-f]{12}$'", name=op.f("ck_api_keys_prefix_form")),
        sa.CheckConstraint("sha256 ~ '^[0-9a-f]{64}$'", name=op.f("ck_api_keys_sha256_form")),
        sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name=op.f("ck_api_keys_name_length")),
        sa.CheckConstraint("role IN ('reader', 'quoter', 'curator', 'admin')", name=op.f("ck_api_keys_role_known")),
    )
    op.add_column("models", sa.Column("revision", sa.Text))


def downgrade() -> None:
    op.drop_column("models", "revision")
    op.drop_table("api_keys")
