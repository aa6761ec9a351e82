"""What a deletion does, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any
from typing import Literal

from sqla_shard.rendering import Place

__all__ = ["Action", "DeletionPlan", "Part"]

Action = Literal["delete", "set NULL", "clear", "remove", "release"]

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that a deletion does on one shard.

    :ivar action: ``"delete"`` rows, ``"set NULL"`` in a column that refers
        to them, ``"clear"`` lists, ``"remove"`` entries from the lists of
        others, ``"release"`` keys.
    :ivar name: of the class or the table; of the column for ``"set NULL"``.
    :ivar keyspace: of the shard.
    :ivar shard_id: that shard.
    :ivar count: how many rows.
    :ivar items: the ids of objects, or of those that lists belong to; pairs
        of source and target; keys.  Empty where rows are only counted.
    :ivar is_here: whether it is done in the transaction of the object's own
        shard; False where it follows its COMMIT.
    """

    action: Action
    name: str
    keyspace: str
    shard_id: int
    count: int
    items: tuple[Any, ...] = ()
    is_here: bool = True

    @classmethod
    def on(
        cls, place: Place, action: Action, name: str, count: int, **rest: Any
    ) -> Part:
        """Return a part of a place."""
        return cls(
            action=action,
            name=name,
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            count=count,
            **rest,
        )

    def __str__(self) -> str:
        when = "" if self.is_here else ", after COMMIT"
        shown = ", ".join(map(str, self.items[:_SHOWN]))
        more = ", ..." if len(self.items) > _SHOWN else ""
        return (
            f"shard {self.shard_id} of {self.keyspace}: {self.action} "
            f"{self.count} of {self.name}{when}"
            + (f": {shown}{more}" if shown else "")
        )


@dataclass(frozen=True, kw_only=True)
class DeletionPlan:
    """What deleting an object does, or has done.

    :ivar object_id: the object.
    :ivar parts: in the order in which they are done.
    :ivar unseen: what is not looked for, because all shards would have to
        be asked: the names of mapping and lookup classes.
    """

    object_id: int
    parts: tuple[Part, ...] = ()
    unseen: tuple[str, ...] = field(default=())

    def plus(
        self, parts: Iterable[Part], unseen: Iterable[str]
    ) -> DeletionPlan:
        """Return a plan with more parts."""
        names = dict.fromkeys((*self.unseen, *unseen))
        return replace(self, parts=(*self.parts, *parts), unseen=tuple(names))

    def to_mapping(self) -> dict[str, Any]:
        """Return it as data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"object {self.object_id}", *map(str, self.parts)]
        if self.unseen:
            lines.append(
                "not looked for without scatter=True: "
                + ", ".join(self.unseen)
            )
        return "\n  ".join(lines)
