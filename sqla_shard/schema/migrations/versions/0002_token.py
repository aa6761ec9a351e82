"""Keys of transactions that were committed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of tokens."""
    op.create_table(
        "sqla_shard_token",
        sa.Column(
            "token",
            sa.LargeBinary(255).with_variant(mysql.VARBINARY(255), "mysql", "mariadb"),
            primary_key=True,
        ),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.UniqueConstraint("created_at", "token", name="sqla_shard_token_age"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
