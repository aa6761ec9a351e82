"""The parts of a SELECT that read many rows: ORDER BY, GROUP BY, LIMIT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    ColumnElement,
    Label,
    Null,
    TextClause,
    UnaryExpression,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import GenerativeSelect, Join, Select
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from sqla_shard.dialects.result_types import DIVISIONS, name_of
from sqla_shard.dialects.sorting import kind_of, OfText, ShownId, SortKey
from sqla_shard.engine.merge import First, most_of, OrderKey
from sqla_shard.engine.values import Text
from sqla_shard.exc import ScatterLimitError, ScatterUnsupportedError
from sqla_shard.planning.clauses import (
    children,
    is_column,
    is_select,
    is_textual,
    may_aggregate,
    RANDOM,
    walk,
)
from sqla_shard.types import full_id, ShardedId
from sqla_shard.util import sqlalchemy_private as private

_DIRECTIONS = {operators.asc_op: False, operators.desc_op: True}
_NULLS = {operators.nulls_first_op: False, operators.nulls_last_op: True}


@dataclass(frozen=True)
class Ordering:
    """One element of ORDER BY.

    :ivar element: the expression itself.
    :ivar nulls_last: NULLS LAST or NULLS FIRST; None if not given.
    """

    element: Any
    descending: bool
    nulls_last: bool | None

    def __str__(self) -> str:
        return f"{self.element}{' DESC' if self.descending else ''}"


class Added:
    """Collects the hidden columns of a statement.

    :ivar grouped: whether rows are groups.  Hidden columns are then min() of
        the group, where all values are equal: servers refuse expressions of
        columns that are not in GROUP BY themselves.
    :ivar texts: the positions of the weights of texts.
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
        """Add the value of an expression as it is returned."""
        return self.add(_whole(element))

    def comparable(self, element: Any, construct: str) -> int:
        """Add a column that compares in Python as an expression on the server.

        :param construct: the clause that compares it, for the message.
        :raises ScatterUnsupportedError: if there is no such column.
        """
        element = _whole(element)
        key = SortKey(element, _kind(element, construct))
        return self.add(self._of_group(element, key))

    def key(self, ordering: Ordering, *, distinct: bool = False) -> OrderKey:
        """Add the columns that rows are sorted by.

        :param distinct: whether rows that are equal in all columns, including
            these, are dropped.
        :raises ScatterUnsupportedError: if Python cannot compare them.
        """
        element = ordering.element
        how = ordering.descending, ordering.nulls_last
        columns = _sorted_by(element, distinct=distinct)
        at = [self.add(self._of_group(element, one)) for one in columns]
        if len(at) == 1:
            return OrderKey(First(at[0]), *how)
        text = Text(*at)
        self.texts.append(text)
        return OrderKey(First(text.index), *how, sorted_by=text.shown)

    def extreme(self, chosen: Any, shown: int) -> int:
        """Add the columns that the least or greatest texts are compared by.

        :param chosen: the ``min()`` or ``max()`` of a text.
        :param shown: position of ``chosen``.
        """
        at = self.add(OfText(chosen, "extreme"))
        padding = self.add(OfText(chosen, "extreme_padding"))
        self.texts.append(Text(at, padding, shown))
        return at

    def identities(
        self, elements: Iterable[Any], construct: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Add :meth:`identity` of each element.

        :returns: positions of the columns, and of those that are of texts.
        """
        identities = [self.identity(each, construct) for each in elements]
        texts = tuple(at for at, is_text in identities if is_text)
        return tuple(at for at, _ in identities), texts

    def identity(self, element: Any, construct: str) -> tuple[int, bool]:
        """Add a column that is equal for values that are equal on servers.

        :returns: position of the column, and whether the values are texts.
        """
        if _kind(_whole(element), construct) != "text":
            return self.comparable(element, construct), False
        text = OfText(element, "identity")
        return self.add(self._of_group(element, text)), True

    def _of_group(self, element: Any, made: Any) -> Any:
        if self.grouped and not has_aggregate(element):
            return func.min(made)
        return made


_SORT_KEYS = "_sqla_shard_sort_keys"


class _SortKeys:
    """The sort keys of a column.

    A mapped column is the same object in all statements, and making its sort
    key is most of the cost of a plan.  The keys are an attribute of the
    column, so that they are freed with it.  SQLAlchemy copies attributes to
    annotated copies of a column, which need keys of their own.

    :ivar column: the column that the keys were made for.
    :ivar made: the hidden columns, with and without DISTINCT.
    """

    def __init__(self, column: Any) -> None:
        self.column = column
        self.made: dict[bool, tuple[Any, ...]] = {}

    def __reduce__(self) -> Any:
        # Pickled as None, because other releases may load the statement.
        return type(None), ()


def _sorted_by(element: Any, *, distinct: bool) -> tuple[Any, ...]:
    """Return the hidden columns for an element of ORDER BY; 3 for a text.

    :raises ScatterUnsupportedError: if Python cannot compare them.
    """
    keys: _SortKeys | None = element.__dict__.get(_SORT_KEYS)
    if keys is None or keys.column is not element:
        if element.__visit_name__ != "column":
            return _sort_columns(element, distinct=distinct)
        keys = element.__dict__[_SORT_KEYS] = _SortKeys(element)
    columns = keys.made.get(distinct)
    if columns is None:
        columns = _sort_columns(element, distinct=distinct)
        keys.made[distinct] = columns
    return columns


def _sort_columns(element: Any, *, distinct: bool) -> tuple[Any, ...]:
    whole = _whole(element)
    kind = _kind(whole, "ORDER BY")
    if kind != "text":
        return (SortKey(whole, "sorted_uuid" if kind == "uuid" else kind),)
    return (
        OfText(element, "same" if distinct else "sorted"),
        OfText(element, "sorted_padding"),
        element,
    )


def _whole(element: Any) -> Any:
    """Return an expression with the whole id instead of a local one."""
    # The local part of an id has a meaning on its shard only.
    return full_id(element) if isinstance(element.type, ShardedId) else element


def _kind(element: Any, construct: str) -> str:
    kind = kind_of(element)
    if kind is None:
        raise ScatterUnsupportedError(
            f"{construct} over several shards compares {element}, whose "
            f"type is {element.type!r}: how its values compare depends on "
            "the server. Use cast() to a number, a time or a text; or "
            "type_coerce(), if the server has one",
            construct=construct,
        )
    return kind


def orderings(statement: Any) -> list[Ordering]:
    """Return the ORDER BY of a SELECT.

    :raises ScatterUnsupportedError: if an element cannot be read.
    """
    orderings = []
    for clause in private.order_by_clauses(statement):
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
        orderings.append(Ordering(element, descending, nulls_last))
    return orderings


def sorted_by_shown(statement: Any) -> Any:
    """Return a SELECT DISTINCT that MySQL sorts by object ids.

    :returns: any other statement, unchanged.
    """
    if not isinstance(statement, Select) or not private.distinct(statement):
        return statement
    clauses = private.order_by_clauses(statement)
    if not any(map(_sorts_by_id, clauses)):
        return statement
    replaced = tuple(
        replacement_traverse(clause, {}, _shown_id) if _sorts_by_id(clause) else clause
        for clause in clauses
    )
    return private.copy_with(statement, order_by_clauses=replaced)


def by_id_columns(statement: Any) -> Any:
    """Return a SELECT that is grouped and sorted by the columns of labelled ids.

    The label is that of the whole id, an expression that no index has, and from
    which MySQL does not conclude that the column is the same in all rows of a
    group.

    :returns: any other statement, unchanged.
    """
    if not isinstance(statement, Select):
        return statement
    groups = private.group_by_clauses(statement)
    clauses = (*groups, *private.order_by_clauses(statement))
    labelled = tuple(_id_labelled(clause, statement) for clause in clauses)
    if all(new is old for new, old in zip(labelled, clauses, strict=True)):
        return statement
    count = len(groups)
    return private.copy_with(
        statement, group_by_clauses=labelled[:count], order_by_clauses=labelled[count:]
    )


def _id_labelled(clause: Any, statement: Any) -> Any:
    """Return the id column that a key has the label of, with its direction."""
    if isinstance(clause, UnaryExpression) and clause.modifier is not None:
        column = _id_labelled(clause.element, statement)
        if column is clause.element:
            return clause
        return UnaryExpression(column, modifier=clause.modifier)
    named = clause
    if clause.__visit_name__ == "textual_label_reference":
        named = statement.selected_columns.get(clause.element)
    elif clause.__visit_name__ == "label_reference":
        named = clause.element
        if isinstance(named, UnaryExpression):
            inner = _id_labelled(named, statement)
            return clause if inner is named else inner
    if not isinstance(named, Label):
        return clause
    column = named.element
    if not (is_column(column) and isinstance(column.type, ShardedId)):
        return clause
    # Servers prefer a column of that name.
    hidden = any(
        isinstance(source, TextClause)  # it may have one
        or any(other.name == named.name for other in _all_columns(source))
        for source in statement.get_final_froms()
    )
    return clause if hidden else column


def _sorts_by_id(clause: Any) -> bool:
    while isinstance(clause, UnaryExpression) and clause.modifier is not None:
        clause = clause.element
    return is_column(clause) and isinstance(clause.type, ShardedId)


def _shown_id(element: Any, **kw: Any) -> Any:
    return ShownId(element, full_id(element)) if is_column(element) else None


def is_random(element: Any) -> bool:
    """Return whether an expression has a random value."""
    return any(
        isinstance(part, FunctionElement) and name_of(part) in RANDOM
        for part in walk(element)
    )


def groupings(statement: Any) -> list[Any]:
    """Return the expressions of GROUP BY.

    :raises ScatterUnsupportedError: if an element cannot be read.
    """
    groupings = []
    for element in private.group_by_clauses(statement):
        _check_position(element, "GROUP BY")
        while (under := _named(element, statement, "GROUP BY")) is not None:
            _check_shadow(element, under, statement)
            element = under  # down to the expression
        groupings.append(element)
    return groupings


def _named(element: Any, statement: Any, construct: str) -> Any:
    """Return the element of a label or of its name; None if there is none."""
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
    """Refuse a number, which servers may treat as the position of a column."""
    while isinstance(element, UnaryExpression) and element.modifier:
        element = element.element
    if isinstance(element, BindParameter):
        raise ScatterUnsupportedError(
            f"{construct} {element.effective_value!r} over several shards "
            "is a value, or the number of a column; pass the column itself",
            construct=construct,
        )


def _check_shadow(element: Any, under: Any, statement: Any) -> None:
    """Refuse a label name that servers would resolve to a column.

    In GROUP BY, servers prefer the column of that name.
    """
    if element.__visit_name__ != "textual_label_reference":
        return
    name = element.element
    if not isinstance(under, Label):
        return
    if getattr(under.element, "name", None) == name and is_column(under.element):
        return
    for source in statement.get_final_froms():
        if any(column.name == name for column in _all_columns(source)):
            raise ScatterUnsupportedError(
                f"GROUP BY {name!r} over several shards: a column of "
                f"{source} has that name as well, and servers group by it "
                "rather than by the label; pass the expression itself",
                construct="GROUP BY",
            )


def _all_columns(source: Any) -> Iterator[Any]:
    if isinstance(source, Join):
        yield from _all_columns(source.left)
        yield from _all_columns(source.right)
    else:
        yield from source.c


def _column(name: str, statement: Any, construct: str) -> Any:
    """Return the column of a SELECT with the given name."""
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
    """The LIMIT and OFFSET of a SELECT.

    :ivar limit: maximum number of rows; None for all.
    :ivar offset: number of rows to skip.
    """

    limit: int | None = None
    offset: int = 0

    def __bool__(self) -> bool:
        """Return whether there is a LIMIT or an OFFSET."""
        return self.limit is not None or self.offset > 0

    @property
    def row_limit(self) -> int | None:
        """Number of rows needed from each shard; None for all."""
        return most_of(self.limit, self.offset)


def bounds_of(statement: Any, parameters: Any, max_offset: int) -> Bounds:
    """Return the LIMIT and OFFSET of a SELECT.

    :param max_offset: the largest OFFSET that is allowed.
    :raises ScatterUnsupportedError: if one of them is not a plain number, or
        there is an OFFSET and none is allowed.
    :raises ScatterLimitError: if the OFFSET is larger than ``max_offset``.
    """
    limit, offset = (private.limit_clause(statement), private.offset_clause(statement))
    bounds = Bounds(
        None if limit is None else _number(limit, parameters, "LIMIT"),
        0 if offset is None else _number(offset, parameters, "OFFSET"),
    )
    if bounds.offset > max_offset:
        if max_offset:
            raise ScatterLimitError(
                limit="max_offset", allowed=max_offset, found=bounds.offset
            )
        raise ScatterUnsupportedError(
            f"OFFSET {bounds.offset} over several shards: each of them would "
            "also read the rows that are skipped. session.scatter_page() "
            "continues after the last row of a page, at the same cost for "
            "every page; .options(scatter(max_offset=1000)) allows an OFFSET "
            "up to that number",
            construct="OFFSET",
        )
    return bounds


def capped(statement: Any, parameters: Any, most_rows: int, *, merged: bool) -> Any:
    """Return a SELECT that reads at most one row more than is allowed.

    :param most_rows: maximum number of rows, whatever its LIMIT.
    :param merged: whether the merge of several shards applies its OFFSET.
    """
    if not isinstance(statement, GenerativeSelect):
        return statement
    limit, offset = private.limit_clause(statement), private.offset_clause(statement)
    number = _value(limit, parameters)
    if (type(number) is int and number > most_rows + 1) or (
        # Servers have no OFFSET without LIMIT, so that the SQL has a large one.
        limit is None
        and offset is not None
        and private.fetch_clause(statement) is None
        and not merged
    ):
        return statement.limit(most_rows + 1)
    return statement


def _value(clause: Any, parameters: Any) -> Any:
    """Return the value of a parameter; None for any other clause."""
    if not isinstance(clause, BindParameter):
        return None
    value = clause.effective_value
    if isinstance(parameters, Mapping):
        value = parameters.get(clause.key, value)
    return value


def _number(clause: Any, parameters: Any, construct: str) -> int:
    value = _value(clause, parameters)
    if type(value) is not int or value < 0:
        raise ScatterUnsupportedError(
            f"{construct} {clause} over several shards: the number must be "
            "known before the statement is executed; pass an int",
            construct=construct,
        )
    return value


def counting(statement: Any, inner: Any) -> Any:
    """Return a count of rows that counts the rows of another SELECT.

    :param statement: a statement for which
        :func:`~sqla_shard.planning.counted_select` does not return None.
    """
    (source,) = private.from_obj(statement)
    subquery = inner.subquery(source.name)
    return private.copy_with(statement, from_obj=(subquery,))


def has_aggregate(element: Any) -> bool:
    """Return whether an expression has an aggregate."""
    if isinstance(element, FunctionElement) and may_aggregate(element):
        return True
    if element.__visit_name__ in ("select", "scalar_select", "over"):
        return False
    return any(has_aggregate(part) for part in children(element))


def divides(element: Any) -> bool:
    """Return whether an expression has a quotient.

    Servers compute with more digits of a quotient than they return.
    """
    return any(
        isinstance(part, BinaryExpression) and part.operator in DIVISIONS
        for part in walk(element)
    )


def same(one: Any, other: Any) -> bool:
    """Return whether two expressions are the same."""
    try:
        if not one.compare(other):
            return False
    except AttributeError:
        # SQLAlchemy treats the mapped classes of two functions as
        # expressions, unless they are the same class.
        return False
    # SQLAlchemy also treats two aliases of a table as the same.
    return _sources(one) == _sources(other)


def _sources(element: Any) -> list[Any]:
    """Return the table, or its alias, of each column in an expression."""
    parts: Iterator[Any] = iterate(element)
    return [private.from_objects(part) for part in parts if is_column(part)]


def depends_only_on(element: Any, known: Sequence[Any]) -> bool:
    """Return whether an expression is determined by the given ones."""
    if any(same(element, one) for one in known):
        return True
    if isinstance(element, (BindParameter, Null)):
        return True
    if is_column(element) and element.__visit_name__ == "column":
        return False
    if is_select(element) or may_aggregate(element) or is_textual(element):
        return False
    has_parts = isinstance(element, ColumnElement) or hasattr(element, "clauses")
    parts = list(children(element)) if has_parts else []
    return bool(parts) and all(depends_only_on(p, known) for p in parts)
