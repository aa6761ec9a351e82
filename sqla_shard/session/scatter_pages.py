"""Pages of the rows of several shards, in one order.

The next page begins after the last row of a page: the bookmark contains that
row's values of ORDER BY, and its primary key, which is unique.  So rows that
are inserted or deleted cause no other row to be repeated or skipped, and each
shard reads at most one page, at any position.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, TYPE_CHECKING
from uuid import UUID

from sqlalchemy import and_, false, Float, literal, literal_column, or_, true
from sqlalchemy.engine import Dialect
from sqlalchemy.orm.util import LoaderCriteriaOption
from sqlalchemy.sql.lambdas import LambdaElement
from sqlalchemy.sql.selectable import Alias, Join, Select, TableClause

from sqla_shard.dialects.sorting import kind_of, OfText, TOO_LONG, UNSORTED
from sqla_shard.engine import limits_of, Scatter
from sqla_shard.exc import (
    InvalidBookmarkError,
    ScatterLimitError,
    ScatterUnsupportedError,
    UnsupportedStatementError,
)
from sqla_shard.planning import (
    is_combined,
    is_random,
    keyspace_of,
    Ordering,
    orderings,
    same,
)
from sqla_shard.session.paging import (
    bookmark_text,
    BookmarkValueError,
    check_limit,
    pack,
    Page,
    PageKey,
    PagePosition,
    Subject,
    unpack,
)
from sqla_shard.types.shard_bound import ShardBound
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard import ShardSession


# The fingerprint of a SELECT: its FROM and WHERE, with the values in them.
#
# A bookmark belongs to one condition: with another one, rows would be skipped
# silently.  The SQL is compiled with an unconnected dialect, so that it is
# the same in all processes, and without the selected columns, which a
# deployment may extend.


_PLAIN = (
    type(None),
    bytes,
    str,
    float,
    Decimal,
    dt.date,
    dt.time,
    dt.timedelta,
    Enum,
    UUID,
)


def bare(statement: Any) -> Any:
    """Return a SELECT with only the FROM and WHERE of another."""
    bare_select = statement.with_only_columns(
        literal(1), maintain_column_froms=True
    ).order_by(None)
    # Other options, such as eager loading, change only what is selected.
    options = tuple(
        option
        for option in private.with_options(bare_select)
        if isinstance(option, LoaderCriteriaOption)
    )
    return private.copy_with(bare_select, with_options=options)


def fingerprint(
    statement: Any, parameters: Mapping[str, Any] | None, dialect: Dialect
) -> tuple[str, ...]:
    """Return the SQL of :func:`bare`, and the values of its parameters.

    :param parameters: parameters of the statement, as for ``execute()``.
    :raises UnsupportedStatementError: if a value has no unambiguous string.
    """
    kind: Any = type(dialect)
    compiled = bare(statement).compile(dialect=_untouched(kind))
    values = compiled.construct_params(parameters)
    texts = []
    for name, bind in sorted(
        (name, bind) for bind, name in compiled.bind_names.items()
    ):
        type_ = bind.type.dialect_impl(compiled.dialect)
        process = type_.bind_processor(compiled.dialect)
        value = values[name]
        if bind.expanding and isinstance(value, (list, tuple)):
            # Sort: a set has another order in each process.
            items = sorted(_text(one, process) for one in value)
            texts.append(f"{name}={items}")
        else:
            texts.append(f"{name}={_text(value, process)}")
    return str(compiled), *texts


@lru_cache(maxsize=16)
def _untouched(kind: Any) -> Dialect:
    # Named parameters, since drivers differ in their styles
    dialect: Dialect = kind(paramstyle="named")
    return dialect


def _text(value: Any, process: Callable[[Any], Any] | None) -> str:
    """Return a string for a value that is the same in all processes."""
    if isinstance(value, ShardBound):
        value = value.whole
    if isinstance(value, int):
        # Hexadecimal: Python limits the digits of decimal strings.
        return f"{value:x}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_text(one, process) for one in value)}]"
    if process is not None:
        return _text(process(value), None)
    raise UnsupportedStatementError(
        f"scatter_page(): a bookmark cannot identify a value of type "
        f"{type(value).__name__} in WHERE; compare with a number, a time or "
        "a string",
        construct="WHERE",
    )


def scatter_page(
    session: ShardSession,
    statement: Any,
    limit: int,
    after: str | None,
    parameters: Any,
) -> Page[Any]:
    """Return a page; see ``ShardSession.scatter_page``."""
    check_limit(limit)
    if isinstance(statement, LambdaElement):
        statement = private.resolved(statement)
    keys = _keys(statement)
    bookmarks = StatementBookmarks(session, statement, keys, parameters)
    count = len(statement.column_descriptions)
    mark = PagePosition() if after is None else bookmarks.read_bookmark(after)
    if mark.back:
        keys = [replace(key, descending=not key.descending) for key in keys]
    page_select = statement.order_by(None).limit(limit + 1)
    texts = [key.element for key in keys if key.is_text]
    page_select = page_select.add_columns(
        *[key.value.label(f"sqla_shard_key{i}") for i, key in enumerate(keys)],
        *[
            OfText(text, "unsorted").label(f"sqla_shard_unsorted{i}")
            for i, text in enumerate(texts)
        ],
    ).order_by(*[key.ordered for key in keys])
    if mark.values:
        page_select = page_select.where(_beyond(keys, mark.values))
    page_select = page_select.options(_limits(statement, limit))
    result = session.execute(page_select, parameters).freeze()
    rows = result().all()
    if count == 1:
        items = list(result().scalars())[:limit]
    else:
        items = list(result().columns(*range(count)).all()[:limit])
    onward = turned = None
    if len(rows) > limit:
        last = _bookmarked(rows, limit - 1, count, keys)
        onward = bookmarks.make_bookmark(last, back=mark.back)
    if mark.values:
        # The page before an empty page is the last one.
        first = _bookmarked(rows, 0, count, keys) if rows else ()
        turned = bookmarks.make_bookmark(first, back=not mark.back)
    if mark.back:
        return Page(items[::-1], turned, onward)
    return Page(items, onward, turned)


class StatementBookmarks:
    """The bookmarks of a statement and its order.

    :ivar subject: the rows that the bookmarks belong to.
    :raises UnsupportedStatementError: see :func:`fingerprint`.
    """

    def __init__(
        self,
        session: ShardSession,
        statement: Any,
        keys: Sequence[PageKey],
        parameters: Any = None,
    ) -> None:
        self._keys = keys
        self._seal = session.cluster.seal
        tables = [
            getattr(table, "element", table)
            for source in _sources(statement)
            for table in _tables(source)
        ]
        keyspace = keyspace_of(tuple(tables), session.places)
        self._dialect = session.places.place(keyspace, 0).engine.dialect
        self.subject: Subject = Subject(
            f"the rows of {_described(statement)} by {_listed(keys)}",
            (keyspace.identity, *fingerprint(statement, parameters, self._dialect)),
        )

    def read_bookmark(self, bookmark: str) -> PagePosition:
        """Return the position in a bookmark.

        :raises InvalidBookmarkError: if the bookmark is not valid for the
            statement.
        """
        payload = self._seal.unseal(bookmark, self.subject)
        try:
            return unpack(payload, self._keys, self._dialect)
        except BookmarkValueError as error:
            raise InvalidBookmarkError(
                f"{bookmark_text(bookmark)} contains no position in this order",
                bookmark=bookmark,
            ) from error

    def make_bookmark(self, values: Sequence[Any], *, back: bool) -> str:
        """Return the bookmark of a row.

        :param values: one value per key, or none.
        :raises ScatterUnsupportedError: if a bookmark cannot contain the
            values.
        """
        try:
            payload = pack(values, self._keys, self._dialect, back=back)
        except BookmarkValueError as error:
            at = error.index
            if at is None:
                raise _refused(
                    f"ORDER BY {_listed(self._keys)}, whose values are too "
                    "long for a URL",
                    "order by func.left() of the strings",
                ) from error
            raise _refused(
                f"ORDER BY {self._keys[at].element}, whose value is "
                f"{values[at]!r:.100}",
                "order by a number, a time or a string",
            ) from error
        return self._seal.seal(payload, self.subject)


def _bookmarked(
    rows: Sequence[Any], at: int, count: int, keys: Sequence[PageKey]
) -> Sequence[Any]:
    """Return the values of the row after which another page begins.

    :param at: index of the row.
    :param count: number of columns before the values.
    :raises ScatterUnsupportedError: if servers sort a value differently from
        how they compare it, so that rows would be skipped or repeated.
    """
    whys = count + len(keys)
    texts = [key for key in keys if key.is_text]
    for number, row in enumerate(rows):
        for why, key in zip(row[whys:], texts, strict=True):
            if why is None or (why == TOO_LONG and number != at):
                continue
            raise ScatterUnsupportedError(
                f"scatter_page() by {key.element}: a string {UNSORTED[why]}",
                construct="ORDER BY",
            )
    values: Sequence[Any] = rows[at][count:whys]
    return values


def _limits(statement: Any, limit: int) -> Scatter:
    """Return the ``scatter()`` option of a page, which reads one more row.

    :raises ScatterLimitError: if a page has more rows than ``max_rows``.
    """
    limits = limits_of(statement) or Scatter()
    if limits.on_error != "raise":
        raise UnsupportedStatementError(
            'scatter_page() does not support scatter(on_error="partial"): '
            "the next page would skip the rows that are missing from this "
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


def _keys(statement: Any) -> list[PageKey]:
    """Return the keys that order the rows and are unique together.

    :raises ScatterUnsupportedError: if the statement cannot have pages.
    """
    _check(statement)
    sources = _sources(statement)
    # In a LEFT JOIN a primary key may be NULL.
    outer = any(_has_outer_join(source) for source in sources)
    keys = [_key(ordering, outer) for ordering in orderings(statement)]
    descending = keys[-1].descending if keys else False
    named = [key.element for key in keys]
    for source in sources:
        for table in _tables(source):
            for column in table.primary_key:
                if not any(same(column, element) for element in named):
                    keys.append(PageKey(column, descending, outer))
    return keys


def _sources(statement: Any) -> list[Any]:
    """Return the FROM clause, without joins of eager loading."""
    return list(bare(statement).get_final_froms())


def _has_outer_join(source: Any) -> bool:
    return isinstance(source, Join) and (
        source.isouter or _has_outer_join(source.left) or _has_outer_join(source.right)
    )


def _check(statement: Any) -> None:
    if not isinstance(statement, Select):
        raise _refused("anything but select()", "use select()")
    for construct, used in (
        ("LIMIT", private.limit_clause(statement) is not None),
        ("OFFSET", private.offset_clause(statement) is not None),
        ("DISTINCT", private.distinct(statement)),
        ("GROUP BY", bool(private.group_by_clauses(statement))),
        ("an aggregate", is_combined(statement, grouped_on_shard=False)),
        ("FOR UPDATE", private.for_update_arg(statement) is not None),
    ):
        if used:
            raise _refused(construct, "leave it out")


def _refused(construct: str, instead: str) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        f"scatter_page() returns pages of single rows, and not of {construct}"
        f"; {instead}",
        construct=construct,
    )


def _key(ordering: Ordering, outer: bool) -> PageKey:
    element = ordering.element
    if ordering.nulls_last is not None:
        raise _refused("NULLS FIRST or LAST", "order by column.is_(None) first")
    if is_random(element):
        raise _refused(
            f"ORDER BY {element}, whose order differs for each page",
            "store a random number in a column, and order by it",
        )
    kind = kind_of(element)
    if kind in (None, "enum"):
        raise _refused(
            f"ORDER BY {element} of type {element.type!r}",
            "order by a number, a time or a string",
        )
    if kind == "float":
        # A FLOAT is returned with six digits; it is not equal to that number.
        element = element + literal_column("0E0", Float())
    nullable = outer or getattr(element, "nullable", True)
    return PageKey(element, ordering.descending, nullable)


def _tables(source: Any) -> Iterator[Any]:
    """Yield the tables and aliases of an element of FROM."""
    if isinstance(source, Join):
        yield from _tables(source.left)
        yield from _tables(source.right)
    elif isinstance(source, TableClause) or (
        isinstance(source, Alias) and isinstance(source.element, TableClause)
    ):
        if not list(source.primary_key):
            raise _refused(
                f"{source}, a table without primary key", "add a primary key"
            )
        yield source
    else:
        raise _refused("a subquery in FROM", "join its tables in the statement itself")


def _described(statement: Any) -> str:
    return ", ".join(
        str(getattr(d.get("entity"), "__name__", None) or d["name"])
        for d in statement.column_descriptions
    )


def _listed(keys: Sequence[PageKey]) -> str:
    return ", ".join(
        f"{key.element}{' DESC' if key.descending else ''}" for key in keys
    )


def _beyond(keys: Sequence[PageKey], values: Sequence[Any]) -> Any:
    """Return the condition of the rows after the row with the values."""
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
    # This condition is redundant, but it lets servers use an index.
    return and_(_from(first, value), rest)


def _equal(key: PageKey, value: Any) -> Any:
    if value is None:
        return key.value.is_(None)
    return key.value == key.given(value)


def _further(key: PageKey, value: Any) -> Any:
    """Return the condition of the rows after a value, if there are any."""
    element = key.value
    if value is None:
        return None if key.descending else element.is_not(None)
    if not key.descending:
        return element > key.given(value)
    if key.nullable:
        return or_(element < key.given(value), element.is_(None))
    return element < key.given(value)


def _from(key: PageKey, value: Any) -> Any:
    element = key.value
    if not key.descending:
        return element >= key.given(value)
    if key.nullable:
        return true()
    return element <= key.given(value)
