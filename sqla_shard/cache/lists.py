"""Lists by their sources: the first rows of each, newest first.

A value has up to :attr:`.Cached.rows` rows, and a flag whether the list has no
other rows.  With a complete list every read is a hit, including reads of a
single target.

Every change of a list invalidates it.  A transaction that has only appended
rows at the top replaces the old list by the new one after COMMIT: it locked
the list before it took the old value, and still holds the lock; no other
transaction has put a tombstone since, and no invalidation is pending in the
outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import gt
from typing import Any

from sqlalchemy import literal, union_all

from sqla_shard.cache.columns import Columns, parse
from sqla_shard.cache.protocol import CacheCounters
from sqla_shard.cache.regions import Region
from sqla_shard.cache.rows import (
    OPTIONS,
    PartSource,
    ReadPart,
    RowCache,
    split_by_reader,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import branch, BRANCHES, sources
from sqla_shard.session.transaction import Edit

#: Maximum digits of the length of a list.
_DIGITS = 18


class FirstRows:
    """The first rows of a list, newest first.

    :ivar rows: the rows, as the driver returned them.
    :ivar is_whole: whether the list has no other rows.
    """

    def __init__(
        self, rows: Sequence[Any], is_whole: bool, at: tuple[int, int]
    ) -> None:
        self.rows = rows
        self.is_whole = is_whole
        self._target, self._sequence = at

    @property
    def is_in_order(self) -> bool:
        """Whether the rows are newest first, with each target once."""
        keys = self.keys
        return len(self.sequences) == len(keys) and all(map(gt, keys, keys[1:]))

    @cached_property
    def keys(self) -> list[tuple[int, int]]:
        """Sequence and target of each row."""
        return [(int(row[self._sequence]), int(row[self._target])) for row in self.rows]

    @cached_property
    def sequences(self) -> dict[int, int]:
        """Sequences by target."""
        return {target_id: sequence for sequence, target_id in self.keys}


#: The number of columns of a mapping table: source, target and sequence.
_COLUMNS = 3


def _sequence_like(value: Any, sequence: int) -> Any:
    """Return a sequence in the type in which the driver returned another."""
    if isinstance(value, str):
        return str(sequence).zfill(len(value))
    return sequence


def _longer(tag: bytes, rows: Sequence[tuple[int, int]], value: bytes) -> bytes | None:
    """Return the value of the length of a list to which rows were added."""
    length = _length(tag, value)
    return None if length is None else tag + b"%d" % (length + len(rows))


def _length(tag: bytes, value: bytes) -> int | None:
    """Return the length of a list; None if it cannot be read."""
    length = value[len(tag) :]
    # int() refuses thousands of digits.
    if value.startswith(tag) and length.isdigit() and len(length) < _DIGITS:
        return int(length)
    return None


class ListCache(RowCache):
    """The lists of one mapping class.

    :param rows: maximum number of cached rows of each list.
    """

    def __init__(
        self,
        columns: Columns,
        region: Region,
        tally: CacheCounters,
        prefix: str,
        *,
        rows: int,
    ) -> None:
        super().__init__(columns, region, tally, prefix)
        self.most = rows
        source, target = columns.table.primary_key.columns
        self._source = source
        self._target = target
        names = columns.names
        self.at: tuple[int, int] = names.index(target.name), names.index("sequence")
        self._source_at = names.index(source.name)
        self._statements: dict[int, Any] = {}

    def read(
        self, session: ShardSession, places: Mapping[int, Place]
    ) -> dict[int, FirstRows]:
        """Return the first rows of lists.

        :param places: the shard locations, by the ids of the sources.
        """
        lists: dict[int, FirstRows] = {}
        for part in split_by_reader(session, places):
            source = _Lists(self, part)
            read = self.read_keys(session, source.ids, source, part)
            lists.update((source.ids[key], one) for key, one in read.items())
        return lists

    def count(
        self,
        session: ShardSession,
        place: Place,
        source_id: int,
        read_length: Callable[[ShardSession], int],
    ) -> int:
        """Return the length of a list, which has its own key.

        :param read_length: reads the length from the database, in a session.
        """
        (part,) = split_by_reader(session, {source_id: place})
        key = self._count_key(source_id)
        source = _Count(self, self.tag(session, place), part, read_length)
        read: dict[str, int] = self.read_keys(session, [key], source, part)
        return read[key]

    def keys_of_write(
        self, place: Place, row_id: int | None
    ) -> Iterable[tuple[str, str]]:
        """Return the regions and keys that a write of a list invalidates."""
        yield self.region.name, f"{self.head}{row_id}"
        yield self.region.name, self._count_key(row_id)

    def keys_of_append(
        self,
        session: ShardSession,
        place: Place,
        source_id: int,
        rows: Sequence[tuple[int, int]],
    ) -> Iterable[tuple[tuple[str, str], Edit]]:
        """Return the keys that appended rows invalidate, with their edits.

        :param rows: target and sequence of the new rows, ascending.
        :returns: region and key, and the function that edits the value.
        """
        tag = self.tag(session, place)
        entries = self.keys_of_write(place, source_id)
        edits = (
            partial(self._with_rows_on_top, place, source_id, tag, rows),
            partial(_longer, tag, rows),
        )
        return zip(entries, edits, strict=True)

    def _with_rows_on_top(
        self,
        place: Place,
        source_id: int,
        tag: bytes,
        rows: Sequence[tuple[int, int]],
        value: bytes,
    ) -> bytes | None:
        """Return the value of a list with more rows at the top."""
        prefix = self.prefix(place, source_id, tag, value)
        # An empty list does not show how the driver returns a row.
        width = len(self.columns.names)
        if prefix is None or not prefix.rows or width != _COLUMNS:
            return None
        target, sequence = self.at
        on_top = [list(prefix.rows[0]) for _ in rows]
        for row, (target_id, at) in zip(on_top, rows, strict=True):
            row[target] = target_id
            row[sequence] = _sequence_like(row[sequence], at)
        if rows[0][1] <= prefix.keys[0][0]:
            return None
        all_rows = [*reversed(on_top), *prefix.rows]
        is_whole = prefix.is_whole and len(all_rows) <= self.most
        body = self.encode_list(place, is_whole, all_rows[: self.most])
        return None if body is None else tag + body

    def encode_list(
        self, place: Place, is_whole: bool, rows: Sequence[Any]
    ) -> bytes | None:
        """Return rows of a list as bytes; see :meth:`encode_rows`."""
        return self.encode_rows(place, rows, [is_whole, rows])

    def prefix(
        self, place: Place, source_id: int, tag: bytes, value: bytes
    ) -> FirstRows | None:
        """Return a decoded value; None if it cannot be read.

        :param source_id: id of the source of the list.
        """
        if not value.startswith(tag):
            return None
        try:
            is_whole, rows = parse(value[len(tag) :])
        except (TypeError, ValueError):
            return None
        if type(is_whole) is not bool or type(rows) is not list:
            return None
        accepts, at = self.row_checks(place).accepts, self._source_at
        if len(rows) > self.most or not all(map(accepts, rows)):
            return None
        if rows and {row[at] for row in rows} != {source_id}:
            return None
        prefix = FirstRows(rows, is_whole, self.at)
        return prefix if prefix.is_in_order else None

    def _count_key(self, source_id: int | None) -> str:
        return f"{self.head}count:{source_id}"

    def rows(
        self, session: ShardSession, place: Place, ids: Sequence[int]
    ) -> dict[int, list[Any]]:
        """Read the first rows of lists of one shard, and one further row."""
        lists: dict[int, list[Any]] = {source_id: [] for source_id in ids}
        for start in range(0, len(ids), BRANCHES):
            part = ids[start : start + BRANCHES]
            parameters = sources(part)
            result = session.execute(
                self._statement(len(parameters)),
                {**parameters, "number": self.most + 1},
                bind_arguments={"place": place},
                execution_options=OPTIONS,
            )
            for index, *row in result:
                lists[part[index]].append(row)
        for rows in lists.values():
            rows.sort(key=self._order, reverse=True)
        return lists

    def _order(self, row: Sequence[Any]) -> tuple[int, int]:
        target, sequence = self.at
        return int(row[sequence]), int(row[target])

    def _statement(self, branches: int) -> Any:
        statement = self._statements.get(branches)
        if statement is None:
            parts = [
                branch(
                    index,
                    self.columns.raw(literal(index).label("sqla_shard_list")),
                    self._source,
                    self.columns.table.c.sequence,
                    self._target,
                )
                for index in range(branches)
            ]
            statement = parts[0] if branches == 1 else union_all(*parts)
            self._statements[branches] = statement
        return statement


class _Lists(PartSource[ListCache]):
    """The lists of one read."""

    def decode(self, values: Mapping[str, bytes]) -> dict[str, FirstRows]:
        read: dict[str, FirstRows] = {}
        for key, value in values.items():
            source_id = self.ids[key]
            place, tag = self._places[source_id], self._tags[source_id]
            prefix = self._cache.prefix(place, source_id, tag, value)
            if prefix is not None:
                read[key] = prefix
        return read

    def encode(self, key: str, loaded: FirstRows) -> tuple[bytes, int] | None:
        place = self._places[self.ids[key]]
        body = self._cache.encode_list(place, loaded.is_whole, loaded.rows)
        if body is None:
            return None
        return self._tags[self.ids[key]] + body, self._cache.region.times.expire

    def load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, FirstRows]:
        by_place: dict[Place, list[str]] = {}
        for key in keys:
            place = self._places[self.ids[key]]
            by_place.setdefault(place, []).append(key)
        lists = {}
        most = self._cache.most
        with self._part.reader() as session:
            for place, its in by_place.items():
                ids = [self.ids[key] for key in its]
                rows = self._cache.rows(session, place, ids)
                for key, source_id in zip(its, ids, strict=True):
                    own = rows[source_id]
                    lists[key] = FirstRows(own[:most], len(own) <= most, self._cache.at)
        return lists


class _Count:
    """The length of one list; a :class:`~.protocol.Source`."""

    def __init__(
        self,
        cache: ListCache,
        tag: bytes,
        part: ReadPart[int],
        read_length: Callable[[ShardSession], int],
    ) -> None:
        self._cache = cache
        self._tag = tag
        self._part = part
        self._read_length = read_length

    def decode(self, values: Mapping[str, bytes]) -> dict[str, int]:
        lengths = {key: _length(self._tag, one) for key, one in values.items()}
        return {key: one for key, one in lengths.items() if one is not None}

    def encode(self, key: str, loaded: int) -> tuple[bytes, int]:
        return self._tag + str(loaded).encode(), self._cache.region.times.expire

    def load(self, keys: Sequence[str], leased: Collection[str]) -> Mapping[str, int]:
        with self._part.reader() as session:
            return dict.fromkeys(keys, self._read_length(session))
