"""Pages of a list, and what is asked of it.

A bookmark holds the keys of the last rows that were shown, a sequence and a
target's id each, and that of the row ahead, the first one not shown.  The
next page goes on after the last row shown.

That row may have another sequence when the bookmark is used.  It was moved by
somebody, and then its old place is where to go on; or the rows around it were
re-spaced, and then its new place is.  The other rows of the bookmark tell the
two apart, see :func:`_resume`.  Where every one of them was moved or removed
and those around them were re-spaced as well, nothing tells, and rows may be
skipped or shown twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any
from typing import NamedTuple
from typing import Protocol

from sqlalchemy.orm.attributes import set_committed_value

from sqla_shard.mappings.bookmarks import Bookmarks
from sqla_shard.mappings.bookmarks import Key
from sqla_shard.mappings.bookmarks import Mark
from sqla_shard.mappings.bookmarks import WITNESSES
from sqla_shard.mappings.kept import Beyond
from sqla_shard.mappings.kept import kept_count
from sqla_shard.mappings.kept import kept_rows
from sqla_shard.mappings.kept import KeptRows
from sqla_shard.mappings.lists import chunked
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.ordering import reach
from sqla_shard.paging import check_limit
from sqla_shard.paging import Page
from sqla_shard.paging import Subject

__all__ = ["contains", "count", "iterate", "load_targets", "page", "position"]


class _Start(NamedTuple):
    """Where a page begins.

    :ivar cut: the key after which it does.
    :ivar shown: rows after it that were shown already.
    :ivar seen: the rows shown that are before it, as they stand now.
    """

    cut: Key
    shown: frozenset[int]
    seen: tuple[Key, ...]


class Found(NamedTuple):
    """A row, and its key on the server."""

    row: Any
    key: Key


def position(rows: List, target_id: int) -> int | None:
    """Return the sequence of a target; None where it is not in the list."""
    rows.checked(target_id)
    kept = kept_rows([rows]).get(rows.source_id)
    if kept is not None:
        with suppress(Beyond):
            return kept.sequence(target_id)
    found: int | None = rows.execute(
        rows.statements.position, row=target_id
    ).scalar()
    return found


def contains(rows: List, target_ids: Iterable[int]) -> set[int]:
    """Return those of the targets that are in the list."""
    wanted = list(dict.fromkeys(map(rows.checked, target_ids)))
    kept = kept_rows([rows]).get(rows.source_id)
    if kept is not None:
        with suppress(Beyond):
            return kept.present(wanted)
    return {
        found.target_id
        for part in chunked(wanted)
        for found in _keys(rows, rows.statements.present, ids=part)
    }


def count(rows: List) -> int:
    """Return the length of the list; it is counted row by row."""
    kept = kept_rows([rows]).get(rows.source_id)
    if kept is not None:
        with suppress(Beyond):
            return kept.count()
    found = kept_count(rows, partial(_count, rows))
    return _count(rows, rows.session) if found is None else found


def _count(rows: List, session: Any) -> int:
    found: int = session.execute(
        rows.statements.count,
        {"source": rows.source_id},
        bind_arguments={"place": rows.place},
    ).scalar_one()
    return found


def iterate(rows: List, newest_first: bool, batch: int) -> Iterator[Any]:
    """Yield all rows, in batches."""
    after = None
    while True:
        found = page(rows, batch, after, newest_first)
        yield from found.items
        after = found.next
        if after is None:
            return


def page(
    rows: List, limit: int, after: str | None, newest_first: bool
) -> Page[Any]:
    """Return a page of the list."""
    check_limit(limit)
    bookmarks = bookmarks_of(rows, newest_first)
    mark, back = None, False
    if after is not None:
        mark, back = bookmarks.opened(after, rows.checked)
    descending = newest_first is not back
    kept = kept_rows([rows]).get(rows.source_id)
    if kept is not None:
        with suppress(Beyond):
            return _page(_Kept(kept, descending), mark, limit, bookmarks, back)
    return _page(_Stored(rows, descending), mark, limit, bookmarks, back)


def first_page_of(rows: List, kept: KeptRows, limit: int) -> Page[Any] | None:
    """Return the first page of the usual order; None where it is not kept."""
    try:
        return _page(_Kept(kept, True), None, limit, bookmarks_of(rows))
    except Beyond:
        return None


def _page(
    reader: _Reader,
    mark: Mark | None,
    limit: int,
    bookmarks: Bookmarks,
    back: bool = False,
) -> Page[Any]:
    seen: tuple[Key, ...] = ()
    if mark is None:
        found = reader.first(limit + 1)
    else:
        found, seen = _after(reader, mark, limit + 1)
    follows = mark is not None
    page = page_of(found, limit, seen, bookmarks, follows=follows, back=back)
    return replace(page, items=reader.objects(page.items))


def page_of(
    found: list[Found],
    limit: int,
    seen: tuple[Key, ...],
    bookmarks: Bookmarks,
    *,
    follows: bool = False,
    back: bool = False,
) -> Page[Any]:
    """Return a page of rows, of which there is one more if it is not last.

    :param seen: rows shown before it.
    :param bookmarks: those of the list in this order.
    :param follows: whether another page was shown before it.
    :param back: whether the rows were read backwards.
    """
    shown = found[:limit]
    keys = tuple(each.key for each in shown)
    items = [each.row for each in shown]
    onward = turned = None
    if len(found) > limit:
        last = (*seen, *keys)[-WITNESSES:]
        onward = bookmarks.made(last, found[limit].key, back=back)
    if follows and keys:
        first = keys[WITNESSES - 1 :: -1]
        ahead = seen[-1] if seen else keys[0]
        turned = bookmarks.made(first, ahead, back=not back)
    elif follows:
        turned = bookmarks.edge(back=not back)
    if back:
        return Page(items[::-1], turned, onward)
    return Page(items, onward, turned)


def bookmarks_of(rows: List, newest_first: bool = True) -> Bookmarks:
    """Return the bookmarks of a list in an order."""
    order = "newest" if newest_first else "oldest"
    name = f"{rows.name} of {rows.source_id}, {order} first"
    session = rows.session
    keyspace = session.places.keyspace(rows.place.keyspace, "objects")
    subject = Subject(name, (keyspace.identity,))
    return Bookmarks(session.cluster.seal, subject)


def _found(result: Any) -> list[Found]:
    return [Found(row[0], Key(row[2], row[1])) for row in result]


def _keys(rows: List, statement: Any, **parameters: Any) -> list[Key]:
    found = rows.execute(statement, **parameters)
    return [Key(sequence, target_id) for target_id, sequence in found]


# -- going on


def _after(
    reader: _Reader, mark: Mark, number: int
) -> tuple[list[Found], tuple[Key, ...]]:
    """Return the rows that follow those that a bookmark remembers.

    :returns: with the rows shown before them, as they stand now.
    """
    last = mark.seen[-1]
    found, now = reader.later(last, last, number)
    if now == last.sequence:
        return found, mark.seen
    ids = [key.target_id for key in (*mark.seen, mark.ahead)]
    current = reader.present(ids)
    cut, shown, seen = _resume(mark, current, reader.newest_first, reader.far)
    if cut != last or shown:
        found, _ = reader.later(cut, last, number + len(shown))
    fresh = [each for each in found if each.key.target_id not in shown]
    # Rows left out from between the start and the page stay remembered, or
    # a later page that has to go back to this start would show them again.
    left_out = [each.key for each in found]
    if fresh:
        left_out = left_out[: left_out.index(fresh[0].key)]
    return fresh[:number], (*seen, *left_out)


class _Reader(Protocol):
    """What a page is made of.

    :ivar newest_first: its order.
    :ivar far: a re-spacing does not shift a row so far.
    """

    newest_first: bool
    far: int

    def first(self, number: int) -> list[Found]:
        """Return the first rows."""
        ...

    def later(
        self, cut: Key, last: Key, number: int
    ) -> tuple[list[Found], int | None]:
        """Return the rows after ``cut``, and where ``last`` is now.

        :returns: for the latter None where it is not there, or not known.
        """
        ...

    def present(self, ids: Iterable[int]) -> Mapping[int, Key]:
        """Return the keys of those of the targets that are in the list."""
        ...

    def objects(self, rows: list[Any]) -> list[Any]:
        """Return what is to be shown for rows that were found."""
        ...


class _Stored:
    """Reads the database."""

    def __init__(self, rows: List, newest_first: bool) -> None:
        self._rows = rows
        self.newest_first = newest_first
        self.far = reach(rows.statements.definition.respace_to)

    def first(self, number: int) -> list[Found]:
        statement = self._rows.statements.first_page[self.newest_first]
        return _found(self._rows.execute(statement, number=number))

    def later(
        self, cut: Key, last: Key, number: int
    ) -> tuple[list[Found], int | None]:
        result = self._rows.execute(
            self._rows.statements.later_page[self.newest_first],
            at=cut.sequence,
            cut=cut.target_id,
            row=last.target_id,
            number=number,
        ).all()
        # The sequence of the last row shown comes with each row; without a
        # row it is not known, and whoever asks looks for it.
        return _found(result), result[0][3] if result else None

    def present(self, ids: Iterable[int]) -> Mapping[int, Key]:
        statement = self._rows.statements.present
        found = _keys(self._rows, statement, ids=list(ids))
        return {key.target_id: key for key in found}

    def objects(self, rows: list[Any]) -> list[Any]:
        return rows


class _Kept:
    """Reads what a cache has; :exc:`Beyond` where that is not enough."""

    def __init__(self, kept: KeptRows, newest_first: bool) -> None:
        self._kept = kept
        self.newest_first = newest_first
        self.far = kept.far

    def first(self, number: int) -> list[Found]:
        return self._found(self._kept.first(number, self.newest_first))

    def later(
        self, cut: Key, last: Key, number: int
    ) -> tuple[list[Found], int | None]:
        now = self._kept.sequence(last.target_id)
        found = self._kept.later(cut, number, self.newest_first)
        return self._found(found), now

    def _found(self, numbers: Iterable[int]) -> list[Found]:
        return [Found(i, Key(*self._kept.key(i))) for i in numbers]

    def present(self, ids: Iterable[int]) -> Mapping[int, Key]:
        found = {i: self._kept.sequence(i) for i in ids}
        return {
            target_id: Key(sequence, target_id)
            for target_id, sequence in found.items()
            if sequence is not None
        }

    def objects(self, rows: list[Any]) -> list[Any]:
        return self._kept.objects(rows)


def _resume(
    mark: Mark, current: Mapping[int, Key], newest_first: bool, far: int
) -> _Start:
    """Return where to go on when the last row shown is not where it was.

    A row that stands where it stood tells where the reader was, whatever
    became of the others.  Where none does, those that are close to their
    old places and in the old order, as many as there are, were re-spaced;
    the others were moved.

    :param far: a re-spacing does not shift a row so far.
    """
    seen, ahead = mark
    shown = frozenset(key.target_id for key in seen)
    if current.get(ahead.target_id) == ahead:
        return _Start(_up_to(ahead, newest_first), shown, ())
    for index in range(len(seen) - 1, -1, -1):
        if current.get(seen[index].target_id) == seen[index]:
            later = Mark(seen[index + 1 :], ahead)
            start = _respaced(later, current, newest_first, far, seen[index])
            if start is not None:
                return start._replace(shown=shown)
            later_shown = frozenset(key.target_id for key in later.seen)
            return _Start(seen[index], later_shown, (seen[index],))
    return _respaced(mark, current, newest_first, far) or _Start(
        seen[-1], frozenset(), ()
    )


def _respaced(
    mark: Mark,
    current: Mapping[int, Key],
    newest_first: bool,
    far: int,
    after: Key | None = None,
) -> _Start | None:
    """Return where to go on among rows that were re-spaced.

    :param after: a row before them that stands where it stood; then all of
        them have to be in their old order, the row ahead included.
    """
    shown = frozenset(key.target_id for key in mark.seen)
    close = [
        current[key.target_id]
        for key in (*mark.seen, mark.ahead)
        if key.target_id in current
        and abs(current[key.target_id].sequence - key.sequence) < far
    ]
    if after is not None:
        placed = [after, *close]
        whole = len(close) > 1 and close[-1].target_id not in shown
        if not whole or placed != sorted(placed, reverse=newest_first):
            return None
        return _Start(close[-2], shown, (close[-2],))
    for size in range(len(close), 0, -1):
        starts = []
        for kept in combinations(close, size):
            if list(kept) == sorted(kept, reverse=newest_first):
                before = tuple(k for k in kept if k.target_id in shown)
                cut = before[-1] if before else _up_to(kept[0], newest_first)
                starts.append(_Start(cut, shown, before))
        if starts:
            # To show a row twice is the smaller evil.
            return max(starts) if newest_first else min(starts)
    return None


def _up_to(key: Key, newest_first: bool) -> Key:
    """Return the key after which a row is the first."""
    return Key(key.sequence, key.target_id + (1 if newest_first else -1))


# -- targets


def load_targets(rows: Iterable[Any], cls: Any, session: Any) -> None:
    """Set ``row.target`` of rows, with one read for all of them."""
    rows = list(rows)
    if not rows:
        return
    end = cls.__sqla_shard_mapping__.target
    ids = [getattr(row, end.column) for row in rows]
    for row, target in zip(
        rows, session.get_many(end.entity, ids), strict=True
    ):
        set_committed_value(row, "target", target)
