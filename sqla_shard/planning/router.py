"""The route of a statement: the shards that it must be sent to.

:func:`route` reads the statement and sends nothing.  The shape of a statement
is cached under its cache key; after that a decision costs about as much as
reading the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.elements import BindParameter, TextClause
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Select, SelectBase, TableClause, TextualSelect
from sqlalchemy.util import LRUCache

from sqla_shard.engine import Places
from sqla_shard.exc import (
    KeyspaceMismatchError,
    NoShardKeyError,
    ParameterValueError,
    ScatterUnsupportedError,
    ShardError,
    UnknownKeyspaceError,
    UnsupportedStatementError,
)
from sqla_shard.planning.clauses import (
    constant,
    counted_distinct,
    exists_columns,
    row_expressions,
    shows_if,
)
from sqla_shard.planning.reader import Reader
from sqla_shard.planning.sources import (
    AllOf,
    AnyOf,
    are_incomparable,
    Condition,
    ConditionReader,
    form_of,
    groups_of,
    Leaf,
    UnsupportedConstruct,
    Values,
    Within,
)
from sqla_shard.planning.specs import kind_of, spec_of, supposed
from sqla_shard.topology import Keyspace
from sqla_shard.types import IdType
from sqla_shard.types.shard_bound import Slotted
from sqla_shard.util import sqlalchemy_private as private

#: Rows of a reference table, which every shard would return.
ALONE = "rows of a reference table without one of the shard"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The sets of rows of a SELECT that are definitely on one shard.

    :ivar grouped_on_shard: whether the rows of each group are.
    :ivar distinct_on_shard: whether the rows that DISTINCT merges are.
    :ivar counted_on_shard: for each ``count(distinct(x))``, from left to
        right, whether the rows that are equal in ``x`` are.
    """

    grouped_on_shard: bool = False
    distinct_on_shard: bool = False
    counted_on_shard: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableGroup:
    """Tables that are tied to one another, and the condition on their ids.

    :ivar cut: the clause of a subquery, such as LIMIT, that conditions
        outside the subquery do not pass; None if there is none.
    """

    names: tuple[str, ...]
    condition: Condition | None
    cut: str | None


@dataclass(frozen=True, kw_only=True)
class RoutingShape:
    """The routing of a form of statement, for any values.

    :ivar tables: all tables, at any depth.
    :ivar groups: the groups that determine the shards; empty if each shard
        has all rows of all tables.
    :ivar problems: constructs that are refused in any case.
    :ivar single_shard_problems: constructs that need a single shard.
    :ivar assigned: the ids that an UPDATE sets.
    :ivar settable: the columns whose ids may be set by execution parameters.
    :ivar lists: lists of ids that may be execution parameters.
    :ivar spread: which rows are together on one shard, for the merge.
    :ivar constant: whether the statement selects constants, from any server.
    """

    tables: tuple[Any, ...] = ()
    groups: tuple[TableGroup, ...] = ()
    problems: tuple[UnsupportedConstruct, ...] = ()
    single_shard_problems: tuple[str, ...] = ()
    assigned: tuple[Condition, ...] = ()
    settable: tuple[tuple[str, IdType], ...] = ()
    lists: tuple[Within, ...] = ()
    spread: Spread = Spread()
    constant: bool = False


_STATEMENTS = (FromStatement, SelectBase, TextClause, UpdateBase)

_shapes: LRUCache[Any, RoutingShape] = LRUCache(1000)


def shape_of(statement: Any) -> tuple[Any, RoutingShape]:
    """Return the bind parameters of a statement, and its shape.

    :raises NoShardKeyError: if it contains an INSERT.
    """
    shown: tuple[Any, ...] = ()
    if isinstance(statement, FromStatement):
        shown = tuple(private.raw_columns(statement))
        statement = statement.element
    if isinstance(statement, TextualSelect):
        statement = statement.element
    if isinstance(statement, TextClause):
        if not shown and constant(statement) is not None:
            return (), RoutingShape(constant=True)
        return (), _textual(shown)
    key = private.cache_key(statement)
    if key is None:
        binds = [
            element
            for element in visitors.iterate(statement)
            if isinstance(element, BindParameter)
        ]
        return binds, _read(statement, binds)
    if supposed():
        # The key of the cache does not contain it.
        return key.bindparams, _read(statement, key.bindparams)
    shape = _shapes.get(key.key)
    if shape is None:
        shape = _shapes[key.key] = _read(statement, key.bindparams)
    return key.bindparams, shape


