"""Statements of a revision that were executed, one row for each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the ledger."""
    long = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    moment = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.create_table(
        "sqla_shard_ledger",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("direction", sa.String(10), nullable=False),
        sa.Column("revision", sa.String(100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("statement", long, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("tables_before", long, nullable=True),
        sa.Column("error", long, nullable=True),
        sa.Column("runner", sa.String(255), nullable=False),
        sa.Column("started_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.Column("is_open", sa.Boolean(create_constraint=False), nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
