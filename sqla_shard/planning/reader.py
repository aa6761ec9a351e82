"""The tables of a SELECT, UPDATE or DELETE, and the ids that tie them.

A statement has the meaning that it has on a single large database.  It is
run on several shards, and their rows are combined; that is the same if, and
only if,

* rows that are combined, by a join or a subquery, are on one shard: ids that
  must be equal *tie* their tables, and
* LIMIT, aggregates and the like see all rows, and
* no row is read from two shards.  The rows of a reference table are on every
  shard, so each has to be combined with a row that is not.

Tables that nothing ties together are correct on one shard, if the conditions
on each name that shard alone.  What cannot be shown to be correct is refused.
NULL and NOT are where intuition fails: conditions under NOT, or in the ON of a
LEFT JOIN, do not restrict the rows outside; ``NOT IN (SELECT ...)`` is NULL
where the subquery has a NULL on another shard.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import Table
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.compiler import StrSQLCompiler
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, Tuple
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import (
    Alias,
    CompoundSelect,
    CTE,
    FromClause,
    FromGrouping,
    Join,
    Lateral,
    Select,
    SelectBase,
    Subquery,
    TableClause,
    TableValuedAlias,
    Values,
)

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.planning.clauses import (
    children,
    composed,
    conjuncts,
    counted_select,
    cuts_of,
    inner,
    is_column,
    is_list,
    is_select,
    is_textual,
    may_aggregate,
    nested,
    text_of,
    ungrouped,
    unlabelled,
    walk,
)
from sqla_shard.planning.sources import (
    are_incomparable,
    Block,
    check,
    check_columns,
    Condition,
    Derived,
    Equals,
    form_of,
    Leaf,
    Level,
    tie,
    UnsupportedConstruct,
)
from sqla_shard.planning.specs import kind_of
from sqla_shard.types import IdType, ShardedId
from sqla_shard.util import sqlalchemy_private as private

# SQLAlchemy decides the FROM of a nested SELECT while it compiles a statement:
# the tables that it takes from outside, the joins of relationships, the
# criteria of loader options.  Rather than repeating those rules, the reader
# compiles a statement once per form and records the FROM of each SELECT.


@dataclass(frozen=True)
class Rendered:
    """One SELECT as it is sent.

    :ivar select: the SELECT in its Core form.
    :ivar froms: the elements of its FROM, without tables of outer SELECTs.
    """

    select: Any
    froms: tuple[FromClause, ...]


class Rendering:
    """A whole statement as it is sent.

    :ivar statement: the statement in its Core form.
    :ivar extra_froms: further tables of an UPDATE or DELETE.
    """

    def __init__(self, statement: Any) -> None:
        compiler: Any = _Recorder(_DIALECT, statement)
        state = compiler.compile_state
        self._found: dict[tuple[int, bool], list[Rendered]] = compiler.found
        self.statement: Any = statement if state is None else state.statement
        self.extra_froms: tuple[FromClause, ...] = tuple(private.extra_froms(state))
        # Referenced here because id() of each is a key of the dictionary.
        self._originals = compiler.originals

    def find(self, select: Any, *, in_from: bool) -> Rendered:
        """Return a SELECT as it is rendered.

        :param in_from: whether the SELECT is in FROM.
        :raises UnsupportedStatementError: if it is rendered in several ways,
            or in a way that cannot be read.
        """
        texts = self._found.get((id(select), in_from), [])
        if len({frozenset(map(hash, one.froms)) for one in texts}) != 1:
            raise UnsupportedStatementError(
                "the same subquery object is used in places where it has "
                "different meanings; build one for each",
                construct="subquery",
            )
        return texts[0]


class _Recorder(StrSQLCompiler):
    """Records each SELECT that it renders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.found: dict[tuple[int, bool], list[Rendered]] = {}
        self.originals: list[Any] = []
        self._stack: list[Any] = []
        super().__init__(*args, **kwargs)

    def visit_select(self, select_stmt: Any, *args: Any, **kw: Any) -> Any:
        self._stack.append(select_stmt)
        base: Any = super()
        try:
            return base.visit_select(select_stmt, *args, **kw)
        finally:
            self._stack.pop()

    def _setup_select_stack(
        self,
        select: Any,
        compile_state: Any,
        entry: Any,
        asfrom: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        base: Any = super()
        froms = base._setup_select_stack(
            select, compile_state, entry, asfrom, *args, **kw
        )
        original = self._stack[-1]
        self.originals.append(original)
        self.found.setdefault((id(original), bool(asfrom)), []).append(
            Rendered(select, tuple(froms))
        )
        return froms


_DIALECT: Any = StrCompileDialect()


_SUBQUERY = re.compile(r"\bselect\b", re.IGNORECASE)


class Reader:
    """Reads one statement; see the documentation of the module.

    :param statement: a SELECT, UPDATE or DELETE.
    :param bind_index: position of each parameter by its key.

    :ivar blocks: all SELECTs, at any depth.
    :ivar leaves: every table, at any depth.
    :ivar shown: the SELECTs whose rows a SELECT returns, or counts.
    :ivar top: leaves whose rows the statement returns or changes.
    :ivar assigned: conditions that assignments put on the row's shard.
    :ivar problems: constructs that are refused in any case.
    :ivar single_shard_problems: constructs that need a single shard.
    """

    def __init__(self, statement: Any, bind_index: dict[str, int]) -> None:
        self._bind_index = bind_index
        self._rendering = Rendering(statement)
        self.blocks: list[Block] = []
        self.leaves: list[Leaf] = []
        self.shown: list[Block] = []
        self.top: list[Leaf] = []
        self.assigned: list[Condition] = []
        self.problems: list[UnsupportedConstruct] = []
        self.single_shard_problems: list[str] = []
        self._counts = counted_select(statement) is not None
        self._is_merged = isinstance(statement, Select)
        if isinstance(statement, SelectBase):
            self._top_select(statement)
        else:
            self._dml(self._rendering.statement)

    # -- statements

    def _top_select(self, statement: Any) -> None:
        blocks = self._branches(statement, None, in_from=False)
        # The merge counts the rows of the subquery once it has them.
        self.shown = self.blocks[1:2] if self._counts else blocks
        self.top = [leaf for block in blocks for leaf in block.leaves]
        if isinstance(inner(statement), CompoundSelect):
            self.single_shard_problems.append("UNION")
        # Only the rows of the statement itself can be merged.
        merged = isinstance(statement, Select)
        self.single_shard_problems += [
            cut.name
            for block in blocks
            for cut in block.cuts
            if not (merged and cut.mergeable)
        ]

    def _branches(
        self, select: Any, outer: Block | None, *, in_from: bool
    ) -> list[Block]:
        """Read a SELECT, or each one of a UNION."""
        select = inner(select)
        if isinstance(select, CompoundSelect):
            if outer is not None or in_from:
                self._check_union(select)
            elif "UNION" in select.keyword.value:  # others show rows of the first
                self._check_shown_union(select)
            return [
                block
                for part in select.selects
                for block in self._branches(part, outer, in_from=in_from)
            ]
        if isinstance(select, Select):
            return [self._select(select, outer, in_from=in_from)]
        if getattr(select, "is_dml", False):
            self._refuse(
                "INSERT, UPDATE or DELETE in a CTE",
                "an INSERT, UPDATE or DELETE inside another statement is not "
                "supported, as on MySQL; execute it separately",
            )
        else:
            self._refuse(
                "text()",
                "SQL as text inside a statement cannot be routed; write it "
                'with select(), or pass bind_arguments={"shard_id": n}, and '
                "SCHEMA before the names of tables in the text",
                is_unreadable=True,
            )
        return []

    def _select(self, select: Any, outer: Block | None, *, in_from: bool) -> Block:
        rendered = self._rendering.find(select, in_from=in_from)
        block = Block(outer, Level(), rendered.select)
        self.blocks.append(block)
        ons: list[tuple[Any, Level]] = []
        for source in rendered.froms:
            self._source(source, block, block.level, ons)
        for clause, level in ons:
            self._filter(clause, block, level)
        for clause in private.where_criteria(block.select):
            self._filter(clause, block, block.level)
        for part in _expressions(block.select):
            self._expression(part, block)
        self._check_having(block)
        problem = check_columns(map(unlabelled, private.raw_columns(block.select)))
        if problem is not None:
            self.problems.append(problem)
        block.cuts = tuple(cuts_of(block.select, lambda keys: self.keyed(keys, block)))
        return block

    def _check_having(self, block: Block) -> None:
        """Refuse fields in HAVING, but for those that the merge replaces."""
        criteria = private.having_criteria(block.select)
        if not self._is_merged or len(self.blocks) > 1 + self._counts:
            for part in _fields(criteria, block.sources):
                self._refuse(
                    "HAVING",
                    f"HAVING {part} in a subquery or UNION: servers know "
                    "no field there, even if it is in GROUP BY; use "
                    "func.min(field), which is the same in a group, or "
                    "WHERE",
                )
        inside = [
            one
            for clause in criteria
            for part in visitors.iterate(clause)
            for one in block.inside.get(id(part), ())
        ]
        for one in inside:
            for part in _fields([one.select], {*block.sources} - {*one.sources}):
                self._refuse(
                    "HAVING",
                    f"HAVING with a subquery that names {part} of the enclosing "
                    "statement: servers know no field there, even if it is in "
                    "GROUP BY; compare func.min(field), which is the same in a "
                    "group, with the subquery, or use WHERE",
                )
            inside += chain.from_iterable(one.inside.values())

    def keyed(self, keys: Iterable[Any], block: Block) -> bool:
        """Return whether rows that agree in the keys are on one shard."""
        for key in keys:
            carried = block.carrier(unlabelled(key))
            # Rows of any shard agree in NULL.
            if carried is None or carried.nullable:
                continue
            if all(
                leaf.is_copied or carried.leaf in leaf.reach() for leaf in block.leaves
            ):
                return True
        return False

    def _check_union(self, select: Any) -> None:
        """Refuse a UNION whose column holds local ids of two kinds."""
        for one, two in _united(select):
            if are_incomparable(form_of(one), form_of(two)):
                self._refuse(
                    "UNION",
                    "a UNION puts local ids of two types, or a local id "
                    "and something else, into one column; write "
                    "full_id() in each part",
                )

    def _check_shown_union(self, select: Any) -> None:
        """Refuse a UNION whose rows have other ids than its first SELECT says.

        The servers return whole ids, which are read as ids of that type: those
        of another one would look like local ids that have too many bits.
        Numbers without a type of ids may hold the right ones.
        """
        for one, two in _united(select):
            kind, other = kind_of(one), composed(two)
            other = kind_of(two if other is None else other)
            if (
                isinstance(kind, ShardedId)
                and not kind.layout.is_whole
                and isinstance(other, IdType)
                and other.type_id not in {None, kind.type_id}
            ):
                self._refuse(
                    "UNION",
                    f"a UNION returns {two} as {one}, whose type its first "
                    f"SELECT gives to the column; write full_id({one}) there",
                )

    def _dml(self, statement: Any) -> None:
        block = Block(None, Level(), statement)
        self.blocks.append(block)
        ons: list[tuple[Any, Level]] = []
        for source in (statement.table, *self._rendering.extra_froms):
            self._source(source, block, block.level, ons)
        for clause, level in ons:
            self._filter(clause, block, level)
        for clause in private.where_criteria(statement):
            self._filter(clause, block, block.level)
        for part in private.returning(statement):
            self._expression(part, block)
        for column, value in _assignments(statement):
            self._assignment(column, value, block)
        self.top = block.leaves
        if any(name.endswith("_limit") for name in statement.kwargs):
            self.single_shard_problems.append("LIMIT")

    def _assignment(self, column: Any, value: Any, block: Block) -> None:
        self._expression(value, block)
        kind = kind_of(column)
        # A value without a type gets the type of the column.
        given = isinstance(value, BindParameter) and private.is_null_type(value.type)
        if not given and are_incomparable(form_of(column), form_of(value)):
            self._refuse(
                f"SET {column}",
                f"{column} and {value} hold ids in different forms, or only "
                "one of them holds ids; full_id() returns the whole id",
            )
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

    def _source(
        self, source: Any, block: Block, level: Level, ons: list[tuple[Any, Level]]
    ) -> None:
        """Read one element of FROM; leave its conditions in ``ons``."""
        while isinstance(source, FromGrouping):
            source = source.element
        if not isinstance(source, Join):
            self._table(source, block, level)
            return
        if source.full:
            self._refuse(
                "FULL OUTER JOIN",
                "FULL OUTER JOIN is not supported, as on MySQL; use two statements",
            )
        self._source(source.left, block, level, ons)
        if source.isouter:
            level = Level(level, optional=True)
        self._source(source.right, block, level, ons)
        ons.append((source.onclause, level))

    def _table(self, source: Any, block: Block, level: Level) -> None:
        base = source
        hops = 1
        while (under := _under(base)) is not None:
            base = under
            hops += 1
        if isinstance(base, TableClause):
            leaf = Leaf(base.name, base, level)
            block.sources[source] = leaf
            block.leaves.append(leaf)
            self.leaves.append(leaf)
        elif isinstance(base, (Subquery, CTE, Lateral)):
            self._derived(source, base, hops, block, level)
        elif isinstance(base, (TableValuedAlias, FunctionElement, Values)):
            # A table-valued function: its rows depend on its arguments only.
            for child in base.get_children():
                self._expression(child, block)
        else:
            self._refuse(
                type(base).__name__,
                f"{type(base).__name__} in FROM cannot be routed; pass "
                'bind_arguments={"shard_id": n}',
                is_unreadable=True,
            )

    def _derived(
        self, source: Any, base: Any, hops: int, block: Block, level: Level
    ) -> None:
        """Read a subquery in FROM.

        Its tables count as tables of the SELECT around it, whose conditions
        may tie them, unless something in it depends on rows that those
        conditions would leave out.
        """
        outer = block if isinstance(base, Lateral) else block.outer
        branches = self._branches(base.element, outer, in_from=True)
        union = isinstance(inner(base.element), CompoundSelect)
        for branch in branches:
            branch.level.cut = "UNION" if union else branch.cut
            if branch.level.cut is None:
                branch.level.parent = level
            else:
                branch.level.optional = level.may_be_missing
                if self._counts and block is self.blocks[0]:
                    cuts = [c.name for c in branch.cuts if not c.mergeable]
                else:
                    cuts = [branch.level.cut]
                if not branch.is_copied:
                    self.single_shard_problems += cuts
            block.leaves += branch.leaves
        whole = None if union or not branches else branches[0]
        block.sources[source] = Derived(whole, hops)

    # -- conditions

    def _filter(self, clause: Any, block: Block, level: Level) -> None:
        """Read a condition on the rows of a level."""
        for part in conjuncts(clause):
            if isinstance(part, BinaryExpression) and part.operator is operators.eq:
                one = block.carrier(part.left)
                other = block.carrier(part.right)
                if one and other and one.form == other.form:
                    tie(one.leaf, other.leaf, level)
            block.filters.append((part, level))
            self._expression(part, block, filters=True)

    # -- expressions

    def _expression(self, element: Any, block: Block, *, filters: bool = False) -> None:
        """Find nested SELECTs and wrong uses of ids.

        :param filters: whether the expression filters rows, so that false and
            NULL are the same.
        """
        element = ungrouped(element)
        if is_select(element):
            self._nested(element, block)
            return
        problem = check(element)
        if problem is not None:
            self.problems.append(problem)
            return
        if is_textual(element) and _SUBQUERY.search(text_of(element)):
            self._refuse(
                "text()",
                "a subquery as text cannot be routed; write it with "
                'select(), or pass bind_arguments={"shard_id": n}, and '
                "SCHEMA before the names of tables in the text",
                is_unreadable=True,
            )
        if may_aggregate(element):
            self._check_aggregate(element, block)
        if composed(element) is not None:
            return
        if is_list(element, operators.and_) or is_list(element, operators.or_):
            for part in element.clauses:
                self._expression(part, block, filters=filters)
            return
        if (
            isinstance(element, BinaryExpression)
            and element.operator in (operators.in_op, operators.not_in_op)
            and nested(element.right) is not None
        ):
            self._expression(element.left, block)
            branches = self._nested(element.right, block)
            exact = not filters or element.operator is operators.not_in_op
            self._member(element, branches, block, exact=exact)
            return
        for child in children(element):
            self._expression(child, block)

    def _nested(self, select: Any, block: Block) -> list[Block]:
        """Read a SELECT in an expression, evaluated row by row."""
        branches = self._branches(select, block, in_from=False)
        for branch in branches:
            branch.level.cut = branch.cut
        block.inside[id(inner(select))] = branches
        return branches

    def _member(
        self, clause: Any, branches: list[Block], block: Block, *, exact: bool
    ) -> None:
        """Tie ``id IN (SELECT id ...)``: ids of other shards never match.

        :param exact: whether NULL and false differ: a NULL on either side
            then depends on the rows of all shards.
        """
        left = ungrouped(clause.left)
        items = left.clauses if isinstance(left, Tuple) else [left]
        body = nested(clause.right)
        if isinstance(body, CompoundSelect) and (
            private.limit_clause(body) is not None
            or private.offset_clause(body) is not None
        ):
            return
        for branch in branches:
            shown = list(branch.select.selected_columns)
            for item, column in zip(items, shown, strict=False):
                one = block.carrier(item)
                other = branch.carrier(unlabelled(column))
                if (
                    one is not None
                    and other is not None
                    and one.form == other.form
                    and branch.cut is None
                    and not (exact and (one.nullable or other.nullable))
                ):
                    tie(one.leaf, other.leaf, branch.level)

    def _check_aggregate(self, element: Any, block: Block) -> None:
        """Refuse an aggregate in a subquery of rows outside the subquery."""
        tables = {
            source
            for part in walk(element)
            if is_column(part)
            for source in private.from_objects(part)
        }
        if block.outer is not None and tables and not (tables & set(block.sources)):
            self._refuse(
                f"{getattr(element, 'name', 'a function')}()",
                f"{element} inside a subquery depends on rows of the "
                "enclosing statement; select it in the statement around the "
                "subquery",
            )

    def _refuse(
        self, construct: str, message: str, *, is_unreadable: bool = False
    ) -> None:
        self.problems.append(UnsupportedConstruct(construct, message, is_unreadable))


def _under(source: Any) -> Any:
    """Return the element of an alias; None for any other element."""
    if isinstance(source, CTE):
        return private.cte_alias(source)
    if isinstance(source, Alias) and not isinstance(source, TableValuedAlias):
        return source.element
    return None


def _expressions(select: Any) -> Iterator[Any]:
    """Yield the expressions of a SELECT outside FROM and WHERE."""
    yield from private.raw_columns(select)
    yield from private.having_criteria(select)
    yield from private.order_by_clauses(select)
    yield from private.group_by_clauses(select)


def _united(select: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each column of the first part of a UNION with those of the others."""
    first, *others = [
        list(map(unlabelled, part.selected_columns))
        for part in select.selects
        if hasattr(part, "selected_columns")
    ] or [[]]
    for other in others:
        yield from zip(first, other, strict=False)


def _assignments(statement: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the columns that an UPDATE sets, with their values."""
    for values in (
        private.values(statement),
        dict(private.ordered_values(statement) or ()),
    ):
        for key, value in (values or {}).items():
            if isinstance(key, str) and isinstance(statement.table, Table):
                yield statement.table.c.get(key), value
            else:
                yield key, value


def _fields(clauses: Iterable[Any], sources: Collection[Any]) -> Iterator[BlobValue]:
    """Yield the fields of tables that are outside of aggregates and SELECTs."""
    for clause in clauses:
        for part in _beside_aggregates(clause):
            if isinstance(part, BlobValue) and part.column.table in sources:
                yield part


def _beside_aggregates(element: Any) -> Iterator[Any]:
    """Yield the parts of an expression that are outside of aggregates."""
    yield element
    if not may_aggregate(element):
        for child in children(element):
            if not is_select(child):
                yield from _beside_aggregates(child)
