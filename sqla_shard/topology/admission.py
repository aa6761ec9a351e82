"""What a new topology may not do to the one that it follows.

Data does not move because a topology says so.  What is refused here would
leave rows where no statement finds them, whoever publishes it and for
whatever reason; there is no way around it.  Servers may come and go, shards
may move and be opened: those who do that have moved the data before.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqla_shard.exc import Problem
from sqla_shard.topology.changes import diff
from sqla_shard.topology.changes import TopologyDiff
from sqla_shard.topology.model import Topology

__all__ = ["refusals"]


def refusals(old: Topology, new: Topology) -> tuple[Problem, ...]:
    """Return why ``new`` may not follow ``old``; nothing where it may.

    Epochs are not looked at.

    :param old: the topology in use.
    :param new: the one that is to replace it.
    """
    found = diff(old, new)
    return (*_of_keyspaces(found), *_of_moduli(old, new))


def _of_keyspaces(found: TopologyDiff) -> Iterator[Problem]:
    for name in found.removed_keyspaces:
        yield Problem(
            f"keyspaces.{name}",
            "is left out, and with it all of its shards; leave it in",
        )
    for kind in found.kinds:
        yield Problem(
            f"keyspaces.{kind.keyspace}.kind",
            f"{kind.old!r} -> {kind.new!r} sends every key to another "
            "place; leave it, and make a keyspace of another name",
        )
    for database in found.databases:
        yield Problem(
            f"keyspaces.{database.keyspace}.database",
            f"{database.old!r} -> {database.new!r} names databases that are "
            f"not there; leave it at {database.old!r}",
        )
    kinds = {kind.keyspace for kind in found.kinds}
    for count in (*found.closed, *found.opened):
        if count.keyspace in kinds:
            continue
        place = f"keyspaces.{count.keyspace}.shards"
        if count.new < count.old:
            yield Problem(
                place,
                f"{count.old} -> {count.new} drops {count.shards} with all "
                f"objects on them; leave it at {count.old} or more",
            )


def _of_moduli(old: Topology, new: Topology) -> Iterator[Problem]:
    """Refuse another modulus: it sends keys to other shards."""
    for name, keyspace in new.keyspaces.items():
        before = old.keyspaces.get(name)
        if (
            before is not None
            and keyspace.kind == before.kind == "mod"
            and keyspace.shards > before.shards
        ):
            yield Problem(
                f"keyspaces.{name}.shards",
                f"{before.shards} -> {keyspace.shards} is another modulus, "
                "so that keys are looked for on other shards than they are "
                f"on; leave it at {before.shards}",
            )
