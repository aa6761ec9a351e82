"""Reference tables: the same rows on every shard."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from sqla_shard.exc.base import listed
from sqla_shard.exc.base import ShardError

__all__ = [
    "ReferenceIncompleteError",
    "ReferenceRowsError",
    "ReferenceSizeError",
    "ReferenceTableError",
    "ReferenceWriteError",
]


class ReferenceTableError(ShardError):
    """Base of the errors of reference tables."""


class ReferenceWriteError(ReferenceTableError):
    """Raised when a session is to write a reference table.

    :ivar reference: the reference class.
    """

    def __init__(self, *, reference: str) -> None:
        super().__init__(
            f"{reference} is a reference class, whose rows are the same on "
            "every shard, and a session would write one of them; use "
            f"{reference}.replace(cluster, rows), .upsert() or .delete()"
        )
        self.reference = reference


class ReferenceRowsError(ReferenceTableError, ValueError):
    """Raised when rows, or keys, cannot be those of a reference table.

    :ivar reference: the reference class.
    :ivar row: which one, or its key.
    :ivar reason: what is wrong with it.
    """

    def __init__(self, *, reference: str, row: object, reason: str) -> None:
        shown = f"{row!r}"
        if len(shown) > 80:
            shown = f"{shown[:80]}..."
        super().__init__(f"{shown} for {reference}: {reason}")
        self.reference = reference
        self.row = row
        self.reason = reason


class ReferenceSizeError(ReferenceTableError):
    """Raised when a reference table would have too many rows.

    Nothing was written.

    :ivar reference: the reference class.
    :ivar rows: how many there would be.
    :ivar most: how many there may be.
    """

    def __init__(self, *, reference: str, rows: int, most: int) -> None:
        super().__init__(
            f"{reference} would have {rows} rows, on every shard, and all of "
            f"them are read and compared to write one; up to {most} are "
            "taken. Keep more in a global keyspace, or on the objects"
        )
        self.reference = reference
        self.rows = rows
        self.most = most


class ReferenceIncompleteError(ReferenceTableError):
    """Raised when a reference table was not written on all shards.

    The lowest shard has the rows that were asked for, unless it is among
    those that have failed; each other shard has them, or what it had before.

    :ivar reference: the reference class.
    :ivar keyspace: name of its keyspace.
    :ivar done: shards that have the rows.
    :ivar errors: what others have raised, by shard.
    :ivar not_reached: shards that were not tried: those of the same servers.
    """

    def __init__(
        self,
        *,
        reference: str,
        keyspace: str,
        done: Sequence[int],
        errors: Mapping[int, Exception],
        not_reached: Sequence[int],
    ) -> None:
        first = next(iter(errors.values()))
        super().__init__(
            f"{reference} was written on {len(done)} shards of {keyspace}, "
            f"but not on shard {listed(list(errors))} (not tried: "
            f"{listed(not_reached) or 'none'}), because of "
            f"{type(first).__name__}: {first}. Do it again when that is over, "
            "which does no harm where it was done; or run sqla-shard verify "
            "references --repair"
        )
        self.reference = reference
        self.keyspace = keyspace
        self.done = tuple(done)
        self.errors = dict(errors)
        self.not_reached = tuple(not_reached)
