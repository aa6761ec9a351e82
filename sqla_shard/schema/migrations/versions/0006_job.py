"""Jobs, which workers run after the transaction that enqueued them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _bytes(length: int) -> sa.LargeBinary:
    binary = mysql.VARBINARY(length)
    return sa.LargeBinary(length).with_variant(binary, "mysql", "mariadb")


def upgrade() -> None:
    """Create the table of jobs."""
    long = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    moment = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    queue = sa.String(64).with_variant(
        mysql.VARCHAR(64, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )
    op.create_table(
        "sqla_shard_job",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("shard_id", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(200), nullable=False),
        sa.Column("queue", queue, nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("due_at", moment, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("arguments", long, nullable=False),
        sa.Column("checkpoint", long, nullable=True),
        sa.Column("context", long, nullable=True),
        sa.Column("token", _bytes(16), nullable=True),
        sa.Column("unique_key", _bytes(255), nullable=True),
        sa.Column("error", long, nullable=True),
        sa.UniqueConstraint(
            *("state", "queue", "priority", "due_at", "id"), name="sqla_shard_job_due"
        ),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
