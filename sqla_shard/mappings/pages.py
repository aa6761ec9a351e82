"""Pages of a list, and what is asked of it.

A bookmark holds the keys of the last rows that were shown: a sequence and a
target's id each.  The next page goes on after the last of them.

That row may have another sequence when the bookmark is used.  It was moved by
somebody, and then its old place is where to go on; or the rows around it were
re-spaced, and then its new place is.  The rows shown before it tell the two
apart, see :func:`_cut`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from sqlalchemy.orm.attributes import set_committed_value

from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.exc import InvalidIdError
from sqla_shard.mappings.lists import chunked
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.ordering import REACH
from sqla_shard.paging import Page
from sqla_shard.paging import seal
from sqla_shard.paging import unseal
from sqla_shard.types.sequences import MAX_SEQUENCE

__all__ = ["contains", "count", "iterate", "load_targets", "page", "position"]

#: How many of the rows shown a bookmark remembers.
_WITNESSES = 4
#: Of a page; a driver's own error for more would not say whose fault it is.
MOST_ROWS = 2**31 - 1
_KEY = struct.Struct(">QQQ")
_HALF = 64


class Key(NamedTuple):
    """Where a row stands in its list."""

    sequence: int
    target_id: int


class Found(NamedTuple):
    """A row, and its key on the server."""

    row: Any
    key: Key


def position(rows: List, target_id: int) -> int | None:
    """Return the sequence of a target; None where it is not in the list."""
    found: int | None = rows.execute(
        rows.statements.position, row=rows.checked(target_id)
    ).scalar()
    return found


def contains(rows: List, target_ids: Iterable[int]) -> set[int]:
    """Return those of the targets that are in the list."""
    wanted = list(dict.fromkeys(map(rows.checked, target_ids)))
    return {
        found.target_id
        for part in chunked(wanted)
        for found in _keys(rows, rows.statements.present, ids=part)
    }


def count(rows: List) -> int:
    """Return the length of the list; it is counted row by row."""
    found: int = rows.execute(rows.statements.count).scalar_one()
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
    about = _about(rows, newest_first)
    if after is None:
        seen: tuple[Key, ...] = ()
        found = _found(
            rows.execute(
                rows.statements.first_page[newest_first], number=limit + 1
            )
        )
    else:
        seen = _witnesses(rows, after, about)
        found = _after(rows, seen, limit + 1, newest_first)
    return page_of(found, limit, seen, about)


def page_of(
    found: list[Found], limit: int, seen: tuple[Key, ...], about: str
) -> Page[Any]:
    """Return a page of rows, of which there is one more if it is not last.

    :param seen: the witnesses of the bookmark that led to it.
    :param about: what its bookmark is of.
    """
    shown = found[:limit]
    bookmark = None
    if len(found) > limit:
        keys = (*seen, *(each.key for each in shown))[-_WITNESSES:]
        payload = b"".join(
            _KEY.pack(
                key.sequence >> _HALF,
                key.sequence & (1 << _HALF) - 1,
                key.target_id,
            )
            for key in keys
        )
        bookmark = seal(payload, about)
    return Page([each.row for each in shown], bookmark)


def check_limit(limit: int, name: str = "limit") -> None:
    """Refuse what is no number of rows.

    :param name: of the argument.
    :raises ValueError: when it is not an int from 1 to :data:`MOST_ROWS`.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_ROWS:
        raise ValueError(
            f"{name}={limit!r}; it is a number of rows from 1 to {MOST_ROWS}"
        )


def _about(rows: List, newest_first: bool) -> str:
    order = "newest" if newest_first else "oldest"
    return f"{rows.name} of {rows.source_id}, {order} first"


def about_first(rows: List) -> str:
    """Return what a bookmark of the usual order is of."""
    return _about(rows, True)


def _witnesses(rows: List, bookmark: str, about: str) -> tuple[Key, ...]:
    payload = unseal(bookmark, about)
    number, rest = divmod(len(payload), _KEY.size)
    seen: tuple[Key, ...] = ()
    if not rest and number <= _WITNESSES:
        seen = tuple(
            Key(high << _HALF | low, target_id)
            for high, low, target_id in _KEY.iter_unpack(payload)
        )
    # Whoever knows how can make one up, and then it is still no reason for
    # an error that the caller does not expect.
    if not seen or not all(_makes_sense(rows, key) for key in seen):
        raise InvalidBookmarkError(
            f"{bookmark!r} is not a bookmark of {about}", bookmark=bookmark
        )
    return seen


def _makes_sense(rows: List, key: Key) -> bool:
    try:
        rows.checked(key.target_id)
    except InvalidIdError:
        return False
    return key.sequence <= MAX_SEQUENCE


def _found(result: Any) -> list[Found]:
    return [Found(row[0], Key(row[2], row[1])) for row in result]


def _keys(rows: List, statement: Any, **parameters: Any) -> list[Key]:
    found = rows.execute(statement, **parameters)
    return [Key(sequence, target_id) for target_id, sequence in found]


# -- going on


def _after(
    rows: List, seen: tuple[Key, ...], number: int, newest_first: bool
) -> list[Found]:
    """Return the rows that follow those that a bookmark remembers."""
    last = seen[-1]
    found, now = _read(rows, last, last, number, newest_first)
    if now == last.sequence:
        return found
    current = {
        key.target_id: key
        for key in _keys(
            rows, rows.statements.present, ids=[key.target_id for key in seen]
        )
    }
    cut, shown = _cut(seen, current, newest_first)
    if cut != last or shown:
        found, _ = _read(rows, cut, last, number + len(shown), newest_first)
    return [each for each in found if each.key.target_id not in shown][:number]


def _read(
    rows: List, cut: Key, last: Key, number: int, newest_first: bool
) -> tuple[list[Found], int | None]:
    result = rows.execute(
        rows.statements.later_page[newest_first],
        at=cut.sequence,
        cut=cut.target_id,
        row=last.target_id,
        number=number,
    ).all()
    # The sequence of the last row shown comes with each row; without a row
    # it is not known, and whoever asks looks for it.
    return _found(result), result[0][3] if result else None


def _cut(
    seen: tuple[Key, ...], current: Mapping[int, Key], newest_first: bool
) -> tuple[Key, frozenset[int]]:
    """Return the key after which to go on, and what was shown after it.

    A row that stands where it stood tells where the reader was, whatever
    became of those after it.  Where all have other places, and these are
    close to the old ones and in the old order, they were re-spaced.
    """
    for index in range(len(seen) - 1, -1, -1):
        key = seen[index]
        if current.get(key.target_id) == key:
            shown = frozenset(k.target_id for k in seen[index + 1 :])
            return key, shown
    there = [key for key in seen if key.target_id in current]
    places = [current[key.target_id] for key in there]
    close = all(
        abs(new.sequence - old.sequence) < REACH
        for old, new in zip(there, places, strict=True)
    )
    if places and close and places == sorted(places, reverse=newest_first):
        return places[-1], frozenset(k.target_id for k in seen)
    return seen[-1], frozenset()


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