def as_statement(statement: Any) -> Any:
    """Return the statement that SQLAlchemy sends for an executable.

    :raises UnsupportedStatementError: if its shards cannot be read.
    """
    if isinstance(statement, FunctionElement):
        return statement.select()
    if isinstance(statement, _STATEMENTS):
        return statement
    raise UnsupportedStatementError(
        f"{type(statement).__name__} is not a SELECT, INSERT, UPDATE or "
        "DELETE, and cannot be routed; write it as text(), with SCHEMA before "
        'the names of tables, and pass bind_arguments={"shard_id": n}',
        construct="DDL",
    )


def _textual(shown: tuple[Any, ...]) -> RoutingShape:
    """Return the shape of SQL text whose rows are loaded as mapped classes."""
    tables = [
        table
        for element in shown
        for table in private.from_objects(element)
        if isinstance(table, TableClause)
    ]
    groups = [
        TableGroup(names=(table.name,), condition=None, cut=None)
        for table in tables
        if spec_of(table).kind != "global"
    ]
    # The text may contain LIMIT, aggregates and the like.
    return RoutingShape(
        tables=tuple(tables),
        groups=tuple(groups),
        single_shard_problems=("SQL as text",),
    )


def _read(statement: Any, binds: Any) -> RoutingShape:
    if getattr(statement, "is_insert", False):
        raise NoShardKeyError(
            "an INSERT inside another statement does not determine its "
            'shard; pass bind_arguments={"shard_id": n}',
            tables=(statement.table.name,),
        )
    bind_index = {bind.key: index for index, bind in enumerate(binds)}
    reader = Reader(statement, bind_index)
    groups = tuple(_groups(reader, bind_index))
    single = list(reader.single_shard_problems)
    if not reader.top:
        single += _without_from(statement, reader)
    if groups and any(_repeats(block.leaves) for block in reader.shown):
        single.append(ALONE)
    return RoutingShape(
        tables=tuple(leaf.table for leaf in reader.leaves),
        groups=groups,
        problems=tuple(reader.problems),
        single_shard_problems=tuple(single),
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
    """Yield the constructs of a SELECT without FROM that need one shard."""
    if exists_columns(statement) is None and not shows_if(statement):
        # It returns one row on each shard.
        yield "a SELECT without FROM"
        return
    for block in reader.blocks[1:]:
        if block.outer is not reader.blocks[0]:
            continue
        for cut in block.cuts:
            # DISTINCT and GROUP BY leave a row if there is any.
            if cut.name == "OFFSET" or not cut.mergeable:
                yield cut.name
            elif private.having_criteria(block.select):
                yield "HAVING"


def _repeats(leaves: Sequence[Leaf]) -> bool:
    """Return whether several shards may return the same row."""
    return any(leaf.is_copied for leaf in leaves) and all(
        leaf.is_copied or leaf.level.may_be_missing for leaf in leaves
    )


def _spread(reader: Reader) -> Spread:
    """Return which rows are together on one shard."""
    if len(reader.shown) != 1:
        return Spread()
    (block,) = reader.shown
    select = block.select
    if not isinstance(select, Select):
        return Spread()
    groups = private.group_by_clauses(select)
    return Spread(
        grouped_on_shard=bool(groups) and reader.keyed(groups, block),
        distinct_on_shard=reader.keyed(select.selected_columns, block),
        counted_on_shard=tuple(
            reader.keyed([counted], block)
            for counted in counted_distinct(row_expressions(select))
        ),
    )


def _settable(statement: Any) -> Iterator[tuple[str, IdType]]:
    """Yield the columns of an UPDATE whose ids route."""
    if getattr(statement, "is_update", False):
        for column in statement.table.c:
            kind = kind_of(column)
            if isinstance(kind, IdType) and kind.routes:
                yield column.key, kind


def _groups(reader: Reader, bind_index: Mapping[str, int]) -> Iterator[TableGroup]:
    """Yield the tables that determine the shards, with their conditions."""
    conditions = ConditionReader(reader.blocks, bind_index)
    sharded = [
        leaf
        for leaf in reader.leaves
        if spec_of(leaf.table).kind != "global" and not leaf.is_copied
    ]
    for members in groups_of(sharded):
        yield TableGroup(
            names=tuple(dict.fromkeys(leaf.name for leaf in members)),
            condition=conditions.read(members),
            cut=next((m.level.cut for m in members if m.level.cut), None),
        )


def _lists(condition: Condition) -> list[Within]:
    if isinstance(condition, Within):
        return [condition] if condition.item is None else []
    if isinstance(condition, (AllOf, AnyOf)):
        return [within for part in condition.parts for within in _lists(part)]
    return []


_NOTHING_KNOWN = Spread()


def _no_reason(shard_id: int) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The shards that a statement is sent to, and why.

    :ivar keyspace: the keyspace of its tables.
    :ivar shards: shards in ascending order; empty if no row can match.
    :ivar why: the conditions that determined the shards.
    :ivar reasons: returns the conditions, with values, that name a shard.
    :ivar parameters: the parameters, with every list of ids in a slot.
    :ivar spread: which rows are together on one shard, for the merge.
    :ivar scattered: whether the statement is sent to all shards by
        ``scatter()``, since nothing in it determines them.
    :ivar anywhere: whether every shard has all rows that it reads; the
        statement is sent to one shard, and ``shards`` is empty.
    """

    keyspace: Keyspace
    shards: tuple[int, ...]
    why: str
    reasons: Callable[[int], str] = _no_reason
    parameters: Any = None
    spread: Spread = _NOTHING_KNOWN
    scattered: bool = False
    anywhere: bool = False


def route(
    statement: Any, parameters: Any, places: Places, *, scatter: bool = False
) -> Decision:
    """Decide which shards a SELECT, UPDATE or DELETE must visit.

    :param parameters: the dictionary given with the statement, if any.
    :param scatter: read all shards if nothing determines them.
    :raises NoShardKeyError: if nothing determines the shards.
    :raises KeyspaceMismatchError: if it names tables of two keyspaces.
    :raises ScatterUnsupportedError: if it names several shards whose
        rows cannot be merged correctly.
    :raises UnsupportedStatementError: if it would give a wrong answer.
    :raises InvalidIdError: if a value is not an object id.
    :raises ParameterValueError: if a list of values is an iterator.
    """
    binds, shape = shape_of(statement)
    _raise(shape.problems)
    decision = _decide(binds, shape, parameters, places, scatter)
    if len(decision.shards) > 1:
        check_mergeable(shape)
    return decision


def locate(
    statement: Any, parameters: Any, places: Places, *, scatter: bool = False
) -> Decision:
    """Return the decision of :func:`route`, even if that would refuse it.

    For explanations; such a statement must not be executed.

    :raises NoShardKeyError: if nothing determines the shards.
    """
    binds, shape = shape_of(statement)
    return _decide(binds, shape, parameters, places, scatter)


def refusal_of(shape: RoutingShape, places: Places) -> ShardError | None:
    """Return the error that a form of statement raises for any values.

    :returns: None if it depends on the values, or there is none.
    """
    try:
        _raise(shape.problems)
        if shape.constant:
            return None
        keyspace = keyspace_of(shape.tables, places)
    except ShardError as error:
        return error
    if keyspace.kind != "global":
        for group in shape.groups:
            if group.condition is None:
                return _no_shard_key(group, shape, keyspace)
    return None


def _decide(
    binds: Any, shape: RoutingShape, parameters: Any, places: Places, scatter: bool
) -> Decision:
    if shape.constant:
        known = places.topology.keyspaces.values()
        return Decision(
            keyspace=min(known, key=lambda one: one.kind != "global"),
            shards=(),
            why="constants, which any server returns",
            parameters=parameters,
            anywhere=True,
        )
    keyspace = keyspace_of(shape.tables, places)
    if keyspace.kind == "global":
        return Decision(
            keyspace=keyspace,
            shards=(0,),
            why="tables of a global keyspace",
            parameters=parameters,
        )
    if not shape.groups:
        return Decision(
            keyspace=keyspace,
            shards=(),
            why="reference tables, the same on every shard",
            parameters=parameters,
            anywhere=True,
        )
    given: Mapping[str, Any] = parameters if isinstance(parameters, Mapping) else {}
    for item in given.values():
        # The first of several shards, or SQLAlchemy before 2.1, would leave
        # nothing for the others, which would find no rows.
        if hasattr(item, "__next__"):
            raise ParameterValueError(
                item, "one pass only, and it is read several times; use a list"
            )
    slots = _slots(shape, binds, given)
    if slots:
        parameters = given = {**given, **slots}

    def value(index: int) -> Any:
        bind = binds[index]
        if bind.key in given:
            return given[bind.key]
        return bind.callable() if bind.callable else bind.effective_value

    named = _shards(shape, value, scatter, keyspace)
    shards = range(keyspace.shards) if named is None else sorted(named)
    _check_assigned(shape, value, given, shards)
    return Decision(
        keyspace=keyspace,
        shards=tuple(shards),
        why="scatter()"
        if named is None
        else " and ".join(str(group.condition) for group in shape.groups),
        reasons=partial(_reason, shape, value, named is None),
        parameters=parameters,
        spread=shape.spread,
        scattered=named is None,
    )


def check(statement: Any) -> None:
    """Refuse constructs that are wrong even if the shard is given.

    :raises UnsupportedStatementError: if it would give a wrong answer.
    """
    if getattr(statement, "is_insert", False):
        select = getattr(statement, "select", None)
        if select is not None:
            _, shape = shape_of(select)
            _raise((*_problems_on_any_shard(shape), *_inserted(statement, select)))
        return
    _, shape = shape_of(statement)
    _raise(_problems_on_any_shard(shape))


def _problems_on_any_shard(shape: RoutingShape) -> Iterator[UnsupportedConstruct]:
    """Yield the problems that a statement has even if the shard is given."""
    return (problem for problem in shape.problems if not problem.is_unreadable)


def _inserted(statement: Any, select: Any) -> Iterator[UnsupportedConstruct]:
    """Find ids in the wrong form in INSERT .. FROM SELECT."""
    for name, shown in zip(
        private.select_names(statement) or (), select.selected_columns, strict=False
    ):
        column = statement.table.c.get(name)
        if column is not None and are_incomparable(form_of(column), form_of(shown)):
            yield UnsupportedConstruct(
                f"INSERT INTO {column}",
                f"{column} and {shown} hold ids in different forms; "
                "full_id() returns the whole id",
            )


def _raise(problems: Iterable[UnsupportedConstruct]) -> None:
    for problem in problems:
        raise UnsupportedStatementError(problem.message, construct=problem.construct)


def _shards(
    shape: RoutingShape, value: Values, scatter: bool, keyspace: Keyspace
) -> frozenset[int] | None:
    """Return the shards that the conditions determine; None for all."""
    union: frozenset[int] = frozenset()
    for group in shape.groups:
        condition = group.condition
        shards = None if condition is None else condition.shards(value)
        if shards is not None:
            union |= shards
        elif scatter:
            return None
        else:
            raise _no_shard_key(group, shape, keyspace)
    return union


def _reason(shape: RoutingShape, value: Values, scattered: bool, shard_id: int) -> str:
    """Return why a statement is sent to a shard, with the values."""
    if scattered:
        return "scatter()"
    reasons = [
        group.condition.reason(value, shard_id)
        for group in shape.groups
        if group.condition is not None
    ]
    return " and ".join(filter(None, reasons))


def _check_assigned(
    shape: RoutingShape, value: Values, given: Mapping[str, Any], shards: Iterable[int]
) -> None:
    """Refuse an UPDATE that would move rows to another shard."""
    if not shape.assigned and not shape.settable:
        return
    there = frozenset(shards)
    for assigned in shape.assigned:
        _check_stays(str(assigned), assigned.shards(value), there)
    for key, kind in shape.settable:
        if given.get(key) is not None:
            target = kind.shard_of(given[key], key)
            _check_stays(f"{key} = {given[key]}", {target}, there)


def _check_stays(what: str, target: Set[int] | None, shards: Set[int]) -> None:
    """Refuse to set the reference to the row's own shard to another."""
    if target and shards and target != shards:
        raise UnsupportedStatementError(
            f"{what} would move rows of shard {sorted(shards)} to shard "
            f"{sorted(target)}: an object never leaves its shard. Insert a "
            "copy there instead",
            construct="SET",
        )


def _no_shard_key(
    group: TableGroup, shape: RoutingShape, keyspace: Keyspace
) -> NoShardKeyError:
    names = ", ".join(map(repr, group.names))
    if keyspace.kind == "mod":
        return NoShardKeyError(
            f"the shards of {names} cannot be determined from this "
            "statement: the class computes them from the hash of a key. Read "
            "with Class.resolve(session, key) or the like, or pass "
            'bind_arguments={"shard_id": Class.shard_of(session, key)}; '
            ".options(scatter()) reads all shards",
            tables=group.names,
        )
    if group.cut is not None:
        return NoShardKeyError(
            f"{group.cut} in a subquery over {names} would see the rows of "
            "one shard only, and nothing in the subquery names that shard; "
            "name ids inside it, or execute it first",
            tables=group.names,
        )
    others = [g for g in shape.groups if g is not group]
    remedy = (
        "name ids in WHERE, such as .where(Class.id == x), "
        ".where(Class.id.in_(ids)) or the same for the field that "
        "colocates; OR and AND of these work too"
    )
    if others:
        remedy = f"join it by id to {others[0].names[0]!r}, or {remedy}"
    return NoShardKeyError(
        f"the shards of {names} cannot be determined from this statement, "
        f"and all of them are read on request only: {remedy}. "
        ".options(scatter()) reads all of them, "
        'bind_arguments={"shard_id": n} one; a lookup class finds the id of '
        "an object by another key",
        tables=group.names,
    )


#: The alternatives to constructs that cannot be merged.
_INSTEAD = {
    "OFFSET": "leave it out of the subquery; it may also be made by "
    "joinedload() of a collection: use selectinload()",
    "FETCH": "use limit()",
    "LIMIT": "name the ids of one shard; a subquery may also be made by "
    "joinedload() of a collection: use selectinload()",
    "HAVING": "compare the value in Python",
    "UNION": "execute its SELECTs one by one",
    "subqueryload() of sorted or limited rows": "use selectinload()",
    "distinct() of a column": "use select(...).distinct()",
    ALONE: "begin FROM with the objects, and join the reference table to them",
    "a window function": "PARTITION BY the id of the object that the rows "
    "belong to, or number the rows in Python",
}


def check_mergeable(shape: RoutingShape) -> None:
    """Refuse a statement whose rows of several shards cannot be merged.

    :raises ScatterUnsupportedError: if there is no correct merge.
    """
    limits = list(shape.single_shard_problems)
    if len(shape.groups) > 1:
        names = ", ".join(g.names[0] for g in shape.groups)
        limits.append(f"a combination of {names} that no id ties together")
    if limits:
        instead = _INSTEAD.get(
            limits[0], "name the ids of one shard, or read the rows and do it in Python"
        )
        raise ScatterUnsupportedError(
            f"{limits[0]} over several shards is not supported: each shard "
            f"would apply it to its own rows. Instead, {instead}",
            construct=limits[0],
        )


def _slots(shape: RoutingShape, binds: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of ids that are given by name, each as one parameter.

    Otherwise each shard would receive the ids of all other shards.
    """
    slots: dict[str, Slotted] = {}
    for within in shape.lists:
        key = binds[within.index].key
        values = given.get(key)
        if values is not None and type(values) is not Slotted:
            slots[key] = within.kind.slot(values)()
    return slots


def keyspace_of(tables: tuple[Any, ...], places: Places) -> Keyspace:
    """Return the keyspace of the given tables.

    :raises KeyspaceMismatchError: if they are in two keyspaces.
    :raises NoShardKeyError: if there is no table, and not exactly one global
        keyspace.
    """
    keyspaces: dict[str, Keyspace] = {}
    names: dict[str, list[str]] = {}
    for table in tables:
        spec = spec_of(table)
        keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        keyspaces[keyspace.name] = keyspace
        names.setdefault(keyspace.name, []).append(str(table.name))
    if len(keyspaces) > 1:
        raise KeyspaceMismatchError(
            {name: tuple(listed) for name, listed in names.items()}
        )
    for keyspace in keyspaces.values():
        return keyspace
    try:
        return places.keyspace(None, "global")
    except UnknownKeyspaceError as error:
        raise NoShardKeyError(
            "the statement names no table, which would determine its "
            'keyspace; pass bind_arguments={"shard_id": n}, or '
            '{"keyspace": name} for one that is not sharded',
            tables=(),
        ) from error
