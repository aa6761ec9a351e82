"""Clocks of ids that begin with the time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of clocks."""
    op.create_table(
        "sqla_shard_clock",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
