"""The virtual shard of a new object, and its id.

The id of an object contains its shard and never changes, so the shard is
chosen at INSERT.  In this order:

1. the shard of the id, if it is given;
2. ``shard_id=`` on the object;
3. the parent's shard, if its class has ``colocate_with``;
4. for root objects the ``shard_id`` of the session, or the shard that the
   transaction has written, so that a user and its objects are one
   transaction; else the choice of the cluster's :class:`PlacementPolicy`.

Rows of a table that stores whole ids, or whose ids are issued, get ids before
the INSERT: for all new objects of a flush, and for all rows of an INSERT, with
one request for each shard.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol, TYPE_CHECKING

from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.attributes import instance_state, set_attribute

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ColocationError, MissingIdError, PlacementError
from sqla_shard.planning import (
    has_objects,
    new_ids_of,
    routing_column,
    spec_of,
    TableSpec,
)
from sqla_shard.topology import Keyspace

if TYPE_CHECKING:
    from sqla_shard import ShardSession


class PlacementPolicy(Protocol):
    """Choice of the shard of a root object."""

    def __call__(
        self, *, keyspace: Keyspace, cls: type[Any] | None, **context: Any
    ) -> int:
        """Return an open shard of the keyspace.

        :param keyspace: keyspace of the object's class.
        :param cls: the class; None for rows of a Core INSERT.
        :param context: reserved for later arguments; accept and ignore it.
        """
        ...


class RandomPlacement:
    """Random choice of a shard, by the weights of the servers.

    A server's weight is its share of new root objects, spread evenly over
    its shards; a server of weight 0 gets none.

    :param rng: random number generator; pass a seeded one in tests.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311  # not a secret
        self._tables: dict[int, tuple[Keyspace, list[float]]] = {}

    def __call__(
        self, *, keyspace: Keyspace, cls: type[Any] | None, **context: Any
    ) -> int:
        """Return a random shard.

        :raises PlacementError: if every server has weight 0.
        """
        known = self._tables.get(id(keyspace))
        # Keep a reference to the keyspace, so that its id() is not reused.
        if known is None or known[0] is not keyspace:
            known = (
                keyspace,
                list(accumulate(server.weight for server in keyspace.servers)),
            )
            self._tables = {id(keyspace): known}
        sums = known[1]
        if sums[-1] <= 0:
            raise PlacementError(
                f"no server of keyspace {keyspace.name!r} takes new root "
                "objects: all weights are 0. Set a weight in the topology, or "
                "pass shard_id="
            )
        at = bisect_right(sums, self._rng.random() * sums[-1])
        server = keyspace.servers[min(at, len(sums) - 1)]
        index = self._rng.randrange(sum(len(r) for r in server.shards))
        for shards in server.shards:
            if index < len(shards):
                return shards.first + index
            index -= len(shards)
        raise PlacementError(f"server {server.name!r} has no shard")


def root_shard(session: ShardSession, keyspace: Keyspace, cls: type[Any] | None) -> int:
    """Return the shard of new root objects of a transaction.

    :param cls: class of the objects; None for rows of a Core INSERT.
    """
    if session.root_shard_id is not None:
        return session.root_shard_id
    first = session.log.first_place(keyspace.name)
    if first is not None:
        return first.shard_id
    return session.cluster.placement(keyspace=keyspace, cls=cls)


def parent_shard(spec: TableSpec, name: str, value: Any) -> int:
    """Return the shard of a parent's id.

    :param name: name of the class of the new object, for messages.
    :param value: value of its colocating field.
    :raises ColocationError: if the value is not an id of the parent's type.
    """
    assert spec.colocation is not None  # noqa: S101  # checked before
    where = spec.colocation.field
    if value is None:
        raise ColocationError(
            "is None, so the shard of the new object cannot be determined; "
            "a parent gets its id when it is flushed: session.add(parent); "
            "session.flush()",
            class_name=name,
            field=where,
            value=value,
        )
    assert spec.layout is not None  # noqa: S101  # children have ids
    parts = spec.layout.unpack(value)
    allowed = spec.colocation.type_ids() if spec.layout.names_type else ()
    if allowed and parts.type_id not in allowed:
        raise ColocationError(
            f"{value} is an id of type {parts.type_id}; a parent has type "
            f"{' or '.join(map(str, allowed))}",
            class_name=name,
            field=where,
            value=value,
        )
    return parts.shard_id


class IdService(Protocol):
    """Issues local ids for new rows, such as ticket servers."""

    def issue(self, table: str, count: int) -> Sequence[int]:
        """Return numbers for new rows.

        It is called in any thread, in several at the same time.

        :param table: name of the table.
        :param count: how many are needed.
        :returns: ``count`` different numbers from 1 to ``max_local_id`` of
            the layout, none of which was returned for the table before.
        """
        ...


def lacks_issued_id(table: Any) -> bool:
    """Return whether a row of a table without id must be given one."""
    layout = spec_of(table).layout
    is_whole = layout is not None and layout.is_whole
    if not is_whole and new_ids_of(table) is None:
        return False
    # The id of a row that shares its key with a parent is the parent's.
    return has_objects(table) and not routing_column(table).foreign_keys


def issue(session: ShardSession, table: Any, place: Place, count: int) -> Iterator[int]:
    """Return ids for new rows of a table on a shard.

    :raises MissingIdError: if nothing issues ids for the table.
    """
    new_ids = new_ids_of(table)
    if new_ids is None:
        layout = spec_of(table).layout
        raise MissingIdError(
            table=str(table.name),
            reason=(
                f"the table stores {layout}. Set the id, or map the table to "
                "a class, whose ids are issued"
            ),
        )
    return iter(new_ids(session, place, count))


def issue_for_objects(session: ShardSession) -> None:
    """Give ids to the new objects of a flush, which have been placed."""
    wanted: dict[tuple[Place, Any, str], list[InstanceState[Any]]] = {}
    attributes = session.issued_attributes
    for instance in session.new:
        state = instance_state(instance)
        attribute = attributes[state.mapper]
        if attribute is not None and state.dict.get(attribute) is None:
            place = session._placed.get(state)
            if place is not None:
                key = place, state.mapper.local_table, attribute
                wanted.setdefault(key, []).append(state)
    for (place, table, attribute), states in wanted.items():
        # Issue them in the order in which the flush inserts the rows.
        states.sort(key=lambda state: state.insert_order or 0)
        ids = issue(session, table, place, len(states))
        for state, new_id in zip(states, ids, strict=True):
            set_attribute(state.obj(), attribute, new_id)


def issue_for_object(
    session: ShardSession, instance: Any, attribute: str, place: Place
) -> None:
    """Give an id to an object that was added during the flush.

    :param attribute: that of the id.
    """
    state = instance_state(instance)
    if state.key is None and state.dict.get(attribute) is None:
        (new_id,) = issue(session, state.mapper.local_table, place, 1)
        set_attribute(instance, attribute, new_id)


class IssuedAttributes(dict[Any, str | None]):
    """The attributes of issued ids by mapper, None if the server gives the ids.

    A flush asks for each of its objects.
    """

    def __missing__(self, mapper: Mapper[Any]) -> str | None:
        name = None
        if lacks_issued_id(mapper.local_table):
            name = mapper.get_property_by_column(mapper.primary_key[0]).key
        self[mapper] = name
        return name
