"""Conditions for a standby to become the primary.

Each function returns problems, all at once, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqla_shard.exc import Problem
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.accounts import Accounts
from sqla_shard.fleet.fences import grant_rows
from sqla_shard.fleet.plans import as_list
from sqla_shard.fleet.replication import Replication

_LONG = 1.0


def setting_problems(*servers: Replication) -> list[Problem]:
    """Return the settings of servers that prevent a change of roles.

    The privileges of the operator are among them.
    """
    found = [
        Problem(server.admin.name, text)
        for server in servers
        for text in server.unfit()
    ]
    ids: dict[int, str] = {}
    for server in servers:
        found += privilege_problems(server)
        own = server.server_id()
        other = ids.setdefault(own, server.admin.name)
        if other != server.admin.name:
            found.append(
                Problem(
                    server.admin.name,
                    f"its server_id {own} is that of {other}; give each server its own",
                )
            )
    return found


def privilege_problems(server: Replication) -> list[Problem]:
    """Return which privileges the operator lacks on a server."""
    has = server.own_privileges()
    lacks = [name for name in server.operator_privileges if name not in has]
    if not lacks:
        return []
    return [
        Problem(
            server.admin.name,
            f"the operator {server.admin.value('SELECT CURRENT_USER()')} "
            f"lacks {', '.join(lacks)}; grant these ON *.*",
        )
    ]


@as_list
def primary_problems(primary: Replication, reopen: str) -> Iterator[Problem]:
    """Return why a server is not a primary that serves.

    :param reopen: the command that opens it.
    """
    place = primary.admin.name
    if primary.is_read_only():
        yield Problem(
            place,
            f"it is read-only already; if it was restarted, open it with: {reopen}",
        )
    if primary.status() is not None:
        yield Problem(
            place,
            "it replicates from another server, although it is the primary; "
            "look at it before anything else",
        )


@as_list
def standby_problems(
    primary: Replication, standby: Replication, *, lag: float
) -> Iterator[Problem]:
    """Return why a standby that replicates cannot be promoted.

    :param lag: seconds that it may be behind the primary.
    """
    place = standby.admin.name
    status = standby.status()
    if status is None:
        yield Problem(
            place,
            "it does not replicate; attach or rebuild it with: sqla-shard"
            " fleet replica",
        )
        return
    own = primary.server_id()
    if status.source_id != own:
        yield Problem(
            place,
            f"it replicates from {status.source} (server_id "
            f"{status.source_id}), not from {primary.admin} (server_id "
            f"{own}); attach it to that one",
        )
    if not status.runs:
        yield Problem(
            place,
            f"replication does not run (receiver {status.receiver}, "
            f"applier {status.applier}): "
            f"{status.error or 'no error'}; start or rebuild it",
        )
    elif status.lag is None or status.lag > lag:
        yield Problem(
            place,
            f"it is {'?' if status.lag is None else status.lag} s behind "
            f"its primary; wait until it is less than {lag:g} s",
        )
    yield from form_problems(standby)
    for origin, number in primary.errant(standby.history()).items():
        yield Problem(
            place,
            f"it has {number} transactions of {origin} that its primary "
            "has not; compare the data of both and rebuild it",
        )


def fence_problems(primary: Replication, standby: Replication) -> list[Problem]:
    """Return the fenced databases that a failover to a standby would open.

    The primary fences databases that the topology has elsewhere.
    """
    fenced, own = (
        {row.pattern for row in grant_rows(server.admin) if not row.privileges}
        for server in (primary, standby)
    )
    lacks = sorted(fenced - own)
    if not lacks:
        return []
    return [
        Problem(
            standby.admin.name,
            f"it does not fence {shortened_list(lacks, 5)}, as its primary "
            "does, and a failover would open them; fence them with: "
            "sqla-shard fleet orphans fence",
        )
    ]


@as_list
def form_problems(standby: Replication) -> Iterator[Problem]:
    """Return the problems of the replication of a standby."""
    place = standby.admin.name
    status = standby.status()
    if status is not None and status.filters:
        yield Problem(
            place,
            f"it has replication filters ({', '.join(status.filters)}), "
            "so it lacks data; rebuild it without them",
        )
    if status is not None and not status.uses_gtid:
        yield Problem(place, "it does not replicate by GTID; attach it again")
    if not standby.is_read_only():
        yield Problem(
            place,
            "it is writable: applications may have written to it; make "
            "it read-only and compare its data with the primary",
        )


def account_problems(accounts: Accounts, *servers: Replication) -> list[Problem]:
    """Return on which servers the replication account is missing."""
    if accounts.replication is None:
        return [
            Problem(
                "SQLA_SHARD_REPLICATION_USER",
                "it is not set; set it and SQLA_SHARD_REPLICATION_PASSWORD "
                "to the account with which standbys connect",
            )
        ]
    user = accounts.replication.user
    return [
        Problem(
            server.admin.name,
            f"it has no user {user!r}, with which a standby would connect; "
            "create the account with REPLICATION SLAVE",
        )
        for server in servers
        if not server.admin.value(
            "SELECT COUNT(*) FROM mysql.user WHERE user = %s", user
        )
    ]


def bypass_problems(accounts: Accounts, server: Replication) -> list[Problem]:
    """Return the sessions of others that ``read_only`` does not stop."""
    users = server.bypassing() - accounts.users
    privileges = " and ".join(sorted(server.past_read_only()))
    rows = server.admin.rows(
        "SELECT id, user FROM information_schema.processlist"
        " WHERE command NOT LIKE 'Binlog Dump%%' AND command <> 'Daemon'"
    )
    return [
        Problem(
            server.admin.name,
            f"session {number} of {user!r} can write although the server is "
            f"read-only; end it, or revoke {privileges}",
        )
        for number, user in rows
        if user in users
    ]


def long_work(server: Replication) -> list[str]:
    """Return sentences about statements and transactions of over 1 s."""
    transactions = server.admin.rows(
        "SELECT trx_mysql_thread_id,"
        " TIMESTAMPDIFF(SECOND, trx_started, NOW()) AS seconds"
        " FROM information_schema.innodb_trx"
        " HAVING seconds > %s",
        _LONG,
    )
    return [
        f"{server.admin}: {statement}; if it writes, the fence gives up after 1 s"
        for statement in server.admin.long_statements(_LONG)
    ] + [
        f"{server.admin}: session {number} has a transaction of {seconds} s, "
        "which the fence rolls back if it writes"
        for number, seconds in transactions
    ]


def followers(primary: Replication) -> int:
    """Return how many servers replicate from a primary now."""
    return int(
        primary.admin.value(
            "SELECT COUNT(*) FROM information_schema.processlist"
            " WHERE command LIKE 'Binlog Dump%%'"
        )
    )
