"""Readings of the servers for the pages: states, sizes, revisions, topologies."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, UTC
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects.mysql.catalogue import TABLE_TYPES
from sqla_shard.engine.registry import filled
from sqla_shard.engine.unreachable import short
from sqla_shard.exc import TopologyError, TopologyUnavailableError
from sqla_shard.fleet.accounts import Accounts
from sqla_shard.fleet.admin import Admin, SYSTEM
from sqla_shard.fleet.fleet import all_pairs, Pair
from sqla_shard.fleet.replication import replication_of, TableSize
from sqla_shard.fleet.server_states import (
    all_answers,
    read_states,
    reason_of,
    ServerState,
)
from sqla_shard.schema.commands import (
    BEHIND,
    CURRENT,
    MISSING,
    NO_LEDGER,
    NOT_READ,
    RUNNING,
    ShardStatus,
    status,
    UNFINISHED,
    UNREACHABLE,
)
from sqla_shard.schema.ledger import read_versions, Version
from sqla_shard.schema.selection import shards_of
from sqla_shard.topology import diff, Keyspace, Topology
from sqla_shard.topology.follow import is_zookeeper
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.topology.urls import address_of
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children

T = TypeVar("T")

_log = careful_log(__name__)


def digest_of(*parts: Any) -> str:
    """Return a short text that differs if one of some values does."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PairState:
    """A server of the topology: its primary and its standby.

    :ivar name: its name, with the keyspace if that alone is ambiguous.
    :ivar members: name of keyspace and of the server in it, of each entry.
    :ivar weight: share of new roots of its first entry.
    """

    name: str
    primary: ServerState
    standby: ServerState | None
    members: tuple[tuple[str, str], ...]
    weight: float = 1.0

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """The primary, and the standby if there is one."""
        pair = (self.primary, self.standby)
        return tuple(one for one in pair if one is not None)

    @property
    def level(self) -> Literal["bad", "warning", "good"]:
        """Severity of the problems of its servers."""
        if self.primary.problems:
            return "bad"
        standby = self.standby
        return "warning" if standby and standby.problems else "good"


