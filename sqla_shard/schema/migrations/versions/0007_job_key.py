"""Unique keys of jobs that have not finished."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of keys."""
    key = sa.LargeBinary(255).with_variant(mysql.VARBINARY(255), "mysql", "mariadb")
    op.create_table(
        "sqla_shard_job_key",
        sa.Column("unique_key", key, primary_key=True),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("duplicates", sa.Integer(), nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
