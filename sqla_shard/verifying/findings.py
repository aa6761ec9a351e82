"""What can be wrong with a row, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

__all__ = ["Finding", "Kind", "Outcome"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What can be wrong.

    :ivar name: such as ``dangling``.
    :ivar meaning: the same in a few words.
    :ivar harmless: whether an application is none the worse for it.
    :ivar settled: whether it is so at the first look: it cannot be something
        that is just being done.
    """

    name: str
    meaning: str
    harmless: bool = False
    settled: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row, or one object, that does not fit.

    :ivar kind: what is wrong, such as ``dangling``.
    :ivar subject: the class.
    :ivar keyspace: of the row.
    :ivar shard_id: the shard that it is on.
    :ivar row: what names it: values by column.
    :ivar detail: more about it; empty for nothing.
    :ivar repaired: whether it is right now.
    """

    kind: str
    subject: str
    keyspace: str
    shard_id: int
    row: Mapping[str, Any]
    detail: str = ""
    repaired: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; ids are texts, for they exceed 2^53."""
        row = {
            name: str(value) if type(value) is int else value
            for name, value in self.row.items()
        }
        return {**vars(self), "row": row}

    def __str__(self) -> str:
        row = ", ".join(
            f"{name} {value!r}" for name, value in self.row.items()
        )
        said = f": {self.detail}" if self.detail else ""
        done = " (repaired)" if self.repaired else ""
        return f"{row} on shard {self.shard_id} of {self.keyspace}{said}{done}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a repair.

    :ivar repaired: how many rows it has put right: 1, or 0.
    :ivar left: what is wrong still; None where nothing is.
    """

    repaired: bool = False
    left: Finding | None = field(default=None)

    @classmethod
    def done(cls) -> Outcome:
        """Return the outcome of a repair that was made."""
        return cls(repaired=True)

    @classmethod
    def gone(cls) -> Outcome:
        """Return that of one that was not needed any more."""
        return cls()

    @classmethod
    def not_done(cls, finding: Finding) -> Outcome:
        """Return that of one that only somebody who knows more can make."""
        return cls(left=finding)
