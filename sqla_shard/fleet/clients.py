"""Clients of a fleet: processes that follow its topology, and their sessions.

Processes register themselves in ZooKeeper, with their epoch, see
:class:`~sqla_shard.topology.zookeeper.source.Registration`: agents, and clusters that
follow ZooKeeper directly.  A process that reads the file of an agent is known
by the agent, which is on the same machine.  Unknown are processes without
permission, with ``register=False``, of older releases, and those without a
session with ZooKeeper at the moment.

What a node says is a statement of that process, not more: it is shown, and
nothing is decided by it.

On a server they have sessions.  A server knows the address of a client, its
user, and its default database. With ``performance_schema = ON`` it knows the
program and the process, too, if the driver sends them when it connects.
Without, the port of the client is what identifies its process, on its own
host.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TYPE_CHECKING

from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.topology import Topology
from sqla_shard.topology.follow import is_zookeeper, zookeeper_options
from sqla_shard.util.json_values import JsonObject, parsed_object

if TYPE_CHECKING:
    from sqla_shard.topology.zookeeper.store import ZooKeeperStore

#: Greatest size of a node in bytes, and of a text in it.
_MAX_NODE_BYTES = 10_000
_MAX_TEXT_CHARS = 200
#: Most clients in the note of a step, and in a text.
_MAX_CLIENTS = 100
#: Most nodes that are read: whoever may write below them may write many.
_MAX_NODES = 5_000


@dataclass(frozen=True, kw_only=True)
class Client:
    """A process that has registered.

    :ivar role: ``"cluster"``, or ``"agent"``.
    :ivar host: name of its machine.
    :ivar pid: number of the process there.
    :ivar program: name of its program.
    :ivar epoch: epoch of the topology that it uses.
    :ivar resets: resets of that topology.
    :ivar file: file that an agent writes; None for others.
    :ivar behind: seconds since a newer topology was published; None if it
        uses the newest, or if it is not known.
    """

    role: str
    host: str
    pid: int
    program: str
    epoch: int
    resets: int
    file: str | None = None
    behind: float | None = None

    @property
    def version(self) -> tuple[int, int]:
        """Resets and epoch; a newer topology has a higher one."""
        return self.resets, self.epoch

    def __str__(self) -> str:
        what = f"{self.program} on {self.host}, pid {self.pid}"
        if self.file is not None:
            what = f"agent {what}, and the processes that read {self.file}"
        return what

    @property
    def remedy(self) -> str:
        """The remedy if it goes on using an old topology."""
        if self.file is not None:
            return (
                f"look at the log of the agent on {self.host} and whether "
                f"{self.file} can be written, then restart it"
            )
        return (
            f"look at health() and the log of that process on {self.host}: "
            "it says why it does not use the newer topology; restart it"
        )


@dataclass(frozen=True, kw_only=True)
class Clients(JsonObject):
    """The registered processes of a fleet.

    :ivar epoch: epoch of the topology.
    :ivar known: the processes, those with the oldest topology first.
    :ivar late: those of them that use an older topology.
    :ivar invalid: names of nodes that cannot be read as a process.
    :ivar unread: why nodes could not be read; None if all were.
    """

    derived: ClassVar[tuple[str, ...]] = ("epochs",)

    epoch: int
    known: tuple[Client, ...]
    late: tuple[Client, ...]
    invalid: tuple[str, ...] = ()
    unread: str | None = None

    @property
    def epochs(self) -> dict[int, int]:
        """The number of processes by epoch, the highest first."""
        counts = Counter(one.epoch for one in self.known)
        return dict(sorted(counts.items(), reverse=True))

    def __str__(self) -> str:
        if not self.known:
            if self.unread is not None:
                return f"clients are unknown: {self.unread}"
            return "clients: none has registered"
        counts = ", ".join(
            f"{count} with epoch {epoch}" for epoch, count in self.epochs.items()
        )
        lines = [f"clients: {counts}"]
        if self.unread is not None:
            lines.append(f"other clients are unknown: {self.unread}")
        for one in self.late[:_MAX_CLIENTS]:
            lines += [f"old epoch: {late_line(one)}", f"    {one.remedy}"]
        if len(self.late) > _MAX_CLIENTS:
            lines.append(
                f"old epoch: {len(self.late) - _MAX_CLIENTS:,} others; see --json"
            )
        return "\n".join(lines)


def late_line(one: Client) -> str:
    """Return a line about a process with an old topology."""
    since = ""
    if one.behind is not None:
        since = f", {one.behind:,.0f} s after a newer one was published"
    return f"epoch {one.epoch} is used by {one}{since}"


def known_clients(fleet: Fleet, topology: Topology) -> Clients | None:
    """Return the processes that have registered.

    :param topology: the newest topology of the fleet.
    :returns: None if the topology is a file.
    """
    if not is_zookeeper(fleet.location):
        return None
    try:
        return _read(fleet, topology)
    except TopologyUnavailableError as error:
        # The rest of the report does not depend on them.
        return Clients(epoch=topology.epoch, known=(), late=(), unread=str(error))


def _read(fleet: Fleet, topology: Topology) -> Clients:
    # kazoo is needed for this alone.
    from sqla_shard.topology.zookeeper.source import CLIENTS
    from sqla_shard.topology.zookeeper.store import ZooKeeperStore

    hosts, options = zookeeper_options(fleet.location)
    with closing(ZooKeeperStore(hosts, options=options)) as store:
        every = sorted(store.names(CLIENTS))
        names = every[:_MAX_NODES]
        nodes = store.read_all(f"{CLIENTS}/{name}" for name in names)
        found: list[Client] = []
        invalid: list[str] = []
        for name, node in zip(names, nodes, strict=True):
            # One that has ended meanwhile has no node any more.
            if node is not None:
                try:
                    found.append(_client(node.data))
                except ValueError:
                    invalid.append(_text(name))
        found.sort(key=lambda one: (one.version, one.host, one.pid))
        late = [one for one in found if one.version < topology.version]
        published = _published(store, topology, late)
    return Clients(
        epoch=topology.epoch,
        known=tuple(found),
        late=tuple(_behind(one, topology, published) for one in late),
        invalid=tuple(invalid),
        unread=(
            f"{len(every):,} nodes are registered, of which {_MAX_NODES:,} were read; "
            f"remove those below {CLIENTS} that are no processes"
            if len(every) > _MAX_NODES
            else None
        ),
    )


def _published(
    store: ZooKeeperStore, topology: Topology, late: Iterable[Client]
) -> dict[int, float]:
    """Return when the epochs after the oldest were published."""
    from sqla_shard.topology.zookeeper.publications import node_of

    oldest = min(
        (one.epoch for one in late if one.resets == topology.resets),
        default=topology.epoch - 1,
    )
    # A longer history is not asked for.
    first = max(oldest + 1, topology.epoch - _MAX_CLIENTS)
    epochs = range(first, topology.epoch + 1)
    stats = store.stats([node_of(epoch) for epoch in epochs])
    return {
        epoch: stat.created
        for epoch, stat in zip(epochs, stats, strict=True)
        if stat is not None
    }


def _behind(one: Client, topology: Topology, published: Mapping[int, float]) -> Client:
    """Return a late client with the time since it is late."""
    is_same = one.resets == topology.resets
    later = [
        when for epoch, when in published.items() if not is_same or epoch > one.epoch
    ]
    behind = max(0.0, time.time() - min(later)) if later else None
    return Client(**{**asdict(one), "behind": behind})


def _client(data: bytes) -> Client:
    """Return the process of a node.

    :raises ValueError: if it is not valid.
    """
    document = parsed_object(data, _MAX_NODE_BYTES)
    file = document.get("file")
    return Client(
        role=_text(document.get("role", "?")),
        host=_text(document.get("host", "?")),
        pid=_number(document, "pid"),
        program=_text(document.get("program", "?")),
        epoch=_number(document, "epoch"),
        resets=_number(document, "resets"),
        file=None if file is None else _text(file),
    )


def _number(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} is no number of a process or a topology")
    return value


def _text(value: object) -> str:
    """Return the printable part of a text that others have written."""
    return "".join(
        letter if letter.isprintable() else "?"
        for letter in str(value)[:_MAX_TEXT_CHARS]
    )


# -- the note of the last step of an operation -----------------------------


def late_note(fleet: Fleet) -> dict[str, Any]:
    """Return the processes with an older topology, for the note of a step.

    Does not wait: a process needs some milliseconds to follow.
    """
    try:
        found = known_clients(fleet, fleet.topology())
    except TopologyUnavailableError as error:
        # The purpose of the operation is achieved.
        return {"clients_unknown": str(error)}
    if found is None or not (found.known or found.unread):
        return {}
    # Of too many nodes some were read.
    unread = {} if found.unread is None else {"clients_unknown": found.unread}
    return unread | {
        "clients": len(found.known),
        "late_clients": [asdict(one) for one in found.late[:_MAX_CLIENTS]],
        "late": len(found.late),
    }


def late_lines(note: Mapping[str, Any]) -> list[str]:
    """Return the lines about a note of :func:`late_note`."""
    lines = [
        f"old epoch: {late_line(Client(**one))}" for one in note.get("late_clients", ())
    ]
    if note.get("late", 0) > len(lines):
        lines.append(f"old epoch: {note['late'] - len(lines)} more processes")
    if "clients_unknown" in note:
        which = "other clients" if note.get("clients") else "clients"
        lines.append(f"{which} are unknown: {note['clients_unknown']}")
    return lines


#: Attributes of a connection, by what they say.
_ATTRIBUTES = {"program_name": "name", "_client_name": "driver", "_pid": "pid"}
#: Users of the threads of the server.
_SYSTEM = frozenset(["system user", "event_scheduler"])
#: Most groups in a note, and most ports or processes of each.
_MAX_GROUPS = 100
_MAX_PER_GROUP = 20
#: How many of them are shown.
_MAX_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class AppSession:
    """A session of a server.

    :ivar id: its number.
    :ivar user: name of the user.
    :ivar address: host of the client, and its port if it has one.
    :ivar database: its default database; None if it has none.
    """

    id: int
    user: str
    address: str
    database: str | None


@dataclass(frozen=True, kw_only=True)
class Program:
    """The attributes that a client has sent when it connected.

    :ivar name: name of the program, or else of the driver.
    :ivar pid: number of the process on its host; None if it is not known.
    """

    name: str
    pid: int | None


def host_of(address: str) -> str:
    """Return the host of the address of a client."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address


