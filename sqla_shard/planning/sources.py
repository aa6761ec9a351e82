"""The tables of a SELECT, and the ids in its expressions.

A table stores the local part of an id in some columns and the whole id in
other columns.  SQL would compare both, or compute with them, without an error;
:func:`check` finds such expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    Case,
    Cast,
    ClauseList,
    CollectionAggregate,
    ExpressionClauseList,
    Null,
    Tuple,
    TypeCoerce,
)
from sqlalchemy.sql.functions import FunctionElement, next_value

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.planning.aggregates import Cut
from sqla_shard.planning.clauses import (
    composed,
    is_column,
    nested,
    ungrouped,
    unlabelled,
)
from sqla_shard.planning.specs import ANY_VALUE, kind_of, spec_of
from sqla_shard.types import IdType, ShardedId
from sqla_shard.types.object_ids import COMPARISONS
from sqla_shard.util import sqlalchemy_private as private

#: Functions of a local id that mean the same for whole ids.
_ID_FUNCTIONS = frozenset({"count", "max", "min"})


@dataclass(frozen=True, slots=True)
class UnsupportedConstruct:
    """A construct whose answer would be wrong, and what to write instead.

    :ivar is_unreadable: whether it only prevents the router from finding the
        shard; allowed if the caller names the shard.
    """

    construct: str
    message: str
    is_unreadable: bool = False


def form_of(element: Any) -> str | None:
    """Return the form of an id in an expression; None for NULL."""
    element = ungrouped(element)
    if composed(element) is not None:
        return "whole"
    if isinstance(element, Null):
        return None
    kind = kind_of(element)
    if kind is ANY_VALUE:
        return None
    if isinstance(kind, ShardedId):
        return f"local {kind.type_id}"
    return "whole" if isinstance(kind, IdType) else "other"


def are_incomparable(one: str | None, other: str | None) -> bool:
    """Return whether two forms cannot be compared."""
    if one is None or other is None or one == other:
        return False
    return _is_local(one) or _is_local(other)


def check(element: Any) -> UnsupportedConstruct | None:
    """Return the problem of one node of an expression, or None.

    :raises UnsupportedStatementError: for a Sequence, which has none of the
        attributes of functions that are read next.
    """
    if isinstance(element, BinaryExpression):
        return _comparison(element)
    if isinstance(element, FunctionElement):
        return _function(element)
    if isinstance(element, (Cast, TypeCoerce)):
        if _is_local(form_of(element.clause)):
            return _alone(type(element).__name__.lower(), element.clause)
    elif isinstance(element, Case):
        return _case(element)
    return None


def check_columns(columns: Iterator[Any]) -> UnsupportedConstruct | None:
    """Return the problem of the columns of a SELECT, or None."""
    for column in columns:
        if isinstance(column, BindParameter) and _is_local(form_of(column)):
            return UnsupportedConstruct(
                str(column),
                "an id given as a value cannot be shown as a column of type "
                f"{column.type!r}: on other shards it has no local id; select "
                "literal(value, BigInteger())",
            )
    return None


def _comparison(clause: BinaryExpression[Any]) -> UnsupportedConstruct | None:
    if composed(clause) is not None:
        return None
    for left, right in _pairs(clause):
        one, other = form_of(left), form_of(right)
        if are_incomparable(one, other):
            return _comparison_problem(left, right, one, other)
        if clause.operator not in COMPARISONS and (_is_local(one) or _is_local(other)):
            name = getattr(clause.operator, "__name__", "operator")
            return _alone(name, left if _is_local(one) else right)
    return None


def _pairs(clause: BinaryExpression[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of expressions that are compared."""
    lefts = _parts(clause.left)
    right = ungrouped(clause.right)
    if isinstance(right, CollectionAggregate):
        right = ungrouped(right.element)
    if isinstance(right, BindParameter) and len(lefts) > 1:
        types = getattr(right.type, "types", ())
        for left, kind in zip(lefts, types, strict=False):
            yield left, BindParameter(None, type_=kind)
        return
    if isinstance(right, ExpressionClauseList) and len(lefts) == 1:
        # BETWEEN a AND b
        for bound in right.clauses:
            yield lefts[0], bound
        return
    rights = _parts(right)
    if len(rights) != len(lefts):
        yield clause.left, clause.right
        return
    yield from zip(lefts, rights, strict=True)


