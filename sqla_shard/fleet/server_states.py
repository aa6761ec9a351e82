"""The state of one server process, as several commands show it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any
from typing import Literal

from sqlalchemy.engine import URL

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.replication import ReplicationStatus

__all__ = [
    "Role",
    "ServerState",
    "read_state",
]

Role = Literal["primary", "standby"]


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The state of one server process.

    :ivar name: name of its pair in the topology.
    :ivar role: its role in the topology.
    :ivar address: ``host:port``, or the directory of SQLite files.
    :ivar error: why it could not be read; None if it was.
    :ivar version: version of the server.
    :ivar read_only: whether it refuses writes; None if unknown.
    :ivar replication: state of a standby; None if it has none, or unknown.
    :ivar unknown: why the state of replication is not known.
    :ivar connected: number of connections; None if unknown.
    :ivar running: number of those that run a statement.
    :ivar most: maximum number of connections.
    :ivar uptime: seconds since it was started.
    :ivar round_trip: seconds that one statement took.
    """

    name: str
    role: Role
    address: str
    error: str | None = None
    version: str = ""
    read_only: bool | None = None
    replication: ReplicationStatus | None = None
    unknown: str | None = None
    connected: int | None = None
    running: int | None = None
    most: int | None = None
    uptime: int | None = None
    round_trip: float | None = None

    @property
    def lag(self) -> int | None:
        """Seconds behind its primary; None if unknown."""
        return None if self.replication is None else self.replication.lag

    @property
    def problems(self) -> tuple[str, ...]:
        """What an operator has to look at, in a few words each."""
        if self.error is not None:
            return (f"does not respond: {self.error}",)
        if self.role == "primary":
            return ("is read-only",) if self.read_only else ()
        found = []
        if self.read_only is False:
            found.append("is not read-only")
        status = self.replication
        if status is not None and not status.runs:
            found.append(f"does not replicate: {status.error or 'stopped'}")
        elif status is None and self.unknown is None and self.version:
            found.append("replicates from no primary")
        return tuple(found)


def read_state(
    url: URL, *, name: str, role: Role, address: str, timeout: float
) -> ServerState:
    """Return the state of a MySQL or MariaDB server.

    The account may not be allowed to see the replication of a standby; then
    ``unknown`` has the reason.

    :param url: address and account.
    :param name: name of its pair.
    :param address: what is shown of ``url``.
    :param timeout: seconds to connect, and to read.
    :raises FleetServerError: if the server does not respond.
    """
    with Admin(url, name=name, timeout=timeout) as admin:
        before = perf_counter()
        ((read_only, most, version),) = admin.rows(
            "SELECT @@GLOBAL.read_only, @@GLOBAL.max_connections, @@version"
        )
        after = perf_counter()
        counters = admin.counters(
            "Threads_connected", "Threads_running", "Uptime"
        )
        known: dict[str, Any] = {}
        if role == "standby":
            try:
                known["replication"] = replication_of(admin).status()
            except FleetServerError as error:
                if error.is_unanswered:
                    raise
                known["unknown"] = error.reason
    return ServerState(
        name=name,
        role=role,
        address=address,
        version=str(version),
        read_only=bool(read_only),
        connected=int(counters["threads_connected"]),
        running=int(counters["threads_running"]),
        most=int(most),
        uptime=int(counters["uptime"]),
        round_trip=after - before,
        **known,
    )
