"""The parts of a SELECT that look at many rows: ORDER BY, GROUP BY, LIMIT."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.elements import Label
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Join
from sqlalchemy.sql.visitors import iterate

from sqla_shard.dialects.sorting import kind_of
from sqla_shard.dialects.sorting import SortKey
from sqla_shard.dialects.weights import OfText
from sqla_shard.exc import ScatterLimitError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.routing.clauses import children
from sqla_shard.routing.clauses import is_column
from sqla_shard.routing.clauses import is_select
from sqla_shard.routing.clauses import walk
from sqla_shard.routing.cutting import aggregates
from sqla_shard.routing.cutting import is_textual
from sqla_shard.routing.cutting import RANDOM
from sqla_shard.scattering import First
from sqla_shard.scattering import Key
from sqla_shard.scattering.merge import most_of
from sqla_shard.scattering.texts import Text
from sqla_shard.types import full_id
from sqla_shard.types import ShardedId

__all__ = [
    "Added",
    "Bounds",
    "Ordering",
    "bounds_of",
    "counting",
    "depends_only_on",
    "groupings",
    "has_aggregate",
    "is_random",
    "orderings",
    "same",
]

_DIRECTIONS = {operators.asc_op: False, operators.desc_op: True}
_NULLS = {operators.nulls_first_op: False, operators.nulls_last_op: True}


@dataclass(frozen=True)
class Ordering:
    """One element of ORDER BY.

    :ivar element: the expression itself.
    :ivar nulls_last: what is said of NULL; None for nothing.
    """

    element: Any
    descending: bool
    nulls_last: bool | None

    def __str__(self) -> str:
        return f"{self.element}{' DESC' if self.descending else ''}"


class Added:
    """The hidden columns of a statement, while they are collected.

    :ivar grouped: whether rows are groups: then what is made of their
        columns is asked for as the least of a group, in which it is always
        the same.  Servers do not let through what is merely made of them.
    :ivar texts: where those columns have the weights of texts.
    """

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.texts: list[Text] = []
        self.grouped = False

    def add(self, element: Any) -> int:
        """Add a column; return its position."""
        self.elements.append(element)
        return len(self.elements) - 1

    def value(self, element: Any) -> int:
        """Add the value of an expression as it is shown."""
        return self.add(_whole(element))

    def comparable(self, element: Any, construct: str) -> int:
        """Add what compares in Python as an expression on the server.

        :param construct: what compares it, for the message.
        :raises ScatterUnsupportedError: when nothing does.
        """
        element = _whole(element)
        kind = _kind(element, construct)
        if kind == "uuid" and construct == "ORDER BY":
            kind = "sorted_uuid"
        key = SortKey(element, kind)
        return self.add(self._of_group(element, key))

    def key(self, ordering: Ordering, *, distinct: bool = False) -> Key:
        """Add what rows are sorted by.

        :param distinct: whether rows are dropped that are equal in all of
            their columns, also in this.
        :raises ScatterUnsupportedError: when their order cannot be told.
        """
        element = ordering.element
        how = ordering.descending, ordering.nulls_last
        if _kind(_whole(element), "ORDER BY") != "text":
            return Key(First(self.comparable(element, "ORDER BY")), *how)
        made = [
            OfText(element, "same" if distinct else "sorted"),
            OfText(element, "sorted_padding"),
            element,
        ]
        text = Text(*[self.add(self._of_group(element, m)) for m in made])
        self.texts.append(text)
        return Key(First(text.at), *how, sorted_by=text.shown)

    def extreme(self, chosen: Any, shown: int) -> int:
        """Add what the least or greatest texts of shards are compared by.

        :param chosen: the ``min()`` or ``max()`` of a text.
        :param shown: its own position.
        """
        at = self.add(OfText(chosen, "extreme"))
        padding = self.add(OfText(chosen, "extreme_padding"))
        self.texts.append(Text(at, padding, shown))
        return at

    def identity(self, element: Any, construct: str) -> tuple[int, bool]:
        """Add what is equal for values that the server takes for equal.

        :returns: its position, and whether they are texts.
        """
        if _kind(_whole(element), construct) != "text":
            return self.comparable(element, construct), False
        made = OfText(element, "identity")
        return self.add(self._of_group(element, made)), True

    def _of_group(self, element: Any, made: Any) -> Any:
        if self.grouped and not has_aggregate(element):
            return func.min(made)
        return made


def _whole(element: Any) -> Any:
    """Return an expression with the whole id in place of a local one."""
    # The local part of an id says nothing beyond its shard.
    return full_id(element) if isinstance(element.type, ShardedId) else element


def _kind(element: Any, construct: str) -> str:
    kind = kind_of(element)
    if kind is None:
        raise ScatterUnsupportedError(
            f"{construct} over several shards compares {element}, whose "
            f"type is {element.type!r}: how its values compare is known to "
            "the server only. Use cast() or type_coerce() to a number, a "
            "time or a text",
            construct=construct,
        )
    return kind


def orderings(statement: Any) -> list[Ordering]:
    """Return the ORDER BY of a SELECT.

    :raises ScatterUnsupportedError: when an element cannot be read.
    """
    found = []
    for clause in statement._order_by_clauses:
        descending = False
        nulls_last = None
        element = clause
        while True:
            if isinstance(element, UnaryExpression):
                modifier: Any = element.modifier
                if modifier in _DIRECTIONS:
                    descending = _DIRECTIONS[modifier]
                elif modifier in _NULLS:
                    nulls_last = _NULLS[modifier]
                else:
                    break
                element = element.element
            elif (under := _named(element, statement, "ORDER BY")) is None:
                break
            else:
                element = under
        _check_position(clause, "ORDER BY")
        found.append(Ordering(element, descending, nulls_last))
    return found


def is_random(element: Any) -> bool:
    """Tell whether an expression has another value each time."""
    return any(
        isinstance(part, FunctionElement)
        and str(getattr(part, "name", "")).lower() in RANDOM
        for part in walk(element)
    )


def groupings(statement: Any) -> list[Any]:
    """Return the expressions of GROUP BY.

    :raises ScatterUnsupportedError: when an element cannot be read.
    """
    found = []
    for clause in statement._group_by_clauses:
        # SQLAlchemy takes a function for a table, and lists its columns.
        listed = clause.__visit_name__ == "clauselist"
        for element in clause.clauses if listed else (clause,):
            _check_position(element, "GROUP BY")
            while (
                under := _named(element, statement, "GROUP BY")
            ) is not None:
                _check_shadow(element, under, statement)
                element = under  # down to the expression
            found.append(element)
    return found


def _named(element: Any, statement: Any, construct: str) -> Any:
    """Return what a label, or the name of one, stands for; None for others."""
    if isinstance(element, Label):
        return element.element
    name = element.__visit_name__
    if name == "label_reference":
        return element.element
    if name == "textual_label_reference":
        return _column(element.element, statement, construct)
    if is_textual(element) or isinstance(element, TextClause):
        raise ScatterUnsupportedError(
            f"{construct} {element} over several shards is SQL as text, "
            "which cannot be read; pass the column itself",
            construct=construct,
        )
    return None


def _check_position(element: Any, construct: str) -> None:
    """Refuse a number, which drivers may send as that of a column."""
    while isinstance(element, UnaryExpression) and element.modifier:
        element = element.element
    if isinstance(element, BindParameter):
        raise ScatterUnsupportedError(
            f"{construct} {element.effective_value!r} over several shards "
            "is a value, or the number of a column; pass the column itself",
            construct=construct,
        )


def _check_shadow(element: Any, under: Any, statement: Any) -> None:
    """Refuse a label that servers do not mean by its name in GROUP BY."""
    if element.__visit_name__ != "textual_label_reference":
        return
    name = element.element
    if not isinstance(under, Label):
        return
    if getattr(under.element, "name", None) == name and is_column(
        under.element
    ):
        return
    for source in statement.get_final_froms():
        if any(column.name == name for column in _all_columns(source)):
            raise ScatterUnsupportedError(
                f"GROUP BY {name!r} over several shards: a column of "
                f"{source} has that name as well, and servers group by it "
                "rather than by what is shown; pass the expression itself",
                construct="GROUP BY",
            )


def _all_columns(source: Any) -> Iterator[Any]:
    if isinstance(source, Join):
        yield from _all_columns(source.left)
        yield from _all_columns(source.right)
    else:
        yield from source.c


def _column(name: str, statement: Any, construct: str) -> Any:
    """Return the column that a SELECT shows under a name."""
    for column in statement.selected_columns:
        if name in (column.key, getattr(column, "name", None)):
            return column
    raise ScatterUnsupportedError(
        f"{construct} {name!r} over several shards: no column of the "
        "statement has that name; pass the column itself",
        construct=construct,
    )


@dataclass(frozen=True)
class Bounds:
    """Which rows of a SELECT are in the answer.

    :ivar limit: how many at most; None for all.
    :ivar offset: how many of the first ones are skipped.
    """

    limit: int | None = None
    offset: int = 0

    def __bool__(self) -> bool:
        """Tell whether they leave anything out."""
        return self.limit is not None or self.offset > 0

    @property
    def most(self) -> int | None:
        """How many rows of each shard are needed; None for all."""
        return most_of(self.limit, self.offset)


def bounds_of(statement: Any, parameters: Any, max_offset: int) -> Bounds:
    """Return the LIMIT and OFFSET of a SELECT.

    :param max_offset: the largest OFFSET that is allowed.
    :raises ScatterUnsupportedError: when one of them is no plain number, or
        there is an OFFSET and none is allowed.
    :raises ScatterLimitError: when it is larger than that.
    """
    limit, offset = statement._limit_clause, statement._offset_clause
    found = Bounds(
        None if limit is None else _number(limit, parameters, "LIMIT"),
        0 if offset is None else _number(offset, parameters, "OFFSET"),
    )
    if found.offset > max_offset:
        if max_offset:
            raise ScatterLimitError(
                limit="max_offset", allowed=max_offset, found=found.offset
            )
        raise ScatterUnsupportedError(
            f"OFFSET {found.offset} over several shards: each of them would "
            "read the rows that are skipped, too. session.scatter_page() "
            "goes on after the last row shown, and costs the same on every "
            "page; .options(scatter(max_offset=1000)) allows page numbers "
            "up to there",
            construct="OFFSET",
        )
    return found


def _number(clause: Any, parameters: Any, construct: str) -> int:
    value = None
    if isinstance(clause, BindParameter):
        value = clause.effective_value
        if isinstance(parameters, Mapping):
            value = parameters.get(clause.key, value)
    if type(value) is not int or value < 0:
        raise ScatterUnsupportedError(
            f"{construct} {clause} over several shards: the number must be "
            "known before the statement is sent; pass an int",
            construct=construct,
        )
    return value


def counting(statement: Any, inner: Any) -> Any:
    """Return a count of rows that counts those of another SELECT.

    :param statement: what :func:`~sqla_shard.routing.counted_select` knows.
    """
    (source,) = statement._from_obj
    made = statement.select_from()
    # Made a moment ago, so nobody else's.
    made._from_obj = (inner.subquery(source.name),)
    return made


def has_aggregate(element: Any) -> bool:
    """Tell whether an expression looks at all rows of a group."""
    if isinstance(element, FunctionElement) and aggregates(element):
        return True
    if element.__visit_name__ in ("select", "scalar_select", "over"):
        return False
    return any(has_aggregate(part) for part in children(element))


def same(one: Any, other: Any) -> bool:
    """Tell whether two expressions are one and the same."""
    try:
        if not one.compare(other):
            return False
    except AttributeError:
        # SQLAlchemy takes the mapped classes of two functions for
        # expressions, unless they are the same class.
        return False
    # It also takes two aliases of a table for one another.
    return _sources(one) == _sources(other)


def _sources(element: Any) -> list[Any]:
    """Return the table, or its alias, of each column in an expression."""
    parts: Iterator[Any] = iterate(element)
    return [part._from_objects for part in parts if is_column(part)]


def depends_only_on(element: Any, known: Sequence[Any]) -> bool:
    """Tell whether an expression is told by the values of others."""
    if any(same(element, one) for one in known):
        return True
    if isinstance(element, (BindParameter, Null)):
        return True
    if is_column(element) and element.__visit_name__ == "column":
        return False
    if is_select(element) or aggregates(element) or is_textual(element):
        return False
    parts = list(_parts(element))
    return bool(parts) and all(depends_only_on(p, known) for p in parts)


def _parts(element: Any) -> Iterator[Any]:
    if isinstance(element, ColumnElement) or hasattr(element, "clauses"):
        yield from children(element)
