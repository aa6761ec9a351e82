"""Checks of the doctor: accounts, events, sessions and transactions.

Fences of operations hold for accounts without global privileges: ``read_only``
does not stop READ_ONLY ADMIN, and a fence of single databases stops neither
global privileges nor those of roles.
"""

from __future__ import annotations

from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.accounts import passwords_differ
from sqla_shard.fleet.app_access import gaps
from sqla_shard.fleet.clients import AppSession, described, late_line
from sqla_shard.fleet.facts import FleetFacts, PairFacts, ServerFacts
from sqla_shard.fleet.findings import (
    critical,
    Findings,
    fleet_check,
    info,
    pair_check,
    server_check,
    standby_check,
    unknown,
    warning,
)

LONG_TRANSACTION = 60
"""Age in seconds from which a transaction is reported."""

#: Global privileges with which an account writes past fences.
_WRITES = frozenset(
    [
        "ALTER",
        "BINLOG ADMIN",
        "BINLOG REPLAY",
        "CONNECTION_ADMIN",
        "CREATE",
        "CREATE USER",
        "DELETE",
        "DROP",
        "INDEX",
        "INSERT",
        "READ_ONLY ADMIN",
        "SUPER",
        "SYSTEM_VARIABLES_ADMIN",
        "TRIGGER",
        "UPDATE",
    ]
)
_PAST_READ_ONLY = frozenset(["CONNECTION_ADMIN", "READ_ONLY ADMIN", "SUPER"])
#: Accounts of the server itself.
_SYSTEM = frozenset(["root", "mariadb.sys", "mysql.sys", "mysql.session", "mysql"])
_SYSTEM_SESSIONS = frozenset(["system user", "event_scheduler"])
_MAX_SHOWN = 3

FOLLOWED = 15.0
"""Seconds after a publication in which a process must have followed.

More than those of a session with ZooKeeper: the node of a process that has
died lasts as long.
"""


@fleet_check
def application_users(fleet: FleetFacts) -> Findings:
    """Users of the application that are not known."""
    if fleet.unknown_users:
        yield unknown(
            "fleet",
            f"the users {', '.join(fleet.unknown_users)} of the topology "
            "have no value, so their privileges and sessions were not checked",
            "set these environment variables as the application does",
        )


@standby_check
def application_access(
    standby: ServerFacts, pair: PairFacts, fleet: FleetFacts
) -> Findings:
    """Accounts of the application that are not those of the primary."""
    primary = pair.primary.access
    for gap in gaps(primary, standby.access, pair.databases, exempt=fleet.operators):
        yield critical(standby, f"{gap.what}: a failover is refused", gap.remedy)
    user, is_tried, error = primary.attempt
    if error:
        yield info(
            pair.primary,
            f"does not let {user!r} in from here with the password of this environment "
            f"(error {error}), so its login on the standby says nothing",
        )
    elif user and not is_tried:
        yield info(
            pair.primary,
            f"was not logged in to as {user!r}: its password is not known "
            "here; only accounts and grants were compared",
        )


@standby_check
def fleet_accounts(
    standby: ServerFacts, pair: PairFacts, fleet: FleetFacts
) -> Findings:
    """Accounts of the operator and of replication that its primary has."""
    for user in sorted(fleet.operators):
        there, here = (
            any(login.user == user for login in server.logins)
            for server in (pair.primary, standby)
        )
        if there and not here:
            yield warning(
                standby,
                f"has no user {user!r}: a failover is refused",
                f"{_alone(standby)}CREATE USER, with the privileges that it has on "
                f"{pair.primary.address}",
            )
        elif passwords_differ(user, pair.primary.logins, standby.logins):
            yield warning(
                standby,
                f"has another password of {user!r} than its primary: after a failover "
                "nothing can replicate from it, or be operated",
                f"{_alone(standby)}ALTER USER, with the password of "
                f"{pair.primary.address}",
            )


@server_check
def global_privileges(server: ServerFacts, fleet: FleetFacts) -> Findings:
    """Accounts of the application that fences do not stop."""
    for login in server.logins:
        found = sorted(login.privileges & _WRITES)
        if login.user in fleet.application and found:
            yield critical(
                server,
                f"has an account of the application, {login}, with global privileges "
                f"({', '.join(found)}): it can write past the fences of operations",
                f"{_alone(server)}REVOKE {', '.join(found)} ON *.* FROM "
                f"{login}; grant it privileges on its databases only",
            )


@server_check
def roles(server: ServerFacts, fleet: FleetFacts) -> Findings:
    """Roles of the application, whose privileges fences do not see."""
    for login in server.logins:
        if login.user in fleet.application and login.roles:
            first = sorted(login.roles)[0]
            yield warning(
                server,
                f"has an account of the application, {login}, with roles "
                f"({', '.join(sorted(login.roles))}): the fence of a split "
                "does not stop what it is granted by a role",
                f"{_alone(server)}REVOKE {first} FROM {login}; grant "
                "the privileges to the account",
            )


@server_check
def past_read_only(server: ServerFacts, fleet: FleetFacts) -> Findings:
    """Other accounts that write on a server that is read-only."""
    skipped = fleet.application | fleet.operators | _SYSTEM
    for login in server.logins:
        found = sorted(login.privileges & _PAST_READ_ONLY)
        if login.user not in skipped and found:
            yield warning(
                server,
                f"has an account, {login}, that may write although a server "
                f"is read-only ({', '.join(found)})",
                f"{_alone(server)}REVOKE {', '.join(found)} ON *.* FROM {login}",
            )


