"""Facts about a fleet at one moment, which the checks of the doctor read.

The facts of a server come in parts, and a part that could not be read has a
reason instead of a value: reading it raises :exc:`NotReadError`, which the
doctor reports as unknown.  So a check never takes silence for "fine".

Nothing here connects to a server: see :mod:`sqla_shard.fleet.fact_reader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal
from typing import NamedTuple

from sqla_shard.fleet.fences import GrantRow
from sqla_shard.fleet.fleet_status import FleetStatus
from sqla_shard.fleet.replication import Login
from sqla_shard.fleet.replication import ReplicationStatus
from sqla_shard.fleet.replication import SemiSync
from sqla_shard.fleet.replication import TableSize
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Topology
from sqla_shard.topology.databases import Template

__all__ = [
    "Event",
    "FleetFacts",
    "NotReadError",
    "PairFacts",
    "Role",
    "ServerFacts",
    "Session",
    "Transaction",
    "Version",
    "Volume",
]

Role = Literal["primary", "standby", "other"]
"""Place of a server in the topology; ``"other"``: it is not part of it."""


class NotReadError(Exception):
    """Raised when a check needs facts that could not be read.

    :ivar server: the server.
    :ivar reason: why they could not be read.
    """

    def __init__(self, server: ServerFacts, part: str) -> None:
        super().__init__(part)
        self.server = server
        self.reason = server.unread.get(part, f"{part} were not read")


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


class Transaction(NamedTuple):
    """An open transaction, the session that has it, and its age."""

    session: int
    seconds: int


class Version(NamedTuple):
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
    :ivar parts: what was read, by part.
    :ivar unread: why the other parts were not read.
    """

    name: str
    role: Role
    address: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

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

    @property
    def variables(self) -> Mapping[str, str]:
        """Global variables by name, in lower case."""
        return self.part("variables")  # type: ignore[no-any-return]

    @property
    def version(self) -> Version:
        """Version of the server."""
        return self.part("version")  # type: ignore[no-any-return]

    @property
    def clock(self) -> float:
        """Seconds by which its clock is ahead of that of this process."""
        return self.part("clock")  # type: ignore[no-any-return]

    @property
    def clock_error(self) -> float:
        """Seconds by which :attr:`clock` may be wrong."""
        return self.part("clock_error")  # type: ignore[no-any-return]

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions but those of the doctor."""
        return self.part("sessions")  # type: ignore[no-any-return]

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """The open transactions."""
        return self.part("transactions")  # type: ignore[no-any-return]

    @property
    def logins(self) -> tuple[Login, ...]:
        """Its accounts and roles."""
        return self.part("logins")  # type: ignore[no-any-return]

    @property
    def grants(self) -> tuple[GrantRow, ...]:
        """Its grants on databases."""
        return self.part("grants")  # type: ignore[no-any-return]

    @property
    def configured(self) -> Mapping[str, bool]:
        """Whether variables are set in its configuration."""
        return self.part("configured")  # type: ignore[no-any-return]

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of its databases."""
        return self.part("events")  # type: ignore[no-any-return]

    @property
    def databases(self) -> frozenset[str]:
        """Its databases but those of the system."""
        return self.part("databases")  # type: ignore[no-any-return]

    @property
    def volumes(self) -> tuple[Volume, ...] | None:
        """Its file systems; None if the server does not show them."""
        return self.part("volumes")  # type: ignore[no-any-return]

    @property
    def tables(self) -> tuple[TableSize, ...]:
        """Its tables; read on primaries only."""
        return self.part("tables")  # type: ignore[no-any-return]

    @property
    def digests(self) -> Mapping[str, Mapping[str, str]]:
        """Digests of the tables of the topology, by database."""
        return self.part("digests")  # type: ignore[no-any-return]

    @property
    def status(self) -> ReplicationStatus | None:
        """State of replication; None if it has no primary."""
        return self.part("status")  # type: ignore[no-any-return]

    @property
    def semi_sync(self) -> SemiSync | None:
        """State of semi-synchronous replication; None if it is missing."""
        return self.part("semi_sync")  # type: ignore[no-any-return]

    @property
    def server_id(self) -> int:
        """The ``server_id``."""
        return self.number("server_id")


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
    """

    name: str
    primary: ServerFacts
    standby: ServerFacts | None
    databases: frozenset[str] = frozenset()
    parts: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[ServerFacts, ...]:
        """The primary, and the standby if there is one."""
        if self.standby is None:
            return (self.primary,)
        return (self.primary, self.standby)

    @property
    def late(self) -> float:
        """Seconds for which the standby was waited for in vain, or 0."""
        return self._part("late")  # type: ignore[no-any-return]

    @property
    def errant(self) -> Mapping[str, int]:
        """Transactions that only the standby has, by origin."""
        return self._part("errant")  # type: ignore[no-any-return]

    @property
    def differing(self) -> tuple[tuple[str, str], ...]:
        """Database and table of each definition that differs."""
        return self._part("differing")  # type: ignore[no-any-return]

    def _part(self, name: str) -> Any:
        server = self.standby or self.primary
        if name not in self.parts:
            joined = ServerFacts(
                name=server.name,
                role=server.role,
                address=server.address,
                unread=self.unread,
            )
            return joined.part(name)
        return self.parts[name]


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
        for keyspace in self.topology.keyspaces.values():
            template = Template.parse(
                keyspace.database, sharded=keyspace.kind != "global"
            )
            # The topology has checked the template.
            if isinstance(template, Template):
                shard_id = template.shard_of(database)
                if shard_id is not None:
                    return keyspace, shard_id
        return None
