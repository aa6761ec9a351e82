"""Fences of single databases: shadow grants.

An application usually has one grant on a pattern of databases.  Of the rows
of ``mysql.db`` that match a database the server uses the most specific one
alone.  So a row for exactly that database, with fewer privileges, takes the
others away: the fence.  It allows SELECT only, and later nothing.  Setting it
up takes milliseconds for hundreds of databases.

Limits:

- A row is not enough.  A transaction that was open still commits, and a
  session whose default database it is keeps its privileges.  The sessions
  must be killed after the rows took effect.
- Global privileges, roles and grants on tables bypass it;
  :meth:`Fence.problems` finds them.
- The rows are not replicated: the target of a move replicates from the
  source, and would fence itself.  Write them on each server;
  :func:`carry_fences` does so for a copy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from sqla_shard.exc import Problem
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.clients import AppSession, end_sessions, sessions_of
from sqla_shard.fleet.replication import PUBLIC, replication_of

SYSTEM_USERS = frozenset(
    (
        *("root", "mysql", "debian-sys-maint", "mariadb.sys"),
        *("mysql.sys", "mysql.session", "mysql.infoschema"),
    )
)
"""Users of the server itself, which a fence does not hold off."""

_SELECT = "Select_priv"
#: Privileges to change data, or to change it while the server is read-only.
_WRITES = frozenset(
    (
        *("INSERT", "UPDATE", "DELETE", "DELETE HISTORY", "CREATE", "DROP"),
        *("ALTER", "INDEX", "TRIGGER", "EVENT", "CREATE VIEW"),
        *("READ_ONLY ADMIN", "SUPER", "CONNECTION_ADMIN"),
    )
)
WILDCARD = re.compile(r"(?<!\\)[%_]")
"""Wildcards of a pattern.

