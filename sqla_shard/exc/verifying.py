"""Runs that look whether rows fit."""

from __future__ import annotations

from sqla_shard.exc.base import ShardError

__all__ = ["VerifyPositionError"]


class VerifyPositionError(ShardError):
    """Raised when a run cannot go on from a file.

    It is the position of another run: of other classes, of keyspaces with
    another number of shards, or one that repairs other things.  Or it is no
    such file at all.

    :ivar path: of the file.
    :ivar reason: what is the matter with it.
    """

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(
            f"{path}: cannot go on from it: {reason}. Name another file, or "
            "remove this one to begin anew"
        )
        self.path = path
        self.reason = reason
