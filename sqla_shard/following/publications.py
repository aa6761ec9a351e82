"""What is published, and what must not be, whatever was there before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqla_shard.exc import Problem
from sqla_shard.topology import redact
from sqla_shard.topology import Topology
from sqla_shard.topology import TopologyDiff

__all__ = [
    "MAX_BYTES",
    "NOT_PUBLISHED",
    "HistoryEntry",
    "ProtectedNode",
    "Publication",
    "RaisedGeneration",
    "faults",
    "raises",
]

#: How large the document of a topology may be.  ZooKeeper refuses requests
#: of more than 1 MiB, and a request has it twice.
MAX_BYTES = 500_000

#: For ``expected_epoch``: no topology is there.
NOT_PUBLISHED = -1


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A topology that was published.

    :ivar epoch: its epoch.
    :ivar published: when, by the clock of ZooKeeper.
    :ivar size: bytes of its document.
    """

    epoch: int
    published: datetime
    size: int


@dataclass(frozen=True, kw_only=True)
class ProtectedNode:
    """A node whose ACL was changed, or would be.

    :ivar path: its path.
    :ivar old: the ACL before, as ``world:anyone:cdrwa``; digests are ``***``.
    :ivar new: the ACL now; None in a dry run, where only ZooKeeper knows it.
    """

    path: str
    old: str
    new: str | None


@dataclass(frozen=True, kw_only=True)
class RaisedGeneration:
    """A number that is published in place of the one that was given.

    :ivar keyspace: name of the keyspace.
    :ivar server: name of the server.
    :ivar given: of the topology that was given, or is of the history.
    :ivar published: the number now.
    """

    keyspace: str
    server: str
    given: int | None
    published: int | None

    def __str__(self) -> str:
        given = "none" if self.given is None else self.given
        return (
            f"{self.keyspace}: generation of {self.server!r} is "
            f"{self.published}, where {given} was given"
        )


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What was published, or would be.

    :ivar old: the topology before; None for the first one.
    :ivar new: the topology now.
    :ivar diff: what is different; None for the first one.
    :ivar version: of the node in ZooKeeper; None where nothing was written.
    :ivar is_published: False after a dry run, and where ``new`` was there
        already.
    :ivar generations: those of ``new`` that were not given like that.
    """

    old: Topology | None
    new: Topology
    diff: TopologyDiff | None
    version: int | None
    is_published: bool
    generations: tuple[RaisedGeneration, ...] = ()


def raises(given: Topology, new: Topology) -> Iterator[RaisedGeneration]:
    """Yield the numbers of ``new`` that ``given`` does not have.

    :param given: the same otherwise.
    """
    for name, keyspace in given.keyspaces.items():
        pairs = zip(keyspace.servers, new.keyspaces[name].servers, strict=True)
        for before, after in pairs:
            if before.generation != after.generation:
                yield RaisedGeneration(
                    keyspace=name,
                    server=before.name,
                    given=before.generation,
                    published=after.generation,
                )


def faults(topology: Topology, data: bytes) -> Iterator[Problem]:
    """Yield why a topology must not be published.

    :param data: its document.
    """
    yield from _secrets(topology)
    yield from _size(data)


def _secrets(topology: Topology) -> Iterator[Problem]:
    """Refuse what everybody who may read ZooKeeper would know."""
    for name, keyspace in topology.keyspaces.items():
        for index, server in enumerate(keyspace.servers):
            for role in ("primary", "standby"):
                url = getattr(server, role)
                # What is shown as *** also where somebody has published
                # what was shown to him.
                if url is not None and "***" in redact(url):
                    yield Problem(
                        f"keyspaces.{name}.servers[{index}].{role}",
                        f"{redact(url)!r} has a password typed into it, and "
                        "all who may read ZooKeeper would know it; write "
                        "${MYSQL_PASSWORD} in its place",
                    )


def _size(data: bytes) -> Iterator[Problem]:
    if len(data) > MAX_BYTES:
        yield Problem(
            "document",
            f"has {len(data)} bytes, and at most {MAX_BYTES} fit into a "
            "transaction of ZooKeeper; give servers fewer and longer ranges",
        )
