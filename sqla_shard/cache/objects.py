"""Objects by their ids, from the cache or from the database.

That there is no object with an id is kept as well, and short.  Whoever
inserts one need not know its id before: he removes the *absence* of his table
and shard, a random text that each of these values has, and that is looked at
before one of them is believed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from sqlalchemy import bindparam

from sqla_shard.cache.classes import Columns
from sqla_shard.cache.codec import parse_many
from sqla_shard.cache.kept import Kept
from sqla_shard.cache.kept import OPTIONS
from sqla_shard.cache.kept import Part
from sqla_shard.cache.kept import parted
from sqla_shard.cache.protocol import give_back
from sqla_shard.cache.store import State
from sqla_shard.rendering import Place
from sqla_shard.session.contract import Scope

__all__ = ["KeptObjects"]

_IDS = "sqla_shard_ids"
_NONE = b"-"
_TOKEN = re.compile(rb"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class _Absent:
    """There is none.

    :ivar token: of the absence that it was found under; empty where that
        could not be told.
    """

    token: str


class KeptObjects(Kept):
    """The objects of one class."""

    def __init__(self, columns: Columns, **kept: Any) -> None:
        super().__init__(columns, **kept)
        (self._key,) = columns.table.primary_key.columns
        #: Where the id stands in a row.
        self.index = columns.names.index(self._key.name)
        self._raw = columns.raw(self._key.label("sqla_shard_key")).where(
            self._key.in_(bindparam(_IDS, expanding=True))
        )

    def read(
        self, scope: Scope, places: Mapping[int, Place]
    ) -> dict[int, Any]:
        """Return the objects of ids, None where there is none.

        :param places: by id.
        :returns: without those whose rows cannot be loaded.
        """
        found: dict[int, Any] = {}
        for part in parted(scope, places):
            source = _Objects(self, part)
            read = self.through(scope, source.ids, source, part)
            found.update(
                (source.ids[key], None if type(one) is _Absent else one)
                for key, one in read.items()
            )
        return self._loaded(scope, places, found)

    def _loaded(
        self,
        scope: Scope,
        places: Mapping[int, Place],
        found: dict[int, Any],
    ) -> dict[int, Any]:
        """Put objects in the place of rows."""
        head = self.head
        rows = {
            f"{head}{i}": [row] for i, row in found.items() if row is not None
        }
        if not rows:
            return found
        loaded = self.loaded(scope, next(iter(places.values())), rows)
        return {
            i: row if row is None else loaded[f"{head}{i}"][0]
            for i, row in found.items()
            if row is None or f"{head}{i}" in loaded
        }

    def rows(
        self, part: Part[int], ids: Iterable[int]
    ) -> dict[int, list[Any]]:
        """Read rows from the database."""
        with part.reader() as session:
            result = session.execute(
                self._raw, {_IDS: list(ids)}, execution_options=OPTIONS
            )
            return {key: row for key, *row in result}

    def written(
        self, place: Place, object_id: int | None
    ) -> Iterable[tuple[str, str]]:
        """Return the region and the keys of a row that is written.

        :param object_id: None for rows that are inserted.
        """
        if object_id is None:
            yield self.region.name, self.absence(place)
        else:
            yield self.region.name, f"{self.head}{object_id}"

    def absence(self, place: Place) -> str:
        """Return the key of what makes known that rows were inserted."""
        return f"{self.head}none:{place.keyspace}:{place.shard_id}"


class _Objects:
    """What is asked for in one read; a :class:`~.protocol.Source`."""

    def __init__(self, kept: KeptObjects, part: Part[int]) -> None:
        self._kept = kept
        self._part = part
        self._scope = part.scope
        self._places = places = part.places
        head = kept.head
        self.ids = {f"{head}{object_id}": object_id for object_id in places}
        self._tags = kept.tags(part.scope, places)

    def decode(self, values: Mapping[str, bytes]) -> dict[str, Any]:
        read: dict[str, Any] = {}
        bodies = {}
        absent: dict[str, _Absent] = {}
        for key, value in values.items():
            tag = self._tags[self.ids[key]]
            if not value.startswith(tag):
                continue
            body = value[len(tag) :]
            if body[:1] == _NONE:
                token = body[1:].decode("ascii", "replace")
                absent[key] = _Absent(token)
            else:
                bodies[key] = body
        index, ids, places = self._kept.index, self.ids, self._places
        for key, row in parse_many(bodies).items():
            cells = self._kept.cells(places[ids[key]])
            if cells.fit(row) and row[index] == ids[key]:
                read[key] = row
        if absent:
            read.update(self._confirmed(absent))
        return read

    def encode(self, key: str, loaded: Any) -> tuple[bytes, int] | None:
        times = self._kept.region.times
        if type(loaded) is not _Absent:
            place = self._places[self.ids[key]]
            body = self._kept.dumped(place, [loaded], loaded)
            if body is None:
                return None
            return self._tags[self.ids[key]] + body, times.expire
        if not loaded.token:
            return None
        body = _NONE + loaded.token.encode("ascii")
        return self._tags[self.ids[key]] + body, times.expire_nothing

    def load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, Any]:
        # Before the rows: what is inserted from now on has another token,
        # and the transaction may never see it.
        tokens = self._tokens(leased, leases=True) if leased else {}
        rows = self._kept.rows(self._part, [self.ids[key] for key in keys])
        return {
            key: rows.get(
                self.ids[key], _Absent(tokens.get(self._absence(key), ""))
            )
            for key in keys
        }

    def _confirmed(self, absent: Mapping[str, _Absent]) -> dict[str, _Absent]:
        """Return those that still are: nothing was inserted since."""
        tokens = self._tokens(absent, leases=False)
        return {
            key: one
            for key, one in absent.items()
            if tokens.get(self._absence(key)) == one.token
        }

    def _absence(self, key: str) -> str:
        return self._kept.absence(self._places[self.ids[key]])

    def _tokens(self, keys: Iterable[str], *, leases: bool) -> dict[str, str]:
        """Return the absences of the shards of keys, new where missing."""
        times = self._kept.region.times
        store = self._kept.store(self._scope)
        names = list(dict.fromkeys(self._absence(key) for key in keys))
        found = store.fetch(names, times.lease if leases else 0)
        tokens = {
            name: one.value.decode("ascii")
            for name, one in found.items()
            if _TOKEN.fullmatch(one.value)
        }
        strange = [
            name
            for name, one in found.items()
            if one.state is State.VALUE and name not in tokens
        ]
        give_back(store, strange)
        new = {
            name: (one.lease, token_hex(8).encode("ascii"))
            for name, one in found.items()
            if one.state is State.LEASED
        }
        if new:
            for name in store.fill(new, times.expire):
                tokens[name] = new[name][1].decode("ascii")
        return tokens
