"""Conditions for shards to move to another pair.

Each function returns problems, all at once, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sqla_shard.exc import Problem
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.accounts import Accounts
from sqla_shard.fleet.admin import SYSTEM
from sqla_shard.fleet.fences import Fence
from sqla_shard.fleet.pair_checks import (
    account_problems,
    bypass_problems,
    primary_problems,
    privilege_problems,
    standby_problems,
)
from sqla_shard.fleet.plans import as_list
from sqla_shard.fleet.replication import Replication

#: Seconds that a server may be behind when the split is planned.
_LAG = 30.0
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
#: Whether MariaDB has such a foreign key at all: for its name the server opens
#: every table, which takes seconds for thousands of databases.
_HAS_FOREIGN = (
    "SELECT COUNT(*) FROM information_schema.innodb_sys_foreign"
    " WHERE SUBSTRING_INDEX(for_name, '/', 1) <> SUBSTRING_INDEX(ref_name, '/', 1)"
)


@as_list
def source_problems(
    source: Replication, fence: Fence, accounts: Accounts
) -> Iterator[Problem]:
    """Return why databases cannot leave a primary."""
    place = source.admin.name
    yield from primary_problems(source, "sqla-shard fleet reopen")
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
    yield from bypass_problems(accounts, source)


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
def copy_problems(
    source: Replication,
    target: Replication,
    databases: Sequence[str],
    accounts: Accounts,
) -> Iterator[Problem]:
    """Return why a server cannot become the new home of databases.

    :param databases: names of the databases that move.
    """
    if target.status() is None:
        yield from empty_problems(source, target, accounts)
        return
    replicating = standby_problems(source, target, lag=_LAG)
    if replicating:
        # Its tables may be different for that reason alone.
        yield from replicating
        return
    yield from schema_problems(source, target, databases)


@as_list
def empty_problems(
    source: Replication,
    target: Replication,
    accounts: Accounts,
    *,
    remedy: str = "build a copy with: sqla-shard fleet replica build",
) -> Iterator[Problem]:
    """Return why a server cannot replicate another from the first write.

    :param remedy: an alternative.
    """
    place = target.admin.name
    names = [name for name in target.admin.databases() if name.lower() not in SYSTEM]
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
    yield from account_problems(accounts, source)


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


def _objects(server: Replication, databases: Collection[str]) -> Iterator[str]:
    """Yield sentences about objects that cannot move with a database."""
    moved = set(databases)
    for what, sql in _NOT_MOVED.items():
        if (
            what.startswith("foreign")
            and server.admin.is_mariadb
            and not server.admin.value(_HAS_FOREIGN)
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
