"""Facts about a fleet at one moment, which the checks of the doctor read.

The facts of a server come in parts, and a part that could not be read has a
reason instead of a value: reading it raises :exc:`NotReadError`, which the
doctor reports as unknown.  So a check never takes silence for "fine".

How a part is read stands here, too; :mod:`sqla_shard.fleet.fact_reader` reads
those of all servers at once, and a plan those of its servers as it needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet.admin import SYSTEM
from sqla_shard.fleet.app_access import Access, Attempt
from sqla_shard.fleet.clients import Program, programs
from sqla_shard.fleet.fences import grant_rows, GrantRow
from sqla_shard.fleet.fleet import shard_of
from sqla_shard.fleet.operation import FleetStatus
from sqla_shard.fleet.replication import (
    Login,
    Replication,
    replication_kind,
    ReplicationStatus,
    SemiSync,
    TableCounter,
    TableSize,
)
from sqla_shard.topology import Keyspace, Topology

T = TypeVar("T")

_NO_SUCH_TABLE = 1109
_DENIED = 1227
_SETTINGS = ("read_only", "event_scheduler")

Role = Literal["primary", "standby", "other"]
"""Place of a server in the topology; ``"other"``: it is not part of it."""


class NotReadError(Exception):
    """Raised when a check needs facts that could not be read.

    :ivar server: the server.
    :ivar reason: why they could not be read.
    :ivar number: number of the error; None if no answer came in time.
    """

    def __init__(self, server: ServerFacts, part: str) -> None:
        super().__init__(part)
        self.server = server
        self.reason: str = server.unread.get(part, f"{part} were not read")
        self.number: int | None = server.numbers.get(part)


class _FactPart(Generic[T]):
    """A part of facts, which may be unread.

    :raises NotReadError: when the attribute is read, if it could not be.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, facts: ServerFacts | PairFacts, owner: type) -> T:
        found: T = facts.part(self._name)
        return found


class Event(NamedTuple):
    """An event of the event scheduler; ``definer`` is ``user@host``."""

    database: str
    name: str
    definer: str
    status: str


class Session(NamedTuple):
    """A session of a server; ``seconds`` since its state changed."""

    id: int
    user: str
    host: str
    command: str
    seconds: int


class OpenTransaction(NamedTuple):
    """An open transaction, its session and user, its age, and its locks.

    :ivar locks: number of structures for its locks; 0 if it has only read.
    """

    session: int
    user: str
    seconds: int
    locks: int


class ServerVersion(NamedTuple):
    """Version of a server."""

    is_mariadb: bool
    number: tuple[int, ...]

    def __str__(self) -> str:
        family = "MariaDB" if self.is_mariadb else "MySQL"
        return f"{family} {'.'.join(map(str, self.number))}"


