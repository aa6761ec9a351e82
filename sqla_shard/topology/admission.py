"""What a new topology may not do to the one that it follows.

Data does not move because a topology says so.  What is refused here would
leave rows where no statement finds them, whoever publishes it and for
whatever reason; there is no way around it.  Servers may come and go, shards
may move and be opened: those who do that have moved the data before.

A process may have missed some versions, and compares the one it has with the
newest.  So whatever :func:`refusals` lets pass in two steps it must let pass
in one, or that process would never get on.  :func:`exchanges` does not hold
to that, and is for publishing, which compares a version with the next.

Two primaries for one shard within a topology are refused when it is read:
ranges that overlap, and servers of a keyspace with one address.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqla_shard.exc import Problem
from sqla_shard.masking import redact
from sqla_shard.topology.changes import diff
from sqla_shard.topology.changes import TopologyDiff
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.model import Topology
from sqla_shard.topology.ranges import common
from sqla_shard.topology.urls import address_of

__all__ = ["MAX_STEP", "exchanges", "leaps", "refusals"]

#: How much higher than the one in use an epoch can be.  Room for numbers that
#: are dates with the time; and one that is a mistake, or malice, leaves
#: enough above it.
MAX_STEP = 10**14
MAX_RESETS_STEP = 1000


def refusals(old: Topology, new: Topology) -> tuple[Problem, ...]:
    """Return why ``new`` may not follow ``old``; nothing where it may.

    Epochs are not looked at.

    :param old: the topology in use.
    :param new: the one that is to replace it.
    """
    found = diff(old, new)
    return (
        *_of_keyspaces(found),
        *_of_moduli(old, new),
        *_of_families(old, new),
    )


def leaps(old: Topology, new: Topology) -> Iterator[Problem]:
    """Yield which number would leave none for the topologies that follow.

    :param old: the topology in use.
    :param new: the one that is to replace it, which is newer.
    """
    first = old.epoch if new.resets == old.resets else 0
    if new.epoch - first > MAX_STEP:
        yield Problem(
            "epoch",
            f"{first} -> {new.epoch} is too far: an epoch can be at most "
            f"{MAX_STEP} higher, so that there are always some above it; "
            "write the next one.  Where it is in use somewhere: sqla-shard "
            "topology reset",
        )
    if new.resets - old.resets > MAX_RESETS_STEP:
        yield Problem(
            "resets",
            f"{old.resets} -> {new.resets} is too far: at most "
            f"{MAX_RESETS_STEP} more at a time; write {old.resets + 1}",
        )


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


def _of_families(old: Topology, new: Topology) -> Iterator[Problem]:
    """Refuse servers of another kind: no data moves by itself to SQLite."""
    for name, keyspace in new.keyspaces.items():
        before = old.keyspaces.get(name)
        if before is None:
            continue
        was, now = _family(before), _family(keyspace)
        if was != now:
            yield Problem(
                f"keyspaces.{name}.servers",
                f"are on {now}, and were on {was}, which has the data; leave "
                "them there, and make a keyspace of another name",
            )


def _family(keyspace: Keyspace) -> str | None:
    """Return the kind of its servers, which have one."""
    address = address_of(keyspace.servers[0].primary)
    return None if address is None else address.family


def exchanges(old: Topology, new: Topology) -> tuple[Problem, ...]:
    """Return where a server gets the primary of another one, shards and all.

    While processes change from ``old`` to ``new``, that machine is the
    primary of both: of the one for those that are late, of the other for the
    rest.  A fail-over to a server's own standby is none, nor is another name
    for what is where it was, nor a range that moves to a server that keeps
    some of its own.

    :param old: the topology that is published.
    :param new: the one that is to be published next.
    """
    return tuple(
        problem
        for name, keyspace in new.keyspaces.items()
        if name in old.keyspaces
        for problem in _exchanged(old.keyspaces[name], keyspace)
    )


def _exchanged(old: Keyspace, new: Keyspace) -> Iterator[Problem]:
    before = {server.name: server for server in old.servers}
    holders = {address_of(server.primary): server for server in old.servers}
    for index, server in enumerate(new.servers):
        was = before.get(server.name)
        address = address_of(server.primary)
        holder = holders.get(address)
        if was is None or holder is None or holder.name == server.name:
            continue
        if was.standby is not None and address_of(was.standby) == address:
            continue
        if _share(server, holder):
            continue
        yield Problem(
            f"keyspaces.{new.name}.servers[{index}].primary",
            f"{redact(server.primary)} is the primary of {holder.name!r} "
            "until then, and would be that of both while processes change "
            f"over; say by ranges which shards move, or give {holder.name!r} "
            "its new primary in an epoch before this one",
        )


def _share(one: Server, other: Server) -> bool:
    """Whether a shard is on both."""
    return any(common(one.shards, other.shards))
