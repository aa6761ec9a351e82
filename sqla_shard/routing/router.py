"""From a statement and its parameters to the shards it must visit.

:func:`route` is pure: it reads the statement, asks nothing and sends
nothing.  Reading is done once per form of statement and remembered under
SQLAlchemy's own cache key; after that a decision costs about as much as
looking at the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import TableClause
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.util import LRUCache

from sqla_shard.engines import Places
from sqla_shard.exc import KeyspaceMismatchError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import check_type
from sqla_shard.routing.conditions import AllOf
from sqla_shard.routing.conditions import AnyOf
from sqla_shard.routing.conditions import Condition
from sqla_shard.routing.conditions import Within
from sqla_shard.routing.forms import form_of
from sqla_shard.routing.forms import mixed
from sqla_shard.routing.forms import Problem
from sqla_shard.routing.reading import Reader
from sqla_shard.routing.rows import groups_of
from sqla_shard.routing.specs import spec_of
from sqla_shard.routing.telling import Teller
from sqla_shard.topology import Keyspace
from sqla_shard.types import IdType
from sqla_shard.types.binds import Slotted

__all__ = ["Decision", "check", "keyspace_of", "route"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Where a statement goes, and why.

    :ivar keyspace: the keyspace of its tables.
    :ivar shards: in ascending order; empty where no row can match.
    :ivar why: the conditions that decided.
    :ivar parameters: the parameters, with every list of ids in a slot.
    """

    keyspace: Keyspace
    shards: tuple[int, ...]
    why: str
    parameters: Any = None


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Tables that are tied to one another, and what is known of them.

    :ivar cut: what keeps conditions outside of a subquery from it.
    """

    names: tuple[str, ...]
    condition: Condition | None
    cut: str | None


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What a form of statement says, whatever its values.

    :ivar tables: all of them, at any depth.
    :ivar groups: those that tell the shards.
    :ivar problems: what is refused on any number of shards.
    :ivar single: what is right on one shard only.
    :ivar assigned: what an UPDATE sets the row's shard to.
    :ivar settable: the same, for values given when it is executed.
    :ivar lists: lists of ids that may be given when it is executed.
    :ivar ordered: whether it has an ORDER BY.
    """

    tables: tuple[Any, ...] = ()
    groups: tuple[_Group, ...] = ()
    problems: tuple[Problem, ...] = ()
    single: tuple[str, ...] = ()
    assigned: tuple[Condition, ...] = ()
    settable: tuple[tuple[str, IdType], ...] = ()
    lists: tuple[Within, ...] = ()
    ordered: bool = False


_shapes: LRUCache[Any, _Shape] = LRUCache(1000)


def route(
    statement: Any,
    parameters: Any,
    places: Places,
    *,
    keeps_order: bool = False,
) -> Decision:
    """Decide which shards a SELECT, UPDATE or DELETE must visit.

    :param parameters: the dictionary given with the statement, if any.
    :param keeps_order: the reader sorts the rows of each shard by
        themselves, as eager loading does, so ORDER BY needs no merge.
    :raises NoShardKeyError: when nothing tells the shards.
    :raises KeyspaceMismatchError: when it names tables of two keyspaces.
    :raises ScatterUnsupportedError: when it names several shards whose
        rows cannot be merged correctly.
    :raises UnsupportedStatementError: when it would give a wrong answer.
    :raises InvalidIdError: when a value is not an object id.
    """
    binds, shape = _shape_of(statement)
    _raise(shape.problems)
    keyspace = keyspace_of(shape.tables, places)
    if keyspace.kind == "global":
        return Decision(
            keyspace=keyspace,
            shards=(0,),
            why="tables of a global keyspace",
            parameters=parameters,
        )
    given: Mapping[str, Any] = (
        parameters if isinstance(parameters, Mapping) else {}
    )

    def value(index: int) -> Any:
        bind = binds[index]
        if bind.key in given:
            return given[bind.key]
        return bind.callable() if bind.callable else bind.effective_value

    shards = _shards(shape, value, given, keeps_order)
    return Decision(
        keyspace=keyspace,
        shards=shards,
        why=" and ".join(str(g.condition) for g in shape.groups),
        parameters=_with_slots(shape, binds, given, parameters),
    )


def check(statement: Any) -> None:
    """Refuse what is wrong on any shard, of a statement that is told one.

    :raises UnsupportedStatementError: when it would give a wrong answer.
    """
    if getattr(statement, "is_insert", False):
        select = getattr(statement, "select", None)
        if select is not None:
            _, shape = _shape_of(select)
            _raise((*shape.problems, *_inserted(statement, select)))
        return
    _, shape = _shape_of(statement)
    _raise(shape.problems)


def _inserted(statement: Any, select: Any) -> Iterator[Problem]:
    """Find ids in the wrong form in INSERT .. FROM SELECT."""
    for name, shown in zip(
        statement._select_names or (), select.selected_columns, strict=False
    ):
        column = statement.table.c.get(name)
        if column is not None and mixed(form_of(column), form_of(shown)):
            yield Problem(
                f"INSERT INTO {column}",
                f"{column} and {shown} hold ids in different forms; "
                "full_id() returns the whole id",
            )


def _raise(problems: Iterable[Problem]) -> None:
    for problem in problems:
        raise UnsupportedStatementError(
            problem.message, construct=problem.construct
        )


