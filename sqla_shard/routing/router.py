"""From a statement and its parameters to the shards it must visit.

:func:`route` is pure: it reads the statement, asks nothing and sends
nothing.  Reading is done once per form of statement and remembered under
SQLAlchemy's own cache key; after that a decision costs about as much as
looking at the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import CompoundSelect
from sqlalchemy.sql.selectable import Select
from sqlalchemy.util import LRUCache

from sqla_shard.engines import Places
from sqla_shard.exc import KeyspaceMismatchError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.routing.clauses import multi_shard_limits
from sqla_shard.routing.conditions import AllOf
from sqla_shard.routing.conditions import AnyOf
from sqla_shard.routing.conditions import Condition
from sqla_shard.routing.conditions import Within
from sqla_shard.routing.reading import Leaf
from sqla_shard.routing.reading import Problem
from sqla_shard.routing.reading import Reader
from sqla_shard.routing.specs import spec_of
from sqla_shard.topology import Keyspace
from sqla_shard.types.binds import Slotted

__all__ = ["Decision", "keyspace_of", "route"]


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
    """Tables that are tied to one another, and what is known of them."""

    names: tuple[str, ...]
    condition: Condition | None


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What a form of statement says, whatever its values."""

    tables: tuple[Any, ...]
    groups: tuple[_Group, ...]
    untied: tuple[Leaf, ...]
    problems: tuple[Problem, ...]
    single: tuple[str, ...]
    assigned: tuple[Condition, ...]
    lists: tuple[Within, ...]
    ordered: bool


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
    if shape.problems:
        problem = shape.problems[0]
        raise UnsupportedStatementError(
            problem.message, construct=problem.construct
        )
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

    shards = _shards(shape, value, keeps_order)
    return Decision(
        keyspace=keyspace,
        shards=shards,
        why=" and ".join(str(g.condition) for g in shape.groups),
        parameters=_with_slots(shape, binds, given, parameters),
    )


def _shards(shape: _Shape, value: Any, keeps_order: bool) -> tuple[int, ...]:
    if shape.untied:
        leaf = shape.untied[0]
        raise NoShardKeyError(
            f"{leaf.cut} of a subquery over {leaf.name!r} would see the "
            "rows of one shard only; correlate it by an id, or read it "
            "first",
            tables=(leaf.name,),
        )
    union: frozenset[int] = frozenset()
    for group in shape.groups:
        condition = group.condition
        found = None if condition is None else condition.shards(value)
        if found is None:
            raise _no_shard_key(group, shape)
        union |= found
    for assigned in shape.assigned:
        target = assigned.shards(value)
        if target and target != union:
            raise UnsupportedStatementError(
                f"{assigned} would move rows of shard "
                f"{sorted(union)} to shard {sorted(target)}: an object "
                "never leaves its shard. Insert a copy there instead",
                construct="SET",
            )
    if len(union) > 1:
        _check_mergeable(shape, keeps_order)
    return tuple(sorted(union))


def _no_shard_key(group: _Group, shape: _Shape) -> NoShardKeyError:
    names = ", ".join(map(repr, group.names))
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
            'it; say bind_arguments={"shard_id": n}',
            tables=(),
        ) from error


def _shape_of(statement: Any) -> tuple[Any, _Shape]:
    statement = getattr(statement, "element", statement)
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


def _read(statement: Any, binds: Any) -> _Shape:
    if isinstance(statement, TextClause):
        return _Shape(
            tables=(),
            groups=(),
            untied=(),
            problems=(),
            single=(),
            assigned=(),
            lists=(),
            ordered=False,
        )
    reader = Reader({bind.key: index for index, bind in enumerate(binds)})
    reader.read(statement)
    tables = tuple(
        leaf.table for leaf in reader.leaves if leaf.table is not None
    )
    groups = tuple(_groups(reader))
    is_select = isinstance(statement, (Select, CompoundSelect))
    limits = multi_shard_limits(statement) if is_select else []
    return _Shape(
        tables=tables,
        groups=groups,
        untied=tuple(leaf for leaf in reader.leaves if leaf.cut),
        problems=tuple(reader.problems),
        single=(*limits, *reader.single),
        assigned=tuple(reader.assigned),
        lists=tuple(
            within
            for group in groups
            if group.condition
            for within in _lists(group.condition)
        ),
        ordered=bool(getattr(statement, "_order_by_clauses", ())),
    )


def _groups(reader: Reader) -> list[_Group]:
    """Collect the tables that are tied together, with their conditions.

    A condition that does not filter rows of the whole statement, such as
    one inside NOT EXISTS, says nothing of the tables outside.
    """
    members: dict[Leaf, list[Leaf]] = {}
    for leaf in reader.leaves:
        if leaf.table is not None and spec_of(leaf.table).kind != "global":
            members.setdefault(leaf.root(), []).append(leaf)
    groups = []
    for root, leaves in members.items():
        filters = any(leaf.filters for leaf in leaves)
        conditions = [
            known.condition
            for known in reader.known
            if known.leaf.root() is root
            and (known.leaf.filters or not filters)
        ]
        names = tuple(dict.fromkeys(leaf.name for leaf in leaves))
        condition = AllOf(conditions) if conditions else None
        groups.append(_Group(names=names, condition=condition))
    return groups


def _lists(condition: Condition) -> list[Within]:
    if isinstance(condition, Within):
        return [condition] if condition.item is None else []
    if isinstance(condition, (AllOf, AnyOf)):
        return [found for part in condition.parts for found in _lists(part)]
    return []
