"""Errors of follow graphs and feeds."""

from __future__ import annotations

from sqla_shard.exc.base import MessageError, ShardError


class FollowError(ShardError):
    """Base of the errors of follow graphs and feeds."""


class FollowRefusedError(FollowError, MessageError, ValueError):
    """Raised for a user or a board that cannot be followed.

    :ivar follower_id: the user who was to follow.
    :ivar target_id: the user or board.
    """

    follower_id: int
    target_id: int


class BlockedError(FollowError):
    """Raised when a user follows one who has blocked this user.

    :ivar follower_id: the user who was to follow.
    :ivar blocker_id: the user who has blocked this user.
    """

    follower_id: int
    blocker_id: int
    _text = (
        "user {follower_id} is blocked by user {blocker_id}, and cannot "
        "follow this user or one of the boards; the other one has to call "
        "unblock() first"
    )


class FeedStoreError(FollowError, MessageError):
    """Raised when Redis, with feeds or relations, does not respond.

    :ivar server: host and port, or the path of the socket.
    """

    server: str
