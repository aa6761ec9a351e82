"""Which virtual shards a transaction has written, and in which order.

Servers commit one after another.  Where an order was asked for, it is that
of :meth:`Written.in_order`:

1. servers with a shard of a keyspace of kind ``mod``, which hold lookups;
2. those with a global keyspace;
3. those with objects;
4. those where nothing but mappings was written;
5. of equal ones: what an earlier flush or statement has written;
6. of one flush or statement: the lower number of a shard.

A server with several of these comes as early as the first of them.  So what
is left by a COMMIT that comes no further is, as far as servers differ, a
lookup without its object, or objects without their places in lists: nothing
that leads to a row which is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from sqla_shard.exc import WrittenShard
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of

__all__ = ["Snapshot", "Written"]

_RANKS = {"mod": 0, "global": 1, "objects": 2}
_LATE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Write:
    """What was written on one shard.

    :ivar place: the shard.
    :ivar turn: number of the first flush or statement.
    :ivar late: whether it was nothing but mappings.
    """

    place: Place
    turn: int
    late: bool


#: What :meth:`Written.restore` takes.
Snapshot = dict[tuple[str, int], _Write]


class Written:
    """The shards that one transaction has written."""

    def __init__(self) -> None:
        self._writes: Snapshot = {}
        self._turn = 0
        self._is_together = False

    def add(self, place: Place, table: Any = None) -> None:
        """Take note of a write.

        :param table: where to; None where that is not known.
        """
        address = place.address
        known = self._writes.get(address)
        if known is not None and not known.late:
            return
        late = table is not None and spec_of(table).commits_late
        if known is not None:
            if not late:
                self._writes[address] = replace(known, late=False)
            return
        if not self._is_together:
            self._turn += 1
        self._writes[address] = _Write(place=place, turn=self._turn, late=late)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Take what is added in the block for one flush or statement."""
        self._turn += 1
        self._is_together = True
        try:
            yield
        finally:
            self._is_together = False

    def has(self, place: Place) -> bool:
        """Tell whether a shard was written."""
        return place.address in self._writes

    def snapshot(self) -> Snapshot:
        """Return what :meth:`restore` takes."""
        return dict(self._writes)

    def restore(self, snapshot: Snapshot) -> None:
        """Forget what was added since."""
        self._writes = dict(snapshot)

    @property
    def engines(self) -> list[Engine]:
        """Of the servers, as they were written first."""
        return list(dict.fromkeys(w.place.engine for w in self._all))

    def place_on(self, engine: Engine) -> Place | None:
        """Return a shard that was written on a server."""
        for write in self._all:
            if write.place.engine is engine:
                return write.place
        return None

    def in_order(self, kind_of: Callable[[str], str]) -> list[Engine]:
        """Return the engines of the servers in the order of their COMMITs.

        :param kind_of: returns the kind of a keyspace.
        """
        keys: dict[Engine, tuple[int, int, tuple[str, int]]] = {}
        for write in self._all:
            place = write.place
            rank = _LATE if write.late else _RANKS[kind_of(place.keyspace)]
            key = rank, write.turn, place.address
            before = keys.get(place.engine, key)
            keys[place.engine] = min(before, key)
        return sorted(keys, key=keys.__getitem__)

    def shards(self, engines: Collection[Engine]) -> list[WrittenShard]:
        """Return what was written on some servers."""
        found = [
            WrittenShard(
                keyspace=write.place.keyspace,
                shard_id=write.place.shard_id,
                server=write.place.server,
            )
            for engine in engines
            for write in self._all
            if write.place.engine is engine
        ]
        return sorted(found, key=lambda s: (s.keyspace, s.shard_id))

    def servers(self, engines: Collection[Engine]) -> list[str]:
        """Return the names of servers, where they were written."""
        return list(
            dict.fromkeys(
                write.place.server
                for engine in engines
                for write in self._all
                if write.place.engine is engine
            )
        )

    @property
    def _all(self) -> list[_Write]:
        return list(self._writes.values())
