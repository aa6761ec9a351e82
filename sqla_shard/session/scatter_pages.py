"""Pages of what several shards have, in one order.

A page goes on after the last row of the page before it: the bookmark holds
that row's values in ORDER BY, and its primary key, which no two rows share.
So rows that come and go meanwhile neither repeat others nor hide them, and
each shard reads a page at most, wherever in the order it is.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import and_
from sqlalchemy import Float
from sqlalchemy import literal_column
from sqlalchemy import or_
from sqlalchemy import true
from sqlalchemy.sql.selectable import Alias
from sqlalchemy.sql.selectable import Join
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.selectable import TableClause

from sqla_shard.dialects.sorting import kind_of
from sqla_shard.dialects.sorting import MOST_COMPARED
from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.merging import is_combined
from sqla_shard.merging import Ordering
from sqla_shard.merging import orderings
from sqla_shard.paging import check_limit
from sqla_shard.paging import Page
from sqla_shard.paging import seal
from sqla_shard.paging import shown
from sqla_shard.paging import unseal
from sqla_shard.scattering import Scatter

__all__ = ["scatter_page"]


def scatter_page(
    execute: Callable[..., Any],
    statement: Any,
    limit: int,
    after: str | None,
    parameters: Any,
) -> Page[Any]:
    """Return a page; see ``ShardSession.scatter_page``.

    :param execute: the session's.
    """
    check_limit(limit)
    keys = _keys(statement)
    about = f"the rows of {_described(statement)} by {_listed(keys)}"
    count = len(statement.column_descriptions)
    made = statement.order_by(None).limit(limit + 1)
    made = made.add_columns(
        *[
            key.element.label(f"sqla_shard_key{i}")
            for i, key in enumerate(keys)
        ]
    ).order_by(*[key.ordered for key in keys])
    if after is not None:
        values = _unpacked(unseal(after, about), len(keys), after)
        made = made.where(_beyond(keys, values))
    if not any(isinstance(o, Scatter) for o in statement._with_options):
        made = made.options(Scatter())
    found = execute(made, parameters).freeze()
    rows = found().all()
    if count == 1:
        items = list(found().scalars())[:limit]
    else:
        items = found().columns(*range(count)).all()[:limit]
    following = None
    if len(rows) > limit:
        following = seal(_packed(rows[limit - 1][count:], keys), about)
    return Page(items, following)


@dataclass(frozen=True)
class _Key:
    """One value by which rows are ordered."""

    element: Any
    descending: bool

    @property
    def ordered(self) -> Any:
        return self.element.desc() if self.descending else self.element.asc()

    @property
    def nullable(self) -> bool:
        return bool(getattr(self.element, "nullable", True))


def _keys(statement: Any) -> list[_Key]:
    """Return what orders the rows of a statement, with no two alike.

    :raises ScatterUnsupportedError: when it has no pages.
    """
    _check(statement)
    keys = [_key(ordering) for ordering in orderings(statement)]
    descending = keys[-1].descending if keys else False
    named = [key.element for key in keys]
    for source in statement.get_final_froms():
        for table in _tables(source):
            for column in table.primary_key:
                if not any(column.compare(element) for element in named):
                    keys.append(_Key(column, descending))
    return keys


def _check(statement: Any) -> None:
    if not isinstance(statement, Select):
        raise _refused("anything but select()", "write the statement so")
    for construct, used in (
        ("LIMIT", statement._limit_clause is not None),
        ("OFFSET", statement._offset_clause is not None),
        ("DISTINCT", statement._distinct),
        ("GROUP BY", bool(statement._group_by_clauses)),
        ("an aggregate", is_combined(statement, grouped_on_shard=False)),
        ("FOR UPDATE", statement._for_update_arg is not None),
    ):
        if used:
            raise _refused(construct, "leave it out")


def _refused(construct: str, instead: str) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        f"scatter_page() returns pages of single rows, and not of {construct}"
        f"; {instead}",
        construct=construct,
    )


def _key(ordering: Ordering) -> _Key:
    element = ordering.element
    if ordering.nulls_last is not None:
        raise _refused("NULLS FIRST or LAST", "MySQL does not have it")
    kind = kind_of(element)
    if kind in (None, "enum"):
        raise _refused(
            f"ORDER BY {element} of type {element.type!r}",
            "order by a number, a time or a text",
        )
    if kind == "float":
        # A FLOAT is shown with six digits, and not equal to what is shown.
        element = element + literal_column("0E0", Float())
    return _Key(element, ordering.descending)


def _tables(source: Any) -> Iterator[Any]:
    """Yield the tables of an element of FROM."""
    if isinstance(source, Join):
        yield from _tables(source.left)
        yield from _tables(source.right)
    elif isinstance(source, TableClause) or (
        isinstance(source, Alias) and isinstance(source.element, TableClause)
    ):
        if not list(source.primary_key):
            raise _refused(f"{source}, a table without primary key", "join it")
        yield source
    else:
        raise _refused(
            "a subquery in FROM", "join its tables in the statement itself"
        )


def _described(statement: Any) -> str:
    return ", ".join(
        str(getattr(d["entity"], "__name__", None) or d["name"])
        for d in statement.column_descriptions
    )


def _listed(keys: Sequence[_Key]) -> str:
    return ", ".join(
        f"{key.element}{' DESC' if key.descending else ''}" for key in keys
    )


def _beyond(keys: Sequence[_Key], values: Sequence[Any]) -> Any:
    """Return the condition of the rows after one with some values."""
    rest: Any = None
    for key, value in reversed(list(zip(keys, values, strict=True))):
        further = _further(key, value)
        if rest is None:
            rest = further
            continue
        same = key.element.is_(None) if value is None else key.element == value
        tied = and_(same, rest)
        rest = tied if further is None else or_(further, tied)
    assert rest is not None  # noqa: S101  # a primary key is not NULL
    first, value = keys[0], values[0]
    if value is None or len(keys) == 1:
        return rest
    # Says nothing new, but is what servers look for in an index.
    return and_(_from(first, value), rest)


def _further(key: _Key, value: Any) -> Any:
    """Return the condition of the rows beyond a value; None for no row."""
    element = key.element
    if value is None:
        return None if key.descending else element.is_not(None)
    if not key.descending:
        return element > value
    if key.nullable:
        return or_(element < value, element.is_(None))
    return element < value


def _from(key: _Key, value: Any) -> Any:
    element = key.element
    if not key.descending:
        return element >= value
    if key.nullable:
        return true()
    return element <= value


_KINDS: dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]]
_KINDS = {
    "t": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "d": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "h": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "s": (
        dt.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda value: dt.timedelta(*value),
    ),
    "n": (Decimal, str, Decimal),
}


def _packed(values: Sequence[Any], keys: Sequence[_Key]) -> bytes:
    out = []
    for value, key in zip(values, keys, strict=True):
        if isinstance(value, str) and len(value) > MOST_COMPARED:
            raise ScatterUnsupportedError(
                f"{value[:40]!r}... is longer than the {MOST_COMPARED} "
                f"characters by which rows are sorted; order by "
                f"func.left({key.element}, {MOST_COMPARED})",
                construct="ORDER BY",
            )
        if value is None or type(value) in (int, float, bool, str):
            out.append(value)
            continue
        for name, (kind, write, _) in _KINDS.items():
            if isinstance(value, kind):
                out.append([name, write(value)])
                break
        else:
            raise _refused(
                f"ORDER BY {key.element}, whose value is {value!r}",
                "order by a number, a time or a text",
            )
    return json.dumps(out, separators=(",", ":")).encode()


def _unpacked(payload: bytes, count: int, bookmark: str) -> list[Any]:
    try:
        values = [
            _KINDS[value[0]][2](value[1]) if isinstance(value, list) else value
            for value in json.loads(payload)
        ]
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise _not_ours(bookmark) from error
    if len(values) != count:
        raise _not_ours(bookmark)
    return values


def _not_ours(bookmark: str) -> InvalidBookmarkError:
    return InvalidBookmarkError(
        f"{shown(bookmark)} holds no row of this order", bookmark=bookmark
    )
