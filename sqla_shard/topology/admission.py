"""Changes that a new topology must not make to the one in use.

A topology does not move data.  The changes that are refused here would leave
rows where no statement finds them, and no option allows them.  Adding and
removing servers, and moving and opening shards, is accepted: the data has to
be moved before such a topology is published.

A process may have missed some versions, and compares its own with the newest.
So :func:`refusals` must accept in one step whatever it accepts in two, or that
process would keep the old topology.  :func:`exchanges` does not have this
property; it is for publishing, which compares a version with the next one.

Two primaries for one shard within a topology are refused when it is parsed:
overlapping ranges, and servers of a keyspace with the same address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sqla_shard.exc import Problem, StaleTopologyError, TopologyRefusedError
from sqla_shard.topology.changes import diff, TopologyDiff
from sqla_shard.topology.generations import (
    leaps as generation_leaps,
    lowered_generations,
)
from sqla_shard.topology.keyspaces import common, Keyspace
from sqla_shard.topology.model import Topology
from sqla_shard.topology.parse import MAX_STEP
from sqla_shard.topology.urls import address_of
from sqla_shard.util.masking import redact

__all__ = ["check_newer", "check_next", "exchanges", "leaps", "refusals"]

MAX_RESETS_STEP = 1000


def refusals(old: Topology, new: Topology) -> tuple[Problem, ...]:
    """Return the reasons why ``new`` must not replace ``old``.

    Epochs are not compared.

    :param old: the topology in use.
    :param new: the topology that replaces it.
    """
    found = diff(old, new)
    return (*_of_keyspaces(found), *_of_pairs(old, new))


def check_newer(old: Topology, new: Topology, *, source: str) -> None:
    """Check that a topology may replace another one.

    :param source: origin of the new topology, for errors.
    :raises StaleTopologyError: if the epoch is not higher.
    :raises TopologyRefusedError: if the new topology makes a change that is
        refused, or its epoch is so high that none can follow.
    """
    if new.version <= old.version:
        raise StaleTopologyError(
            source=source,
            epoch=new.epoch,
            current=old.epoch,
            resets=old.resets if old.resets > new.resets else 0,
        )
    problems = (*leaps(old, new), *refusals(old, new))
    if problems:
        raise TopologyRefusedError(
            problems, source=source, epoch=new.epoch, current=old.epoch
        )


def check_next(
    old: Topology | None, new: Topology, *, source: str, found: Iterable[Problem] = ()
) -> None:
    """Check that a topology may be published.

    :param old: the published topology, if any.
    :param new: the next one.
    :param source: where it is published, for errors.
    :param found: problems of its own.
    :raises StaleTopologyError: if the epoch is not higher.
    :raises TopologyRefusedError: with all problems that there are.
    """
    problems = [*found, *generation_leaps(old, new)]
    if not problems and old is None:
        problems += leaps(replace(new, epoch=0, resets=0), new)
    if not problems and old is not None:
        check_newer(old, new, source=source)
        problems += exchanges(old, new)
        problems += lowered_generations(old, new)
    if problems:
        raise TopologyRefusedError(
            tuple(problems),
            source=source,
            epoch=new.epoch,
            current=None if old is None else old.epoch,
        )


def leaps(old: Topology, new: Topology) -> Iterator[Problem]:
    """Yield the epochs and resets that leave no room for later ones.

    :param old: the topology in use.
    :param new: the newer topology that replaces it.
    """
    first = old.epoch if new.resets == old.resets else 0
    if new.epoch - first > MAX_STEP:
        yield Problem(
            "epoch",
            f"{first} -> {new.epoch} is too large a step: an epoch may be "
            f"at most {MAX_STEP} higher, so that higher ones are left; write "
            "the next one. If it is in use somewhere: sqla-shard topology "
            "reset",
        )
    if new.resets - old.resets > MAX_RESETS_STEP:
        yield Problem(
            "resets",
            f"{old.resets} -> {new.resets} is too large a step: at most "
            f"{MAX_RESETS_STEP} at a time; write {old.resets + 1}",
        )


def _of_keyspaces(found: TopologyDiff) -> Iterator[Problem]:
    for name in found.removed_keyspaces:
        yield Problem(
            f"keyspaces.{name}", "is missing, and with it all of its shards; keep it"
        )
    for kind in found.kinds:
        yield Problem(
            f"keyspaces.{kind.keyspace}.kind",
            f"{kind.old!r} -> {kind.new!r} would route every key to "
            "another shard; keep it, and add a keyspace with another name",
        )
    for layout in found.layouts:
        yield Problem(
            f"keyspaces.{layout.keyspace}.id_layout",
            f"{layout.old} -> {layout.new} would read each existing id as "
            "that of another object; keep it, and add a keyspace with "
            "another name",
        )
    for database in found.databases:
        yield Problem(
            f"keyspaces.{database.keyspace}.database",
            f"{database.old!r} -> {database.new!r} names databases that do "
            f"not exist; keep {database.old!r}",
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
                f"objects on them; keep {count.old} or more",
            )


def _of_pairs(old: Topology, new: Topology) -> Iterator[Problem]:
    """Yield refusals of another modulus, and of another kind of server."""
    for name, keyspace in new.keyspaces.items():
        before = old.keyspaces.get(name)
        if before is None:
            continue
        if keyspace.kind == before.kind == "mod" and keyspace.shards > before.shards:
            yield Problem(
                f"keyspaces.{name}.shards",
                f"{before.shards} -> {keyspace.shards} changes the modulus, "
                "so keys would be searched on other shards; keep "
                f"{before.shards}",
            )
        was, now = _family(before), _family(keyspace)
        if was != now:
            yield Problem(
                f"keyspaces.{name}.servers",
                f"are on {now}, but the data is on {was}; keep them there, "
                "and add a keyspace with another name",
            )


def _family(keyspace: Keyspace) -> str | None:
    """Return the common kind of all servers."""
    address = address_of(keyspace.servers[0].primary)
    return None if address is None else address.family


def exchanges(old: Topology, new: Topology) -> tuple[Problem, ...]:
    """Return the servers that would get the primary of another server.

    While processes switch from ``old`` to ``new``, that machine would be the
    primary of both servers.  A failover to a server's own standby is
    accepted; so is a new name of a server with the same address.

    :param old: the published topology.
    :param new: the next one.
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
        if any(common(server.shards, holder.shards)):
            continue
        yield Problem(
            f"keyspaces.{new.name}.servers[{index}].primary",
            f"{redact(server.primary)} is still the primary of "
            f"{holder.name!r}, and would be the primary of both while "
            "processes switch over; move the shards by their ranges, or give "
            f"{holder.name!r} its new primary in an earlier epoch",
        )
