"""What a form of statement says, whatever its values.

A statement is read once per form and remembered under SQLAlchemy's own cache
key; after that a decision costs about as much as looking at the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.selectable import TableClause
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.util import LRUCache

from sqla_shard.exc import NoShardKeyError
from sqla_shard.routing.conditions import AllOf
from sqla_shard.routing.conditions import AnyOf
from sqla_shard.routing.conditions import Condition
from sqla_shard.routing.conditions import Within
from sqla_shard.routing.counting import constant
from sqla_shard.routing.counting import shows_if
from sqla_shard.routing.counting import sought
from sqla_shard.routing.cutting import counted_distinct
from sqla_shard.routing.forms import Problem
from sqla_shard.routing.reading import Reader
from sqla_shard.routing.rows import groups_of
from sqla_shard.routing.rows import Leaf
from sqla_shard.routing.specs import spec_of
from sqla_shard.routing.telling import Teller
from sqla_shard.types import IdType

__all__ = ["ALONE", "Group", "Shape", "Spread", "shape_of"]

#: What is on every shard, and would be shown by each of them.
ALONE = "rows of a reference table without one of the shard"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Which rows of a SELECT are on one shard together for certain.

    :ivar grouped_on_shard: those of each group of its GROUP BY.
    :ivar distinct_on_shard: those that DISTINCT makes one.
    :ivar counted_on_shard: for each ``count(distinct(x))``, from left to
        right, those that are equal in ``x``.
    """

    grouped_on_shard: bool = False
    distinct_on_shard: bool = False
    counted_on_shard: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tables that are tied to one another, and what is known of them.

    :ivar cut: what keeps conditions outside of a subquery from it.
    """

    names: tuple[str, ...]
    condition: Condition | None
    cut: str | None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a form of statement says, whatever its values.

    :ivar tables: all of them, at any depth.
    :ivar groups: those that tell the shards; none where each shard has all
        rows of all tables.
    :ivar problems: what is refused on any number of shards.
    :ivar single: what is right on one shard only.
    :ivar assigned: what an UPDATE sets the row's shard to.
    :ivar settable: the same, for values given when it is executed.
    :ivar lists: lists of ids that may be given when it is executed.
    :ivar spread: what a merge has to know.
    :ivar constant: whether it shows constants, which every server knows.
    """

    tables: tuple[Any, ...] = ()
    groups: tuple[Group, ...] = ()
    problems: tuple[Problem, ...] = ()
    single: tuple[str, ...] = ()
    assigned: tuple[Condition, ...] = ()
    settable: tuple[tuple[str, IdType], ...] = ()
    lists: tuple[Within, ...] = ()
    spread: Spread = Spread()
    constant: bool = False


_shapes: LRUCache[Any, Shape] = LRUCache(1000)


def shape_of(statement: Any) -> tuple[Any, Shape]:
    """Return the parameters of a statement, and what its form says.

    :raises NoShardKeyError: for an INSERT inside of it.
    """
    shown: tuple[Any, ...] = ()
    if isinstance(statement, FromStatement):
        shown = tuple(statement._raw_columns)
        statement = statement.element
    if isinstance(statement, TextualSelect):
        statement = statement.element
    if isinstance(statement, TextClause):
        if not shown and constant(statement) is not None:
            return (), Shape(constant=True)
        return (), _textual(shown)
    key = statement._generate_cache_key()
    if key is None:
        binds = _binds_of(statement)
        return binds, _read(statement, binds)
    shape = _shapes.get(key.key)
    if shape is None:
        shape = _shapes[key.key] = _read(statement, key.bindparams)
    return key.bindparams, shape


def _binds_of(statement: Any) -> list[Any]:
    return [
        element
        for element in visitors.iterate(statement)
        if isinstance(element, BindParameter)
    ]


def _textual(shown: tuple[Any, ...]) -> Shape:
    """Return the shape of SQL as text that is loaded as some classes."""
    tables = [
        table
        for element in shown
        for table in getattr(element, "_from_objects", ())
        if isinstance(table, TableClause)
    ]
    groups = [
        Group(names=(table.name,), condition=None, cut=None)
        for table in tables
        if spec_of(table).kind != "global"
    ]
    # Who knows what it asks each shard for.
    return Shape(
        tables=tuple(tables), groups=tuple(groups), single=("SQL as text",)
    )


