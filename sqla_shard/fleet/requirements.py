"""Requirements of operations on servers: why plans are refused.

Conditions that the doctor has, too, are its checks, asked of the servers of a
plan; the others stand here.  Each method returns problems, all at once, and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from sqlalchemy import make_url

from sqla_shard.exc import Problem
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.accounts import Accounts, passwords_differ
from sqla_shard.fleet.admin import SYSTEM
from sqla_shard.fleet.app_access import (
    access_of,
    access_problems,
    attempt,
    gaps,
    gaps_alone,
)
from sqla_shard.fleet.content_checks import full_disk
from sqla_shard.fleet.facts import (
    FleetFacts,
    LivePair,
    LiveServer,
    PairFacts,
    ServerFacts,
)
from sqla_shard.fleet.fences import Fence, grant_rows
from sqla_shard.fleet.findings import refusals
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.operation import as_list
from sqla_shard.fleet.replication import Replication
from sqla_shard.fleet.replication_checks import (
    chained_primary,
    errant,
    incomplete_replication,
    other_source,
    primary_closed,
    replication_stopped,
    two_writable,
)
from sqla_shard.fleet.setting_checks import binary_log, server_ids, settings

LAG = 30.0
"""Seconds that a standby may be behind when an operation is planned."""

_LONG_SECONDS = 1.0
#: Databases and names of what does not move with a database.  Each is read once
#: for all databases: a server reads the files of all for each statement with a
#: list of some.
_NOT_MOVED = {
    "views": "SELECT TABLE_SCHEMA, TABLE_NAME, NULL FROM information_schema.views",
    "triggers": (
        "SELECT EVENT_OBJECT_SCHEMA, TRIGGER_NAME, NULL"
        " FROM information_schema.triggers"
    ),
    "events": "SELECT EVENT_SCHEMA, EVENT_NAME, NULL FROM information_schema.events",
    "foreign keys from or to other databases,": (
        "SELECT CONSTRAINT_SCHEMA, CONSTRAINT_NAME, UNIQUE_CONSTRAINT_SCHEMA"
        " FROM information_schema.referential_constraints"
        " WHERE UNIQUE_CONSTRAINT_SCHEMA <> CONSTRAINT_SCHEMA"
    ),
}


class Requirements:
    """Requirements of the operations of a fleet.

    :param fleet: the fleet.
    :raises TopologyError: if its topology is not valid.
    :raises TopologyUnavailableError: if it cannot be read.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._topology = fleet.topology()
        self._accounts = fleet.accounts

    def settings(self, *servers: Replication) -> list[Problem]:
        """Return the settings of servers that prevent a change of roles.

        The privileges of the operator are among them.
        """
        facts = self._facts(others=map(LiveServer.at, servers))
        found = refusals(facts, binary_log, settings, server_ids)
        for server in servers:
            found += privilege_problems(server)
        return found

    def server_ids(self, *servers: Replication) -> list[Problem]:
        """Return the servers that have the ``server_id`` of another."""
        return refusals(self._facts(others=map(LiveServer.at, servers)), server_ids)

    def primary(self, name: str, primary: Replication) -> list[Problem]:
        """Return why the primary of a pair does not serve.

        :param name: name of the pair.
        """
        pair = PairFacts(name=name, primary=LiveServer.at(primary), standby=None)
        return refusals(self._facts([pair]), full_disk, primary_closed, chained_primary)

    def standby(
        self,
        name: str,
        primary: Replication,
        standby: Replication,
        *,
        lag: float = LAG,
        is_named: bool = True,
    ) -> list[Problem]:
        """Return why a standby that replicates cannot be promoted.

        :param name: name of the pair of the primary.
        :param lag: seconds that it may be behind the primary.
        :param is_named: whether the topology names it as the standby.
        """
        pair = LivePair(
            name=name,
            primary=LiveServer.at(primary),
            standby=LiveServer.at(standby),
            is_named=is_named,
        )
        full = refusals(self._facts(others=[LiveServer.at(standby)]), full_disk)
        if full:
            # It would answer no further statement about replication.
            return full
        facts = self._facts([pair])
        status = standby.status()
        if status is None:
            return refusals(facts, replication_stopped)
        found = refusals(facts, other_source, replication_stopped)
        if status.runs and (status.lag is None or status.lag > lag):
            found.append(
                Problem(
                    standby.admin.name,
                    f"it is {'?' if status.lag is None else status.lag} s behind "
                    f"its primary; wait until it is less than {lag:g} s",
                )
            )
        return found + refusals(facts, incomplete_replication, two_writable, errant)

    def lost_primary(self, name: str, standby: Replication) -> list[Problem]:
        """Return the problems of a standby whose primary is lost."""
        lost = ServerFacts(name=name, role="primary", address="")
        pair = LivePair(name=name, primary=lost, standby=LiveServer.at(standby))
        return refusals(self._facts([pair]), incomplete_replication, two_writable)

    def fences(self, primary: Replication, standby: Replication) -> list[Problem]:
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

    def access(
        self,
        primary: tuple[Replication, str],
        standby: tuple[Replication, str],
        databases: Collection[str],
        *,
        is_fenced: bool = True,
    ) -> list[Problem]:
        """Return what applications could not do on a standby.

        :param primary: a server and its URL in the topology.
        :param standby: the same of the other one.
        :param databases: names of the databases that they use.
        :param is_fenced: whether its fences count; a copy gets others.
        """
        there = access_of(standby[0], self._fleet, standby[1])
        found = gaps(
            access_of(primary[0], self._fleet, primary[1]),
            there if is_fenced else there.without_fences(),
            databases,
            exempt=self._accounts.users,
        )
        return access_problems(standby[0].admin.name, found)

    def access_alone(
        self, standby: Replication, url: str, databases: Collection[str]
    ) -> list[Problem]:
        """Return why no application could write to a standby.

        :param url: its URL in the topology.
        """
        me = str(standby.admin.value("SELECT USER()"))
        found = gaps_alone(
            access_of(standby, self._fleet, url),
            databases,
            exempt=self._accounts.users,
            here=me.rpartition("@")[2],
        )
        return access_problems(standby.admin.name, found)

    def replication_account(self, *servers: Replication) -> list[Problem]:
        """Return on which servers the replication account is missing."""
        if self._accounts.replication is None:
            return [
                Problem(
                    "SQLA_SHARD_REPLICATION_USER",
                    "it is not set; set it and SQLA_SHARD_REPLICATION_PASSWORD "
                    "to the account with which standbys connect",
                )
            ]
        user = self._accounts.replication.user
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

    def replication_login(
        self, old: tuple[Replication, str], new: tuple[Replication, str]
    ) -> list[Problem]:
        """Return whether the former primary could not log in to the new one.

        :param old: the primary, and its URL in the topology.
        :param new: the same of its standby.
        """
        account = self._accounts.replication
        if account is None:
            return []
        before, after = (
            attempt(
                make_url(url)
                .set(username=account.user, password=account.password)
                .render_as_string(hide_password=False),
                {},
                name=server.admin.name,
                timeout=self._fleet.timeout,
            )
            for server, url in (old, new)
        )
        # From here neither server may let it in, and MySQL has salts.
        is_refused = before.is_tried and not before.error and after.error
        if not is_refused and not passwords_differ(
            account.user, old[0].logins(), new[0].logins()
        ):
            return []
        admin = new[0].admin
        return [
            Problem(
                admin.name,
                f"it does not let {account.user!r} in as {old[0].admin} does, which "
                f"could not become its standby; on {admin.address}: SET SESSION "
                "sql_log_bin = 0; ALTER USER, with the password of the other",
            )
        ]

    # -- shards that move to another pair ---------------------------------

    @as_list
    def source(self, name: str, source: Replication, fence: Fence) -> Iterator[Problem]:
        """Return why databases cannot leave the primary of a pair."""
        place = source.admin.name
        yield from self.primary(name, source)
        yield from fence.problems(place)
        if not fence.accounts():
            yield Problem(
                place,
                "no account has a grant on a pattern that matches the "
                "databases that move, so nothing would be fenced; grant the "
                "application its databases by a pattern",
            )
        if not privilege_problems(source):
            # Without XA_RECOVER_ADMIN it is error 1401 of MySQL.
            yield from prepared_problems(source)
        for text in _objects(source, fence.databases):
            yield Problem(place, text)
        yield from bypass_problems(self._accounts, source)

    @as_list
    def copy(
        self,
        name: str,
        source: Replication,
        target: Replication,
        databases: Sequence[str],
    ) -> Iterator[Problem]:
        """Return why a server cannot become the new home of databases.

        :param name: name of the pair of the source.
        :param databases: names of the databases that move.
        """
        if target.status() is None:
            yield from self.empty(source, target)
            return
        replicating = self.standby(name, source, target, is_named=False)
        if replicating:
            # Its tables may be different for that reason alone.
            yield from replicating
            return
        yield from schema_problems(source, target, databases)

    @as_list
    def empty(
        self,
        source: Replication,
        target: Replication,
        *,
        remedy: str = "build a copy with: sqla-shard fleet replica build",
    ) -> Iterator[Problem]:
        """Return why a server cannot replicate another from the first write.

        :param remedy: an alternative.
        """
        place = target.admin.name
        names = [one for one in target.admin.databases() if one.lower() not in SYSTEM]
        if names:
            yield Problem(
                place,
                f"it has databases ({shortened_list(names, 5)}) and is not a "
                f"standby of {source.admin.name}; empty it, and {remedy}",
            )
            return
        if target.history() or target.applied():
            yield Problem(place, f"it has a history of its own writes; {remedy}")
        if not source.has_first_write():
            yield Problem(
                place,
                f"it is empty, and the binary log of {source.admin.name} "
                f"does not begin with its first write; {remedy}",
            )
        yield from self.replication_account(source)

    def _facts(
        self, pairs: Iterable[PairFacts] = (), others: Iterable[LiveServer] = ()
    ) -> FleetFacts:
        return FleetFacts(
            topology=self._topology, pairs=tuple(pairs), others=tuple(others)
        )


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


