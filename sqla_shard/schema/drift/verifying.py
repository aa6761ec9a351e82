"""Whether the tables of all virtual shards are alike.

What it cannot see depends on the kind of server and is listed in
:doc:`/explanation/drift`; rows are never read.  It is not a snapshot: run
while a revision is being applied, it reports what is halfway.

::

    report = verify(cluster)
    print(report)
    if not report.ok:
        sys.exit(1)
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from itertools import chain
from time import monotonic

from sqla_shard.cluster import Cluster
from sqla_shard.dialects.catalogue import DATABASE
from sqla_shard.engines import Engines
from sqla_shard.exc import DriftReferenceError
from sqla_shard.exc import UnknownServerError
from sqla_shard.exc import UnknownShardError
from sqla_shard.schema.drift.comparing import compared
from sqla_shard.schema.drift.comparing import gathered
from sqla_shard.schema.drift.reading import Copy
from sqla_shard.schema.drift.reading import End
from sqla_shard.schema.drift.reading import Reading
from sqla_shard.schema.drift.report import Copies
from sqla_shard.schema.drift.report import DriftReport
from sqla_shard.schema.drift.report import KeyspaceDrift
from sqla_shard.schema.drift.report import Orphan
from sqla_shard.schema.drift.report import Role
from sqla_shard.schema.drift.report import Unread
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Server
from sqla_shard.topology import Topology
from sqla_shard.topology.databases import Template
from sqla_shard.topology.placeholders import Policy
from sqla_shard.topology.urls import Address
from sqla_shard.topology.urls import Url

__all__ = ["verify"]


def verify(
    cluster: Cluster,
    *,
    keyspace: str | None = None,
    shards: Collection[int] | None = None,
    servers: Collection[str] | None = None,
    reference: int | None = None,
    standby: bool = True,
) -> DriftReport:
    """Compare the tables of every virtual shard with those of one of them.

    All servers are asked at the same time.  Databases that are missing, or
    on a server where the topology does not have them, are reported too, and
    servers that do not answer; the others are compared all the same.

    Nothing is written, and no row is read.

    :param cluster: its topology says where the shards are.
    :param keyspace: only this one; by default each, by itself.
    :param shards: only these; a keyspace that has none of them is left out.
    :param servers: only those of these names.
    :param reference: the shard to compare with, also where it is not among
        those above; the lowest that could be read by default.
    :param standby: whether standbys are compared, too.
    :returns: data; ``str()`` of it is for reading.
    :raises UnknownKeyspaceError: when the topology has no such keyspace.
    :raises UnknownShardError: when no keyspace in question has such a shard.
    :raises UnknownServerError: when none has such a server.
    :raises DriftReferenceError: when the reference cannot be read.
    """
    begun = monotonic()
    topology, engines = cluster.places.topology, cluster.places.engines
    spaces = list(topology.keyspaces.values())
    if keyspace is not None:
        spaces = [topology.keyspace(keyspace)]
    _check(spaces, shards, servers, reference)
    chosen = [
        _Choice(
            keyspace=space,
            shards=shards,
            servers=servers,
            reference=reference,
            standby=standby,
        )
        for space in spaces
    ]
    ends = [
        (one.keyspace.name, end) for one in chosen for end in one.ends(engines)
    ]
    read = engines.at_once([partial(_read, end) for _, end in ends], "verify")
    placed = _placed(topology)
    found = [
        _compare(
            one,
            [
                reading
                for (name, _), reading in zip(ends, read, strict=True)
                if name == one.keyspace.name
            ],
            placed,
        )
        for one in chosen
        if any(name == one.keyspace.name for name, _ in ends)
    ]
    return DriftReport(keyspaces=tuple(found), seconds=monotonic() - begun)


def _read(end: End) -> Reading:
    return end.read()


def _check(
    spaces: Collection[Keyspace],
    shards: Collection[int] | None,
    servers: Collection[str] | None,
    reference: int | None,
) -> None:
    """Refuse what no keyspace has."""
    largest = max(spaces, key=lambda space: space.shards)
    asked = {*(shards or ()), *(() if reference is None else (reference,))}
    for shard in sorted(asked):
        if shard not in largest.shard_ids:
            raise UnknownShardError(
                shard_id=shard, keyspace=largest.name, opened=largest.shards
            )
    known = {server.name for space in spaces for server in space.servers}
    for name in servers or ():
        if name not in known:
            raise UnknownServerError(server=name, known=sorted(known))


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What is to be read of a keyspace; the arguments of :func:`verify`."""

    keyspace: Keyspace
    shards: Collection[int] | None
    servers: Collection[str] | None
    reference: int | None
    standby: bool

    def ends(self, engines: Engines) -> Iterator[End]:
        """Yield what is to be read, one for each connection."""
        wanted = None if self.shards is None else frozenset(self.shards)
        for server in self.keyspace.servers:
            shards: set[int] = set()
            if self.servers is None or server.name in self.servers:
                held = {shard for item in server.shards for shard in item}
                shards = held if wanted is None else held & wanted
                # One without shards may have orphans.
                visited = bool(shards) or wanted is None
            else:
                visited = False
            if self._is_home(server):
                shards, visited = {*shards, self.reference or 0}, True
            if not visited:
                continue
            roles: list[Role] = ["primary"]
            if self.standby and server.standby is not None:
                roles.append("standby")
            for role in roles:
                yield End(
                    engines=engines,
                    keyspace=self.keyspace,
                    server=server,
                    role=role,
                    shards=sorted(shards),
                )

    def _is_home(self, server: Server) -> bool:
        """Whether the server has the reference that was asked for."""
        return (
            self.reference is not None
            and self.reference in self.keyspace.shard_ids
            and self.keyspace.server_for(self.reference) == server
        )