@dataclass(frozen=True, kw_only=True)
class DatabaseSize:
    """The tables of one virtual shard together.

    :ivar bytes: of rows and indexes.
    :ivar rows: number of rows; None if it is not known.
    """

    bytes: int
    rows: int | None


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the databases of a fleet.

    :ivar databases: by address of the primary and name of the database.
    :ivar unread: why primaries could not be read, by name of the server.
    """

    databases: Mapping[tuple[str, str], DatabaseSize]
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def totals(self) -> DatabaseSize:
        """The sums of all databases."""
        known = self.databases.values()
        return DatabaseSize(
            bytes=sum(one.bytes for one in known),
            rows=sum(one.rows or 0 for one in known),
        )


class ServerReader:
    """Reads all servers of a topology.

    A server that does not respond in time has an error instead of a state, and
    delays no other.  Each read opens a connection of its own: those of the pools
    may all wait for a server that hangs.

    Sizes and rows are estimates of the servers.

    :param environ: values of the placeholders in URLs.
    :param accounts: accounts of an operator, who may see the replication of
        standbys; None for the account of the application.
    """

    def __init__(
        self, environ: Mapping[str, str], accounts: Accounts | None = None
    ) -> None:
        self._environ = environ
        self._accounts = accounts

    def states(self, topology: Topology, *, timeout: float) -> tuple[PairState, ...]:
        """Return the state of every server, in the order of the topology.

        :param timeout: seconds for each server.
        """
        pairs = all_pairs(topology)
        states = read_states(pairs, self._url, timeout=timeout)
        return tuple(
            PairState(
                name=pair.name,
                primary=states[pair.name, "primary"],
                standby=states.get((pair.name, "standby")),
                members=tuple(
                    (keyspace.name, server.name) for keyspace, server in pair.members
                ),
                weight=pair.members[0][1].weight,
            )
            for pair in pairs
        )

    def sizes(self, topology: Topology, *, timeout: float) -> Sizes:
        """Return the sizes of the databases on every primary.

        :param timeout: seconds for each server.
        """
        pairs = all_pairs(topology)
        answers = all_answers(
            [partial(self._sizes, pair, timeout) for pair in pairs], timeout
        )
        databases: dict[tuple[str, str], DatabaseSize] = {}
        unread: dict[str, str] = {}
        for pair, result in zip(pairs, answers, strict=True):
            if isinstance(result, Mapping):
                address = str(address_of(pair.primary))
                for name, size in result.items():
                    databases[address, name] = size
            else:
                unread[pair.name] = reason_of(result)
        return Sizes(databases=databases, unread=unread)

    def tables(self, pair: Pair, database: str, *, timeout: float) -> list[TableSize]:
        """Return the tables of one database of a primary, by name.

        :raises FleetServerError: if the server cannot be read.
        :raises OSError: if the file of SQLite cannot be read.
        """
        url = self._url(pair.primary)
        if url.host is None:
            size = (Path(str(url.database)) / f"{database}.sqlite").stat()
            return [
                TableSize(
                    database=database,
                    table=f"{database}.sqlite",
                    bytes=size.st_size,
                    rows=0,
                )
            ]
        with Admin(url, name=pair.name, timeout=timeout) as admin:
            sizes = replication_of(admin).table_sizes(database)
        return sorted(sizes, key=lambda one: one.table)

    # -- one server -------------------------------------------------------

    def _url(self, text: str) -> URL:
        if self._accounts is None or text.startswith("sqlite"):
            return filled(text, self._environ)
        return self._accounts.url(text)

    def _sizes(self, pair: Pair, timeout: float) -> dict[str, DatabaseSize]:
        url = self._url(pair.primary)
        if url.host is None:
            return {
                path.stem: DatabaseSize(bytes=path.stat().st_size, rows=None)
                # Unlike glob(), an error where there is no such folder.
                for path in Path(str(url.database)).iterdir()
                if path.suffix == ".sqlite"
            }
        with Admin(url, name=pair.name, timeout=timeout) as admin:
            return {
                name: DatabaseSize(bytes=int(size), rows=int(rows))
                for name, size, rows in admin.rows(
                    "SELECT table_schema, SUM(COALESCE(data_length, 0) + "
                    "COALESCE(index_length, 0)), SUM(COALESCE(table_rows, 0)) FROM "
                    "information_schema.tables WHERE table_type IN %s GROUP BY "
                    "table_schema",
                    TABLE_TYPES,
                )
                if name not in SYSTEM
            }


# -- The schema revision of every shard, and rollouts in progress.
#
# With the `alembic.ini` of the application a shard is compared with the
# newest revision, as `sqla-shard schema status` does.  Without it the
# revisions that shards have are shown, and which of them were interrupted
# or are running.

AT_REVISION = "at this revision"

"""Condition of a shard if the newest revision is not known."""

OPEN_REVISION = "running or interrupted"

"""Condition of a shard with an unfinished revision, without the scripts."""

#: The proxies of alembic are global: one status at a time.
_alembic = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class RevisionGroup:
    """Shards with the same revision and condition.

    :ivar level: its class in the style sheet.
    :ivar revisions: the current revisions; empty for none.
    :ivar condition: see :class:`~sqla_shard.schema.ShardStatus`.
    :ivar count: number of shards.
    :ivar shards: the shards, as ``0-511,600``.
    :ivar detail: details of the first of them; None if there are none.
    """

    level: str
    revisions: tuple[str, ...]
    condition: str
    count: int
    shards: str
    detail: str | None

    @property
    def name(self) -> str:
        """The revisions, or why there are none."""
        unread = self.condition in NOT_READ
        return ", ".join(self.revisions) or ("unknown" if unread else "no revision")

    @property
    def text(self) -> str:
        """The revision and the condition in a few words."""
        if self.condition in (AT_REVISION, CURRENT):
            return self.name
        return f"{self.name}, {self.condition}"


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The revisions of the shards of a keyspace.

    :ivar heads: the newest revisions; None if they are not known.
    :ivar shards: the status of each shard, in order; empty if unread.
    :ivar error: why they could not be read; None if they were.
    """

    keyspace: str
    heads: tuple[str, ...] | None
    shards: tuple[ShardStatus, ...]
    error: str | None = None

    @property
    def unread(self) -> int:
        """The number of shards that could not be read."""
        return sum(one.condition in NOT_READ for one in self.shards)

    @property
    def is_running(self) -> bool:
        """Whether a revision is on some of the shards, or unfinished on one."""
        known = [one for one in self.shards if one.condition not in NOT_READ]
        return len({one.revisions for one in known}) > 1 or any(
            one.condition in (RUNNING, UNFINISHED, OPEN_REVISION) for one in known
        )

    @property
    def share(self) -> float | None:
        """The share of shards at the newest revision; None if unknown."""
        if self.heads is None or not self.shards:
            return None
        current = sum(one.condition == CURRENT for one in self.shards)
        return current / len(self.shards)

    def conditions(self) -> list[RevisionGroup]:
        """Return the shards by revision and condition, the most first."""
        groups: dict[tuple[tuple[str, ...], str], list[ShardStatus]] = {}
        for one in self.shards:
            groups.setdefault((one.revisions, one.condition), []).append(one)
        found = []
        hues: dict[tuple[str, ...], int] = {}
        for (revisions, condition), shards in sorted(
            groups.items(), key=lambda item: -len(item[1])
        ):
            hue = hues.setdefault(revisions, len(hues))
            details = [one.detail for one in shards if one.detail]
            found.append(
                RevisionGroup(
                    level=_level(condition, hue),
                    revisions=revisions,
                    condition=condition,
                    count=len(shards),
                    shards=as_ranges((one.shard_id for one in shards), 6),
                    detail=details[0] if details else None,
                )
            )
        return found

    def levels(self) -> dict[int, str]:
        """Return the class in the style sheet of each shard."""
        level_of = {
            (one.revisions, one.condition): one.level for one in self.conditions()
        }
        return {
            one.shard_id: level_of[one.revisions, one.condition] for one in self.shards
        }


