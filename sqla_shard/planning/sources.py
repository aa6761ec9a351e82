"""The tables of a SELECT, the ids in its expressions, and its WHERE clause.

A table stores the local part of an id in some columns and the whole id in
other columns.  SQL would compare both, or compute with them, without an error;
:func:`check` finds such expressions.

A WHERE clause is read once per form of statement, into a tree of the classes
below, which has the shards that it allows; for each execution the tree is
evaluated with that execution's values.  ``None`` stands for "any shard".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.sql import operators
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
from sqlalchemy.sql.selectable import Exists

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.exc.base import shortened_list
from sqla_shard.planning.clauses import (
    composed,
    Cut,
    inner,
    is_column,
    is_list,
    nested,
    ungrouped,
    unlabelled,
)
from sqla_shard.planning.specs import ANY_VALUE, kind_of, spec_of
from sqla_shard.types import IdType, ShardedId
from sqla_shard.types.object_ids import COMPARISONS
from sqla_shard.types.shard_bound import Slotted
from sqla_shard.util import sqlalchemy_private as private

#: Functions of a local id that mean the same for whole ids.
_ID_FUNCTIONS = frozenset({"count", "max", "min"})

Shards = frozenset[int] | None

#: Returns the value of the parameter at a position of the cache key.
Values = Callable[[int], Any]

#: Maximum number of ids that a reason shows.
_IDS_SHOWN = 3

_NOWHERE: frozenset[int] = frozenset()


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
    given = [argument for argument in arguments if _is_local(form_of(argument))]
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
            are_incomparable(form, own)
            or (isinstance(ungrouped(result), BindParameter) and _is_local(form))
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
        leaves = {self}
        todo = [self]
        while todo:
            for other in todo.pop().ties:
                if other not in leaves:
                    leaves.add(other)
                    todo.append(other)
        return leaves


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
    :ivar cuts: see :func:`.clauses.cuts_of`.
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
            leaf = block.sources.get(source)
            if leaf is not None:
                return leaf
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
        leaf_column = self._origin(column)
        if leaf_column is None:
            return None
        leaf, origin = leaf_column
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


class Condition:
    """A part of a WHERE clause that can name shards."""

    __slots__ = ()

    def shards(self, values: Values) -> Shards:
        """Return the shards that the condition allows; None for any shard.

        :raises InvalidIdError: if a value is not an id.
        :raises WrongTypeError: if it is an id of another type.
        """
        raise NotImplementedError

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the condition that names a shard, with its values, or ""."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Equals(Condition):
    """``column = value``; ``index`` is the index of the parameter."""

    index: int
    kind: IdType
    name: str

    def shards(self, values: Values) -> Shards:
        """Return the shard of the value; empty for NULL."""
        value = values(self.index)
        if value is None:
            return _NOWHERE
        return frozenset((self.kind.shard_of(value, self.name),))

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the comparison."""
        return f"{self.name} = {values(self.index)}"

    def __str__(self) -> str:
        return f"{self.name} = id"


