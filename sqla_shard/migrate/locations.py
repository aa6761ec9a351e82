"""The shards of rows that have no object id yet.

An owner gets a shard of its own: a statement is single-shard, and a
transaction atomic, if it is so for one owner.  The row of an owned table is on
the shard of its owner, which is known after the row was inserted, or loaded by
a flush; until then the row has a shard in :data:`ASSUMED`, which may be that
of any owner.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.ids import DEFAULT_LAYOUT
from sqla_shard.topology import Keyspace, Topology

_SHARDS = 1 << 16
#: The shards of rows whose owner is not known.
ASSUMED = range(_SHARDS // 2, _SHARDS)

#: Maximum number of rows whose shard is in memory, about 150 bytes each.
_MOST = 50_000


class Locations:
    """The shards of rows, as far as they are known.

    :param roots: type ids of owners, whose shard is always known.
    """

    def __init__(self, roots: frozenset[int]) -> None:
        self._roots = roots
        self._known: dict[tuple[int, Hashable], int] = {}

    def shard_of(self, type_id: int, value: Any) -> int:
        """Return the shard of a row.

        :param value: its primary key in the unsharded database.
        """
        key = type_id, _hashable(value)
        known = self._known.get(key)
        if known is not None:
            return known
        assumed = hash(key) % len(ASSUMED)
        return assumed if type_id in self._roots else ASSUMED[assumed]

    def learn(self, type_id: int, value: Any, shard_id: int) -> None:
        """Record the shard of a row."""
        key = type_id, _hashable(value)
        if len(self._known) >= _MOST and key not in self._known:
            # The oldest is forgotten first.
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = shard_id

    def object_id(self, type_id: int, value: Any) -> int:
        """Return an object id for a row, equal for equal primary keys."""
        local_id = hash(_hashable(value)) & DEFAULT_LAYOUT.max_local_id
        shard_id = self.shard_of(type_id, value)
        return DEFAULT_LAYOUT.pack(shard_id, type_id, local_id)


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    found: Hashable = value
    return found


class ShadowPlaces(Places):
    """The locations of shards that do not exist."""

    def __init__(self) -> None:
        topology = Topology.from_mapping(
            {
                "epoch": 1,
                "keyspaces": {
                    "objects": {
                        "kind": "objects",
                        "shards": _SHARDS,
                        "database": "db{shard:05d}",
                        "servers": [
                            {
                                "name": "objects",
                                "primary": "sqlite:///shadow/objects",
                                "shards": [0, _SHARDS - 1],
                            }
                        ],
                    },
                    "global": {
                        "kind": "global",
                        "database": "main",
                        "servers": [
                            {"name": "global", "primary": "sqlite:///shadow/global"}
                        ],
                    },
                },
            },
            source="shadow mode",
        )
        nothing: Any = None
        super().__init__(topology, nothing)

    def place(self, keyspace: Keyspace, shard_id: int) -> Place:
        """Return the location of a shard, without an engine."""
        nothing: Any = None
        return Place(
            keyspace=keyspace.name,
            shard_id=shard_id,
            server=keyspace.name,
            schema="",
            engine=nothing,
            backend=nothing,
        )