def sessions_of(admin: Admin, users: Collection[str]) -> dict[int, AppSession]:
    """Return the sessions of some users, by number."""
    return {one.id: one for one, _ in _sessions(admin) if one.user in users}


def applications(admin: Admin, users: Collection[str]) -> dict[int, AppSession]:
    """Return the sessions that are neither replication nor of some users.

    :param users: users whose sessions are left out.
    """
    return {
        one.id: one
        for one, command in _sessions(admin)
        if one.user not in _SYSTEM
        and one.user not in users
        and command != "Daemon"
        and not command.startswith("Binlog Dump")
    }


def _sessions(admin: Admin) -> Iterator[tuple[AppSession, str]]:
    """Yield every session, with its command."""
    # A tenth of the time of information_schema.processlist, for which the
    # server makes a temporary table: writes wait for it in a split.
    for number, user, address, database, command, *_ in admin.rows("SHOW PROCESSLIST"):
        session = AppSession(
            id=number, user=user, address=address or "", database=database
        )
        yield session, command


def programs(admin: Admin) -> dict[int, Program]:
    """Return the program of each session that is known, by its number."""
    on = admin.variables("performance_schema")
    if on.get("performance_schema") != "ON":
        return {}
    found: dict[int, dict[str, str]] = {}
    for number, name, value in admin.rows(
        "SELECT processlist_id, attr_name, attr_value"
        " FROM performance_schema.session_connect_attrs"
    ):
        if name in _ATTRIBUTES and value:
            found.setdefault(number, {})[_ATTRIBUTES[name]] = value
    return {
        number: Program(
            name=one.get("name") or one.get("driver") or "",
            pid=int(one["pid"]) if one.get("pid", "").isdecimal() else None,
        )
        for number, one in found.items()
    }


