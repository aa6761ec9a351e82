"""Whether the application may do on one server what it may do on another.

Accounts are not replicated as a rule: a password that was changed, or a
privilege that was revoked, on one of two servers would be found by the first
write after a failover.  A standby is read-only, so no write can be tried
there: accounts and grants of both servers are compared, and the application's
login is tried if its password is known.

These are the only conditions: plans refuse what is found, the doctor and the
watchers report it.  Grants on single tables are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from sqlalchemy import make_url

from sqla_shard.exc import FleetServerError, Problem, TopologyError
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.accounts import differ, Login, PUBLIC
from sqla_shard.fleet.admin import Admin, quoted
from sqla_shard.fleet.fences import (
    escaped,
    grant_rows,
    GrantRow,
    is_like,
    SYSTEM_USERS,
    WILDCARD,
)
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.operation import as_list
from sqla_shard.fleet.replication import Replication
from sqla_shard.topology.urls import fill

#: Privileges in databases; those to grant and to administrate are not needed.
_IN_DATABASES = frozenset(
    (
        *("SELECT", "INSERT", "UPDATE", "DELETE", "DELETE HISTORY"),
        *("CREATE", "DROP", "ALTER", "INDEX", "REFERENCES", "TRIGGER"),
        *("CREATE TEMPORARY TABLES", "LOCK TABLES", "CREATE VIEW"),
        *("SHOW VIEW", "EVENT", "EXECUTE", "CREATE ROUTINE", "ALTER ROUTINE"),
    )
)
#: Errors of a server that does not let an account in: denied, the plugin
#: denies, locked (MySQL, MariaDB), password expired.
_DENIED = frozenset([1045, 1698, 3118, 4151, 1820, 1862])
#: Host of programs on the server itself, which no failover moves.
_LOCAL = "localhost"
_WRITE = frozenset(["SELECT", "INSERT"])
_MAX_SHOWN = 3
_UNLOGGED = "SET SESSION sql_log_bin = 0"


class Attempt(NamedTuple):
    """An attempt to log in as the application.

    :ivar user: its user; None if it is not known.
    :ivar is_tried: whether the server has let it in, or refused it.
    :ivar error: number of the error with which it was refused.
    """

    user: str | None = None
    is_tried: bool = False
    error: int | None = None


class Gap(NamedTuple):
    """Something that the application lacks on a server.

    :ivar what: a clause after "it" or the name of the server.
    :ivar remedy: the remedy.
    """

    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Access:
    """The accounts of a server, and what they may do.

    :ivar name: name and address of the server.
    :ivar address: its ``host:port``.
    :ivar logins: its accounts and roles.
    :ivar grants: its grants on databases.
    :ivar attempt: the login of the application.
    """

    name: str
    address: str
    logins: Sequence[Login]
    grants: Sequence[GrantRow]
    attempt: Attempt

    def without_fences(self) -> Access:
        """Return the same with no grants that withhold a database."""
        return replace(self, grants=[one for one in self.grants if one.privileges])

    def matching(self, login: Login) -> list[Login]:
        """Return the accounts that do for one of another server."""
        of_user = [one for one in self.accounts if one.user == login.user]
        exact = [one for one in of_user if one.host == login.host]
        return exact or [one for one in of_user if is_like(one.host, login.host)]

    @property
    def accounts(self) -> list[Login]:
        """The accounts without the roles of MariaDB."""
        return [one for one in self.logins if one.host]

    def may(self, login: Login, database: str) -> frozenset[str]:
        """Return what an account may do in a database."""
        found = _IN_DATABASES & login.privileges
        rows = [self.row_of(login.user, database, login.host)]
        rows += [self.row_of(role, database) for role in (*login.roles, PUBLIC)]
        for row in filter(None, rows):
            found |= _privileges(row.privileges)
        return found

    def row_of(
        self, user: str, database: str, host: str | None = None
    ) -> GrantRow | None:
        """Return the grant of an account or a role that applies.

        :param host: the host of an account; None for a role.
        """
        exact, patterns = self._grants.get(user, ({}, []))
        rows = exact.get(escaped(database), [])
        rows = [one for one in rows if host in (None, one.account[1])]
        # Of several the server takes the most specific one.
        rows = rows or [
            one
            for one in patterns
            if host in (None, one.account[1]) and is_like(one.pattern, database)
        ]
        return max(rows, key=_precision, default=None)

    @cached_property
    def _grants(self) -> dict[str, tuple[dict[str, list[GrantRow]], list[GrantRow]]]:
        # A fence has a row for each database: thousands.
        found: dict[str, tuple[dict[str, list[GrantRow]], list[GrantRow]]] = {}
        for row in self.grants:
            exact, patterns = found.setdefault(row.account[0], ({}, []))
            if WILDCARD.search(row.pattern):
                patterns.append(row)
            else:
                exact.setdefault(row.pattern, []).append(row)
        return found


def attempt(
    url: str, environ: Mapping[str, str], *, name: str, timeout: float
) -> Attempt:
    """Log in to a server as the application.

    :param url: URL of the topology.
    :param environ: values of its placeholders, as far as they are known.
    :param name: name of the server.
    :param timeout: seconds to wait for it.
    """
    found = make_url(url)
    try:
        user = fill(found.username or "", environ)
    except TopologyError:
        return Attempt()
    try:
        password = fill(str(found.password or ""), environ)
    except TopologyError:
        password = ""
    if not password:
        # It may be given by a function of the application.
        return Attempt(user or None)
    try:
        Admin(
            found.set(username=user, password=password), name=name, timeout=timeout
        ).close()
    except FleetServerError as error:
        if error.number in _DENIED:
            return Attempt(user, is_tried=True, error=error.number)
        # Such as one that has no connections left: nothing is known.
        return Attempt(user)
    return Attempt(user, is_tried=True)


def access_of(
    server: Replication, fleet: Fleet, url: str, *, timeout: float | None = None
) -> Access:
    """Read the accounts of a server, and log in as the application.

    :param url: URL of the server in the topology.
    :param timeout: seconds to wait for the login; by default those of the
        fleet.
    :raises FleetServerError: if they cannot be read.
    """
    admin = server.admin
    return Access(
        name=str(admin),
        address=admin.address,
        logins=server.logins(),
        grants=grant_rows(admin),
        attempt=attempt(
            url, fleet.environ, name=str(admin), timeout=timeout or fleet.timeout
        ),
    )


def access_problems(place: str, found: Iterable[Gap]) -> list[Problem]:
    """Return what the application lacks as problems of a plan."""
    return [Problem(place, f"it {gap.what}; {gap.remedy}") for gap in found]


@as_list
def gaps(
    primary: Access,
    standby: Access,
    databases: Collection[str],
    *,
    exempt: Collection[str] = (),
) -> Iterator[Gap]:
    """Return what applications may do on one server, and not on another.

    Compared are the account of the topology, and all others with a grant on
    these databases: the programs of an application may have their own.

    :param databases: names of the databases that they use.
    :param exempt: users of the operator and of replication.
    """
    user = primary.attempt.user
    known = {user} if user == standby.attempt.user else set()
    # With a user for each server that of the primary is not needed there.
    skipped = SYSTEM_USERS.union(exempt, {user} - known)
    for login in primary.accounts:
        if login.user in skipped or login.host == _LOCAL or login.is_locked:
            continue
        allowed = {name: primary.may(login, name) for name in databases}
        # What an administrator may do everywhere is no grant on databases.
        if login.user in known or any(
            names - login.privileges for names in allowed.values()
        ):
            yield from _gaps_of(login, allowed, primary, standby)
    refusal = standby.attempt.error
    if refusal and primary.attempt.is_tried and not primary.attempt.error:
        yield Gap(
            f"does not let {standby.attempt.user!r} of the topology in (error "
            f"{refusal}), as {primary.name} does",
            f"compare SHOW CREATE USER of both; on {standby.address}: {_UNLOGGED}; "
            "ALTER USER, so that the password is that of the topology",
        )


def _gaps_of(
    login: Login,
    allowed: Mapping[str, frozenset[str]],
    primary: Access,
    standby: Access,
) -> Iterator[Gap]:
    """Yield what one account of the primary lacks on the other server."""
    there = standby.matching(login)
    if not there:
        yield Gap(
            f"has no account {login}, which may use databases of its shards "
            f"on {primary.name}",
            f"on {standby.address}: {_UNLOGGED}; create it as SHOW CREATE USER {login} "
            f"and SHOW GRANTS FOR {login} print it on {primary.address}",
        )
        return
    lacks, twin = min(
        (
            (
                {
                    name: lack
                    for name, names in allowed.items()
                    if (lack := names - standby.may(one, name))
                },
                one,
            )
            for one in there
        ),
        key=lambda found: len(found[0]),
    )
    if twin.is_locked:
        yield Gap(
            f"has locked {twin}, which may use databases of its shards on "
            f"{primary.name}",
            f"on {standby.address}: {_UNLOGGED}; ALTER USER {twin} ACCOUNT UNLOCK",
        )
    elif (
        # A refused login says the same.
        not (standby.attempt.error and standby.attempt.user == twin.user)
        and differ(login.proof, twin.proof)
    ):
        yield Gap(
            f"has another password of {twin} than {primary.name}, so its "
            "programs could not log in",
            f"on {standby.address}: {_UNLOGGED}; ALTER USER {twin}, with the password "
            f"that SHOW CREATE USER {login} prints on {primary.address}",
        )
    if lacks:
        names = sorted(set().union(*lacks.values()))
        yield Gap(
            f"does not allow {twin} {', '.join(names)} in "
            f"{shortened_list(sorted(lacks), _MAX_SHOWN)}, as {primary.name} does",
            f"on {standby.address}: "
            + "; ".join((_UNLOGGED, *_grants_for(login, twin, lacks, primary))),
        )


def _grants_for(
    login: Login, twin: Login, lacks: Mapping[str, frozenset[str]], primary: Access
) -> Iterator[str]:
    """Yield the statements that give an account what it lacks."""
    found: dict[str, set[str]] = {}
    for database, names in lacks.items():
        row = primary.row_of(login.user, database, login.host)
        # By a role or globally: the database itself.
        pattern = escaped(database) if row is None else row.pattern
        found.setdefault(pattern, set()).update(names)
    for pattern, lacking in found.items():
        yield (f"GRANT {', '.join(sorted(lacking))} ON {quoted(pattern)}.* TO {twin}")


@as_list
def gaps_alone(
    standby: Access,
    databases: Collection[str],
    *,
    exempt: Collection[str] = (),
    here: str,
) -> Iterator[Gap]:
    """Return why no application could write to a server.

    Its primary is lost, so that nothing can be compared: a privilege that the
    application may never have had is not missed.

    :param here: the host from which the operator connects, as the server
        sees it.
    """
    user, _, refusal = standby.attempt
    skipped = SYSTEM_USERS.union(exempt)
    if user in skipped:
        return
    accounts = [
        one
        for one in standby.accounts
        if one.user not in skipped and not one.is_locked and user in (None, one.user)
    ]
    whose = "any application" if user is None else f"the user {user!r}"
    create = (
        f"on {standby.address}: {_UNLOGGED}; create the account, with SELECT, "
        "INSERT, UPDATE and DELETE on its databases"
    )
    if not accounts:
        yield Gap(f"has no account of {whose}, so it could not write", create)
    elif databases and not any(
        standby.may(one, name) >= _WRITE for one in accounts for name in databases
    ):
        yield Gap(
            f"does not allow {whose} SELECT and INSERT in any database of its shards",
            create,
        )
    # Accounts may be for the hosts of the application only.
    elif refusal and any(is_like(one.host, here) for one in accounts):
        yield Gap(
            f"does not let {user!r} of the topology in (error {refusal})",
            f"on {standby.address}: {_UNLOGGED}; ALTER USER, so that the "
            "password is that of the topology; if it is another one in the "
            "environment of this command, correct it or leave it out",
        )


@lru_cache(maxsize=256)  # thousands of databases have few sets of them
def _privileges(columns: frozenset[str]) -> frozenset[str]:
    """Return the privileges of columns of ``mysql.db``."""
    return _IN_DATABASES.intersection(
        "CREATE TEMPORARY TABLES"
        if column == "Create_tmp_table_priv"
        else column.removesuffix("_priv").upper().replace("_", " ")
        for column in columns
    )


def _precision(row: GrantRow) -> int:
    found = WILDCARD.search(row.pattern)
    return len(row.pattern) if found is None else found.start()