The row of a fence has none: it matches its own database only.
"""

_CHUNK = 500
_KILL_SECONDS = 30.0


def escaped(database: str) -> str:
    """Return the value of ``mysql.db.Db`` that matches one database."""
    return re.sub(r"([\\_%])", r"\\\1", database)


@dataclass(frozen=True, kw_only=True)
class GrantRow:
    """A row of ``mysql.db``.

    :ivar account: user and host.
    :ivar pattern: the databases, with wildcards.
    :ivar privileges: names of the columns that are ``'Y'``.
    """

    account: tuple[str, str]
    pattern: str
    privileges: frozenset[str]


def grant_rows(admin: Admin) -> list[GrantRow]:
    """Return the rows of ``mysql.db`` without those of system users."""
    return [
        GrantRow(
            account=(row["User"], row["Host"]),
            pattern=row["Db"],
            privileges=frozenset(
                name
                for name, value in row.items()
                if name.endswith("_priv") and value == "Y"
            ),
        )
        for row in admin.mappings("SELECT * FROM mysql.db")
        if row["User"] not in SYSTEM_USERS
    ]


def usable(rows: Iterable[GrantRow], databases: Iterable[str]) -> list[str]:
    """Return the databases that an account can use, since none is fenced.

    :param rows: rows of :func:`grant_rows`.
    :param databases: names of databases.
    """
    every = list(rows)
    shut = {(row.account, row.pattern) for row in every if not row.privileges}
    return [
        name
        for name in databases
        if any(
            (account, escaped(name)) not in shut for account in _matching(every, name)
        )
    ]


def carry_fences(source: Admin, target: Admin) -> int:
    """Give a server the fences of another one, and no others.

    A copy of rows lacks those of its source, and a failover to it would open
    its orphans.  Only fences that allow nothing are carried: those that allow
    SELECT belong to the operation that is moving the databases.

    :returns: the number of fences.
    """
    wanted, has = (
        {
            (*row.account, row.pattern)
            for row in rows
            if not row.privileges and WILDCARD.search(row.pattern) is None
        }
        for rows in (grant_rows(source), grant_rows(target))
    )
    if wanted != has:
        with target.unlogged():
            target.run_many(
                "INSERT IGNORE INTO mysql.db (User, Host, Db) VALUES (%s, %s, %s)",
                sorted(wanted - has),
            )
            target.run_many(
                "DELETE FROM mysql.db WHERE User = %s AND Host = %s AND Db = %s",
                sorted(has - wanted),
            )
        target.run("FLUSH LOCAL PRIVILEGES")
    return len(wanted)


def _matching(rows: Iterable[GrantRow], name: str) -> Iterator[tuple[str, str]]:
    """Yield the accounts that could use a database without the fence."""
    for row in rows:
        if WILDCARD.search(row.pattern) and is_like(row.pattern, name):
            yield row.account


class Fence:
    """The fence of some databases on one server.

    :param admin: session of the operator on the server.
    :param databases: names of the databases.
    :param exempt: users who keep their access, besides those of the server.
    """

    def __init__(
        self, admin: Admin, databases: Iterable[str], *, exempt: Collection[str] = ()
    ) -> None:
        self.admin = admin
        self.databases: tuple[str, ...] = tuple(databases)
        self._by_pattern = {escaped(name): name for name in self.databases}
        self._exempt = SYSTEM_USERS | frozenset(exempt)
        self._known: list[tuple[str, str]] | None = None

    # -- reading ----------------------------------------------------------

    def accounts(self) -> list[tuple[str, str]]:
        """Return user and host of each account with grants on them.

        They are read once: later, writes may be waiting.
        """
        if self._known is None:
            rows = self._rows()
            self._known = list(
                dict.fromkeys(
                    account
                    for name in self.databases
                    for account in _matching(rows, name)
                )
            )
        return self._known

    def users(self) -> list[str]:
        """Return the users of :meth:`accounts`."""
        return list(dict.fromkeys(user for user, _ in self.accounts()))

    def missing(self) -> list[str]:
        """Return the databases that an account can still use."""
        return usable(self._rows(), self.databases)

    def problems(self, place: str) -> list[Problem]:
        """Return everything that defeats the fence.

        :param place: the server, for the problems.
        """
        return [
            Problem(place, message)
            for message in (
                *self._global_grants(),
                *self._roles(),
                *self._own_grants(),
                *self._table_grants(),
            )
        ]

    # -- writing ----------------------------------------------------------

    def insert(self, *, readable: bool) -> None:
        """Write the rows; they take effect with :meth:`flush`.

        Or with any GRANT, or a restart: do not leave them without an effect.

        :param readable: whether SELECT is allowed.
        """
        allowed = "Y" if readable else "N"
        rows: list[tuple[object, ...]] = [
            (user, host, pattern, allowed)
            for user, host in self.accounts()
            for pattern in self._by_pattern
        ]
        with self.admin.unlogged():
            self.admin.run_many(
                "INSERT INTO mysql.db (User, Host, Db, Select_priv) VALUES (%s, %s, "
                "%s, %s) ON DUPLICATE KEY UPDATE Select_priv = VALUES(Select_priv)",
                rows,
            )

    def delete(self) -> None:
        """Delete the rows of its accounts, and flush."""
        others = " AND ".join(
            f"{name} = 'N'" for name in self._columns() if name != _SELECT
        )
        with self.admin.unlogged():
            for user, host in self.accounts():
                for chunk in _chunks(list(self._by_pattern)):
                    marks = ", ".join(["%s"] * len(chunk))
                    where = f"User = %s AND Host = %s AND Db IN ({marks}) AND {others}"
                    # Names of columns of the server.
                    sql = f"DELETE FROM mysql.db WHERE {where}"  # noqa: S608
                    self.admin.run(sql, user, host, *chunk)
        self.flush()

    def flush(self) -> None:
        """Let the rows take effect for new sessions and statements."""
        # LOCAL: not replicated either.
        self.admin.run("FLUSH LOCAL PRIVILEGES")

    def kill_sessions(self, seconds: float = _KILL_SECONDS) -> list[AppSession]:
        """End the sessions of the fenced accounts, and wait for their end.

        :param seconds: time to wait.
        :returns: the sessions.
        :raises FleetServerError: if one is still there then.
        """
        ended, left = end_sessions(
            self.admin, lambda: sessions_of(self.admin, self.users()), seconds
        )
        if left:
            raise self.admin.error(
                f"sessions {shortened_list(sorted(left), 5)} are "
                f"killed, but still there after {seconds:g} s"
            )
        return list(ended.values())

    # -- mysql.db ---------------------------------------------------------

    def _rows(self) -> list[GrantRow]:
        """Read the rows of accounts that are not exempt."""
        return [
            row for row in grant_rows(self.admin) if row.account[0] not in self._exempt
        ]

    def _columns(self) -> list[str]:
        listed = self.admin.rows(
            "SELECT COLUMN_NAME FROM information_schema.columns"
            " WHERE TABLE_SCHEMA = 'mysql' AND TABLE_NAME = 'db'"
        )
        return [name for (name,) in listed if name.endswith("_priv")]

    # -- privileges that defeat it ----------------------------------------

    def _global_grants(self) -> Iterator[str]:
        found: dict[str, set[str]] = {}
        for grantee, privilege in self.admin.rows(
            "SELECT GRANTEE, PRIVILEGE_TYPE FROM information_schema.user_privileges"
        ):
            if privilege in _WRITES and _user(grantee) not in self._exempt:
                found.setdefault(grantee, set()).add(privilege)
        for grantee, privileges in sorted(found.items()):
            yield (
                f"{grantee} has the global privileges "
                f"{shortened_list(sorted(privileges), 4)}, which no fence of "
                "a database stops; grant it on the databases only, or name "
                "its user with --allow-user if it writes nothing"
            )

    def _roles(self) -> Iterator[str]:
        members = [
            f"{user}@{host} (role {role})"
            for user, host, role in replication_of(self.admin).role_members()
            if user not in self._exempt
        ]
        # MariaDB 10.11: its privileges apply to all users.
        members += [PUBLIC] if PUBLIC in self.users() else []
        if members:
            yield (
                f"{shortened_list(sorted(members), 5)} have roles, whose "
                "privileges are added to those that a fence leaves; revoke "
                "the roles, or name the users with --allow-user"
            )

    def _own_grants(self) -> Iterator[str]:
        own = [
            row
            for row in self._rows()
            if row.pattern in self._by_pattern and row.privileges
        ]
        names = sorted({self._by_pattern[row.pattern] for row in own})
        users = sorted({row.account[0] for row in own})
        if own:
            yield (
                f"{shortened_list(users, 5)} has grants on single databases "
                f"({shortened_list(names, 5)}), which a fence would replace; "
                "grant it on a pattern of databases instead"
            )

    def _table_grants(self) -> Iterator[str]:
        listed = self.admin.rows(
            "SELECT User, Db, Table_name FROM mysql.tables_priv UNION "
            "SELECT User, Db, Table_name FROM mysql.columns_priv UNION "
            "SELECT User, Db, Routine_name FROM mysql.procs_priv"
        )
        names = set(self._by_pattern.values())
        found = [
            f"{user} on {database}.{table}"
            for user, database, table in listed
            if database in names and user not in self._exempt
        ]
        if found:
            yield (
                f"grants on tables, columns or routines bypass a fence: "
                f"{shortened_list(sorted(found), 5)}; revoke them"
            )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = [""]
    for one in re.findall(r"\\.|.", pattern, re.DOTALL):
        if one == "%":
            parts.append("")
        else:
            parts[-1] += "." if one == "_" else re.escape(one[-1])
    first, *middle = parts
    last = f".*{middle.pop()}" if middle else ""
    # Atomic: the first place is the best one, and all places of all parts
    # together would be tried for hours.
    atoms = "".join(f"(?>.*?{part})" for part in middle)
    # Some servers ignore the case of names.
    return re.compile(f"{first}{atoms}{last}", re.DOTALL | re.IGNORECASE)


def is_like(pattern: str, name: str) -> bool:
    """Return whether a pattern of an account or a grant matches a name."""
    return _compiled(pattern).fullmatch(name) is not None


def _user(grantee: str) -> str:
    """Return the user of ``'user'@'host'``."""
    return grantee.rpartition("@")[0].strip("'").replace("''", "'")


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _CHUNK):
        yield names[start : start + _CHUNK]