def _shards(
    shape: _Shape, value: Any, given: Mapping[str, Any], keeps_order: bool
) -> tuple[int, ...]:
    union: frozenset[int] = frozenset()
    for group in shape.groups:
        condition = group.condition
        found = None if condition is None else condition.shards(value)
        if found is None:
            raise _no_shard_key(group, shape)
        union |= found
    for assigned in shape.assigned:
        _check_stays(str(assigned), assigned.shards(value), union)
    for key, kind in shape.settable:
        if given.get(key) is not None:
            target = check_type(given[key], kind.type_id, key).shard_id
            _check_stays(f"{key} = {given[key]}", {target}, union)
    if len(union) > 1:
        _check_mergeable(shape, keeps_order)
    return tuple(sorted(union))


def _check_stays(what: str, target: Set[int] | None, shards: Set[int]) -> None:
    """Refuse to set the reference to the row's own shard to another."""
    if target and shards and target != shards:
        raise UnsupportedStatementError(
            f"{what} would move rows of shard {sorted(shards)} to shard "
            f"{sorted(target)}: an object never leaves its shard. Insert a "
            "copy there instead",
            construct="SET",
        )


def _no_shard_key(group: _Group, shape: _Shape) -> NoShardKeyError:
    names = ", ".join(map(repr, group.names))
    if group.cut is not None:
        return NoShardKeyError(
            f"{group.cut} in a subquery over {names} would see the rows of "
            "one shard only, and nothing in the subquery tells that it is "
            "about that shard; name ids inside of it, or read it first",
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
        f"the shards of {names} cannot be told from this statement, and "
        f"reading all of them is not done by accident: {remedy}. "
        'bind_arguments={"shard_id": n} runs it on one shard',
        tables=group.names,
    )


def _check_mergeable(shape: _Shape, keeps_order: bool) -> None:
    limits = list(shape.single)
    if shape.ordered and not keeps_order:
        limits.append("ORDER BY")
    if len(shape.groups) > 1:
        names = ", ".join(g.names[0] for g in shape.groups)
        limits.append(f"a combination of {names} that no id ties together")
    if limits:
        raise ScatterUnsupportedError(
            f"{limits[0]} over several shards is not supported: each shard "
            "would answer for itself. Name the ids of one shard, or read "
            "the rows and do it in Python",
            construct=limits[0],
        )


def _with_slots(
    shape: _Shape, binds: Any, given: Mapping[str, Any], parameters: Any
) -> Any:
    """Put lists of ids, given by name, behind one placeholder each.

    Without it each shard would be sent the ids of all the others.
    """
    changed = None
    for within in shape.lists:
        key = binds[within.index].key
        values = given.get(key)
        if values is not None and type(values) is not Slotted:
            changed = changed or dict(given)
            changed[key] = within.kind.slot(values)()
    return parameters if changed is None else changed


def keyspace_of(tables: tuple[Any, ...], places: Places) -> Keyspace:
    """Return the one keyspace of some tables.

    :raises KeyspaceMismatchError: when they are of two.
    :raises NoShardKeyError: when there is no table, and no single global
        keyspace to take its place.
    """
    found: dict[str, Keyspace] = {}
    names: dict[str, list[str]] = {}
    for table in tables:
        spec = spec_of(table)
        keyspace = places.keyspace(spec.keyspace, spec.kind)
        found[keyspace.name] = keyspace
        names.setdefault(keyspace.name, []).append(str(table.name))
    if len(found) > 1:
        raise KeyspaceMismatchError(
            {name: tuple(listed) for name, listed in names.items()}
        )
    for keyspace in found.values():
        return keyspace
    try:
        return places.keyspace(None, "global")
    except UnknownKeyspaceError as error:
        raise NoShardKeyError(
            "the statement names no table, so nothing tells where to run "
            'it; say bind_arguments={"shard_id": n}, or {"keyspace": name} '
            "for one that is not sharded",
            tables=(),
        ) from error


def _shape_of(statement: Any) -> tuple[Any, _Shape]:
    shown: tuple[Any, ...] = ()
    if isinstance(statement, FromStatement):
        shown = tuple(statement._raw_columns)
        statement = statement.element
    if isinstance(statement, TextualSelect):
        statement = statement.element
    if isinstance(statement, TextClause):
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


def _textual(shown: tuple[Any, ...]) -> _Shape:
    """Return the shape of SQL as text that is loaded as some classes."""
    tables = [
        table
        for element in shown
        for table in getattr(element, "_from_objects", ())
        if isinstance(table, TableClause)
    ]
    groups = [
        _Group(names=(table.name,), condition=None, cut=None)
        for table in tables
        if spec_of(table).kind != "global"
    ]
    return _Shape(tables=tuple(tables), groups=tuple(groups))


def _read(statement: Any, binds: Any) -> _Shape:
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
        # It shows one row whatever the subqueries find.
        single.append("a SELECT without FROM")
    return _Shape(
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
        ordered=bool(getattr(statement, "_order_by_clauses", ())),
    )


def _settable(statement: Any) -> Iterator[tuple[str, IdType]]:
    """Yield the columns that say where a row is, of an UPDATE."""
    if getattr(statement, "is_update", False):
        for column in statement.table.c:
            if isinstance(column.type, IdType) and column.type.routes:
                yield column.key, column.type


def _groups(reader: Reader, bind_index: Mapping[str, int]) -> Iterator[_Group]:
    """Yield the tables that tell the shards, with their conditions."""
    teller = Teller(reader.blocks, bind_index)
    sharded = [
        leaf for leaf in reader.leaves if spec_of(leaf.table).kind != "global"
    ]
    for members in groups_of(sharded):
        yield _Group(
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