class Volume(NamedTuple):
    """A file system of a server, in bytes."""

    path: str
    total: int
    available: int


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """The facts of one server.

    :ivar name: name of its pair in the topology, or its address.
    :ivar role: its role in the topology.
    :ivar address: ``host:port``.
    :ivar parts: facts that were read, by part.
    :ivar unread: why the other parts were not read.
    :ivar numbers: numbers of the errors of these.
    """

    name: str
    role: Role
    address: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.role == "other":
            return f"server {self.address}"
        return f"{self.name} {self.role} ({self.address})"

    def part(self, name: str) -> Any:
        """Return a part.

        :raises NotReadError: if it could not be read.
        """
        try:
            return self.parts[name]
        except KeyError:
            raise NotReadError(self, name) from None

    def has(self, name: str) -> bool:
        """Return whether a part was read."""
        return name in self.parts

    def is_on(self, variable: str) -> bool:
        """Return whether a global variable is ``ON``."""
        return self.variables.get(variable, "").upper() == "ON"

    def number(self, variable: str) -> int:
        """Return a global variable as an integer; 0 if it does not exist."""
        return int(float(self.variables.get(variable) or 0))

    variables: ClassVar[_FactPart[Mapping[str, str]]] = _FactPart()
    """Global variables by name, in lower case."""

    version: ClassVar[_FactPart[ServerVersion]] = _FactPart()
    """Version of the server."""

    clock: ClassVar[_FactPart[float]] = _FactPart()
    """Seconds by which its clock is ahead of that of this process."""

    clock_error: ClassVar[_FactPart[float]] = _FactPart()
    """Seconds by which :attr:`clock` may be wrong."""

    sessions: ClassVar[_FactPart[tuple[Session, ...]]] = _FactPart()
    """All sessions but those of the doctor."""

    programs: ClassVar[_FactPart[Mapping[int, Program]]] = _FactPart()
    """Programs of sessions, if the server knows them."""

    transactions: ClassVar[_FactPart[tuple[OpenTransaction, ...]]] = _FactPart()
    """The open transactions."""

    logins: ClassVar[_FactPart[tuple[Login, ...]]] = _FactPart()
    """Its accounts and roles."""

    grants: ClassVar[_FactPart[tuple[GrantRow, ...]]] = _FactPart()
    """Its grants on databases."""

    attempt: ClassVar[_FactPart[Attempt]] = _FactPart()
    """The login of the application; read on servers of the topology only."""

    configured: ClassVar[_FactPart[Mapping[str, bool]]] = _FactPart()
    """Whether variables are set in its configuration."""

    events: ClassVar[_FactPart[tuple[Event, ...]]] = _FactPart()
    """The events of its databases."""

    databases: ClassVar[_FactPart[frozenset[str]]] = _FactPart()
    """Its databases but those of the system."""

    volumes: ClassVar[_FactPart[tuple[Volume, ...] | None]] = _FactPart()
    """Its file systems; None if the server does not show them."""

    waits_for_space: ClassVar[_FactPart[bool]] = _FactPart()
    """Whether a session, or replication, waits on a full disk."""

    tables: ClassVar[_FactPart[tuple[TableSize, ...]]] = _FactPart()
    """Its tables; read on primaries only, for their sizes."""

    counters: ClassVar[_FactPart[tuple[TableCounter, ...]]] = _FactPart()
    """Its tables with AUTO_INCREMENT; read on primaries only."""

    table_count: ClassVar[_FactPart[int]] = _FactPart()
    """The number of its tables; read on primaries only."""

    digests: ClassVar[_FactPart[Mapping[str, Mapping[str, str]]]] = _FactPart()
    """Digests of the tables of the topology, by database."""

    status: ClassVar[_FactPart[ReplicationStatus | None]] = _FactPart()
    """State of replication; None if it has no primary."""

    heartbeat: ClassVar[_FactPart[float | None]] = _FactPart()
    """Idle seconds after which its primary sends a heartbeat, if it has one;
    read on standbys only."""

    semi_sync: ClassVar[_FactPart[SemiSync | None]] = _FactPart()
    """State of semi-synchronous replication; None if it is missing."""

    @property
    def access(self) -> Access:
        """The rights of applications on it.

        :raises NotReadError: if that could not be read.
        """
        return Access(
            name=str(self),
            address=self.address,
            logins=self.logins,
            grants=self.grants,
            attempt=self.attempt,
        )

    @property
    def server_id(self) -> int:
        """The ``server_id``."""
        return self.number("server_id")

    @property
    def words(self) -> type[Replication]:
        """The words of its kind, for remedies."""
        return replication_kind(is_mariadb=self.version.is_mariadb)


