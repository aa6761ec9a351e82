"""Keys that transactions could not take out of a cache."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of keys that are still in a cache."""
    token = sa.LargeBinary(16).with_variant(mysql.VARBINARY(16), "mysql", "mariadb")
    key = sa.String(250).with_variant(
        mysql.VARCHAR(250, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )
    moment = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.create_table(
        "sqla_shard_outbox",
        sa.Column("token", token, primary_key=True),
        sa.Column("region", sa.String(64), nullable=False),
        sa.Column("cache_key", key, nullable=False),
        sa.Column("shard_id", sa.Integer(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.UniqueConstraint("created_at", "token", name="sqla_shard_outbox_age"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        if_not_exists=True,
    )
