"""The numbers of lives of a server's data: which are new, which are used.

What a cache holds belongs to one life of the data.  A standby that becomes the
primary may lack the last commits that a cache has already, and the former
primary, when it comes back, has lost those of the time between.  A number of
its own for each life keeps them apart, where an address would come back.

So a number stays while the primary stays, and any other number is one that
the server has never had.  A server is the same one when keyspace and name
are the same; its primary is when host and port are, or the directory.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from sqla_shard.exc import Problem
from sqla_shard.topology.admission import MAX_STEP
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.model import Topology
from sqla_shard.topology.parse import MAX_GENERATION
from sqla_shard.topology.urls import address_of

__all__ = [
    "Numbers",
    "cautions",
    "kept",
    "leaps",
    "lowered",
    "numbers",
    "raised",
    "without",
]

#: By keyspace and server: the highest number that it has had.
Numbers: TypeAlias = Mapping[tuple[str, str], int]


def numbers(document: object) -> dict[tuple[str, str], int]:
    """Return the numbers of a document that may not be a topology.

    :param document: as JSON gives it; what cannot be understood is left out,
        for the number of another server counts all the same.
    """
    found: dict[tuple[str, str], int] = {}
    keyspaces = _table(_table(document).get("keyspaces"))
    for keyspace, content in keyspaces.items():
        servers = _table(content).get("servers")
        for server in servers if isinstance(servers, list) else ():
            name = _table(server).get("name")
            number = _table(server).get("generation")
            if isinstance(name, str) and type(number) is int:
                if not 0 <= number <= MAX_GENERATION:
                    # No process has taken it, and none is above it.
                    continue
                key = str(keyspace), name
                found[key] = max(number, found.get(key, number))
    return found


def kept(old: Topology, new: Topology) -> Topology:
    """Return ``new`` with the numbers that servers have in ``old``.

    For a topology of former times, whose numbers are used.  A server that
    has none in ``old``, or is not there, keeps what it has.
    """
    current = _servers(old)

    def number(keyspace: Keyspace, server: Server) -> int | None:
        was = current.get((keyspace.name, server.name))
        if was is None or was.generation is None:
            return server.generation
        return was.generation

    return _numbered(new, number)


def raised(
    old: Topology | None,
    new: Topology,
    used: Callable[[], Numbers],
    *,
    renamed: bool = False,
) -> Topology:
    """Return ``new``, its numbers raised where they have to be.

    A server that has no number gets none.  One whose number is lower than
    in ``old`` keeps it, see :func:`lowered`.

    :param old: the topology before; None where there is none.
    :param new: the one that is to follow it.
    :param used: asked where there is something to raise: the highest number
        that each server has had, those of ``old`` aside.
    :param renamed: whether primaries that change are the same machines.
    """
    current = {} if old is None else _servers(old)
    highest: Numbers | None = None

    def number(keyspace: Keyspace, server: Server) -> int | None:
        nonlocal highest
        given = server.generation
        key = keyspace.name, server.name
        was = current.get(key)
        if given is None:
            return None
        had = None if was is None else was.generation
        if had is not None and given < had:
            return given
        # Who still writes under an old name tells caches by the number.
        same = was is not None and (renamed or _stays(was, server))
        if same and had == given:
            return given
        if highest is None:
            highest = used()
        last = max(highest.get(key, -1), -1 if had is None else had)
        return given if given > last else last + 1

    return _numbered(new, number)


def without(topology: Topology) -> Topology:
    """Return a topology with no numbers, for comparing all the rest."""
    return _numbered(topology, lambda keyspace, server: None)


def lowered(old: Topology, new: Topology) -> Iterator[Problem]:
    """Yield where a number is lower than it was: it has been used."""
    current = _servers(old)
    for keyspace in new.keyspaces.values():
        for index, server in enumerate(keyspace.servers):
            was = current.get((keyspace.name, server.name))
            had = None if was is None else was.generation
            given = server.generation
            if had is not None and given is not None and given < had:
                yield Problem(
                    f"keyspaces.{keyspace.name}.servers[{index}].generation",
                    f"{given} is lower than {had}, which {server.name!r} has "
                    "now: caches may have rows of that time, which would be "
                    f"served again; write {had}, which is raised by itself "
                    "when the primary changes",
                )


def leaps(old: Topology | None, new: Topology) -> Iterator[Problem]:
    """Yield where a number would leave none for the lives that follow.

    :param old: the topology before; None where there is none.
    """
    current = {} if old is None else _servers(old)
    for keyspace in new.keyspaces.values():
        for index, server in enumerate(keyspace.servers):
            was = current.get((keyspace.name, server.name))
            had = 0 if was is None else was.generation or 0
            given = server.generation
            if given is not None and given - had > MAX_STEP:
                yield Problem(
                    f"keyspaces.{keyspace.name}.servers[{index}].generation",
                    f"{had} -> {given} is too far: a generation can be at "
                    f"most {MAX_STEP} higher, so that there are always some "
                    "above it; write the next one",
                )


def cautions(old: Topology, new: Topology) -> Iterator[str]:
    """Yield, for people, where a cache may serve what is not so.

    None of it is refused: a primary of another address may be the same
    machine, and caches may not be in use yet.
    """
    current = _servers(old)
    for keyspace in new.keyspaces.values():
        for server in keyspace.servers:
            was = current.get((keyspace.name, server.name))
            if was is None:
                continue
            number = server.generation
            of_server = f"{keyspace.name}: generation of {server.name!r}"
            if number == was.generation:
                if number is not None and not _stays(was, server):
                    yield (
                        f"{of_server} stays {number} while its primary "
                        "changes: a cache may serve what the new one has "
                        f"not; write {number + 1}, or a higher one if that "
                        "was used, unless it is the same machine by "
                        "another name"
                    )
            elif _stays(was, server):
                yield (
                    f"{of_server} changes while its primary stays: who "
                    "still has the older topology, and writes, does not "
                    "tell it where others look; until it expires, a cache "
                    "may serve what was before"
                )


def _stays(was: Server, now: Server) -> bool:
    """Whether the primary is where it was; the login does not count."""
    if was.primary == now.primary:
        return True
    return address_of(was.primary) == address_of(now.primary)


def _servers(topology: Topology) -> dict[tuple[str, str], Server]:
    return {
        (keyspace.name, server.name): server
        for keyspace in topology.keyspaces.values()
        for server in keyspace.servers
    }


def _numbered(
    topology: Topology, number: Callable[[Keyspace, Server], int | None]
) -> Topology:
    """Return a topology with other numbers; the same one if none differs."""
    keyspaces = {}
    for name, keyspace in topology.keyspaces.items():
        servers = tuple(
            replace(server, generation=number(keyspace, server))
            for server in keyspace.servers
        )
        if servers != keyspace.servers:
            keyspaces[name] = replace(keyspace, servers=servers)
    if not keyspaces:
        return topology
    return replace(topology, keyspaces={**topology.keyspaces, **keyspaces})


def _table(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}