def end_sessions(
    admin: Admin, find: Callable[[], Mapping[int, AppSession]], seconds: float
) -> tuple[dict[int, AppSession], set[int]]:
    """End the sessions that exist now, and wait until they are gone.

    :param find: returns the sessions to end.
    :param seconds: time to wait.
    :returns: the sessions, and the numbers of those that are still there.
    """
    ended = dict(find())
    for number in ended:
        admin.kill(number)
    deadline = time.monotonic() + seconds
    while left := ended.keys() & find().keys():
        if time.monotonic() > deadline:
            return ended, left
        time.sleep(0.001)
    return ended, set()


def grouped(
    sessions: Iterable[AppSession], known: Mapping[int, Program] | None = None
) -> list[dict[str, Any]]:
    """Return sessions by host, user and program, for the note of a step.

    :param known: programs of sessions.
    :returns: JSON values, those with the most sessions first, at most 100.
        ``pids`` are the processes, and ``ports`` those of the clients whose
        process is not known, at most 20 of each.
    """
    programs_of = known or {}
    counts: Counter[tuple[str, str, str]] = Counter()
    sets: dict[tuple[str, str, str], dict[str, set[Any]]] = {}
    for one in sessions:
        program = programs_of.get(one.id)
        host = host_of(one.address)
        key = (host, one.user, "" if program is None else program.name)
        counts[key] += 1
        found = sets.setdefault(
            key, {"databases": set(), "pids": set(), "ports": set()}
        )
        if one.database:
            found["databases"].add(one.database)
        if program is not None and program.pid is not None:
            found["pids"].add(program.pid)
        elif host != one.address:
            found["ports"].add(int(one.address[len(host) + 1 :]))
    return [
        {
            "host": host,
            "user": user,
            "program": program or None,
            "sessions": count,
            **{
                name: sorted(values)[:_MAX_PER_GROUP]
                for name, values in sets[host, user, program].items()
            },
        }
        for (host, user, program), count in counts.most_common(_MAX_GROUPS)
    ]