def _level(condition: str, hue: int) -> str:
    if condition in (CURRENT, AT_REVISION):
        return f"r{min(hue, 4)}"
    if condition == BEHIND:
        return "behind"
    if condition in (RUNNING, OPEN_REVISION):
        return "running"
    return "unread" if condition in NOT_READ else "failed"


def read_rollouts(cluster: Cluster, configs: Sequence[Config]) -> tuple[Rollout, ...]:
    """Return the revisions of every keyspace.

    :param configs: alembic's configuration of some keyspaces.
    """
    rollouts: dict[str, Rollout] = {}
    for config in configs:
        name = config.get_section_option(config.config_ini_section, "keyspace")
        try:
            with _alembic:
                report = status(config, cluster=cluster)
        except (CommandError, SQLAlchemyError, OSError) as error:
            name = name or config.config_ini_section
            rollouts[name] = Rollout(
                keyspace=name, heads=None, shards=(), error=short(error)
            )
        else:
            rollouts[report.keyspace] = Rollout(
                keyspace=report.keyspace, heads=report.heads, shards=report.shards
            )
    places = cluster.places
    for keyspace in places.topology.keyspaces.values():
        if keyspace.name not in rollouts:
            versions = read_versions(
                places, shards_of(places, keyspace), "alembic_version"
            )
            rollouts[keyspace.name] = Rollout(
                keyspace=keyspace.name, heads=None, shards=tuple(map(_status, versions))
            )
    return tuple(
        rollouts[name] for name in places.topology.keyspaces if name in rollouts
    )


def _status(version: Version) -> ShardStatus:
    condition, detail = AT_REVISION, None
    if version.is_missing:
        condition = MISSING
    elif version.error is not None:
        condition = UNREACHABLE
        detail = short(version.cause) if version.cause else version.error
    elif not version.has_ledger:
        condition = NO_LEDGER
    elif version.open is not None:
        condition, detail = OPEN_REVISION, version.open.step
    return ShardStatus(
        shard_id=version.shard.shard_id,
        server=version.shard.server,
        database=version.shard.database,
        revisions=version.heads,
        condition=condition,
        detail=detail,
    )


#: Maximum number of versions that are shown.
_SHOWN = 20

_HUES = 8


@dataclass(frozen=True, kw_only=True)
class DrawnRange:
    """A range of shards in a drawing, in per cent of the keyspace.

    :ivar hue: class of its server in the style sheet.
    :ivar is_changed: whether it was on another server before.
    """

    server: str
    shards: str
    left: float
    width: float
    hue: str
    is_changed: bool = False


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A keyspace before and after a change."""

    keyspace: str
    before: tuple[DrawnRange, ...]
    after: tuple[DrawnRange, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A version of the topology.

    :ivar seen: when it was published, or seen by this process.
    :ivar lines: the differences from the version before, one each.
    :ivar strips: the keyspaces of which shards have moved or were opened.
    :ivar is_first: whether the version before it is not known.
    :ivar error: why it could not be read; None if it was.
    """

    epoch: int
    seen: datetime
    lines: tuple[str, ...] = ()
    strips: tuple[Strip, ...] = ()
    is_first: bool = False
    error: str | None = None


