"""Objects by their ids, from the cache or from the database.

The absence of an object is cached as well, for a short time.  The id of an
inserted row may be unknown before the INSERT: it invalidates the *absence
token* of its table and shard, a random string that these values contain, and
that is compared when one of them is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from sqlalchemy import bindparam, Engine

from sqla_shard.cache.columns import Columns, parse_many
from sqla_shard.cache.protocol import CacheCounters, discard
from sqla_shard.cache.regions import Region
from sqla_shard.cache.rows import (
    OPTIONS,
    PartSource,
    ReadPart,
    RowCache,
    split_by_reader,
)
from sqla_shard.cache.stores import State
from sqla_shard.engine.rendering import Place
from sqla_shard.session import ShardSession

_IDS = "sqla_shard_ids"
_NONE = b"-"
_TOKEN = re.compile(rb"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class _Absent:
    """An id that is not found.

    :ivar token: the absence token when the id was read; empty if unknown.
    """

    token: str


class ObjectCache(RowCache):
    """The objects of one class."""

    def __init__(
        self, columns: Columns, region: Region, tally: CacheCounters, prefix: str
    ) -> None:
        super().__init__(columns, region, tally, prefix)
        (self._key,) = columns.table.primary_key.columns
        #: The position of the id in a row.
        self.index = columns.names.index(self._key.name)
        self._raw = columns.raw(self._key.label("sqla_shard_key")).where(
            self._key.in_(bindparam(_IDS, expanding=True))
        )

    def read(
        self, session: ShardSession, places: Mapping[int, Place]
    ) -> dict[int, Any]:
        """Return the objects by id, with None for those not found.

        :param places: the shard locations, by id.
        :returns: the objects, without those whose rows cannot be loaded.
        """
        ids: dict[str, int] = {}
        found: dict[int, Any] = {}
        rows: dict[str, list[Any]] = {}
        for part in split_by_reader(session, places):
            source = _Objects(self, part)
            ids.update(source.ids)
            read = self.read_keys(session, source.ids, source, part)
            for key, one in read.items():
                if type(one) is _Absent:
                    found[ids[key]] = None
                else:
                    rows[key] = [one]
        if rows:
            place = next(iter(places.values()))
            loaded = self.load_objects(session, place, rows)
            for key, (one,) in loaded.items():
                found[ids[key]] = one
        return found

    def rows(self, part: ReadPart[int], ids: Iterable[int]) -> dict[int, list[Any]]:
        """Read rows from the database."""
        with part.reader() as session:
            result = session.execute(
                self._raw, {_IDS: list(ids)}, execution_options=OPTIONS
            )
            return {key: row for key, *row in result}

    def keys_of_write(
        self, place: Place, object_id: int | None
    ) -> Iterable[tuple[str, str]]:
        """Return the region and key that a write of a row invalidates.

        :param object_id: id of the object; None for an inserted row whose id
            is unknown.
        """
        if object_id is None:
            yield self.region.name, self.absence(place)
        else:
            yield self.region.name, f"{self.head}{object_id}"

    def absence(self, place: Place) -> str:
        """Return the key of the absence token of a shard."""
        return f"{self.head}none:{place.keyspace}:{place.shard_id}"


class _Objects(PartSource[ObjectCache]):
    """The objects of one read."""

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
        index, ids, places = self._cache.index, self.ids, self._places
        known: dict[Engine, Callable[[Any], bool]] = {}
        for key, row in parse_many(bodies).items():
            object_id = ids[key]
            place = places[object_id]
            accepts = known.get(place.engine)
            if accepts is None:
                checks = self._cache.row_checks(place)
                accepts = known[place.engine] = checks.accepts
            if accepts(row) and row[index] == object_id:
                read[key] = row
        if absent:
            read.update(self._still_absent(absent))
        return read

    def encode(self, key: str, loaded: Any) -> tuple[bytes, int] | None:
        times = self._cache.region.times
        if type(loaded) is not _Absent:
            place = self._places[self.ids[key]]
            body = self._cache.encode_rows(place, [loaded], loaded)
            if body is None:
                return None
            return self._tags[self.ids[key]] + body, times.expire
        if not loaded.token:
            return None
        body = _NONE + loaded.token.encode("ascii")
        return self._tags[self.ids[key]] + body, times.expire_nothing

    def load(self, keys: Sequence[str], leased: Collection[str]) -> Mapping[str, Any]:
        # Read the tokens before the rows: the transaction may not see rows
        # that are inserted from now on; they change the token.
        tokens = self._tokens(leased, leases=True) if leased else {}
        rows = self._cache.rows(self._part, [self.ids[key] for key in keys])
        return {
            key: rows.get(self.ids[key], _Absent(tokens.get(self._absence(key), "")))
            for key in keys
        }

    def _still_absent(self, absent: Mapping[str, _Absent]) -> dict[str, _Absent]:
        """Return the absent objects that are still absent.

        Their shards have the same absence token: no row was inserted since.
        """
        tokens = self._tokens(absent, leases=False)
        return {
            key: one
            for key, one in absent.items()
            if tokens.get(self._absence(key)) == one.token
        }

    def _absence(self, key: str) -> str:
        return self._cache.absence(self._places[self.ids[key]])

    def _tokens(self, keys: Iterable[str], *, leases: bool) -> dict[str, str]:
        """Return the absence tokens of shards; fill those that are missing."""
        times = self._cache.region.times
        store = self._cache.store(self._part.session)
        names = list(dict.fromkeys(self._absence(key) for key in keys))
        found = store.fetch(names, times.lease if leases else 0)
        tokens = {
            name: one.value.decode("ascii")
            for name, one in found.items()
            if _TOKEN.fullmatch(one.value)
        }
        unreadable = [
            name
            for name, one in found.items()
            if one.state is State.VALUE and name not in tokens
        ]
        discard(store, unreadable)
        new = {
            name: (one.lease, token_hex(8).encode("ascii"))
            for name, one in found.items()
            if one.state is State.LEASED
        }
        if new:
            for name in store.fill(new, times.expire):
                tokens[name] = new[name][1].decode("ascii")
        return tokens
