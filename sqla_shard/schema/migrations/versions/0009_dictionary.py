"""Dictionaries of compressed blobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of dictionaries."""
    content = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
    moment = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.create_table(
        "sqla_shard_dictionary",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content", content, nullable=False),
        sa.Column("is_active", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.UniqueConstraint("name", "version", name="sqla_shard_dictionary_version"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