class TopologyHistory:
    """The versions of the topology of a cluster.

    The history of a topology in ZooKeeper is read there.  A file has no history:
    then the versions that this process has seen are shown.

    :param location: location of the topology; None if it is not known.
    :param placeholders: allowed names in ``${NAME}``.
    """

    def __init__(
        self, cluster: Cluster, location: str | None, placeholders: Collection[str]
    ) -> None:
        self._location = location
        self._placeholders = placeholders
        self._seen: deque[tuple[datetime, Topology]] = deque(maxlen=_SHOWN)
        self._seen.append((_now(), cluster.topology))
        self._published: dict[int, Topology] = {}
        self.after_fork()
        in_children(self)
        event.listen(cluster, "topology_changed", self._note)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    @property
    def is_published(self) -> bool:
        """Whether it is the history in ZooKeeper."""
        return is_zookeeper(self._location)

    def _note(self, cluster: Cluster, old: Topology, new: Topology) -> None:
        with self._lock:
            self._seen.append((_now(), new))

    def read(self) -> tuple[Change, ...]:
        """Return the latest versions, the newest first.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        if self.is_published:
            return self._read_published()
        with self._lock:
            seen = list(self._seen)
        return tuple(
            _change(new.epoch, when, seen[at - 1][1] if at else None, new)
            for at, (when, new) in reversed(list(enumerate(seen)))
        )

    def _read_published(self) -> tuple[Change, ...]:
        # kazoo is needed for this alone.
        from sqla_shard.topology.zookeeper import Publisher

        changes: list[Change] = []
        with Publisher(
            str(self._location), placeholders=self._placeholders
        ) as publisher:
            entries = publisher.history()[: _SHOWN + 1]
            versions: list[Any] = []
            for entry in entries:
                try:
                    if entry.epoch not in self._published:
                        self._published[entry.epoch] = publisher.at(entry.epoch)
                    versions.append(self._published[entry.epoch])
                except (TopologyError, TopologyUnavailableError) as error:
                    versions.append(error)
        for at, (entry, new) in enumerate(zip(entries, versions, strict=True)):
            old = versions[at + 1] if at + 1 < len(versions) else None
            if isinstance(new, Topology):
                old = old if isinstance(old, Topology) else None
                changes.append(_change(entry.epoch, entry.published, old, new))
            else:
                changes.append(
                    Change(epoch=entry.epoch, seen=entry.published, error=short(new))
                )
        return tuple(changes[:_SHOWN])


def _now() -> datetime:
    return datetime.now(UTC)


def _change(epoch: int, seen: datetime, old: Topology | None, new: Topology) -> Change:
    if old is None:
        return Change(epoch=epoch, seen=seen, is_first=True)
    changes = diff(old, new)
    touched = dict.fromkeys(
        [
            *(one.keyspace for one in changes.moved),
            *(one.keyspace for one in changes.opened),
            *(one.keyspace for one in changes.closed),
        ]
    )
    # The first line has the epochs.
    lines = str(changes).splitlines()[1:]
    return Change(
        epoch=epoch,
        seen=seen,
        lines=tuple(lines),
        strips=tuple(
            _strip(old.keyspaces[name], new.keyspaces[name]) for name in touched
        ),
    )


def _strip(old: Keyspace, new: Keyspace) -> Strip:
    names = dict.fromkeys(one.name for one in (*old.servers, *new.servers))
    hues = {name: f"s{at % _HUES}" for at, name in enumerate(names)}
    count = max(old.shards, new.shards)
    return Strip(
        keyspace=new.name,
        before=tuple(_parts(old, count, hues, None)),
        after=tuple(_parts(new, count, hues, old)),
    )


def _parts(
    keyspace: Keyspace, count: int, hues: dict[str, str], before: Keyspace | None
) -> Iterator[DrawnRange]:
    for shards, server in keyspace.placements():
        yield DrawnRange(
            server=server.name,
            shards=str(shards),
            left=round(100 * shards.first / count, 4),
            width=round(100 * len(shards) / count, 4),
            hue=hues[server.name],
            is_changed=before is not None
            and (
                shards.first >= before.shards
                or before.server_for(shards.first).name != server.name
            ),
        )