def _compare(
    choice: _Choice,
    readings: list[Reading],
    placed: dict[Address | None, set[str]],
) -> KeyspaceDrift:
    copies = [copy for reading in readings for copy in reading.copies()]
    reference = _reference(choice, readings, copies)
    orphaned = [_orphans(choice, reading, placed) for reading in readings]
    found = KeyspaceDrift(
        keyspace=choice.keyspace.name,
        reference=None,
        server=None,
        role="primary",
        shards=len({n for reading in readings for n in reading.end.shards}),
        databases=len(copies),
        tables=0,
        servers=len(readings),
        drifted=(),
        missing=_missing(readings),
        orphaned=tuple(chain.from_iterable(orphaned)),
        unread=tuple(_unread(readings)),
    )
    if reference is None:
        return found
    return replace(
        found,
        reference=reference.shard,
        server=reference.end.server.name,
        role=reference.end.role,
        tables=len(reference.tables.keys() - {DATABASE}),
        drifted=tuple(compared(copies, reference)),
    )


def _missing(readings: list[Reading]) -> tuple[Copies, ...]:
    missing: dict[tuple[str, Role], list[int]] = {}
    for reading in readings:
        if reading.error is None:
            end = reading.end.server.name, reading.end.role
            for shard in reading.end.shards:
                if shard not in reading.tables:
                    missing.setdefault(end, []).append(shard)
    return gathered(missing)


def _unread(readings: list[Reading]) -> Iterator[Unread]:
    for reading in readings:
        if reading.error is not None:
            yield Unread(
                server=reading.end.server.name,
                role=reading.end.role,
                reason=reading.error,
            )


def _reference(
    choice: _Choice, readings: list[Reading], copies: list[Copy]
) -> Copy | None:
    """Return the copy to compare with; None where nothing was read.

    :raises DriftReferenceError: when one was asked for that was not read.
    """
    asked = choice.reference
    if asked is None or asked not in choice.keyspace.shard_ids:
        return min(
            copies,
            key=lambda copy: (copy.end.role != "primary", copy.shard),
            default=None,
        )
    for copy in copies:
        if copy.shard == asked and copy.end.role == "primary":
            return copy
    home = choice.keyspace.server_for(asked).name
    errors = [
        reading.error
        for reading in readings
        if reading.end.server.name == home and reading.end.role == "primary"
    ]
    raise DriftReferenceError(
        shard_id=asked,
        keyspace=choice.keyspace.name,
        server=home,
        reason=errors[0] or "its database is not there",
    )


def _placed(topology: Topology) -> dict[Address | None, set[str]]:
    """Return the names of the databases of each server, in small letters.

    By address: what one keyspace calls a standby may be a primary to
    another.
    """
    placed: dict[Address | None, set[str]] = {}
    for space in topology.keyspaces.values():
        for server in space.servers:
            names = {
                space.database_for(shard).lower()
                for item in server.shards
                for shard in item
            }
            for url in (server.primary, server.standby):
                if url is not None:
                    placed.setdefault(_address(url), set()).update(names)
    return placed


def _address(url: str) -> Address | None:
    return Url(url, Policy()).address


def _orphans(
    choice: _Choice,
    reading: Reading,
    placed: dict[Address | None, set[str]],
) -> Iterator[Orphan]:
    space, end = choice.keyspace, reading.end
    template = Template.parse(space.database, sharded=space.kind != "global")
    url = end.server.primary
    if end.role == "standby" and end.server.standby is not None:
        url = end.server.standby
    here = placed[_address(url)]
    for name in sorted(reading.databases):
        # A topology that was loaded has no bad template.
        shard = None if isinstance(template, str) else template.shard_of(name)
        if shard is None or name.lower() in here:
            continue
        if choice.shards is not None and shard not in choice.shards:
            continue
        is_open = shard in space.shard_ids
        yield Orphan(
            database=name,
            server=end.server.name,
            role=end.role,
            shard=shard,
            home=space.server_for(shard).name if is_open else None,
        )