@dataclass(frozen=True, kw_only=True)
class PairFacts:
    """The facts of a pair, and what follows from both servers together.

    :ivar name: name of the pair in the topology.
    :ivar primary: its primary.
    :ivar standby: its standby; None if the topology has none.
    :ivar databases: the databases that it must have.
    :ivar parts: ``late``: seconds for which the standby was waited for in
        vain, 0 if it came; ``errant``: transactions of the standby that the
        primary does not have; ``differing``: tables whose definitions differ.
    :ivar unread: why the other parts were not read.
    :ivar silent: or the server without which they were not, and what was not
        read from it.
    """

    name: str
    primary: ServerFacts
    standby: ServerFacts | None
    databases: frozenset[str] = frozenset()
    parts: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, tuple[ServerFacts, str]] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[ServerFacts, ...]:
        """The primary, and the standby if there is one."""
        if self.standby is None:
            return (self.primary,)
        return (self.primary, self.standby)

    def rebuild(self, *options: str) -> str:
        """Return the command that gives the standby all its content anew."""
        return " ".join(("sqla-shard fleet replica rebuild", self.name, *options))

    late: ClassVar[_FactPart[float]] = _FactPart()
    """Seconds for which the standby was waited for in vain, or 0."""

    errant: ClassVar[_FactPart[Mapping[str, int]]] = _FactPart()
    """Transactions that only the standby has, by origin."""

    differing: ClassVar[_FactPart[tuple[tuple[str, str], ...]]] = _FactPart()
    """Database and table of each definition that differs."""

    def part(self, name: str) -> Any:
        """Return a part.

        :raises NotReadError: if it could not be read.
        """
        if name in self.parts:
            return self.parts[name]
        if name in self.silent:
            server, missing = self.silent[name]
            return server.part(missing)
        server = self.standby or self.primary
        return replace(server, unread=self.unread, numbers={}).part(name)


@dataclass(frozen=True, kw_only=True)
class FleetFacts:
    """The facts of a fleet.

    :ivar topology: the topology.
    :ivar pairs: its pairs.
    :ivar others: servers outside of it that were looked at.
    :ivar application: users of the application, as far as they are known.
    :ivar unknown_users: placeholders of users that have no value.
    :ivar operators: users of the operator and of replication.
    :ivar operation: the pending operation.
    """

    topology: Topology
    pairs: tuple[PairFacts, ...]
    others: tuple[ServerFacts, ...] = ()
    application: frozenset[str] = frozenset()
    unknown_users: tuple[str, ...] = ()
    operators: frozenset[str] = frozenset()
    operation: FleetStatus | None = None

    @property
    def servers(self) -> tuple[ServerFacts, ...]:
        """Every server once."""
        found = [server for pair in self.pairs for server in pair.servers]
        return (*found, *self.others)

    def shard_of(self, database: str) -> tuple[Keyspace, int] | None:
        """Return keyspace and shard of the name of a database, or None."""
        return shard_of(self.topology, database)


# -- how the parts of a server are read -----------------------------------

#: Reads some parts of a server, which are the keys of the result.
Read = Callable[[Replication, Sequence[str]], Mapping[str, Any]]


def _ask_for(server: Replication, privilege: str) -> None:
    """Refuse to read a part of which the server would show some rows only.

    :raises FleetServerError: if the account lacks a global privilege.
    """
    if privilege not in server.own_privileges():
        raise FleetServerError(
            server=str(server.admin),
            number=_DENIED,
            reason=f"the operator lacks {privilege} ON *.*",
        )


