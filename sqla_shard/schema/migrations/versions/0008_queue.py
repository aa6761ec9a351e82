"""Pauses and limits of queues."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of queues."""
    queue = sa.String(64).with_variant(
        mysql.VARCHAR(64, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )
    moment = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.create_table(
        "sqla_shard_queue",
        sa.Column("queue", queue, primary_key=True),
        sa.Column("is_paused", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("per_second", sa.Double(), nullable=True),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("filled_at", moment, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
