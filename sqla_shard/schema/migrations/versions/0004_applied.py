"""Operations that were applied here for transactions of other shards."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of intents that were applied."""
    token = sa.LargeBinary(16).with_variant(mysql.VARBINARY(16), "mysql", "mariadb")
    moment = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.create_table(
        "sqla_shard_applied",
        sa.Column("token", token, primary_key=True),
        sa.Column("shard_id", sa.Integer(), nullable=False),
        sa.Column("home_keyspace", sa.String(255), nullable=False),
        sa.Column("home_shard", sa.Integer(), nullable=False),
        sa.Column("applied_at", moment, nullable=False),
        sa.UniqueConstraint("applied_at", "token", name="sqla_shard_applied_age"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
