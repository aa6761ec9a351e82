"""Which shard is asked for what all of them have.

A transaction asks one shard for all of it: two shards may differ while a
reference table is being written, and so does what they answer.  A server
that the session is connected to comes first, for another would take a
connection more; else it is any shard, so that all servers take their share.
"""

from __future__ import annotations

import random
import weakref

from sqla_shard.rendering import Place
from sqla_shard.session.contract import Scope
from sqla_shard.session.transactions import TransactionLog
from sqla_shard.topology import Keyspace

__all__ = ["nearest"]

_any = random.Random()  # noqa: S311  # not a secret

#: The choices of each transaction, by keyspace.
_chosen: weakref.WeakKeyDictionary[TransactionLog, dict[str, Place]] = (
    weakref.WeakKeyDictionary()
)


def nearest(scope: Scope, keyspace: Keyspace) -> Place:
    """Return where a transaction reads what every shard has."""
    known = _chosen.setdefault(scope.log, {})
    place = known.get(keyspace.name)
    if place is None:
        place = known[keyspace.name] = _choose(scope, keyspace)
    return place


def _choose(scope: Scope, keyspace: Keyspace) -> Place:
    first = scope.log.first
    if first is not None and first[0].keyspace == keyspace.name:
        return first[0]
    for server in keyspace.servers:
        for shards in server.shards[:1]:
            place = scope.places.place(keyspace, shards.first)
            if scope.is_connected(place):
                return place
    return scope.places.place(keyspace, _any.randrange(keyspace.shards))
