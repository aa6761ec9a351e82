"""Owners of rows, as the forms of statements name them.

:func:`reduced` reads a statement as the router does, and returns its tables,
the columns that are compared with values, and the pairs of columns that are
equal; :func:`statement_of` makes a statement of these, for the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Column, delete, insert, MetaData, select, Table, update
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, Tuple
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.migrate.report import Traffic
from sqla_shard.planning.clauses import inner, is_list, nested, ungrouped, unlabelled
from sqla_shard.planning.reader import Reader
from sqla_shard.util import sqlalchemy_private as private


def reduced(statement: Any) -> Traffic | None:
    """Return the key that determines the shards of a statement, or None.

    Conditions of subqueries count as those of the statement; OR is read only
    where all parts compare the same column.

    :raises ShardError: if the router cannot read the statement.
    """
    if isinstance(statement, LambdaElement):
        statement = private.resolved(statement)
    if getattr(statement, "is_insert", False):
        if not isinstance(statement.table, Table):
            return None
        return Traffic(kind="insert", tables=(str(statement.table.key),))
    reader = Reader(statement, {})
    equal: set[str] = set()
    within: set[str] = set()
    ties: set[tuple[str, str]] = set()
    for block in reader.blocks:
        for clause, _ in block.filters:
            _read(clause, equal, within, ties)
    tables = dict.fromkeys(
        str(leaf.table.key) for leaf in reader.leaves if isinstance(leaf.table, Table)
    )
    if not tables:
        return None
    kind = "select"
    if not getattr(statement, "is_select", False):
        kind = "update" if statement.is_update else "delete"
    return Traffic(
        kind=kind,
        tables=tuple(tables),
        equal=tuple(sorted(equal)),
        within=tuple(sorted(within)),
        ties=tuple(sorted(ties)),
    )


def _read(
    clause: Any, equal: set[str], within: set[str], ties: set[tuple[str, str]]
) -> None:
    clause = ungrouped(clause)
    if is_list(clause, operators.or_):
        names = {_compared(part) for part in clause.clauses}
        if len(names) == 1 and (name := names.pop()) is not None:
            within.add(name)
        return
    if not isinstance(clause, BinaryExpression):
        return
    left, right = ungrouped(clause.left), ungrouped(clause.right)
    name = _compared(clause)
    if isinstance(left, Tuple) and isinstance(right, BindParameter):
        within.update(filter(None, map(_name, left.clauses)))
    elif name is not None:
        (equal if clause.operator is operators.eq else within).add(name)
    elif clause.operator is operators.eq:
        _tie(left, right, ties)
    elif clause.operator is operators.in_op and nested(right) is not None:
        columns = list(inner(right).selected_columns)
        if len(columns) == 1:
            _tie(left, columns[0], ties)


def _tie(left: Any, right: Any, ties: set[tuple[str, str]]) -> None:
    one, other = _name(left), _name(right)
    if one is not None and other is not None and one != other:
        ties.add((min(one, other), max(one, other)))


def _compared(clause: Any) -> str | None:
    """Return the column that a clause compares with values, or None."""
    clause = ungrouped(clause)
    if not isinstance(clause, BinaryExpression):
        return None
    if clause.operator not in (operators.eq, operators.in_op):
        return None
    left, right = ungrouped(clause.left), ungrouped(clause.right)
    if isinstance(left, BindParameter):
        left, right = right, left
    return _name(left) if isinstance(right, BindParameter) else None


def _name(element: Any) -> str | None:
    for base in getattr(unlabelled(element), "base_columns", ()):
        if isinstance(base, Column) and isinstance(base.table, Table):
            return f"{base.table.key}.{base.name}"
    return None


def statement_of(traffic: Traffic, metadata: MetaData) -> Any:
    """Return a statement of a form.

    :returns: None if the metadata does not have all of its tables.
    """
    tables = [metadata.tables.get(name) for name in traffic.tables]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables) or not known:
        return None
    first = known[0]
    if traffic.kind == "insert":
        return insert(first)
    conditions = list(_conditions(traffic, metadata.tables))
    if traffic.kind == "update":
        other = [c for c in first.columns if not c.primary_key]
        column = next((c for c in other if not c.foreign_keys), None)
        values = {} if column is None else {column.name: None}
        return update(first).where(*conditions).values(values)
    if traffic.kind == "delete":
        return delete(first).where(*conditions)
    return select(*_columns(known)).where(*conditions)


def _columns(tables: Iterable[Table]) -> Iterator[Any]:
    for table in tables:
        yield next(iter(table.primary_key or table.columns))


def _conditions(traffic: Traffic, tables: Mapping[str, Table]) -> Iterator[Any]:
    def find(name: str) -> Any:
        table, _, column = name.rpartition(".")
        return tables[table].columns[column]

    for name in traffic.equal:
        yield find(name) == BindParameter(None, None, unique=True)
    for name in traffic.within:
        column = find(name)
        yield column.in_(BindParameter(None, [], expanding=True, unique=True))
    for left, right in traffic.ties:
        yield find(left) == find(right)