def _read(statement: Any, binds: Any) -> Shape:
    if getattr(statement, "is_insert", False):
        raise NoShardKeyError(
            "an INSERT inside another statement does not tell its shard; "
            'say bind_arguments={"shard_id": n}',
            tables=(statement.table.name,),
        )
    bind_index = {bind.key: index for index, bind in enumerate(binds)}
    reader = Reader(statement, bind_index)
    groups = tuple(_groups(reader, bind_index))
    single = list(reader.single)
    if not reader.top:
        single += _without_from(statement, reader)
    if groups and any(_repeats(block.leaves) for block in reader.shown):
        single.append(ALONE)
    return Shape(
        tables=tuple(leaf.table for leaf in reader.leaves),
        groups=groups,
        problems=tuple(reader.problems),
        single=tuple(single),
        assigned=tuple(reader.assigned),
        settable=tuple(_settable(statement)),
        lists=tuple(
            within
            for group in groups
            if group.condition
            for within in _lists(group.condition)
        ),
        spread=_spread(reader),
        constant=constant(statement) is not None,
    )


def _without_from(statement: Any, reader: Reader) -> Iterator[str]:
    """Yield what is right on one shard only of a SELECT without FROM."""
    if sought(statement) is None and not shows_if(statement):
        # It shows one row whatever the subqueries find.
        yield "a SELECT without FROM"
        return
    for block in reader.blocks[1:]:
        if block.outer is not reader.blocks[0]:
            continue
        for cut in block.cuts:
            # The first of equal rows, or of a group, is there if any is.
            if cut.name == "OFFSET" or not cut.mergeable:
                yield cut.name
            elif block.select._having_criteria:
                yield "HAVING"


def _repeats(leaves: Sequence[Leaf]) -> bool:
    """Tell whether several shards may show one and the same row."""
    return any(leaf.is_copied for leaf in leaves) and all(
        leaf.is_copied or leaf.level.may_be_missing for leaf in leaves
    )


def _spread(reader: Reader) -> Spread:
    """Return what a merge of the rows has to know."""
    if len(reader.shown) != 1:
        return Spread()
    (block,) = reader.shown
    select = block.select
    if not isinstance(select, Select):
        return Spread()
    groups = select._group_by_clauses
    return Spread(
        grouped_on_shard=bool(groups) and reader.keyed(groups, block),
        distinct_on_shard=reader.keyed(select.selected_columns, block),
        counted_on_shard=tuple(
            reader.keyed([counted], block)
            for counted in counted_distinct(
                [
                    *select._raw_columns,
                    *select._order_by_clauses,
                    *select._having_criteria,
                ]
            )
        ),
    )


def _settable(statement: Any) -> Iterator[tuple[str, IdType]]:
    """Yield the columns that say where a row is, of an UPDATE."""
    if getattr(statement, "is_update", False):
        for column in statement.table.c:
            if isinstance(column.type, IdType) and column.type.routes:
                yield column.key, column.type


def _groups(reader: Reader, bind_index: Mapping[str, int]) -> Iterator[Group]:
    """Yield the tables that tell the shards, with their conditions."""
    teller = Teller(reader.blocks, bind_index)
    sharded = [
        leaf
        for leaf in reader.leaves
        if spec_of(leaf.table).kind != "global" and not leaf.is_copied
    ]
    for members in groups_of(sharded):
        yield Group(
            names=tuple(dict.fromkeys(leaf.name for leaf in members)),
            condition=teller.condition(members),
            cut=next((m.level.cut for m in members if m.level.cut), None),
        )


def _lists(condition: Condition) -> list[Within]:
    if isinstance(condition, Within):
        return [condition] if condition.item is None else []
    if isinstance(condition, (AllOf, AnyOf)):
        return [found for part in condition.parts for found in _lists(part)]
    return []
