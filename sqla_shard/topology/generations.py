"""Generations: numbers that keep cached rows of different primaries apart.

A standby that becomes the primary may lack the last commits, which a cache may
already hold; a former primary that becomes the primary again lacks the commits
made in between.  So each new primary gets a new generation, and rows that were
cached under another one are not used.  An address would not do, since it can
be used again.

A generation does not change while the primary does not, and a new one is a
number that the server has never had.  A server is identified by keyspace and
name, its primary by host and port, or by the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from sqla_shard.exc import Problem
from sqla_shard.topology.keyspaces import Keyspace, Server
from sqla_shard.topology.model import Topology
from sqla_shard.topology.parse import MAX_EPOCH, MAX_STEP
from sqla_shard.topology.urls import address_of

#: By keyspace and server: the highest generation that the server has had.
Numbers: TypeAlias = Mapping[tuple[str, str], int]


def numbers(document: object) -> dict[tuple[str, str], int]:
    """Return the generations in a document that may be invalid.

    :param document: parsed JSON; invalid parts are skipped, since the
        generations of the other servers are needed nevertheless.
    """
    generations: dict[tuple[str, str], int] = {}
    keyspaces = _table(_table(document).get("keyspaces"))
    for keyspace, content in keyspaces.items():
        servers = _table(content).get("servers")
        for server in servers if isinstance(servers, list) else ():
            name = _table(server).get("name")
            number = _table(server).get("generation")
            if isinstance(name, str) and type(number) is int:
                if not 0 <= number <= MAX_EPOCH:
                    # Invalid: no process has used this generation.
                    continue
                key = str(keyspace), name
                generations[key] = max(number, generations.get(key, number))
    return generations


def inherited(old: Topology, new: Topology) -> Topology:
    """Return ``new`` with the generations that servers have in ``old``.

    For a topology of the history, whose generations were already used.
    Servers without a generation in ``old`` are not changed.
    """
    before = _servers(old)

    def number(keyspace: Keyspace, server: Server) -> int | None:
        was = before.get((keyspace.name, server.name))
        if was is None or was.generation is None:
            return server.generation
        return was.generation

    return _numbered(new, number)


def with_raised_generations(
    old: Topology | None,
    new: Topology,
    used: Callable[[], Numbers],
    *,
    renamed: bool = False,
) -> Topology:
    """Return ``new`` with generations raised where necessary.

    Servers without a generation are not changed, nor are generations lower
    than in ``old``; see :func:`lowered_generations`.

    :param old: the former topology, if any.
    :param new: the next one.
    :param used: returns the highest generation that each server has had,
        apart from ``old``; called only if a generation has to be raised.
    :param renamed: whether changed primaries are the same machines.
    """
    before = {} if old is None else _servers(old)
    highest: Numbers | None = None

    def number(keyspace: Keyspace, server: Server) -> int | None:
        nonlocal highest
        given = server.generation
        key = keyspace.name, server.name
        was = before.get(key)
        if given is None:
            return None
        had = None if was is None else was.generation
        if had is not None and given < had:
            return given
        # Processes that still use the old name invalidate rows of this
        # generation.
        same = was is not None and (renamed or _stays(was, server))
        if same and had == given:
            return given
        if highest is None:
            highest = used()
        last = max(highest.get(key, -1), -1 if had is None else had)
        return given if given > last else last + 1

    return _numbered(new, number)


def without_generations(topology: Topology) -> Topology:
    """Return a topology without generations, to compare the rest."""
    return _numbered(topology, lambda keyspace, server: None)


def lowered_generations(old: Topology, new: Topology) -> Iterator[Problem]:
    """Yield the servers whose generation is lower than before."""
    for place, was, server in _compared(old, new):
        had = None if was is None else was.generation
        given = server.generation
        if had is not None and given is not None and given < had:
            yield Problem(
                place,
                f"{given} is lower than {had}, which {server.name!r} has now: caches "
                "may still hold rows of that generation, which would be served again; "
                f"write {had}, which is raised automatically when the primary changes",
            )


def leaps(old: Topology | None, new: Topology) -> Iterator[Problem]:
    """Yield the generations that are so high that none can follow.

    :param old: the former topology, if any.
    """
    for place, was, server in _compared(old, new):
        had = 0 if was is None else was.generation or 0
        given = server.generation
        if given is not None and given - had > MAX_STEP:
            yield Problem(
                place,
                f"{had} -> {given} is too large a step: a generation may be at most "
                f"{MAX_STEP} higher, so that higher ones are left; write the next one",
            )


def _compared(
    old: Topology | None, new: Topology
) -> Iterator[tuple[str, Server | None, Server]]:
    """Yield, for each server in both, its path, the old and the new server."""
    before = {} if old is None else _servers(old)
    for name, keyspace in new.keyspaces.items():
        for index, server in enumerate(keyspace.servers):
            place = f"keyspaces.{name}.servers[{index}].generation"
            yield place, before.get((name, server.name)), server


def cautions(old: Topology, new: Topology) -> Iterator[str]:
    """Yield warnings about caches that may serve stale rows.

    Such topologies are not refused: a primary with another address may be the
    same machine, and caches may not be in use.
    """
    before = _servers(old)
    for key, server in _servers(new).items():
        was = before.get(key)
        if was is None:
            continue
        number = server.generation
        of_server = f"{key[0]}: generation of {server.name!r}"
        if number != was.generation:
            if _stays(was, server):
                yield (
                    f"{of_server} changes while its primary stays: a process with the "
                    "older topology still invalidates rows of the old generation only, "
                    "so a cache may serve stale rows until they expire"
                )
        elif number is not None and not _stays(was, server):
            yield (
                f"{of_server} stays {number} while its primary changes: a "
                "cache may serve rows that the new one does not have; write "
                f"{number + 1}, or a higher number if that was used before, "
                "unless it is the same machine under another name"
            )


def _stays(was: Server, now: Server) -> bool:
    """Return whether the primary has the same address."""
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
    """Return a topology with other generations."""
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