def _parts(element: Any) -> list[Any]:
    element = ungrouped(element)
    if isinstance(element, (Tuple, ClauseList)):
        return list(element.clauses)
    select = nested(element)
    if select is not None and hasattr(select, "selected_columns"):
        return list(select.selected_columns)
    return [element]


def _function(element: Any) -> UnsupportedConstruct | None:
    if isinstance(element, next_value):
        raise UnsupportedStatementError(
            "a Sequence cannot be routed: each shard would have its own; "
            "leave it out: an id is issued when its object is flushed",
            construct="Sequence",
        )
    name = str(getattr(element, "name", "a function"))
    arguments = list(element.clauses)
    given = [one for one in arguments if _is_local(form_of(one))]
    # max(a, b) of SQLite compares, and may get two kinds of id.
    if not given or (len(arguments) == 1 and name.lower() in _ID_FUNCTIONS):
        return None
    return _alone(name, given[0])


def _case(element: Case[Any]) -> UnsupportedConstruct | None:
    results = [result for _, result in element.whens]
    if element.else_ is not None:
        results.append(element.else_)
    own = form_of(element)
    for result in results:
        form = form_of(result)
        if form is not None and (
            are_incomparable(form, own) or _is_local_id_parameter(result, form)
        ):
            return UnsupportedConstruct(
                "case()",
                f"case() returns {result} and other values; write full_id() "
                "for each that is an id",
            )
    if element.value is not None:
        for when, _ in element.whens:
            if are_incomparable(form_of(element.value), form_of(when)):
                return _comparison_problem(
                    element.value, when, form_of(element.value), form_of(when)
                )
    return None


def _is_local_id_parameter(element: Any, form: str) -> bool:
    return isinstance(ungrouped(element), BindParameter) and _is_local(form)


def _is_local(form: str | None) -> bool:
    return form is not None and form.startswith("local")


def _comparison_problem(
    left: Any, right: Any, one: str | None, other: str | None
) -> UnsupportedConstruct:
    if not _is_local(one):
        left, right, one, other = right, left, other, one
    if _is_local(other):
        how = "their ids are of two types"
    elif isinstance(right, BindParameter):
        # As tuple_(a, id) > tuple_(1, 2), whose values have no type yet.
        how = (
            "the value is not given as an id. Compare with the values "
            "themselves, as in tuple_(Class.n, Class.id) > (n, id)"
        )
    else:
        how = (
            f"write full_id({left}) to compare whole ids of one shard; "
            "objects on other shards are loaded by selectinload(), by "
            "session.get_many(), or with the rows of a mapping class, by "
            "page(session, source_id, targets=True)"
        )
    return UnsupportedConstruct(
        f"{left} and {right}",
        f"{left} holds local ids and cannot be compared with {right}: {how}",
    )


def _alone(name: str, column: Any) -> UnsupportedConstruct:
    return UnsupportedConstruct(
        f"{name}()",
        f"{name}({column}) would see the local id alone; use full_id({column})",
    )


# A SELECT combines rows of its tables.  Each table of each SELECT is a
# :class:`Leaf`; an equality of ids *ties* two leaves, since rows with equal
# ids are on the same shard.  But an equality says so only where it holds: one
# in the ON of a LEFT JOIN holds for the rows that were found on its right
# side, one inside a subquery for the rows that the subquery has seen.  That is
# what a :class:`Level` is for, and why a tie may lead from one leaf to another
# and not back.


@dataclass(eq=False)
class Level:
    """Rows of a SELECT that exist, or are missing, together.

    A SELECT has one; so has the right side of each of its outer joins, and
    each subquery in its FROM.

    :ivar parent: the enclosing level, whose conditions hold for these rows
        as well; None for the outermost level, for a subquery in an
        expression, and for one in FROM that is :attr:`cut`.
    :ivar optional: whether the level is the right side of an outer join.
    :ivar cut: a clause of a subquery, such as LIMIT, that depends on more
        rows than the conditions outside leave.
    """

    parent: Level | None = None
    optional: bool = False
    cut: str | None = None

    def covers(self, other: Level) -> bool:
        """Return whether a condition of this level holds in another one."""
        level: Level | None = other
        while level is not None:
            if level is self:
                return True
            level = level.parent
        return False

    @property
    def may_be_missing(self) -> bool:
        """Whether the SELECT may have rows without a row of this level."""
        level: Level | None = self
        while level is not None:
            if level.optional:
                return True
            level = level.parent
        return False