def _variables(server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
    admin = server.admin
    return {
        "variables": admin.variables("%"),
        "version": ServerVersion(admin.is_mariadb, admin.version),
    }


def _clock(server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
    before = time.time()
    there = float(server.admin.value("SELECT UNIX_TIMESTAMP(NOW(6))"))
    after = time.time()
    return {"clock": there - (before + after) / 2, "clock_error": (after - before) / 2}


def _sessions(server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
    _ask_for(server, "PROCESS")
    return {
        "sessions": tuple(
            Session(number, user, host or "", command, int(seconds or 0))
            for number, user, host, command, seconds in server.admin.rows(
                "SELECT id, user, host, command, time FROM "
                "information_schema.processlist WHERE id <> CONNECTION_ID()"
            )
        )
    }


def _transactions(server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
    return {
        "transactions": tuple(
            OpenTransaction(session, user, int(seconds or 0), locks)
            for session, user, seconds, locks in server.admin.rows(
                # innodb_trx may be older, and have sessions that have ended.
                "SELECT id, user, TIMESTAMPDIFF(SECOND, trx_started, NOW()),"
                " trx_lock_structs FROM information_schema.innodb_trx"
                " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
            )
        )
    }


def _events(server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
    _ask_for(server, "EVENT")
    return {
        "events": tuple(
            Event(*row)
            for row in server.admin.rows(
                "SELECT event_schema, event_name, definer, status"
                " FROM information_schema.events"
            )
        )
    }


def _databases(server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
    _ask_for(server, "SELECT")
    return {"databases": frozenset(server.admin.databases()) - SYSTEM}


def _volumes(server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
    try:
        found = server.admin.rows(
            "SELECT path, total, available FROM information_schema.disks"
        )
    except FleetServerError as error:
        if error.number != _NO_SUCH_TABLE:
            raise
        return {"volumes": None}
    # The plugin counts in KiB.
    return {
        "volumes": tuple(
            Volume(path, 1024 * total, 1024 * available)
            for path, total, available in found
        )
    }


STATE: dict[tuple[str, ...], Read] = {
    ("variables", "version"): _variables,
    ("clock", "clock_error"): _clock,
    ("sessions",): _sessions,
    ("programs",): lambda server, _: {"programs": programs(server.admin)},
    ("transactions",): _transactions,
    ("logins",): lambda server, _: {"logins": tuple(server.logins())},
    ("grants",): lambda server, _: {"grants": tuple(grant_rows(server.admin))},
    ("configured",): lambda server, _: {"configured": server.configured(*_SETTINGS)},
    ("events",): _events,
    ("databases",): _databases,
    ("volumes",): _volumes,
    ("waits_for_space",): lambda server, _: {
        "waits_for_space": server.admin.waits_for_space()
    },
}
# These two wait for the receiver of a standby whose disk is full.
REPLICATION: dict[tuple[str, ...], Read] = {
    ("position", "history"): lambda server, _: {
        "position": server.position(),
        "history": server.history(),
    },
    ("semi_sync",): lambda server, _: {"semi_sync": server.semi_sync()},
    ("status",): lambda server, _: {"status": server.status()},
}
STANDBY: dict[tuple[str, ...], Read] = {
    **REPLICATION,
    ("heartbeat",): lambda server, _: {"heartbeat": server.heartbeat()},
}
CONTENT: dict[tuple[str, ...], Read] = {
    ("counters",): lambda server, _: {"counters": tuple(server.counters())},
    ("table_count",): lambda server, _: {"table_count": server.table_count()},
}
SIZES: dict[tuple[str, ...], Read] = {
    ("tables",): lambda server, _: {"tables": tuple(server.table_sizes())}
}
DEFINITIONS: dict[tuple[str, ...], Read] = {
    ("digests",): lambda server, databases: {"digests": server.admin.digests(databases)}
}
#: How each part is read.
_READS = {
    part: read
    for lane in (STATE, STANDBY, CONTENT, SIZES, DEFINITIONS)
    for parts, read in lane.items()
    for part in parts
}


# -- facts of the servers of a plan ---------------------------------------


@dataclass(frozen=True, kw_only=True)
class LiveServer(ServerFacts):
    """The facts of a server that an operation is connected to.

    A part is read when it is asked for, once.

    :ivar server: its session.
    :raises FleetServerError: when a part is asked for that cannot be read.
    """

    server: Replication
    parts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, server: Replication) -> LiveServer:
        """Return the facts of a server."""
        admin = server.admin
        return cls(server=server, name=admin.name, role="other", address=admin.address)

    def __str__(self) -> str:
        return self.name

    def part(self, name: str) -> Any:
        """Return a part."""
        if name not in self.parts:
            self.parts.update(_READS[name](self.server, ()))
        return self.parts[name]

    def has(self, name: str) -> bool:
        """Return whether a part can be read."""
        return name in _READS


@dataclass(frozen=True, kw_only=True)
class LivePair(PairFacts):
    """The facts of a primary and a standby of a plan, or of a lost primary.

    :ivar is_named: whether the topology names the standby.
    """

    is_named: bool = True

    def part(self, name: str) -> Any:
        """Return a part: ``errant`` only."""
        if name == "errant" and isinstance(self.primary, LiveServer) and self.standby:
            return self.primary.server.errant(self.standby.part("history"))
        return super().part(name)

    def rebuild(self, *options: str) -> str:
        """Return the command that gives the standby all its content anew."""
        if self.is_named:
            return super().rebuild(*options)
        return "empty it, and build it again with: sqla-shard fleet replica build"
