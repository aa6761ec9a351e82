"""Lookups from mail addresses and names to users.

It runs once for each mod shard of its keyspace, on any server.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    _create_lookup("user_email")
    _create_lookup("user_name")


def downgrade() -> None:
    """Drop the tables, and all rows with them."""
    op.drop_table("user_name")
    op.drop_table("user_email")


def _create_lookup(name: str) -> None:
    key = mysql.VARBINARY(255)
    moment = mysql.TIMESTAMP(fsp=6)
    op.create_table(
        name,
        sa.Column(
            "key",
            sa.LargeBinary().with_variant(key, "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column(
            "claim",
            sa.LargeBinary().with_variant(mysql.VARBINARY(16), "mysql", "mariadb"),
            nullable=True,
        ),
        sa.Column(
            "expires_at",
            sa.DateTime().with_variant(moment, "mysql", "mariadb"),
            nullable=True,
        ),
        sa.PrimaryKeyConstraint("key"),
    )
