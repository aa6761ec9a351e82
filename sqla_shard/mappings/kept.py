"""Lists as a cache has them.

What it has are the first rows; :class:`KeptRows` answers what these tell, and
raises :exc:`Beyond` for the rest, which the database is asked then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqla_shard.mappings.lists import List
from sqla_shard.mappings.ordering import reach
from sqla_shard.session.contract import cache_begun
from sqla_shard.session.contract import Unlike

__all__ = ["Beyond", "KeptRows", "kept_count", "kept_rows"]


class Beyond(Exception):  # noqa: N818 - no error
    """Raised where the rows that are kept do not tell; never leaves here."""


class KeptRows:
    """The first rows of a list.

    A key is a sequence and a target's id; rows are numbered newest first.

    :ivar far: a re-spacing does not shift a row so far.
    """

    def __init__(self, rows: List, prefix: Any) -> None:
        self._list = rows
        self._prefix = prefix
        # Ascending, as bisect_left() wants them.
        self._ascending = prefix.keys[::-1]
        self.far = reach(rows.statements.definition.respace_to)

    def first(self, number: int, newest_first: bool) -> Sequence[int]:
        """Return the numbers of the rows of the first page.

        :raises Beyond: when that takes more rows.
        """
        return self._some(0, number, newest_first)

    def later(
        self, cut: tuple[int, int], number: int, newest_first: bool
    ) -> Sequence[int]:
        """Return the numbers of the rows after a key.

        :raises Beyond: when that takes more rows.
        """
        count = len(self._ascending)
        below = bisect_left(self._ascending, cut)
        if newest_first:
            return self._some(count - below, number, True)
        is_there = self._ascending[below : below + 1] == [cut]
        return self._some(below + is_there, number, False)

    def _some(
        self, start: int, number: int, newest_first: bool
    ) -> Sequence[int]:
        count = len(self._ascending)
        if not self._prefix.is_whole and (
            not newest_first or start + number > count
        ):
            raise Beyond
        found = range(start, min(start + number, count))
        return found if newest_first else [count - 1 - i for i in found]

    def key(self, number: int) -> tuple[int, int]:
        """Return the key of a row."""
        key: tuple[int, int] = self._prefix.keys[number]
        return key

    def sequence(self, target_id: int) -> int | None:
        """Return the sequence of a target; None where it is not there.

        :raises Beyond: when it may be further down.
        """
        found: int | None = self._prefix.sequences.get(target_id)
        if found is None and not self._prefix.is_whole:
            raise Beyond
        return found

    def present(self, target_ids: Iterable[int]) -> set[int]:
        """Return those of the targets that are in the list.

        :raises Beyond: when one may be further down.
        """
        return {i for i in target_ids if self.sequence(i) is not None}

    def count(self) -> int:
        """Return the length of the list.

        :raises Beyond: when it is longer than what is kept.
        """
        if not self._prefix.is_whole:
            raise Beyond
        return len(self._ascending)

    def objects(self, numbers: Sequence[int]) -> list[Any]:
        """Return the rows of some numbers as objects of the session.

        :raises Beyond: when something else is asked for.
        """
        rows = [self._prefix.rows[number] for number in numbers]
        own = self._list
        caching = own.session.cluster.caching
        if not rows or caching is None:
            return []
        table = own.statements.table
        try:
            found = caching.rows(
                own.session, table, own.place, own.source_id, rows
            )
        except Unlike:
            raise Beyond from None
        if found is None:
            raise Beyond
        return found


def kept_rows(lists: Iterable[List]) -> Mapping[int, KeptRows]:
    """Return what is kept of lists of one class, by source.

    :returns: nothing where they are not read from a cache.
    """
    by_source = {rows.source_id: rows for rows in lists}
    if not by_source:
        return {}
    any_of_them = next(iter(by_source.values()))
    session, table = any_of_them.session, any_of_them.statements.table
    caching = cache_begun(session, table)
    if caching is None:
        return {}
    places = {i: rows.place for i, rows in by_source.items()}
    found = caching.read(session, table, places)
    return {i: KeptRows(rows, found[i]) for i, rows in by_source.items()}


def kept_count(rows: List, ask: Callable[[Any], int]) -> int | None:
    """Return the length of a list; None where it is not read from a cache.

    :param ask: asks the database, in a session.
    """
    session, table = rows.session, rows.statements.table
    caching = cache_begun(session, table)
    if caching is None:
        return None
    return caching.count(session, table, rows.place, rows.source_id, ask)
