"""Sessions of applications on a server: their owners, and killing them.

A server knows the address of a client, its user, and its default database.
With ``performance_schema = ON`` it knows the program and the process, too, if
the driver sends them when it connects.  Without, the port of the client is
what identifies its process, on its own host.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.admin import Admin

#: Attributes of a connection, by what they say.
_ATTRIBUTES = {"program_name": "name", "_client_name": "driver", "_pid": "pid"}
#: Users of the threads of the server.
_SYSTEM = frozenset(["system user", "event_scheduler"])
#: Most groups in a note, and most ports or processes of each.
_GROUPS = 100
_EACH = 20
#: How many of them are shown.
_SHOWN = 5


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
                name: sorted(values)[:_EACH]
                for name, values in sets[host, user, program].items()
            },
        }
        for (host, user, program), count in counts.most_common(_GROUPS)
    ]


def described(
    sessions: Iterable[AppSession], known: Mapping[int, Program] | None = None
) -> str:
    """Return the owners of sessions, for messages.

    :param known: see :func:`grouped`.
    """
    lines = [_line(one) for one in grouped(sessions, known)]
    return "; ".join(lines[:_SHOWN]) + ("; ..." if lines[_SHOWN:] else "")


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
        f"{name} {shortened_list(values, _SHOWN)}"
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
