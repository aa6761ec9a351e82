"""From a statement and its parameters to the shards it must visit.

:func:`route` is pure: it reads the statement, asks nothing and sends
nothing.  What the form of a statement says is remembered (:mod:`.shapes`);
after that a decision costs about as much as looking at the values.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqla_shard.engines import Places
from sqla_shard.exc import KeyspaceMismatchError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import check_type
from sqla_shard.routing.conditions import Values
from sqla_shard.routing.forms import form_of
from sqla_shard.routing.forms import mixed
from sqla_shard.routing.forms import Problem
from sqla_shard.routing.shapes import ALONE
from sqla_shard.routing.shapes import Group
from sqla_shard.routing.shapes import Shape
from sqla_shard.routing.shapes import shape_of
from sqla_shard.routing.shapes import Spread
from sqla_shard.routing.specs import spec_of
from sqla_shard.topology import Keyspace
from sqla_shard.types.binds import Slotted

__all__ = [
    "Decision",
    "Spread",
    "check",
    "keyspace_of",
    "locate",
    "route",
]


_NOTHING_KNOWN = Spread()


def _no_reason(shard_id: int) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Where a statement goes, and why.

    :ivar keyspace: the keyspace of its tables.
    :ivar shards: in ascending order; empty where no row can match.
    :ivar why: the conditions that decided.
    :ivar reasons: returns what has named one of the shards.
    :ivar parameters: the parameters, with every list of ids in a slot.
    :ivar spread: what the merge has to know, of several shards.
    :ivar scattered: whether it goes to all shards because it was told to,
        and nothing in it tells them.
    :ivar anywhere: whether every shard has all that it asks for; it goes to
        one, and ``shards`` is empty.
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
    statement: Any,
    parameters: Any,
    places: Places,
    *,
    scatter: bool = False,
) -> Decision:
    """Decide which shards a SELECT, UPDATE or DELETE must visit.

    :param parameters: the dictionary given with the statement, if any.
    :param scatter: go to all shards where nothing tells them.
    :raises NoShardKeyError: when nothing tells the shards.
    :raises KeyspaceMismatchError: when it names tables of two keyspaces.
    :raises ScatterUnsupportedError: when it names several shards whose
        rows cannot be merged correctly.
    :raises UnsupportedStatementError: when it would give a wrong answer.
    :raises InvalidIdError: when a value is not an object id.
    """
    binds, shape = shape_of(statement)
    _raise(shape.problems)
    decision = _decide(binds, shape, parameters, places, scatter)
    if len(decision.shards) > 1:
        _check_mergeable(shape)
    return decision


def locate(
    statement: Any, parameters: Any, places: Places, *, scatter: bool = False
) -> Decision:
    """Return what :func:`route` would, for a statement that it may refuse.

    For explanations; such a statement is not to be executed.

    :raises NoShardKeyError: when nothing tells the shards.
    """
    binds, shape = shape_of(statement)
    return _decide(binds, shape, parameters, places, scatter)


def _decide(
    binds: Any, shape: Shape, parameters: Any, places: Places, scatter: bool
) -> Decision:
    if shape.constant:
        known = places.topology.keyspaces.values()
        return Decision(
            keyspace=min(known, key=lambda one: one.kind != "global"),
            shards=(),
            why="constants, which every server knows",
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
    given: Mapping[str, Any] = (
        parameters if isinstance(parameters, Mapping) else {}
    )

    def value(index: int) -> Any:
        bind = binds[index]
        if bind.key in given:
            return given[bind.key]
        return bind.callable() if bind.callable else bind.effective_value

    told = _told(shape, value, scatter, keyspace)
    shards = range(keyspace.shards) if told is None else sorted(told)
    _check_assigned(shape, value, given, shards)
    return Decision(
        keyspace=keyspace,
        shards=tuple(shards),
        why="scatter()" if told is None else _why(shape),
        reasons=partial(_reason, shape, value, told is None),
        parameters=_with_slots(shape, binds, given, parameters),
        spread=shape.spread,
        scattered=told is None,
    )


def check(statement: Any) -> None:
    """Refuse what is wrong on any shard, of a statement that is told one.

    :raises UnsupportedStatementError: when it would give a wrong answer.
    """
    if getattr(statement, "is_insert", False):
        select = getattr(statement, "select", None)
        if select is not None:
            _, shape = shape_of(select)
            _raise((*_wrong(shape), *_inserted(statement, select)))
        return
    _, shape = shape_of(statement)
    _raise(_wrong(shape))


def _wrong(shape: Shape) -> Iterator[Problem]:
    """Yield the problems that a statement has on every shard."""
    return (problem for problem in shape.problems if not problem.unread)


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


def _told(
    shape: Shape, value: Values, scatter: bool, keyspace: Keyspace
) -> frozenset[int] | None:
    """Return the shards that conditions leave; None for all there are."""
    union: frozenset[int] = frozenset()
    for group in shape.groups:
        condition = group.condition
        found = None if condition is None else condition.shards(value)
        if found is not None:
            union |= found
        elif scatter:
            return None
        else:
            raise _no_shard_key(group, shape, keyspace)
    return union


def _reason(
    shape: Shape, value: Values, scattered: bool, shard_id: int
) -> str:
    """Return why a statement goes to one of its shards, with the values."""
    if scattered:
        return "scatter()"
    told = [
        group.condition.reason(value, shard_id)
        for group in shape.groups
        if group.condition is not None
    ]
    return " and ".join(filter(None, told))


def _why(shape: Shape) -> str:
    return " and ".join(str(group.condition) for group in shape.groups)


def _check_assigned(
    shape: Shape,
    value: Values,
    given: Mapping[str, Any],
    shards: Iterable[int],
) -> None:
    """Refuse an UPDATE that would move rows to another shard."""
    if not shape.assigned and not shape.settable:
        return
    there = frozenset(shards)
    for assigned in shape.assigned:
        _check_stays(str(assigned), assigned.shards(value), there)
    for key, kind in shape.settable:
        if given.get(key) is not None:
            target = check_type(given[key], kind.type_id, key).shard_id
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
    group: Group, shape: Shape, keyspace: Keyspace
) -> NoShardKeyError:
    names = ", ".join(map(repr, group.names))
    if keyspace.kind == "mod":
        return NoShardKeyError(
            f"the shards of {names} cannot be told from this statement: the "
            "hash of a key names them, and the class computes it. Read with "
            "Class.resolve(session, key) or the like, or say "
            'bind_arguments={"shard_id": Class.shard_of(session, key)}; '
            ".options(scatter()) means all shards",
            tables=group.names,
        )
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
        ".options(scatter()) means all of them, "
        'bind_arguments={"shard_id": n} one',
        tables=group.names,
    )


#: What to write in place of something that cannot be merged.
_INSTEAD = {
    "OFFSET": "leave it out of the subquery; it may also come of "
    "joinedload() of a collection: use selectinload()",
    "FETCH": "use limit()",
    "LIMIT": "name the ids of one shard; a subquery may also come of "
    "joinedload() of a collection: use selectinload()",
    "HAVING": "compare the value in Python",
    "UNION": "execute its SELECTs one by one",
    "subqueryload() of sorted or limited rows": "use selectinload()",
    "distinct() of a column": "use select(...).distinct()",
    ALONE: "begin FROM with the objects, and join the reference table to them",
    "a window function": "PARTITION BY the id of the object that the rows "
    "belong to, or number the rows in Python",
}


def _check_mergeable(shape: Shape) -> None:
    limits = list(shape.single)
    if len(shape.groups) > 1:
        names = ", ".join(g.names[0] for g in shape.groups)
        limits.append(f"a combination of {names} that no id ties together")
    if limits:
        instead = _INSTEAD.get(
            limits[0],
            "name the ids of one shard, or read the rows and do it in Python",
        )
        raise ScatterUnsupportedError(
            f"{limits[0]} over several shards is not supported: each shard "
            f"would answer for itself. Instead, {instead}",
            construct=limits[0],
        )


def _with_slots(
    shape: Shape, binds: Any, given: Mapping[str, Any], parameters: Any
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
