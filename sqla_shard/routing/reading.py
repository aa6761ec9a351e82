"""Reading one SELECT, UPDATE or DELETE: its tables and what ties them.

A statement is treated as one over a single large database.  It may run on
one shard only if every row that could take part is on that shard, which is
what :class:`Reader` finds out:

* tables whose ids are compared for equality are *tied*: their rows are on
  the same shard;
* a condition on an id says which shard a table's rows are on, and with it
  all tables tied to it;
* a subquery is tied to the row it is evaluated for, through correlation or
  ``id IN (SELECT id ...)``; one that counts or cuts off is right only
  through correlation.

A table that is tied to nothing and has no condition would have to be read on
every shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import BooleanClauseList
from sqlalchemy.sql.elements import Cast
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.elements import ExpressionClauseList
from sqlalchemy.sql.elements import Tuple
from sqlalchemy.sql.elements import TypeCoerce
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Alias
from sqlalchemy.sql.selectable import AliasedReturnsRows
from sqlalchemy.sql.selectable import CompoundSelect
from sqlalchemy.sql.selectable import Join
from sqlalchemy.sql.selectable import ScalarSelect
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.selectable import SelectBase
from sqlalchemy.sql.selectable import TableClause

from sqla_shard.routing.clauses import children
from sqla_shard.routing.clauses import composed
from sqla_shard.routing.clauses import conjuncts
from sqla_shard.routing.clauses import cuts
from sqla_shard.routing.clauses import direct_ids
from sqla_shard.routing.clauses import expressions
from sqla_shard.routing.clauses import form
from sqla_shard.routing.clauses import inner
from sqla_shard.routing.clauses import is_column
from sqla_shard.routing.clauses import is_sharded
from sqla_shard.routing.clauses import nested_in
from sqla_shard.routing.clauses import resolved
from sqla_shard.routing.clauses import ungrouped
from sqla_shard.routing.clauses import unlabelled
from sqla_shard.routing.conditions import AllOf
from sqla_shard.routing.conditions import AnyOf
from sqla_shard.routing.conditions import Condition
from sqla_shard.routing.conditions import Equals
from sqla_shard.routing.conditions import Within
from sqla_shard.types import IdType

__all__ = ["Known", "Leaf", "Problem", "Reader"]

#: Functions of a local id that mean the same for whole ids.
_ID_FUNCTIONS = frozenset({"count", "max", "min"})


@dataclass(frozen=True, slots=True)
class Problem:
    """A construct whose answer would be wrong, and what to write instead."""

    construct: str
    message: str


@dataclass(eq=False)
class Leaf:
    """A table, or a subquery in FROM, of one SELECT.

    :ivar table: the table; None for a subquery, whose rows are those of
        the leaves inside.
    :ivar filters: whether leaving out its rows leaves out rows of the
        whole statement: not so inside NOT EXISTS or an outer join.
    :ivar cut: what cuts its rows off before they are compared with the
        row of the outer SELECT, such as LIMIT.
    """

    name: str
    table: Any
    filters: bool
    parent: Leaf | None = None
    cut: str | None = None

    def root(self) -> Leaf:
        """Return the leaf that stands for all that are tied to this."""
        leaf = self
        while leaf.parent is not None:
            leaf = leaf.parent
        return leaf


@dataclass(frozen=True, slots=True)
class Known:
    """What a condition says of the shard of a leaf."""

    leaf: Leaf
    condition: Condition


@dataclass(eq=False)
class _Scope:
    """The FROM of one SELECT and, for columns of outer ones, its parent."""

    outer: _Scope | None
    leaves: dict[Any, Leaf] = field(default_factory=dict)
    conditioned: bool = False

    def find(self, source: Any) -> Leaf | None:
        scope: _Scope | None = self
        while scope is not None:
            leaf = scope.leaves.get(source)
            if leaf is not None:
                return leaf
            scope = scope.outer
        return None


class Reader:
    """Collects what one statement says; see the module.

    :param bind_index: position of each parameter by its key.

    :ivar leaves: every table and subquery in FROM, at any depth.
    :ivar known: what the conditions say.
    :ivar assigned: conditions that assignments put on the row's shard.
    :ivar problems: what is refused on any number of shards.
    :ivar single: what is right on one shard only.
    """

    def __init__(self, bind_index: dict[str, int]) -> None:
        self._bind_index = bind_index
        self._filters = True
        self.leaves: list[Leaf] = []
        self.known: list[Known] = []
        self.assigned: list[Condition] = []
        self.problems: list[Problem] = []
        self.single: list[str] = []

    # -- statements

    def read(self, statement: Any) -> None:
        """Read a whole statement."""
        if isinstance(statement, SelectBase):
            self._branches(statement, None)
        else:
            self._dml(statement)

    def _branches(self, select: Any, outer: _Scope | None) -> list[_Scope]:
        """Read a SELECT, or each one of a UNION; return their scopes."""
        select = inner(select)
        if isinstance(select, CompoundSelect):
            return [
                scope
                for part in select.selects
                for scope in self._branches(part, outer)
            ]
        if isinstance(select, Select):
            return [self._select(resolved(select), outer)]
        return []

    def _select(self, select: Select[Any], outer: _Scope | None) -> _Scope:
        scope = _Scope(outer)
        wheres: list[Any] = list(select._where_criteria)
        sources = list(select.get_final_froms())
        for source in _displayed(select, sources, outer):
            self._source(source, scope, wheres)
        for clause in wheres:
            self._conjunct(clause, scope)
        for part in expressions(select):
            self._expression(part, scope)
        return scope

    def _dml(self, statement: Any) -> None:
        scope = _Scope(None)
        self._table(statement.table, scope)
        for clause in getattr(statement, "_where_criteria", ()):
            self._conjunct(clause, scope)
        values = getattr(statement, "_values", None) or {}
        for column, value in values.items():
            self._assignment(column, value, scope)

    def _assignment(self, column: Any, value: Any, scope: _Scope) -> None:
        if isinstance(value, ColumnElement):
            self._expression(value, scope)
        kind = getattr(column, "type", None)
        if not isinstance(kind, IdType) or not kind.routes:
            return
        if isinstance(value, BindParameter) and value.key in self._bind_index:
            index = self._bind_index[value.key]
            self.assigned.append(Equals(index, kind, str(column)))
        else:
            self._refuse(
                f"SET {column}",
                f"{column} names the row's shard, so it can be set to the "
                "id of an object of that shard only",
            )

    # -- FROM

    def _source(self, source: Any, scope: _Scope, wheres: list[Any]) -> None:
        if not isinstance(source, Join):
            self._table(source, scope)
            return
        outer_join = source.isouter or source.full
        self._source(source.left, scope, wheres)
        filters, self._filters = self._filters, not outer_join
        self._source(source.right, scope, wheres)
        self._filters = filters
        if outer_join:
            # The rows of the left side are there whatever ON says.
            for clause in conjuncts(source.onclause):
                self._equality(clause, scope)
            self._expression(source.onclause, scope)
        else:
            wheres.extend(conjuncts(source.onclause))

    def _table(self, source: Any, scope: _Scope) -> Leaf | None:
        base = source
        while isinstance(base, Alias):
            base = base.element
        if isinstance(base, Join):
            self._source(base, scope, [])
            return None
        table = base if isinstance(base, TableClause) else None
        leaf = Leaf(getattr(base, "name", "subquery"), table, self._filters)
        scope.leaves[source] = leaf
        self.leaves.append(leaf)
        if isinstance(base, AliasedReturnsRows):
            self._derived(base.element, leaf, scope)
        return leaf

    def _derived(self, element: Any, leaf: Leaf, scope: _Scope) -> None:
        """Tie a subquery in FROM to the tables whose ids it shows."""
        select = inner(element)
        if not isinstance(select, SelectBase):
            return
        cut = cuts(select) if isinstance(select, Select) else None
        for branch in self._branches(select, None):
            if cut and branch.conditioned:
                self.single.append(cut)
            elif cut:
                leaf.cut = cut
            # The branches of a UNION are on shards of their own.
            if isinstance(select, Select):
                self._export(select, branch, leaf)

    def _export(self, select: Any, branch: _Scope, leaf: Leaf) -> None:
        for column in resolved(select).selected_columns:
            carried = self._carrier(unlabelled(column), branch)
            if carried is not None:
                self._tie(leaf, carried[0])

    # -- WHERE

    def _conjunct(self, clause: Any, scope: _Scope) -> None:
        for part in conjuncts(clause):
            self._equality(part, scope)
            found = self._condition(part, scope)
            if found is not None:
                self.known.append(found)
                scope.conditioned = True
            self._expression(part, scope)

    def _equality(self, clause: Any, scope: _Scope) -> None:
        if (
            isinstance(clause, BinaryExpression)
            and clause.operator is operators.eq
        ):
            left = self._carrier(clause.left, scope)
            right = self._carrier(clause.right, scope)
            if left and right and left[2] == right[2]:
                self._tie(left[0], right[0])

    def _condition(self, clause: Any, scope: _Scope) -> Known | None:
        clause = ungrouped(clause)
        if isinstance(clause, BinaryExpression):
            return self._comparison(clause, scope)
        if isinstance(clause, (BooleanClauseList, ExpressionClauseList)):
            parts = [self._condition(part, scope) for part in clause.clauses]
            known = [part for part in parts if part is not None]
            if len({part.leaf.root() for part in known}) != 1:
                return None
            conditions = [part.condition for part in known]
            if clause.operator is operators.and_:
                return Known(known[0].leaf, AllOf(conditions))
            if clause.operator is operators.or_ and len(known) == len(parts):
                return Known(known[0].leaf, AnyOf(conditions))
        return None

    def _comparison(self, clause: Any, scope: _Scope) -> Known | None:
        left, right = clause.left, ungrouped(clause.right)
        equals = clause.operator is operators.eq
        if equals and isinstance(left, BindParameter):
            left, right = right, left
        if not isinstance(right, BindParameter):
            return None
        index = self._bind_index.get(right.key)
        if index is None or not (equals or clause.operator is operators.in_op):
            return None
        items = left.clauses if isinstance(left, Tuple) else (left,)
        for item, element in enumerate(items):
            carried = self._carrier(element, scope)
            if carried is not None:
                leaf, kind, _ = carried
                if equals:
                    return Known(leaf, Equals(index, kind, str(element)))
                position = item if isinstance(left, Tuple) else None
                return Known(leaf, Within(index, kind, str(element), position))
        return None

    def _carrier(
        self, element: Any, scope: _Scope
    ) -> tuple[Leaf, IdType, str] | None:
        """Return the leaf whose shard an expression names, and its form."""
        whole = composed(element)
        column = element if whole is None else whole
        kind = getattr(column, "type", None)
        if (
            not isinstance(kind, IdType)
            or not kind.routes
            or not is_column(column)
        ):
            return None
        sources = column._from_objects
        if len(sources) != 1:
            return None
        leaf = scope.find(sources[0]) or self._table(sources[0], scope)
        if leaf is None:
            return None
        return leaf, kind, form(kind) if whole is None else "whole"

    # -- any expression

    def _expression(self, element: Any, scope: _Scope) -> None:
        """Find nested SELECTs, and uses of an id that would go wrong."""
        if isinstance(element, (SelectBase, ScalarSelect)):
            self._nested(element, None, scope)
            return
        if isinstance(element, BinaryExpression):
            self._mixed(element)
            select = nested_in(element)
            if select is not None:
                self._nested(select, element, scope)
                self._expression(element.left, scope)
                return
        elif isinstance(element, (FunctionElement, Cast)):
            self._function(element)
        elif isinstance(element, TypeCoerce) and is_sharded(element.clause):
            self._refuse(
                "type_coerce()",
                f"type_coerce({element.clause}) would show the local id "
                "alone; use full_id()",
            )
        if composed(element) is None:
            for child in children(element):
                self._expression(child, scope)

    def _nested(self, select: Any, clause: Any, scope: _Scope) -> None:
        """Read a SELECT inside an expression, evaluated row by row."""
        filters, self._filters = self._filters, False
        branches = self._branches(select, scope)
        self._filters = filters
        body = inner(select)
        cut = cuts(body) if isinstance(body, Select) else None
        around = {leaf.root() for leaf in _leaves_of(scope)}
        for branch in branches:
            correlated = any(
                leaf.root() in around for leaf in branch.leaves.values()
            )
            if cut and not correlated:
                if branch.conditioned:
                    self.single.append(cut)
                for leaf in branch.leaves.values():
                    leaf.cut = None if branch.conditioned else cut
            if clause is not None:
                self._member(clause, select, branch, scope)

    def _member(
        self, clause: Any, select: Any, branch: _Scope, scope: _Scope
    ) -> None:
        """Tie ``id IN (SELECT id ...)``: ids of other shards never match."""
        carried = self._carrier(clause.left, scope)
        body = inner(select)
        if carried is None or not isinstance(body, Select):
            return
        for column in resolved(body).selected_columns:
            shown = self._carrier(unlabelled(column), branch)
            if shown is not None and shown[2] == carried[2]:
                self._tie(carried[0], shown[0])

    def _mixed(self, clause: Any) -> None:
        """Refuse to compare a local id with anything but its like."""
        left, right = ungrouped(clause.left), ungrouped(clause.right)
        if is_sharded(right) and not is_sharded(left):
            left, right = right, left
        if not is_sharded(left) or isinstance(right, BindParameter):
            return
        kind = getattr(right, "type", None)
        if kind is None or kind._isnull or form(left.type) == form(kind):
            return
        how = (
            f"their types are {left.type.type_id} and {kind.type_id}"
            if is_sharded(right)
            else f"write full_id({left}) to compare whole ids"
        )
        self._refuse(
            f"{left} and {right}",
            f"{left} holds local ids and cannot be compared with {right}: "
            f"{how}",
        )

    def _function(self, element: Any) -> None:
        name = getattr(element, "name", "cast")
        if name.lower() not in _ID_FUNCTIONS:
            for column in direct_ids(element):
                self._refuse(
                    f"{name}()",
                    f"{name}({column}) would see the local id alone; use "
                    f"full_id({column})",
                )

    def _refuse(self, construct: str, message: str) -> None:
        self.problems.append(Problem(construct, message))

    def _tie(self, one: Leaf, other: Leaf) -> None:
        one, other = one.root(), other.root()
        if one is not other:
            other.parent = one


def _displayed(
    select: Any, sources: list[Any], outer: _Scope | None
) -> list[Any]:
    """Leave out the tables that a nested SELECT takes from outside."""
    if outer is None:
        return sources
    if select._correlate:
        chosen = set(select._correlate)
        return [s for s in sources if s not in chosen or not outer.find(s)]
    if select._correlate_except is not None:
        kept = set(select._correlate_except)
        return [s for s in sources if s in kept or not outer.find(s)]
    if select._auto_correlate and len(sources) > 1:
        return [s for s in sources if not outer.find(s)] or sources
    return sources


def _leaves_of(scope: _Scope | None) -> Iterator[Leaf]:
    while scope is not None:
        yield from scope.leaves.values()
        scope = scope.outer