@dataclass(frozen=True, slots=True)
class Within(Condition):
    """``column IN (values)``; in a tuple the id is at position ``item``."""

    index: int
    kind: IdType
    name: str
    item: int | None = None

    def shards(self, values: Values) -> Shards:
        """Return the shards of the values."""
        ids = values(self.index)
        kind, name = self.kind, self.name
        if type(ids) is Slotted:
            slot = ids.slot
            if (slot.type_id, slot.layout) != (kind.type_id, kind.layout):
                # The parameter is also that of a column with other ids.
                slot = kind.slot(slot.ids)
            if slot.other_type_id is not None:
                kind.shard_of(slot.other_type_id, name)
            return slot.shards
        if self.item is not None:
            ids = [value[self.item] for value in ids]
        return frozenset(
            kind.shard_of(value, name) for value in ids if value is not None
        )

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the first ids of the shard."""
        within = values(self.index)
        ids: Any = within.slot.ids if type(within) is Slotted else within
        if self.item is not None:
            ids = [value[self.item] for value in ids]
        here = [
            i
            for i in ids
            if i is not None and self.kind.shard_of(i, self.name) == shard_id
        ]
        return f"{self.name} IN ({shortened_list(here, _IDS_SHOWN)})" if here else ""

    def __str__(self) -> str:
        return f"{self.name} IN (ids)"


@dataclass(frozen=True, slots=True)
class AllOf(Condition):
    """Conditions joined by AND."""

    parts: Sequence[Condition]

    def shards(self, values: Values) -> Shards:
        """Return the shards that every part allows."""
        common: Shards = None
        for part in self.parts:
            shards = part.shards(values)
            if shards is not None:
                common = shards if common is None else common & shards
        return common

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the reasons of all parts."""
        reasons = (part.reason(values, shard_id) for part in self.parts)
        return " AND ".join(filter(None, reasons))

    def __str__(self) -> str:
        return " AND ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class AnyOf(Condition):
    """Conditions joined by OR; each of them names shards."""

    parts: Sequence[Condition]

    def shards(self, values: Values) -> Shards:
        """Return the shards that any part allows."""
        union = _NOWHERE
        for part in self.parts:
            shards = part.shards(values)
            if shards is None:
                return None
            union |= shards
        return union

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the reasons of the parts that name the shard."""
        reasons = (
            part.reason(values, shard_id)
            for part in self.parts
            if (shards := part.shards(values)) is None or shard_id in shards
        )
        return " OR ".join(filter(None, reasons))

    def __str__(self) -> str:
        return "(" + " OR ".join(map(str, self.parts)) + ")"


class ConditionReader:
    """Reads the conditions of a statement that name shards.

    :param blocks: SELECTs of the statement.
    :param bind_index: position of each parameter by its key.
    """

    def __init__(self, blocks: Iterable[Block], bind_index: Mapping[str, int]) -> None:
        self._blocks = blocks
        self._bind_index = bind_index

    def read(self, members: Iterable[Leaf]) -> Condition | None:
        """Return the condition on the shards of tied leaves."""
        parts = []
        for block in self._blocks:
            for clause, level in block.filters:
                there = {leaf for leaf in members if level.covers(leaf.level)}
                condition = self._read(clause, block, there) if there else None
                if condition is not None:
                    parts.append(condition)
        return _all_of(parts)

    def _read(self, clause: Any, block: Block, members: set[Leaf]) -> Condition | None:
        """Return the condition that a clause puts on the given leaves."""
        clause = ungrouped(clause)
        if is_list(clause, operators.and_) or is_list(clause, operators.or_):
            parts = [self._read(c, block, members) for c in clause.clauses]
            known = [part for part in parts if part is not None]
            if clause.operator is operators.and_:
                return _all_of(known)
            return AnyOf(known) if len(known) == len(parts) else None
        if isinstance(clause, Exists):
            return self._subquery(clause.element, block, members)
        if not isinstance(clause, BinaryExpression):
            return None
        if clause.operator is operators.in_op and nested(clause.right) is not None:
            return self._subquery(clause.right, block, members)
        return self._compared(clause, block, members)

    def _subquery(
        self, select: Any, block: Block, members: set[Leaf]
    ) -> Condition | None:
        """Return the condition that a subquery puts on rows outside it."""
        conditions = []
        for branch in block.inside.get(id(inner(select)), ()):
            tied = {
                leaf for leaf in branch.leaves if not members.isdisjoint(leaf.reach())
            }
            parts = [
                condition
                for clause, level in branch.filters
                if level is branch.level
                and (condition := self._read(clause, branch, tied)) is not None
            ]
            # A count has a row even if there is nothing to count.
            if not parts or branch.cut is not None:
                return None
            conditions.append(AllOf(parts))
        return AnyOf(conditions) if conditions else None

    def _compared(
        self, clause: Any, block: Block, members: set[Leaf]
    ) -> Condition | None:
        left, right = ungrouped(clause.left), ungrouped(clause.right)
        equals = clause.operator is operators.eq
        if equals and isinstance(left, BindParameter):
            left, right = right, left
        if not isinstance(right, BindParameter):
            return None
        index = self._bind_index.get(right.key)
        if index is None or not (equals or clause.operator is operators.in_op):
            return None
        if not isinstance(left, Tuple):
            items = [left]
        elif equals:
            return None
        else:
            items = list(left.clauses)
        for at, element in enumerate(items):
            carried = block.carrier(element)
            if carried is not None and carried.leaf in members:
                name, kind = str(element), carried.kind
                if equals:
                    return Equals(index, kind, name)
                position = at if isinstance(left, Tuple) else None
                return Within(index, kind, name, position)
        return None


def _all_of(parts: list[Condition]) -> Condition | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else AllOf(parts)
