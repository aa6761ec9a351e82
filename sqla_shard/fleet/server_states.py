"""The state of server processes, as several commands show it.

All servers are read at the same time.  A server that does not respond in time
has an error instead of a state, and delays no other.  Each read opens a
connection of its own: those of the pools may all wait for a server that hangs.

Runs that write many rows wait while replicas are behind (:class:`LagGuard`): a
replica applies the commits of its primary, often more slowly than many
sessions write.  One that is minutes behind returns old rows, and cannot take
over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic, perf_counter
from typing import Any, Literal, TypeVar

from sqlalchemy.engine import URL

from sqla_shard.dialects.base import PasswordSource
from sqla_shard.engine.pools import Answer, in_threads, server_name
from sqla_shard.engine.unreachable import Cause, UnreachableServer
from sqla_shard.exc import FleetServerError, FleetSetupError
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.fleet import Pair
from sqla_shard.fleet.replication import replication_of, ReplicationStatus
from sqla_shard.topology.urls import address_of
from sqla_shard.util.logs import careful_log

T = TypeVar("T")

Role = Literal["primary", "standby"]

HIDDEN = "its account lacks SLAVE MONITOR (on MySQL: REPLICATION CLIENT)"
"""Reason why the state of replication is not known: a privilege is missing."""

_ACCESS_DENIED = 1227


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The state of one server process.

    :ivar name: name of its pair in the topology.
    :ivar role: its role in the topology.
    :ivar address: ``host:port``, or the directory of SQLite files.
    :ivar error: why it could not be read; None if it was.
    :ivar error_number: number of that error; None if it has none.
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
    error_number: int | None = None
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
        """Problems for an operator to look at, in a few words each."""
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
        elif self.unknown not in (None, HIDDEN):
            found.append(f"its replication is not known: {self.unknown}")
        elif status is None and self.unknown is None and self.version:
            found.append("replicates from no primary")
        return tuple(found)


def read_state(
    url: URL,
    *,
    name: str,
    role: Role,
    address: str,
    timeout: float,
    password: PasswordSource | None = None,
) -> ServerState:
    """Return the state of a MySQL or MariaDB server.

    The account may not be allowed to see the replication of a standby; then
    ``unknown`` has the reason.

    :param url: address and account.
    :param name: name of its pair.
    :param address: the displayed part of ``url``.
    :param timeout: seconds to connect, and to read.
    :param password: the password; None for that of the URL.
    :raises FleetServerError: if the server does not respond.
    """
    with Admin(url, name=name, timeout=timeout, password=password) as admin:
        before = perf_counter()
        ((read_only, most, version),) = admin.rows(
            "SELECT @@GLOBAL.read_only, @@GLOBAL.max_connections, @@version"
        )
        after = perf_counter()
        counters = admin.counters("Threads_connected", "Threads_running", "Uptime")
        known: dict[str, Any] = {}
        if role == "standby":
            try:
                known["replication"] = replication_of(admin).status()
            except FleetServerError as error:
                if error.is_unanswered:
                    raise
                denied = error.number == _ACCESS_DENIED
                known["unknown"] = HIDDEN if denied else error.reason
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


def read_states(
    pairs: Sequence[Pair], url_of: Callable[[str], URL], *, timeout: float
) -> Mapping[tuple[str, Role], ServerState]:
    """Return the state of every server, by name of its pair and role.

    :param pairs: pairs of a topology.
    :param url_of: returns the URL with the account for a URL of the topology.
    :param timeout: seconds for each server.
    """
    jobs = [
        (pair, role_of(role), text)
        for pair in pairs
        for role, text in pair.urls.items()
    ]
    found = all_answers(
        [partial(_state, *job, url_of, timeout) for job in jobs], timeout
    )
    states: dict[tuple[str, Role], ServerState] = {}
    for (pair, role, text), result in zip(jobs, found, strict=True):
        if not isinstance(result, ServerState):
            result = ServerState(
                name=pair.name,
                role=role,
                address=str(address_of(text)),
                error=reason_of(result),
                error_number=getattr(result, "number", None),
            )
        states[pair.name, role] = result
    return states


def _state(
    pair: Pair, role: Role, text: str, url_of: Callable[[str], URL], timeout: float
) -> ServerState:
    url = url_of(text)
    known: dict[str, Any] = {
        "name": pair.name,
        "role": role,
        "address": str(address_of(text)),
    }
    if url.host is not None:
        return read_state(url, **known, timeout=timeout)
    is_there = Path(str(url.database)).is_dir()
    missing = None if is_there else "there is no such directory"
    return ServerState(**known, error=missing, read_only=False)


def all_answers(jobs: Sequence[Callable[[], T]], timeout: float) -> list[T | Exception]:
    """Return the result of each job, or the error of its server.

    :param jobs: functions that ask one server each, over a connection of
        their own, with ``timeout`` seconds to connect and to read.
    """
    found: dict[int, T] = {}
    answers = in_threads(
        [partial(_answered, found, number, job) for number, job in enumerate(jobs)],
        # Connecting and reading have the limit each.
        2 * timeout,
    )
    return [
        found[number] if answer is None else answer
        for number, answer in enumerate(answers)
    ]


def _answered(found: dict[int, T], number: int, job: Callable[[], T]) -> Answer:
    try:
        found[number] = job()
    except (FleetServerError, OSError) as error:
        return error
    return None


def outage(
    pair: Pair, role: str, *, why: str, number: int | None, is_up: bool = False
) -> UnreachableServer:
    """Return a server that was not read, as all commands do.

    :param why: the reason.
    :param number: number of the error of the server or its driver; None or 0
        if there is none, since no answer came in time.
    :param is_up: whether other statements were answered.
    """
    return UnreachableServer(
        server=pair.name,
        role=role,
        cause=Cause(
            why,
            number or None,
            # Errors of the driver; a server that answers has others.
            responds=is_up or (bool(number) and not 2000 <= int(number or 0) < 3000),
        ),
        addresses=tuple(
            (keyspace, one) for keyspace, ids in pair.shards().items() for one in ids
        ),
    )


def role_of(text: str) -> Role:
    """Return the role of a URL of a pair."""
    return "standby" if text == "standby" else "primary"


def reason_of(error: object) -> str:
    """Return why a server was not read, without its name."""
    if isinstance(error, FleetServerError):
        return error.reason
    return str(error)


_log = careful_log(__name__)

Replicas = Mapping[str, tuple[URL, PasswordSource | None]]
"""URLs with the account, by names for messages, and the password of each; None
for that of the URL."""

#: Seconds between two looks at the replicas.
_LOOK_SECONDS = 1.0
#: Seconds for a replica to accept a connection, and to respond.
_TIMEOUT_SECONDS = 5.0
#: Errors of a server that has too many connections, or ends: it may accept
#: one later.
_PASSING = frozenset([1040, 1053, 1203, 1226, 1317, 1927])


@dataclass(frozen=True)
class _Behind:
    name: str
    reason: str
    seconds: int | None = None

    def __str__(self) -> str:
        known = "" if self.seconds is None else f" ({self.seconds} s)"
        return f"{self.name} {self.reason}{known}"


class LagGuard:
    """Waits while a replica is behind its primary.

    A replica that does not respond, or does not replicate, counts as one that
    is behind.  Each reason to wait is logged once.

    For one thread.

    :param replicas: returns the replicas of now.  The account needs the
        privilege ``SLAVE MONITOR`` (MySQL: ``REPLICATION CLIENT``).
    :param limit: seconds that each may be behind, as the replica reports it.
    """

    def __init__(self, replicas: Callable[[], Replicas], *, limit: float) -> None:
        self._replicas = replicas
        self._limit = limit
        self._next = monotonic()
        self._never = Event()

    def wait(self) -> None:
        """Return when no replica is behind; they are read once a second.

        :raises FleetSetupError: if the account may not see the lag of one, or
            it replicates from no primary.
        """
        if monotonic() < self._next:
            return
        # Without the seconds, which differ each time.
        known: set[tuple[str, str]] = set()
        while behind := self._behind():
            reasons = {(one.name, one.reason) for one in behind}
            if reasons != known:
                _log.warning(
                    "waits until no replica is more than %g s behind: %s",
                    self._limit,
                    ", ".join(map(str, behind)),
                )
            known = reasons
            self._never.wait(_LOOK_SECONDS)
        self._next = monotonic() + _LOOK_SECONDS

    def _behind(self) -> list[_Behind]:
        """Return the replicas that are behind.

        :raises FleetSetupError: see :meth:`wait`.
        """
        replicas = self._replicas()
        states = all_answers(
            [
                partial(
                    read_state,
                    url,
                    name=name,
                    role="standby",
                    address=server_name(url),
                    timeout=_TIMEOUT_SECONDS,
                    password=password,
                )
                for name, (url, password) in replicas.items()
            ],
            _TIMEOUT_SECONDS,
        )
        found = [
            self._one_behind(name, state)
            for name, state in zip(replicas, states, strict=True)
        ]
        return [one for one in found if one is not None]

    def _one_behind(self, name: str, state: ServerState | Exception) -> _Behind | None:
        if isinstance(state, FleetServerError) and not (
            state.is_unanswered or state.number in _PASSING
        ):
            raise FleetSetupError(str(state)) from state
        if isinstance(state, Exception):
            return _Behind(name, f"does not respond: {reason_of(state)}")
        if state.unknown == HIDDEN:
            raise FleetSetupError(f"the lag of {name} cannot be read: {HIDDEN}")
        if state.unknown is not None:
            return _Behind(name, state.unknown)
        status = state.replication
        if status is None:
            raise FleetSetupError(
                f"{name} replicates from no primary, so it has no lag; start "
                "its replication, or do not name it as a replica"
            )
        if not status.runs or status.lag is None:
            return _Behind(name, f"does not replicate: {status.error or 'stopped'}")
        if status.lag > self._limit:
            return _Behind(name, "is behind", seconds=status.lag)
        return None
