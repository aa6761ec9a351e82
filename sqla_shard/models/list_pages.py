"""Reads of a list: pages, positions, membership and length.

A bookmark contains the keys (sequence and target id) of the last rows shown
and of the row ahead, the first one not shown.  The next page starts after
the last row shown.

That row may have another sequence when the bookmark is used.  If it was
moved, the page starts at its old place; if the rows around it were
re-spaced, at its new place.  :func:`_resume` distinguishes the two by the
other rows of the bookmark.  If all of them were moved or removed, and the
rows around them re-spaced, rows may be skipped or shown twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

from sqlalchemy import inspect, select, union_all
from sqlalchemy.orm import aliased
from sqlalchemy.orm.attributes import set_committed_value

from sqla_shard.exc import InvalidBookmarkError, InvalidIdError, InvalidSequenceError
from sqla_shard.ids.layout import ids_in
from sqla_shard.models.list_positions import reach, STEP
from sqla_shard.models.mapping_list import (
    cached_count,
    cached_rows,
    CachedRows,
    chunked,
    List,
    NotCached,
    statements_of,
    stored_count,
    stored_sum,
)
from sqla_shard.models.spread_list import list_of
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import (
    bookmark_text,
    branch,
    BRANCHES,
    check_limit,
    Page,
    Seal,
    sources,
    Subject,
)
from sqla_shard.types.columns import MAX_SEQUENCE

# -- bookmarks


#: Number of rows shown whose keys a bookmark contains.
_WITNESSES = 4
_KEY = struct.Struct(">QQQ")
#: First byte of a bookmark that pages backwards.
_BACK = b"<"
#: Bookmarks of the last page, and of the first one.
_EDGES = {True: _BACK, False: b">"}
_HALF = 64


class PositionKey(NamedTuple):
    """The position of a row in its list."""

    sequence: int
    target_id: int


class BookmarkContent(NamedTuple):
    """The content of a bookmark.

    :ivar seen: keys of the last rows shown, in the order of the page.
    :ivar ahead: key of the first row not shown.
    """

    seen: tuple[PositionKey, ...]
    ahead: PositionKey


@dataclass(frozen=True)
class ListBookmarks:
    """The bookmarks of a list and its order.

    :ivar seal: the seal of the cluster.
    :ivar subject: the list and its order.
    """

    seal: Seal
    subject: Subject

    def make_bookmark(
        self, last: tuple[PositionKey, ...], ahead: PositionKey, *, back: bool
    ) -> str:
        """Return the bookmark of the page that follows rows.

        :param last: keys of the last rows shown, at least one.
        :param ahead: key of the first row not shown.
        :param back: whether the bookmark pages backwards.
        """
        payload = b"".join(
            _KEY.pack(
                key.sequence >> _HALF, key.sequence & (1 << _HALF) - 1, key.target_id
            )
            for key in (*last, ahead)
        )
        return self.seal.seal(_BACK + payload if back else payload, self.subject)

    def edge(self, *, back: bool) -> str:
        """Return the bookmark of the first page, or of the last one.

        :param back: whether the bookmark pages backwards, from the end.
        """
        return self.seal.seal(_EDGES[back], self.subject)

    def read_bookmark(
        self, bookmark: str, checked: Callable[[int], int], max_id: int
    ) -> tuple[BookmarkContent | None, bool]:
        """Return the content of a bookmark, and whether it pages backwards.

        :param checked: raises if an id is not the id of a target.
        :param max_id: the highest id of the layout of the targets.
        :returns: None as the content if the page begins at an end of the
            list.
        :raises InvalidBookmarkError: if it is not a bookmark of this list
            and order.
        """
        payload = self.seal.unseal(bookmark, self.subject)
        for edge_back, edge in _EDGES.items():
            if payload == edge:
                return None, edge_back
        back = len(payload) % _KEY.size == len(_BACK) and payload[:1] == _BACK
        if back:
            payload = payload[len(_BACK) :]
        number, rest = divmod(len(payload), _KEY.size)
        keys: tuple[PositionKey, ...] = ()
        if not rest and 2 <= number <= _WITNESSES + 1:
            keys = tuple(
                PositionKey(high << _HALF | low, target_id)
                for high, low, target_id in _KEY.iter_unpack(payload)
            )
        # A forged bookmark with invalid keys must raise this error as well.
        if not keys or not all(_is_valid_key(key, checked, max_id) for key in keys):
            raise InvalidBookmarkError(
                f"{bookmark_text(bookmark)} is not a bookmark of {self.subject.name}",
                bookmark=bookmark,
            )
        return BookmarkContent(keys[:-1], keys[-1]), back


def _is_valid_key(key: PositionKey, checked: Callable[[int], int], max_id: int) -> bool:
    try:
        checked(key.target_id)
    except InvalidIdError:
        return False
    # The ids before and after the id must be ids of the layout as well.
    return key.sequence <= MAX_SEQUENCE and 0 < key.target_id < max_id


class _Start(NamedTuple):
    """The start of a page.

    :ivar cut: the key after which the page starts.
    :ivar shown: ids of targets after the key that were shown already.
    :ivar seen: current keys of rows before the start that were shown.
    """

    cut: PositionKey
    shown: frozenset[int]
    seen: tuple[PositionKey, ...]


class KeyedRow(NamedTuple):
    """A row, and its key on the server."""

    row: Any
    key: PositionKey


def position(rows: List, target_id: int) -> int | None:
    """Return the sequence of a target; None if it is not in the list."""
    rows.check_target(target_id)
    cached = cached_rows([rows]).get(rows.source_id)
    if cached is not None:
        with suppress(NotCached):
            return cached.sequence(target_id)
    sequence: int | None = (
        rows.limited_to([target_id])
        .execute(rows.statements.position, row=target_id)
        .scalar()
    )
    return sequence


def contains(rows: List, target_ids: Iterable[int]) -> set[int]:
    """Return the targets that are in the list."""
    wanted = list(
        dict.fromkeys(map(rows.check_target, ids_in("contains()", target_ids)))
    )
    cached = cached_rows([rows]).get(rows.source_id)
    if cached is not None:
        with suppress(NotCached):
            return cached.present(wanted)
    return {
        key.target_id
        for part in chunked(wanted)
        for key in _keys(rows.limited_to(part), rows.statements.present, ids=part)
    }


def count(rows: List) -> int:
    """Return the length of the list."""
    if rows.statements.definition.spread > 1:
        return stored_sum(rows)
    cached = cached_rows([rows]).get(rows.source_id)
    if cached is not None:
        with suppress(NotCached):
            return cached.count()
    cached_number = cached_count(rows, partial(_count, rows))
    return _count(rows, rows.session) if cached_number is None else cached_number


def _count(rows: List, session: Any) -> int:
    stored = stored_count(rows, session)
    if stored is not None:
        return stored
    number: int = session.execute(
        rows.statements.count,
        {"source": rows.source_id},
        bind_arguments={"place": rows.place},
    ).scalar_one()
    return number


def top(rows: List) -> int | None:
    """Return the highest sequence of a list; None if it is empty."""
    sequence: int | None = rows.execute(rows.statements.top).scalar()
    return sequence


def bound(until: int | datetime | None) -> int | None:
    """Return the highest sequence of the rows up to a time, or a sequence.

    :raises InvalidSequenceError: if it is neither.
    :raises ValueError: for a time without a time zone.
    """
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError(
                f"until={until!r} has no time zone; use datetime.now(timezone.utc)"
            )
        return int(until.timestamp() * 1000) * STEP + STEP - 1
    if until is not None and (type(until) is not int or not 0 <= until <= MAX_SEQUENCE):
        raise InvalidSequenceError(value=until)
    return until


def iterate(
    rows: List, newest_first: bool, batch: int, until: int | None
) -> Iterator[Any]:
    """Yield all rows, in batches."""
    after = None
    while True:
        batch_page = page(rows, batch, after, newest_first, until)
        yield from batch_page.items
        after = batch_page.next
        if after is None:
            return


def page(
    rows: List,
    limit: int,
    after: str | None,
    newest_first: bool,
    until: int | None = None,
) -> Page[Any]:
    """Return a page of the list.

    :param until: the highest sequence of its rows; None for all rows, some of
        which may be read from the cache.
    """
    check_limit(limit)
    bookmarks = bookmarks_of(rows, newest_first)
    mark, back = None, False
    if after is not None:
        max_id = rows.statements.definition.target.layout.max_id
        mark, back = bookmarks.read_bookmark(after, rows.check_target, max_id)
    descending = newest_first is not back
    cached = None
    if until is None:
        cached = cached_rows([rows]).get(rows.source_id)
    if cached is not None:
        with suppress(NotCached):
            return _page(
                _CachedReader(cached, descending), mark, limit, bookmarks, back
            )
    return _page(_reader(rows, descending, until), mark, limit, bookmarks, back)


def _page(
    reader: _Reader,
    mark: BookmarkContent | None,
    limit: int,
    bookmarks: ListBookmarks,
    back: bool = False,
) -> Page[Any]:
    seen: tuple[PositionKey, ...] = ()
    if mark is None:
        rows = reader.first(limit + 1)
    else:
        rows, seen = _rows_after_mark(reader, mark, limit + 1)
    follows = mark is not None
    page = page_of(rows, limit, seen, bookmarks, follows=follows, back=back)
    return replace(page, items=reader.objects(page.items))


def page_of(
    rows: list[KeyedRow],
    limit: int,
    seen: tuple[PositionKey, ...],
    bookmarks: ListBookmarks,
    *,
    follows: bool = False,
    back: bool = False,
) -> Page[Any]:
    """Return a page of rows.

    :param rows: the rows, and one more if another page follows.
    :param seen: keys of rows shown before the page.
    :param bookmarks: the bookmarks of the list in this order.
    :param follows: whether another page was shown before this one.
    :param back: whether the rows were read backwards.
    """
    shown = rows[:limit]
    keys = tuple([each.key for each in shown])
    items = [each.row for each in shown]
    onward = turned = None
    if len(rows) > limit:
        last = (*seen, *keys)[-_WITNESSES:]
        onward = bookmarks.make_bookmark(last, rows[limit].key, back=back)
    if follows and keys:
        first = keys[_WITNESSES - 1 :: -1]
        ahead = seen[-1] if seen else keys[0]
        turned = bookmarks.make_bookmark(first, ahead, back=not back)
    elif follows:
        turned = bookmarks.edge(back=not back)
    if back:
        return Page(items[::-1], turned, onward)
    return Page(items, onward, turned)


def bookmarks_of(rows: List, newest_first: bool = True) -> ListBookmarks:
    """Return the bookmarks of a list in an order."""
    order = "newest" if newest_first else "oldest"
    name = f"{rows.name} of {rows.source_id}, {order} first"
    session = rows.session
    keyspace = session.places.keyspace(rows.place.keyspace, "objects")
    subject = Subject(name, (keyspace.identity,))
    return ListBookmarks(session.cluster.seal, subject)


def _with_keys(result: Any) -> list[KeyedRow]:
    return [KeyedRow(row[0], PositionKey(row[2], row[1])) for row in result]


def _keys(rows: List, statement: Any, **parameters: Any) -> list[PositionKey]:
    result = rows.execute(statement, **parameters)
    return [PositionKey(sequence, target_id) for target_id, sequence in result]


# -- the next page


def _rows_after_mark(
    reader: _Reader, mark: BookmarkContent, number: int
) -> tuple[list[KeyedRow], tuple[PositionKey, ...]]:
    """Return the rows that follow the rows of a bookmark.

    :returns: the rows, and the current keys of the rows shown before them.
    """
    last = mark.seen[-1]
    following, now = reader.rows_after(last, last, number)
    if now == last.sequence:
        return following, mark.seen
    ids = [key.target_id for key in (*mark.seen, mark.ahead)]
    current = reader.present(ids)
    cut, shown, seen = _resume(mark, current, reader.newest_first, reader.max_shift)
    if cut != last or shown:
        following, _ = reader.rows_after(cut, last, number + len(shown))
    fresh = [each for each in following if each.key.target_id not in shown]
    # Put the rows between the start and the page into the next bookmark:
    # otherwise a later page that starts here again would show them twice.
    left_out = [each.key for each in following]
    if fresh:
        left_out = left_out[: left_out.index(fresh[0].key)]
    return fresh[:number], (*seen, *left_out)


def _reader(rows: List, newest_first: bool, until: int | None) -> _DatabaseReader:
    is_spread = rows.statements.definition.spread > 1
    kind = _SpreadReader if is_spread else _DatabaseReader
    return kind(rows, newest_first, until)


class _DatabaseReader:
    """Reads the rows of a page from the database.

    :ivar newest_first: the order of the page.
    :ivar max_shift: upper bound of the distance by which a re-spacing moves a
        row.
    """

    def __init__(self, rows: List, newest_first: bool, until: int | None) -> None:
        self._rows = rows
        self._bounds = {} if until is None else {"until": until}
        self.newest_first = newest_first
        self.max_shift = reach(rows.statements.definition.respace_to)

    def first(self, number: int) -> list[KeyedRow]:
        """Return the first rows."""
        built = self._rows.statements
        pages = built.first_bounded if self._bounds else built.first_page
        result = self._rows.execute(
            pages[self.newest_first], number=number, **self._bounds
        )
        return _with_keys(result)

    def rows_after(
        self, cut: PositionKey, last: PositionKey, number: int
    ) -> tuple[list[KeyedRow], int | None]:
        """Return the rows after ``cut``, and the sequence of ``last``.

        :returns: the sequence as None if ``last`` is not in the list, or no
            row was found.
        """
        built = self._rows.statements
        pages = built.later_bounded if self._bounds else built.later_page
        result = self._rows.execute(
            pages[self.newest_first],
            at=cut.sequence,
            cut=cut.target_id,
            row=last.target_id,
            number=number,
            **self._bounds,
        ).all()
        # Each row has the sequence of ``last`` as well.
        return _with_keys(result), result[0][3] if result else None

    def present(self, ids: Iterable[int]) -> Mapping[int, PositionKey]:
        """Return the keys of the targets that are in the list."""
        statement = self._rows.statements.present
        keysnces = _keys(self._rows, statement, ids=list(ids))
        return {key.target_id: key for key in keysnces}

    def objects(self, rows: list[Any]) -> list[Any]:
        """Return the objects of rows that were found."""
        return rows


class _SpreadReader(_DatabaseReader):
    """Reads the rows of a page of a spread list."""

    def rows_after(
        self, cut: PositionKey, last: PositionKey, number: int
    ) -> tuple[list[KeyedRow], int | None]:
        """Return the rows after ``cut``, and the sequence of ``last``.

        The rows of a spread list are not moved.
        """
        until = self._bounds.get("until", MAX_SEQUENCE)
        result = self._rows.execute(
            self._rows.statements.later_spread[self.newest_first],
            at=cut.sequence,
            cut=cut.target_id,
            until=until,
            number=self._rows.most(number),
        )
        return self._once(_with_keys(result), number), last.sequence

    def first(self, number: int) -> list[KeyedRow]:
        """Return the first rows."""
        return self._once(super().first(self._rows.most(number)), number)

    def _once(self, rows: list[KeyedRow], number: int) -> list[KeyedRow]:
        """Return rows without their copies."""
        by_target: dict[int, KeyedRow] = {}
        for each in rows:
            by_target.setdefault(each.key.target_id, each)
        return list(by_target.values())[:number]


class _CachedReader:
    """Reads the rows of a page from the cache.

    The methods are the same as of :class:`_DatabaseReader`, and raise
    :exc:`NotCached` when the cache does not have the rows.
    """

    def __init__(self, cached: CachedRows, newest_first: bool) -> None:
        self._cached = cached
        self.newest_first = newest_first
        self.max_shift = cached.max_shift

    def first(self, number: int) -> list[KeyedRow]:
        return self._found(self._cached.first(number, self.newest_first))

    def rows_after(
        self, cut: PositionKey, last: PositionKey, number: int
    ) -> tuple[list[KeyedRow], int | None]:
        now = self._cached.sequence(last.target_id)
        numbers = self._cached.rows_after(cut, number, self.newest_first)
        return self._found(numbers), now

    def _found(self, numbers: Iterable[int]) -> list[KeyedRow]:
        keys = self._cached.keys
        return [KeyedRow(i, PositionKey(*keys[i])) for i in numbers]

    def present(self, ids: Iterable[int]) -> Mapping[int, PositionKey]:
        keysnces = {i: self._cached.sequence(i) for i in ids}
        return {
            target_id: PositionKey(sequence, target_id)
            for target_id, sequence in keysnces.items()
            if sequence is not None
        }

    def objects(self, rows: list[Any]) -> list[Any]:
        return self._cached.objects(rows)


_Reader = _DatabaseReader | _CachedReader


def _resume(
    mark: BookmarkContent,
    current: Mapping[int, PositionKey],
    newest_first: bool,
    max_shift: int,
) -> _Start:
    """Return the start of the next page when the last row shown has moved.

    A row of the bookmark with its old sequence is the place where the page
    ended.  Without one, the largest set of rows that are close to their old
    positions and in the old order was re-spaced; the other rows were moved.

    :param max_shift: upper bound of the distance by which a re-spacing moves a
        row.
    """
    seen, ahead = mark
    shown = frozenset(key.target_id for key in seen)
    if current.get(ahead.target_id) == ahead:
        return _Start(_up_to(ahead, newest_first), shown, ())
    for index in range(len(seen) - 1, -1, -1):
        if current.get(seen[index].target_id) == seen[index]:
            later = BookmarkContent(seen[index + 1 :], ahead)
            start = _respaced(later, current, newest_first, max_shift, seen[index])
            if start is not None:
                return start._replace(shown=shown)
            later_shown = frozenset(key.target_id for key in later.seen)
            return _Start(seen[index], later_shown, (seen[index],))
    return _respaced(mark, current, newest_first, max_shift) or _Start(
        seen[-1], frozenset(), ()
    )


def _respaced(
    mark: BookmarkContent,
    current: Mapping[int, PositionKey],
    newest_first: bool,
    max_shift: int,
    after: PositionKey | None = None,
) -> _Start | None:
    """Return the start of the next page among rows that were re-spaced.

    :param after: key of a row before the others that has its old sequence; if
        given, all rows, including the row ahead, must be in their old order.
    """
    shown = frozenset(key.target_id for key in mark.seen)
    close = [
        current[key.target_id]
        for key in (*mark.seen, mark.ahead)
        if key.target_id in current
        and abs(current[key.target_id].sequence - key.sequence) < max_shift
    ]
    if after is not None:
        placed = [after, *close]
        whole = len(close) > 1 and close[-1].target_id not in shown
        if not whole or placed != sorted(placed, reverse=newest_first):
            return None
        return _Start(close[-2], shown, (close[-2],))
    for size in range(len(close), 0, -1):
        starts = []
        for chosen in combinations(close, size):
            if list(chosen) == sorted(chosen, reverse=newest_first):
                before = tuple(k for k in chosen if k.target_id in shown)
                cut = before[-1] if before else _up_to(chosen[0], newest_first)
                starts.append(_Start(cut, shown, before))
        if starts:
            # Prefer to show a row twice rather than to skip one.
            return max(starts) if newest_first else min(starts)
    return None


def _up_to(key: PositionKey, newest_first: bool) -> PositionKey:
    """Return the key directly before a row."""
    return PositionKey(key.sequence, key.target_id + (1 if newest_first else -1))


# -- targets


def load_targets(rows: Iterable[Any], cls: Any, session: Any) -> None:
    """Set ``row.target`` of rows with a single read."""
    rows = list(rows)
    if not rows:
        return
    end = cls.__sqla_shard_mapping__.target
    ids = [getattr(row, end.column) for row in rows]
    for row, target in zip(rows, session.get_many(end.entity, ids), strict=True):
        set_committed_value(row, "target", target)


# -- the first page of many lists: one statement for each shard, with a
# branch for each list, see sqla_shard.session.paging


_BUILT = "__sqla_shard_branches__"


def first_pages(
    cls: Any, session: ShardSession, source_ids: Iterable[int], limit: int
) -> dict[int, Page[Any]]:
    """Return the newest rows of each list."""
    check_limit(limit)
    lists = {i: list_of(cls, session, i) for i in ids_in("pages()", source_ids)}
    if statements_of(cls).definition.spread > 1:
        return {i: page(rows, limit, None, True) for i, rows in lists.items()}
    pages: dict[int, Page[Any]] = {}
    for source_id, one in cached_rows(lists.values()).items():
        with suppress(NotCached):
            pages[source_id] = _page(
                _CachedReader(one, newest_first=True),
                None,
                limit,
                bookmarks_of(lists[source_id]),
            )
    uncached = {i: rows for i, rows in lists.items() if i not in pages}
    by_shard: dict[Any, list[List]] = {}
    for rows in uncached.values():
        by_shard.setdefault(rows.place, []).append(rows)
    rows_of: dict[int, list[KeyedRow]] = {source_id: [] for source_id in uncached}
    for group in by_shard.values():
        for start in range(0, len(group), BRANCHES):
            _read_lists(group[start : start + BRANCHES], limit + 1, rows_of)
    for source_id, rows in uncached.items():
        own = sorted(rows_of[source_id], key=lambda f: f.key, reverse=True)
        pages[source_id] = page_of(own, limit, (), bookmarks_of(rows))
    return {source_id: pages[source_id] for source_id in lists}


def _read_lists(
    lists: Sequence[List], number: int, rows_of: dict[int, list[KeyedRow]]
) -> None:
    """Read several lists of one shard."""
    first = lists[0]
    parameters = sources([rows.source_id for rows in lists])
    statement = _statement(first.cls, len(parameters))
    result = first.execute(statement, number=number, **parameters)
    for row, source_id, target_id, sequence in result:
        rows_of[source_id].append(KeyedRow(row, PositionKey(sequence, target_id)))


def _statement(cls: Any, branches: int) -> Any:
    """Return the statement for a number of lists, built once."""
    known: dict[int, Any] = cls.__dict__.get(_BUILT) or {}
    if branches not in known:
        # A new dict each time: another thread may be reading the old one.
        known = {**known, branches: _build_statement(cls, branches)}
        setattr(cls, _BUILT, known)
    return known[branches]


def _build_statement(cls: Any, branches: int) -> Any:
    definition = statements_of(cls).definition
    names = definition.source.column, definition.target.column, "sequence"
    parts = []
    for index in range(branches):
        table: Any = inspect(cls).local_table.alias()
        source, target, sequence = (table.c[name] for name in names)
        rows = select(*table.c)
        parts.append(branch(index, rows, source, sequence, target))
    entity = aliased(cls, union_all(*parts).subquery())
    keys = (getattr(entity, name) for name in names)
    return select(entity, *(key.label(f"the_{key.key}") for key in keys))
