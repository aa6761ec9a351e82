"""The virtual shard of a new object.

An object lives where its id says, for ever; so the only moment of choice is
its INSERT.  In this order:

1. an id that it was given names its shard;
2. ``shard_id=`` on the object;
3. the parent's shard, where its class says ``colocate_with``;
4. for roots, the shard that the transaction writes already, so that a user
   and what belongs to it can be written as one; else the choice of the
   cluster's :class:`PlacementPolicy`.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate
from typing import Any
from typing import Protocol

from sqla_shard.exc import ColocationError
from sqla_shard.exc import PlacementError
from sqla_shard.ids import unpack
from sqla_shard.routing import TableSpec
from sqla_shard.topology import Keyspace

__all__ = ["PlacementPolicy", "RandomPlacement", "parent_shard"]


class PlacementPolicy(Protocol):
    """Chooses the shard of a root object."""

    def __call__(
        self, *, keyspace: Keyspace, cls: type[Any] | None, **context: Any
    ) -> int:
        """Return an open shard of the keyspace.

        :param keyspace: of the object's class.
        :param cls: the class; None for rows of a Core INSERT.
        :param context: room for more; accept and ignore it.
        """
        ...


class RandomPlacement:
    """Any shard, as likely as the weight of its server says.

    A server's weight is its share of new roots, spread evenly over its
    shards; weight 0 takes none.

    :param rng: source of randomness; give a seeded one in tests.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311  # not a secret
        self._tables: dict[int, tuple[Keyspace, list[float]]] = {}

    def __call__(
        self, *, keyspace: Keyspace, cls: type[Any] | None, **context: Any
    ) -> int:
        """Return a random shard.

        :raises PlacementError: when every server has weight 0.
        """
        known = self._tables.get(id(keyspace))
        # The keyspace is kept with its table, so its id() is not reused.
        if known is None or known[0] is not keyspace:
            known = (
                keyspace,
                list(accumulate(server.weight for server in keyspace.servers)),
            )
            self._tables = {id(keyspace): known}
        sums = known[1]
        if sums[-1] <= 0:
            raise PlacementError(
                f"no server of keyspace {keyspace.name!r} takes new roots: "
                "all weights are 0. Give one a weight in the topology, or "
                "say shard_id="
            )
        at = bisect_right(sums, self._rng.random() * sums[-1])
        server = keyspace.servers[min(at, len(sums) - 1)]
        index = self._rng.randrange(sum(len(r) for r in server.shards))
        for shards in server.shards:
            if index < len(shards):
                return shards.first + index
            index -= len(shards)
        raise PlacementError(f"server {server.name!r} has no shard")


def parent_shard(spec: TableSpec, name: str, value: Any) -> int:
    """Return the shard of a parent's id.

    :param name: the class of the new object, for messages.
    :param value: the value of its colocating field.
    :raises ColocationError: when it is not an id of the parent's type.
    """
    assert spec.colocation is not None  # noqa: S101  # the caller has asked
    where = spec.colocation.field
    if value is None:
        raise ColocationError(
            "is None, so the shard of the new object cannot be told; a "
            "parent gets its id when it is flushed: session.add(parent); "
            "session.flush()",
            class_name=name,
            field=where,
            value=value,
        )
    parts = unpack(value)
    allowed = spec.colocation.type_ids()
    if allowed and parts.type_id not in allowed:
        raise ColocationError(
            f"{value} is an id of type {parts.type_id}; a parent has type "
            f"{' or '.join(map(str, allowed))}",
            class_name=name,
            field=where,
            value=value,
        )
    return parts.shard_id
