"""Faults that the lab can cause: stopped servers, and no row cache.

:class:`Bench` has no server that could be stopped: on SQLite servers are
folders, and those of ``--topology`` belong to others; :mod:`.local_fleet` has.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sqla_shard import Cluster

#: Seconds to wait for a program to end.
_PATIENCE = 10.0

SLOW = 0.2
"""Seconds that each round trip to a slow server takes longer."""


class Growth(Protocol):
    """A command that moves shards to a new server.

    :ivar command: as it would be typed.
    :ivar lines: its output so far.
    :ivar status: its exit status; None until it has ended.
    """

    command: str
    lines: list[str]
    status: int | None


class Bench:
    """Servers that cannot be stopped, and the cache of this process.

    :param why: reason why they cannot be, for the page.
    :param may_write: whether the servers are those of a demo.
    """

    can_stop = False
    cache_name = "the row cache of this process"
    environ: Mapping[str, str] = {}
    """Variables that a process needs to open the cluster."""
    growth: Growth | None = None
    """The move of shards to a new server, once it was started."""

    def __init__(self, why: str, *, may_write: bool = True) -> None:
        self.why = why
        self.may_write = may_write

    def opening(self, cluster: Cluster) -> dict[str, Any]:
        """Return the arguments that open the cluster in another process.

        See :mod:`.writing`.
        """
        return {"document": cluster.topology.to_mapping()}

    def grow(self, cluster: Cluster) -> None:
        """Start another server, and move shards to it.

        Does nothing during the move, or after it.

        :raises KeyError: if there is no other server.
        """
        raise KeyError("another server")

    def states(self) -> Mapping[str, str]:
        """Return ``"stopped"`` or ``"slow"`` of each server that is not up."""
        return {}

    def change(self, server: str, to: str) -> None:
        """Stop, start, slow down or speed up a server.

        :param to: ``"stopped"``, ``"slow"`` or ``"up"``.
        :raises KeyError: if there is no such server.
        :raises sqla_shard.exc.ServerProcessError: if it does not start.
        """
        raise KeyError(server)

    def cache_is_on(self, cluster: Cluster) -> bool:
        """Return whether reads use the cache."""
        cache = cluster.cache
        return cache is not None and all(map(cache.is_enabled, cache.classes))

    def switch_cache(self, cluster: Cluster, *, on: bool) -> None:
        """Let reads use the cache, or the databases only."""
        cache = cluster.cache
        for cls in () if cache is None else cache.classes:
            if on:
                cache.enable(cls)  # type: ignore[union-attr]  # not None here
            else:
                cache.disable(cls)  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The users and virtual shards that the state of a server affects.

    :ivar people: names of the users that are on it.
    :ivar others: names of those that are elsewhere.
    :ivar shards: its virtual shards of each keyspace, such as
        ``"32 of 64 shards of objects"``.
    """

    server: str
    state: str
    people: tuple[str, ...]
    others: tuple[str, ...]
    shards: tuple[str, ...]


def effects(
    cluster: Cluster, states: Mapping[str, str], people: Mapping[str, int]
) -> list[Effect]:
    """Return the users affected by each server that is not up.

    Computed from ids and the topology; no server is queried.

    :param people: shards of users, by name.
    """
    topology = cluster.topology
    objects = topology.sole("objects")
    homes = {n: objects.server_for(s).name for n, s in people.items()}
    return [
        Effect(
            server=server,
            state=state,
            people=tuple(n for n, home in homes.items() if home == server),
            others=tuple(n for n, home in homes.items() if home != server),
            shards=tuple(
                f"{sum(map(len, one.shards))} of {keyspace.shards} shards of "
                f"{keyspace.name}"
                for keyspace in topology.keyspaces.values()
                for one in keyspace.servers
                if one.name == server
            ),
        )
        for server, state in states.items()
    ]


def end(process: subprocess.Popen[str]) -> None:
    """End a program: with a signal that it handles, or else by force."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
