"""Operations that transactions have left for other shards."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of intents."""
    token = sa.LargeBinary(16).with_variant(mysql.VARBINARY(16), "mysql", "mariadb")
    long = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    moment = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.create_table(
        "sqla_shard_intent",
        sa.Column("token", token, primary_key=True),
        sa.Column("operation", sa.String(200), nullable=False),
        sa.Column("arguments", long, nullable=False),
        sa.Column("home_shard", sa.Integer(), nullable=False),
        sa.Column("keyspace", sa.String(255), nullable=False),
        sa.Column("shard_id", sa.Integer(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("due_at", moment, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", long, nullable=True),
        sa.UniqueConstraint("due_at", "token", name="sqla_shard_intent_due"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
