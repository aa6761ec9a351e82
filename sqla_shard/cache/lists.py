"""Lists by their sources: the first rows of each, newest first.

A value has as many rows as :attr:`.Cached.rows` says, and whether these are
all.  Of a list that is whole every question is answered, also the one that is
asked most and answered with no: whether something is in it.

Every change of a list invalidates it.  Whoever has only put rows on top of it
puts the new list in the place of the old one, after COMMIT: he has held the
lock that changes of a list take since before he took the old one, and nobody
else has announced a change since then, nor left one in the outbox before.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cached_property
from functools import partial
from itertools import pairwise
from typing import Any

from sqlalchemy import literal
from sqlalchemy import union_all

from sqla_shard.branching import branch
from sqla_shard.branching import BRANCHES
from sqla_shard.branching import sources
from sqla_shard.cache.classes import Columns
from sqla_shard.cache.codec import parse
from sqla_shard.cache.kept import Kept
from sqla_shard.cache.kept import OPTIONS
from sqla_shard.cache.kept import Part
from sqla_shard.cache.kept import parted
from sqla_shard.rendering import Place
from sqla_shard.session.contract import Scope
from sqla_shard.session.noted import Edit

__all__ = ["KeptLists", "Prefix"]

#: Of a length; no list has so many rows.
_DIGITS = 18


class Prefix:
    """The first rows of a list, newest first.

    :ivar rows: as the driver has them.
    :ivar is_whole: whether these are all.
    """

    def __init__(
        self, rows: Sequence[Any], is_whole: bool, at: tuple[int, int]
    ) -> None:
        self.rows = rows
        self.is_whole = is_whole
        self._target, self._sequence = at

    @property
    def is_in_order(self) -> bool:
        """Whether it is newest first, and each target in it once."""
        keys = self.keys
        return len(self.sequences) == len(keys) and all(
            one > other for one, other in pairwise(keys)
        )

    @cached_property
    def keys(self) -> list[tuple[int, int]]:
        """Sequence and target of each row."""
        return [
            (int(row[self._sequence]), int(row[self._target]))
            for row in self.rows
        ]

    @cached_property
    def sequences(self) -> dict[int, int]:
        """Sequences by target."""
        return {target_id: sequence for sequence, target_id in self.keys}


#: Of a table whose rows say nothing but what is in which list, and where:
#: source, target and sequence.
_COLUMNS = 3


def _like(value: Any, sequence: int) -> Any:
    """Return a sequence as the driver has one."""
    if isinstance(value, str):
        return str(sequence).zfill(len(value))
    return sequence


def _longer(
    tag: bytes, rows: Sequence[tuple[int, int]], value: bytes
) -> bytes | None:
    """Return the value of a length with rows more."""
    length = _length(tag, value)
    return None if length is None else tag + b"%d" % (length + len(rows))


def _length(tag: bytes, value: bytes) -> int | None:
    """Return the length of a list; None where it cannot be read."""
    length = value[len(tag) :]
    # Python takes offence at numbers of thousands of digits.
    if value.startswith(tag) and length.isdigit() and len(length) < _DIGITS:
        return int(length)
    return None


class KeptLists(Kept):
    """The lists of one mapping class.

    :param rows: how many are kept of each.
    """

    def __init__(self, columns: Columns, *, rows: int, **kept: Any) -> None:
        super().__init__(columns, **kept)
        self.most = rows
        source, target = columns.table.primary_key.columns
        self._source = source
        self._target = target
        names = columns.names
        self.at = names.index(target.name), names.index("sequence")
        self._source_at = names.index(source.name)
        self._statements: dict[int, Any] = {}

    def read(
        self, scope: Scope, places: Mapping[int, Place]
    ) -> dict[int, Prefix]:
        """Return the first rows of lists.

        :param places: by source.
        """
        found: dict[int, Prefix] = {}
        for part in parted(scope, places):
            source = _Lists(self, part)
            read = self.through(scope, source.ids, source, part)
            found.update((source.ids[key], one) for key, one in read.items())
        return found

    def count(
        self,
        scope: Scope,
        place: Place,
        source_id: int,
        ask: Callable[[Scope], int],
    ) -> int:
        """Return the length of a list, which is kept on its own.

        :param ask: asks the database, in a session.
        """
        (part,) = parted(scope, {source_id: place})
        key = self._count_key(source_id)
        source = _Count(self, self.tag(scope, place), part, ask)
        read: dict[str, int] = self.through(scope, [key], source, part)
        return read[key]

    def written(
        self, place: Place, row_id: int | None
    ) -> Iterable[tuple[str, str]]:
        """Return the regions and keys of a list that is written."""
        yield self.region.name, f"{self.head}{row_id}"
        yield self.region.name, self._count_key(row_id)

    def appended(
        self,
        scope: Scope,
        place: Place,
        source_id: int,
        rows: Sequence[tuple[int, int]],
    ) -> Iterable[tuple[tuple[str, str], Edit]]:
        """Return the regions and keys of a list, and what is done to them.

        :param rows: target and sequence of what is put on top, ascending.
        """
        tag = self.tag(scope, place)
        entries = self.written(place, source_id)
        edits = (
            partial(self._with, place, source_id, tag, rows),
            partial(_longer, tag, rows),
        )
        return zip(entries, edits, strict=True)

    def _with(
        self,
        place: Place,
        source_id: int,
        tag: bytes,
        rows: Sequence[tuple[int, int]],
        value: bytes,
    ) -> bytes | None:
        """Return the value of a list with rows on top of it."""
        prefix = self.prefix(place, source_id, tag, value)
        # A list without rows does not show how drivers have them.
        width = len(self.columns.names)
        if prefix is None or not prefix.rows or width != _COLUMNS:
            return None
        target, sequence = self.at
        on_top = [list(prefix.rows[0]) for _ in rows]
        for row, (target_id, at) in zip(on_top, rows, strict=True):
            row[target] = target_id
            row[sequence] = _like(row[sequence], at)
        if rows[0][1] <= prefix.keys[0][0]:
            return None
        all_rows = [*reversed(on_top), *prefix.rows]
        is_whole = prefix.is_whole and len(all_rows) <= self.most
        body = self.dumped_list(place, is_whole, all_rows[: self.most])
        return None if body is None else tag + body

    def dumped_list(
        self, place: Place, is_whole: bool, rows: Sequence[Any]
    ) -> bytes | None:
        """Return the first rows of a list as bytes; None where they cannot."""
        return self.dumped(place, rows, [is_whole, rows])

    def prefix(
        self, place: Place, source_id: int, tag: bytes, value: bytes
    ) -> Prefix | None:
        """Return what a value says; None where it cannot be read.

        :param source_id: whose list it is.
        """
        if not value.startswith(tag):
            return None
        try:
            is_whole, rows = parse(value[len(tag) :])
        except (TypeError, ValueError):
            return None
        if type(is_whole) is not bool or type(rows) is not list:
            return None
        fit, at = self.cells(place).fit, self._source_at
        if len(rows) > self.most or not all(
            fit(row) and row[at] == source_id for row in rows
        ):
            return None
        prefix = Prefix(rows, is_whole, self.at)
        return prefix if prefix.is_in_order else None

    def _count_key(self, source_id: int | None) -> str:
        return f"{self.head}count:{source_id}"

    def rows(
        self, scope: Scope, place: Place, ids: Sequence[int]
    ) -> dict[int, list[Any]]:
        """Read the first rows of lists of one shard, and one row more."""
        found: dict[int, list[Any]] = {source_id: [] for source_id in ids}
        for start in range(0, len(ids), BRANCHES):
            some = ids[start : start + BRANCHES]
            parameters = sources(some)
            result = scope.execute(
                self._statement(len(parameters)),
                {**parameters, "number": self.most + 1},
                bind_arguments={"place": place},
                execution_options=OPTIONS,
            )
            for index, *row in result:
                found[some[index]].append(row)
        for rows in found.values():
            rows.sort(key=self._order, reverse=True)
        return found

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


class _Lists:
    """What is asked for in one read; a :class:`~.protocol.Source`."""

    def __init__(self, kept: KeptLists, part: Part[int]) -> None:
        self._kept = kept
        self._part = part
        self._places = places = part.places
        head = kept.head
        self.ids = {f"{head}{source_id}": source_id for source_id in places}
        self._tags = kept.tags(part.scope, places)

    def decode(self, values: Mapping[str, bytes]) -> dict[str, Prefix]:
        read: dict[str, Prefix] = {}
        for key, value in values.items():
            source_id = self.ids[key]
            place, tag = self._places[source_id], self._tags[source_id]
            prefix = self._kept.prefix(place, source_id, tag, value)
            if prefix is not None:
                read[key] = prefix
        return read

    def encode(self, key: str, loaded: Prefix) -> tuple[bytes, int] | None:
        place = self._places[self.ids[key]]
        body = self._kept.dumped_list(place, loaded.is_whole, loaded.rows)
        if body is None:
            return None
        return self._tags[self.ids[key]] + body, self._kept.region.times.expire

    def load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, Prefix]:
        by_place: dict[Place, list[str]] = {}
        for key in keys:
            place = self._places[self.ids[key]]
            by_place.setdefault(place, []).append(key)
        found = {}
        most = self._kept.most
        with self._part.reader() as session:
            for place, its in by_place.items():
                ids = [self.ids[key] for key in its]
                rows = self._kept.rows(session, place, ids)
                for key, source_id in zip(its, ids, strict=True):
                    own = rows[source_id]
                    found[key] = Prefix(
                        own[:most], len(own) <= most, self._kept.at
                    )
        return found


class _Count:
    """How long one list is; a :class:`~.protocol.Source`."""

    def __init__(
        self,
        kept: KeptLists,
        tag: bytes,
        part: Part[int],
        ask: Callable[[Scope], int],
    ) -> None:
        self._kept = kept
        self._tag = tag
        self._part = part
        self._ask = ask

    def decode(self, values: Mapping[str, bytes]) -> dict[str, int]:
        found = {key: _length(self._tag, one) for key, one in values.items()}
        return {key: one for key, one in found.items() if one is not None}

    def encode(self, key: str, loaded: int) -> tuple[bytes, int]:
        return self._tag + str(loaded).encode(), self._kept.region.times.expire

    def load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, int]:
        with self._part.reader() as session:
            return dict.fromkeys(keys, self._ask(session))
