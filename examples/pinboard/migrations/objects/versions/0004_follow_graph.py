"""Tables of the follow graph, and of the pins of home pages.

It runs once for each virtual shard of its keyspace, on any server.
The rows of ``user_follows_boards`` are moved by ``tables.py``: the owner of a
board is on another shard.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_EDGES = (
    ("user_follows_user", "follower_id", "followee_id", "n_boards"),
    ("user_followed_by_user", "followee_id", "follower_id", "n_boards"),
    ("user_follows_board", "follower_id", "board_id", "owner_id"),
    ("board_followed_by_user", "board_id", "follower_id", "owner_id"),
)


def upgrade() -> None:
    """Create the tables."""
    for name, source, target, number in _EDGES:
        op.create_table(
            name,
            _number(source),
            _number(target),
            sa.Column("kind", sa.SmallInteger(), nullable=False),
            *(_number(one) for one in (number, "sequence", "version")),
            sa.PrimaryKeyConstraint(source, target),
        )
        op.create_index(f"ix_{name}", name, [source, "kind", "sequence", target])
    op.create_index(
        "ix_user_follows_board_owner_id",
        "user_follows_board",
        ["follower_id", "owner_id"],
    )
    op.create_table(
        "user_has_posts",
        *(_number(one) for one in ("author_id", "post_id", "board_id", "sequence")),
        sa.PrimaryKeyConstraint("author_id", "post_id"),
    )
    op.create_index(
        "ix_user_has_posts", "user_has_posts", ["author_id", "sequence", "post_id"]
    )
    op.create_table(
        "user_has_pulled_posts",
        _number("author_id"),
        _number("since"),
        sa.PrimaryKeyConstraint("author_id"),
    )


def downgrade() -> None:
    """Drop the tables, and all rows with them."""
    for name in ("user_has_pulled_posts", "user_has_posts"):
        op.drop_table(name)
    for name, *_ in reversed(_EDGES):
        op.drop_table(name)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)