@server_check
def no_password(server: ServerFacts, _: FleetFacts) -> Findings:
    """Accounts that anyone can use."""
    for login in server.logins:
        if login.needs_no_password:
            yield warning(
                server,
                f"has an account without a password: {login}",
                f"{_alone(server)}DROP USER {login}, or give it a password",
            )


@pair_check
def events(pair: PairFacts, fleet: FleetFacts) -> Findings:
    """Events that write on a standby, or would after a failover."""
    standby = pair.standby
    if standby is not None:
        replica = standby.words.REPLICA
        enabled = [one for one in standby.events if one.status == "ENABLED"]
        if enabled and standby.is_on("event_scheduler"):
            yield critical(
                standby,
                f"runs {_events(len(enabled))} ({enabled[0].database}."
                f"{enabled[0].name}) although it is a standby",
                f"on {standby.address}: SET GLOBAL event_scheduler = OFF",
            )
        elif enabled:
            are = "are" if enabled[1:] else "is"
            yield warning(
                standby,
                f"has {_events(len(enabled))} that {are} "
                f"enabled ({enabled[0].database}.{enabled[0].name}): the "
                "event scheduler would run them on a standby",
                f"{_alone(standby)}ALTER EVENT `{enabled[0].database}`"
                f".`{enabled[0].name}` DISABLE ON {replica}",
            )
        if standby.is_on("event_scheduler"):
            yield warning(
                standby,
                "has its event scheduler switched on",
                f"on {standby.address}: SET GLOBAL event_scheduler = OFF, "
                "and in its configuration",
            )
    strong = {
        login.user
        for login in pair.primary.logins
        if login.privileges & _PAST_READ_ONLY
    }
    for event in pair.primary.events:
        if event.definer.rpartition("@")[0] in strong:
            yield warning(
                pair.primary,
                f"has the event {event.database}.{event.name} of the definer "
                f"{event.definer}, which writes past read_only: on a former "
                "primary it makes errant transactions",
                f"on {pair.primary.address}: ALTER DEFINER = an account "
                f"without SUPER and READ_ONLY ADMIN EVENT `{event.database}`"
                f".`{event.name}` COMMENT ''",
            )


@server_check
def sessions_elsewhere(server: ServerFacts, fleet: FleetFacts) -> Findings:
    """Sessions of the application where the topology sends none."""
    if server.role == "primary":
        return
    found = [one for one in server.sessions if one.user in fleet.application]
    if not found:
        return
    where = described(
        (
            AppSession(id=one.id, user=one.user, address=one.host, database=None)
            for one in found
        ),
        # Only sessions matter.
        server.programs if server.has("programs") else None,
    )
    place = "a standby" if server.role == "standby" else "not in the topology"
    yield warning(
        server,
        f"has {len(found)} sessions of the application ({where}), and is "
        f"{place}: those processes use another epoch of the topology than "
        f"{fleet.topology.epoch}, or its URL",
        "find what follows the topology on these hosts (sqla-shard topology watch), "
        f"and restart what does not; on {server.address}: KILL {found[0].id}",
    )


@fleet_check
def old_epochs(fleet: FleetFacts) -> Findings:
    """Processes that follow the topology, and use an older one."""
    clients = None if fleet.operation is None else fleet.operation.clients
    if clients is None:
        yield info(
            "fleet",
            "the epochs that processes use are known by their sessions on "
            "standbys and former servers only, since the topology is a file: "
            "in ZooKeeper they register",
        )
        return
    if clients.unread is not None:
        yield unknown(
            "fleet",
            f"the processes that follow ZooKeeper are not known: {clients.unread}",
            "give the operator the permission to read /clients there, and remove "
            "nodes that are not of processes",
        )
        if not clients.known:
            return
    for one in clients.late:
        if one.behind is None or one.behind >= FOLLOWED:
            yield warning("fleet", late_line(one), one.remedy)
        else:
            yield info("fleet", late_line(one))
    if clients.invalid:
        yield info(
            "fleet",
            f"{len(clients.invalid)} nodes of clients cannot be read "
            f"({shortened_list(clients.invalid, _MAX_SHOWN)}): of another "
            "version, or written by something else",
        )
    agents = sum(one.file is not None for one in clients.known)
    yield info(
        "fleet",
        f"{len(clients.known)} processes have registered in ZooKeeper ({agents} of "
        "them agents, which stand for those that read their file); others are known by "
        "their sessions on standbys and former servers only",
    )


@server_check
def long_transactions(server: ServerFacts, fleet: FleetFacts) -> Findings:
    """Transactions that operations would wait for or end."""
    # What a report or a backup reads is a transaction of the operator.
    found = [
        one
        for one in server.transactions
        if one.seconds >= LONG_TRANSACTION
        and one.user not in _SYSTEM_SESSIONS
        and (one.locks or one.user not in fleet.operators)
    ]
    if found:
        oldest = max(found, key=lambda one: one.seconds)
        yield warning(
            server,
            f"has {len(found)} transactions of {LONG_TRANSACTION} s or "
            f"longer, the oldest of {oldest.seconds:,} s: they hold locks, "
            "and an operation ends them",
            f"on {server.address}: KILL {oldest.session}",
        )


def _alone(server: ServerFacts) -> str:
    # Logged on a standby, the statement would be an errant transaction; logged
    # on a primary, it may stop a standby that lacks the account.
    return f"on {server.address}: SET SESSION sql_log_bin = 0; "


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count} events"