def prepared_problems(source: Replication) -> list[Problem]:
    """Return the XA transactions that could be committed behind a fence."""
    # Identifiers may be binary: MariaDB returns bytes, and MySQL, which
    # returns text, can write them in hexadecimal.
    if source.admin.is_mariadb:
        prepared = [data for *_, data in source.admin.rows("XA RECOVER")]
    else:
        rows = source.admin.rows("XA RECOVER CONVERT XID")
        prepared = [bytes.fromhex(data[2:]) for *_, data in rows]
    if not prepared:
        return []
    names = [data.decode(errors="replace") for data in prepared]
    return [
        Problem(
            source.admin.name,
            f"it has prepared XA transactions ({shortened_list(names, 5)}), "
            "which outlive their sessions and could be committed after the "
            "move; commit them or roll them back",
        )
    ]


@as_list
def schema_problems(
    source: Replication, target: Replication, databases: Sequence[str]
) -> Iterator[Problem]:
    """Return which databases have other tables on the target."""
    there = source.admin.digests(databases)
    here = target.admin.digests(databases)
    for what, names in (
        ("lacks", [name for name in there if name not in here]),
        (
            "has other definitions of tables in",
            [n for n in there if n in here and there[n] != here[n]],
        ),
    ):
        if names:
            yield Problem(
                target.admin.name,
                f"it {what} {shortened_list(names, 5)}; if tables are "
                "being changed, wait for the end, otherwise rebuild it",
            )
    missing = [name for name in databases if name not in there]
    if missing:
        yield Problem(
            source.admin.name,
            f"it has no databases {shortened_list(missing, 5)}, although "
            "the topology says so; see: sqla-shard fleet doctor",
        )


def long_work(server: Replication) -> list[str]:
    """Return sentences about statements and transactions of over 1 s."""
    transactions = server.admin.rows(
        "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()) AS "
        "seconds FROM information_schema.innodb_trx HAVING seconds > %s",
        _LONG_SECONDS,
    )
    return [
        f"{server.admin}: {statement}; if it writes, the fence gives up after 1 s"
        for statement in server.admin.long_statements(_LONG_SECONDS)
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


def _objects(server: Replication, databases: Collection[str]) -> Iterator[str]:
    """Yield sentences about objects that cannot move with a database."""
    moved = set(databases)
    for what, sql in _NOT_MOVED.items():
        if (
            what.startswith("foreign")
            and server.admin.is_mariadb
            # For its name MariaDB opens every table.
            and not server.admin.has_foreign_keys_across()
        ):
            continue
        names = sorted(
            f"{schema}.{name}"
            for schema, name, other in server.admin.rows(sql)
            if moved & {schema, other}
        )
        if names:
            yield (
                f"the databases that move have {what} "
                f"{shortened_list(names, 5)}; drop them before the move"
            )
