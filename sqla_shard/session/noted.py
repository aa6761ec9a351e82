"""What is noted of a key of the cache that a transaction makes old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqla_shard.rendering import Place

__all__ = ["MOST_EDITS", "Edit", "Stale"]

#: Each of them reads and writes the whole value, before COMMIT: a value that
#: would take more of them is removed.
MOST_EDITS = 16

#: Makes the value that a key is to have after COMMIT of the one before, or
#: None where it cannot.
Edit = Callable[[bytes], "bytes | None"]


@dataclass(frozen=True, slots=True)
class Stale:
    """A key that a transaction makes old.

    :ivar place: the shard that it writes; None where that is not told.
    :ivar edits: what it does to the value, in order; None where a value
        cannot be made of the one before.
    :ivar is_made: whether it is what a function has made, of rows that may
        be on any shards.
    """

    place: Place | None
    edits: tuple[Edit, ...] | None
    is_made: bool = False

    def edited(self, value: bytes) -> bytes | None:
        """Return the value after all edits; None where one of them cannot."""
        new: bytes | None = value
        for edit in self.edits or ():
            if new is not None:
                new = edit(new)
        return new