def described(
    sessions: Iterable[AppSession], known: Mapping[int, Program] | None = None
) -> str:
    """Return the owners of sessions, for messages.

    :param known: see :func:`grouped`.
    """
    lines = [_line(one) for one in grouped(sessions, known)]
    return "; ".join(lines[:_MAX_SHOWN]) + ("; ..." if lines[_MAX_SHOWN:] else "")


def ended_note(
    admin: Admin,
    sessions: Collection[AppSession],
    known: Mapping[int, Program] | None = None,
) -> dict[str, Any]:
    """Return the note of a step that has ended some sessions of a server.

    :param known: see :func:`grouped`.
    """
    return {
        "killed": len(sessions),
        "ended": [
            {"server": str(admin), **group} for group in grouped(sessions, known)
        ],
    }


def ended_lines(note: Mapping[str, Any]) -> list[str]:
    """Return the lines about a note of :func:`ended_note`."""
    groups = note.get("ended", ())
    lines = [f"ended on {group['server']}: {_line(group)}" for group in groups]
    left = note.get("killed", 0) - sum(group["sessions"] for group in groups)
    if groups and left > 0:
        lines.append(f"ended on {groups[0]['server']}: {left} more sessions")
    return lines


def _line(group: Mapping[str, Any]) -> str:
    count = group["sessions"]
    what = "1 session" if count == 1 else f"{count} sessions"
    details = [
        f"{name} {shortened_list(values, _MAX_SHOWN)}"
        for name, values in (
            ("in", group["databases"]),
            ("pid", group["pids"]),
            ("port", group["ports"]),
        )
        if values
    ]
    who = " ".join(filter(None, (group["host"], group["user"])))
    if group["program"]:
        who += f" ({group['program']})"
    return ", ".join([f"{who}: {what}", *details])
