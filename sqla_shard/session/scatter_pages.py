"""Pages of what several shards have, in one order.

A page goes on after the last row of the page before it: the bookmark holds
that row's values in ORDER BY, and its primary key, which no two rows share.
So rows that come and go meanwhile neither repeat others nor hide them, and
each shard reads a page at most, wherever in the order it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from sqlalchemy import and_
from sqlalchemy import false
from sqlalchemy import Float
from sqlalchemy import literal
from sqlalchemy import literal_column
from sqlalchemy import or_
from sqlalchemy import true
from sqlalchemy import type_coerce
from sqlalchemy.sql.lambdas import LambdaElement
from sqlalchemy.sql.selectable import Alias
from sqlalchemy.sql.selectable import Join
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.selectable import TableClause
from sqlalchemy.types import NullType

from sqla_shard.dialects.sorting import kind_of
from sqla_shard.dialects.weights import OfText
from sqla_shard.dialects.weights import TOO_LONG
from sqla_shard.dialects.weights import UNSORTED
from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.exc import ScatterLimitError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.merging import is_combined
from sqla_shard.merging import is_random
from sqla_shard.merging import Ordering
from sqla_shard.merging import orderings
from sqla_shard.merging import same
from sqla_shard.paging import check_limit
from sqla_shard.paging import Page
from sqla_shard.paging import shown
from sqla_shard.paging import Subject
from sqla_shard.routing import keyspace_of
from sqla_shard.scattering import limits_of
from sqla_shard.scattering import Scatter
from sqla_shard.session.contract import Scope
from sqla_shard.session.fingerprints import bare
from sqla_shard.session.fingerprints import fingerprint
from sqla_shard.session.marks import Mark
from sqla_shard.session.marks import opened
from sqla_shard.session.marks import packed
from sqla_shard.session.marks import UnfitError
from sqla_shard.types import ShardedId

__all__ = ["scatter_page"]


def scatter_page(
    scope: Scope,
    statement: Any,
    limit: int,
    after: str | None,
    parameters: Any,
) -> Page[Any]:
    """Return a page; see ``ShardSession.scatter_page``."""
    check_limit(limit)
    if isinstance(statement, LambdaElement):
        statement = statement._resolved
    keys = _keys(statement)
    bookmarks = Bookmarks(scope, statement, keys, parameters)
    count = len(statement.column_descriptions)
    mark = Mark() if after is None else bookmarks.opened(after)
    if mark.back:
        keys = [replace(key, descending=not key.descending) for key in keys]
    made = statement.order_by(None).limit(limit + 1)
    texts = [key.element for key in keys if key.is_text]
    made = made.add_columns(
        *[key.value.label(f"sqla_shard_key{i}") for i, key in enumerate(keys)],
        *[
            OfText(text, "unsorted").label(f"sqla_shard_unsorted{i}")
            for i, text in enumerate(texts)
        ],
    ).order_by(*[key.ordered for key in keys])
    if mark.values:
        made = made.where(_beyond(keys, mark.values))
    made = made.options(_limits(statement, limit))
    found = scope.execute(made, parameters).freeze()
    rows = found().all()
    if count == 1:
        items = list(found().scalars())[:limit]
    else:
        items = found().columns(*range(count)).all()[:limit]
    onward = turned = None
    if len(rows) > limit:
        last = _bookmarked(rows, limit - 1, count, keys)
        onward = bookmarks.made(last, back=mark.back)
    if mark.values:
        # Of a page without rows, the one before is the last of all.
        first = _bookmarked(rows, 0, count, keys) if rows else ()
        turned = bookmarks.made(first, back=not mark.back)
    if mark.back:
        return Page(items[::-1], turned, onward)
    return Page(items, onward, turned)


class Bookmarks:
    """The bookmarks of a statement and its order.

    :ivar subject: what they are of.
    :raises UnsupportedStatementError: see :func:`fingerprint`.
    """

    def __init__(
        self,
        scope: Scope,
        statement: Any,
        keys: Sequence[_Key],
        parameters: Any = None,
    ) -> None:
        self._keys = keys
        self._seal = scope.cluster.seal
        tables = [
            getattr(table, "element", table)
            for source in _sources(statement)
            for table in _tables(source)
        ]
        keyspace = keyspace_of(tuple(tables), scope.places)
        self._dialect = scope.places.place(keyspace, 0).engine.dialect
        self.subject = Subject(
            f"the rows of {_described(statement)} by {_listed(keys)}",
            (
                keyspace.identity,
                *fingerprint(statement, parameters, self._dialect),
            ),
        )

    def opened(self, bookmark: str) -> Mark:
        """Return what a bookmark holds.

        :raises InvalidBookmarkError: when it is none of these rows.
        """
        payload = self._seal.unseal(bookmark, self.subject)
        try:
            return opened(payload, self._keys, self._dialect)
        except UnfitError as error:
            raise InvalidBookmarkError(
                f"{shown(bookmark)} holds no row of this order",
                bookmark=bookmark,
            ) from error

    def made(self, values: Sequence[Any], *, back: bool) -> str:
        """Return the bookmark of a row.

        :param values: by key, or none.
        :raises ScatterUnsupportedError: when it cannot hold them.
        """
        try:
            payload = packed(values, self._keys, self._dialect, back=back)
        except UnfitError as error:
            at = error.index
            if at is None:
                raise _refused(
                    f"ORDER BY {_listed(self._keys)}, whose values are longer "
                    "than a URL takes",
                    "order by func.left() of the texts",
                ) from error
            raise _refused(
                f"ORDER BY {self._keys[at].element}, whose value is "
                f"{values[at]!r:.100}",
                "order by a number, a time or a text",
            ) from error
        return self._seal.seal(payload, self.subject)


def _bookmarked(
    rows: Sequence[Any], at: int, count: int, keys: Sequence[_Key]
) -> Sequence[Any]:
    """Return the values of the row that another page begins after.

    :param at: which of them.
    :param count: how many columns come before those values.
    :raises ScatterUnsupportedError: where servers do not sort as they
        compare, so that others would be missing or come twice.
    """
    whys = count + len(keys)
    texts = [key for key in keys if key.is_text]
    for number, row in enumerate(rows):
        for why, key in zip(row[whys:], texts, strict=True):
            if why is None or (why == TOO_LONG and number != at):
                continue
            raise ScatterUnsupportedError(
                f"scatter_page() by {key.element}: a text {UNSORTED[why]}",
                construct="ORDER BY",
            )
    values: Sequence[Any] = rows[at][count:whys]
    return values


def _limits(statement: Any, limit: int) -> Scatter:
    """Return the ``scatter()`` of a page, which reads one row more.

    :raises ScatterLimitError: when a page has more rows than it allows.
    """
    limits = limits_of(statement) or Scatter()
    if limits.on_error != "raise":
        raise UnsupportedStatementError(
            'scatter_page() does not take scatter(on_error="partial"): the '
            "next page would go on after rows that are missing from this "
            "one; leave on_error out",
            construct="scatter(on_error=)",
        )
    most = limits.max_rows
    if most is not None and most < limit:
        raise ScatterLimitError(limit="max_rows", allowed=most, found=limit)
    return Scatter(
        max_shards=limits.max_shards,
        max_rows=None if most is None else most + 1,
        timeout=limits.timeout,
    )


@dataclass(frozen=True)
class _Key:
    """One value by which rows are ordered."""

    element: Any
    descending: bool
    nullable: bool

    @property
    def is_text(self) -> bool:
        return kind_of(self.element) == "text"

    @property
    def ordered(self) -> Any:
        return self.element.desc() if self.descending else self.element.asc()

    @property
    def value(self) -> Any:
        # What the driver returns, and takes back as it was: a Python value
        # may be rounded, as the decimals that SQLite holds as floats are,
        # or unfit for comparisons, as True and members of an Enum are.  The
        # number that a driver returns for an id is not the id.
        if isinstance(self.element.type, ShardedId):
            return self.element
        return type_coerce(self.element, NullType())

    def given(self, value: Any) -> Any:
        """Return a value of a bookmark, for comparisons with the key."""
        # Of its own accord SQLAlchemy would make a timedelta an Interval.
        return literal(value, self.value.type)


def _keys(statement: Any) -> list[_Key]:
    """Return what orders the rows of a statement, with no two alike.

    :raises ScatterUnsupportedError: when it has no pages.
    """
    _check(statement)
    sources = _sources(statement)
    # A LEFT JOIN has NULL even for a primary key.
    outer = any(_has_outer_join(source) for source in sources)
    keys = [_key(ordering, outer) for ordering in orderings(statement)]
    descending = keys[-1].descending if keys else False
    named = [key.element for key in keys]
    for source in sources:
        for table in _tables(source):
            for column in table.primary_key:
                if not any(same(column, element) for element in named):
                    keys.append(_Key(column, descending, outer))
    return keys


def _sources(statement: Any) -> list[Any]:
    """Return what is in FROM, without what joined eager loading adds."""
    return list(bare(statement).get_final_froms())


def _has_outer_join(source: Any) -> bool:
    return isinstance(source, Join) and (
        source.isouter
        or _has_outer_join(source.left)
        or _has_outer_join(source.right)
    )


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


def _key(ordering: Ordering, outer: bool) -> _Key:
    element = ordering.element
    if ordering.nulls_last is not None:
        raise _refused(
            "NULLS FIRST or LAST", "order by column.is_(None) first"
        )
    if is_random(element):
        raise _refused(
            f"ORDER BY {element}, which has another order for each page",
            "keep a random number in a column, and order by it",
        )
    kind = kind_of(element)
    if kind in (None, "enum"):
        raise _refused(
            f"ORDER BY {element} of type {element.type!r}",
            "order by a number, a time or a text",
        )
    if kind == "float":
        # A FLOAT is shown with six digits, and not equal to what is shown.
        element = element + literal_column("0E0", Float())
    nullable = outer or getattr(element, "nullable", True)
    return _Key(element, ordering.descending, nullable)


def _tables(source: Any) -> Iterator[Any]:
    """Yield the tables of an element of FROM, and their aliases."""
    if isinstance(source, Join):
        yield from _tables(source.left)
        yield from _tables(source.right)
    elif isinstance(source, TableClause) or (
        isinstance(source, Alias) and isinstance(source.element, TableClause)
    ):
        if not list(source.primary_key):
            raise _refused(
                f"{source}, a table without primary key", "give it one"
            )
        yield source
    else:
        raise _refused(
            "a subquery in FROM", "join its tables in the statement itself"
        )


def _described(statement: Any) -> str:
    return ", ".join(
        str(getattr(d.get("entity"), "__name__", None) or d["name"])
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
        if rest is not None:
            tied = and_(_equal(key, value), rest)
            further = tied if further is None else or_(further, tied)
        rest = further
    if rest is None:
        return false()
    first, value = keys[0], values[0]
    if value is None or len(keys) == 1:
        return rest
    # Says nothing new, but is what servers look for in an index.
    return and_(_from(first, value), rest)


def _equal(key: _Key, value: Any) -> Any:
    if value is None:
        return key.value.is_(None)
    return key.value == key.given(value)


def _further(key: _Key, value: Any) -> Any:
    """Return the condition of the rows beyond a value; None for no row."""
    element = key.value
    if value is None:
        return None if key.descending else element.is_not(None)
    if not key.descending:
        return element > key.given(value)
    if key.nullable:
        return or_(element < key.given(value), element.is_(None))
    return element < key.given(value)


def _from(key: _Key, value: Any) -> Any:
    element = key.value
    if not key.descending:
        return element >= key.given(value)
    if key.nullable:
        return true()
    return element <= key.given(value)
