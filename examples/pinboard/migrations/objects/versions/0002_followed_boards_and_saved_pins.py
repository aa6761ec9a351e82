"""Boards that users follow, pins saved on boards, and the reverse of both.

It runs once for each virtual shard of its keyspace, on any server.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    _create_list("user_follows_boards", "user_id", "board_id")
    _create_list("board_has_followers", "board_id", "user_id")
    _create_list("board_has_saved_pins", "board_id", "pin_id")
    _create_list("pin_in_boards", "pin_id", "board_id")


def downgrade() -> None:
    """Drop the tables, and all rows with them."""
    for name in (
        "pin_in_boards",
        "board_has_saved_pins",
        "board_has_followers",
        "user_follows_boards",
    ):
        op.drop_table(name)


def _create_list(name: str, source: str, target: str) -> None:
    op.create_table(
        name,
        sa.Column(source, sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(target, sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "sequence",
            sa.Numeric(38, 0).with_variant(sa.CHAR(38), "sqlite"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint(source, target),
    )
    op.create_index(f"ix_{name}_{source}", name, [source, "sequence", target])