@dataclass(eq=False)
class Leaf:
    """The rows of one table in one SELECT.

    :ivar ties: leaves whose row is on the same shard wherever this one has
        a row.
    """

    name: str
    table: Any
    level: Level
    ties: list[Leaf] = field(default_factory=list)

    @property
    def is_copied(self) -> bool:
        """Whether every shard has all rows of the table."""
        return spec_of(self.table).reference is not None

    def reach(self) -> set[Leaf]:
        """Return this leaf and all leaves that are tied to it."""
        found = {self}
        todo = [self]
        while todo:
            for other in todo.pop().ties:
                if other not in found:
                    found.add(other)
                    todo.append(other)
        return found


def tie(one: Leaf, other: Leaf, level: Level) -> None:
    """Tie two leaves by an equality of ids that holds at a level."""
    if level.covers(one.level):
        one.ties.append(other)
    if level.covers(other.level):
        other.ties.append(one)


def groups_of(leaves: Iterable[Leaf]) -> list[list[Leaf]]:
    """Return the sets of leaves that no other leaf determines.

    Every other leaf is tied to one of these, directly or not, so that it is on
    the right shard if they are.
    """
    reach = {leaf: leaf.reach() for leaf in leaves}
    groups: list[list[Leaf]] = []
    seen: set[Leaf] = set()
    for leaf, reached in reach.items():
        if leaf in seen or any(leaf not in reach[m] for m in reached):
            continue
        seen |= reached
        groups.append([m for m in reach if m in reached])
    return groups


@dataclass(eq=False)
class Derived:
    """A subquery in FROM.

    :ivar block: the SELECT of its columns; None for a UNION, whose columns
        are from several tables.
    :ivar hops: number of aliases around the subquery.
    """

    block: Block | None
    hops: int


@dataclass(frozen=True)
class Carrier:
    """A column whose value determines the shard of its row.

    :ivar form: whether the column holds the local id or the whole one.
    :ivar nullable: whether the column may be NULL in a row of the SELECT.
    """

    leaf: Leaf
    kind: IdType
    form: str | None
    nullable: bool


@dataclass(eq=False)
class Block:
    """One SELECT, or the body of an UPDATE or DELETE.

    :ivar outer: the enclosing SELECT, whose columns it may name; None if
        there is none.
    :ivar select: the statement in its Core form.
    :ivar sources: the elements of FROM.
    :ivar leaves: the tables, including those of subqueries in FROM.
    :ivar filters: conditions, and the level of the rows that they filter.
    :ivar inside: the blocks of nested SELECTs, by ``id()`` of the element.
    :ivar cuts: see :func:`.aggregates.cuts_of`.
    """

    outer: Block | None
    level: Level
    select: Any
    sources: dict[Any, Leaf | Derived] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    filters: list[tuple[Any, Level]] = field(default_factory=list)
    inside: dict[int, list[Block]] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()

    @property
    def cut(self) -> str | None:
        """Name of the first clause that needs rows of several shards."""
        return self.cuts[0].name if self.cuts else None

    @property
    def is_copied(self) -> bool:
        """Whether every shard has all rows that the block reads."""
        return bool(self.leaves) and all(leaf.is_copied for leaf in self.leaves)

    def _find(self, source: Any) -> Leaf | Derived | None:
        block: Block | None = self
        while block is not None:
            found = block.sources.get(source)
            if found is not None:
                return found
            block = block.outer
        return None

    def carrier(self, element: Any) -> Carrier | None:
        """Return the column that determines the shard of its row, or None."""
        element = ungrouped(element)
        whole = composed(element)
        column = element if whole is None else ungrouped(whole)
        kind = kind_of(column)
        if not isinstance(kind, IdType) or not kind.routes or not is_column(column):
            return None
        found = self._origin(column)
        if found is None:
            return None
        leaf, origin = found
        missing = getattr(origin, "nullable", True)
        return Carrier(
            leaf, kind, form_of(element), missing or leaf.level.may_be_missing
        )

    def _origin(self, column: Any) -> tuple[Leaf, Any] | None:
        """Return the leaf of a column, and the column of its table."""
        base = column.column if isinstance(column, BlobValue) else column
        sources = private.from_objects(base)
        source = self._find(sources[0]) if len(sources) == 1 else None
        if isinstance(source, Leaf):
            return source, column
        if source is None or source.block is None:
            return None
        for _ in range(source.hops):
            if len(private.proxies(base)) != 1:
                return None
            (base,) = private.proxies(base)
        base = unlabelled(base)
        return source.block._origin(base) if is_column(base) else None
