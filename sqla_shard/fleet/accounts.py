"""The accounts that fleet operations use on the servers, and those there.

The URLs of a topology have the account of the application, which cannot stop
a server from being written.  Operations connect to the same addresses with
an operator account; standbys connect to their primary with a replication
account.  Neither is part of a topology: the passwords come from environment
variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import make_url
from sqlalchemy.engine import URL

from sqla_shard.exc import FleetServerError, FleetSetupError
from sqla_shard.fleet.admin import Admin

_OPERATOR = "SQLA_SHARD_OPERATOR"
_REPLICATION = "SQLA_SHARD_REPLICATION"


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user of the servers, the same on all of them.

    :ivar user: name of the user.
    :ivar password: its password, which no message or document contains.
    """

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """The accounts of an operator.

    :ivar operator: account for all statements; its privileges are listed in
        the documentation of fleet operations.
    :ivar replication: account with which standbys connect to a primary; None
        if the operation attaches no standby.
    """

    operator: Account
    replication: Account | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Accounts:
        """Read ``SQLA_SHARD_OPERATOR_USER``, ``..._PASSWORD`` and so on.

        :param environ: such as ``os.environ``.
        :raises FleetSetupError: if the operator account is missing, or an
            account has a user but no password.
        """
        operator = _account(_OPERATOR, environ)
        if operator is None:
            raise FleetSetupError(
                f"{_OPERATOR}_USER is not set; set it and "
                f"{_OPERATOR}_PASSWORD to the account of the operator"
            )
        return cls(operator=operator, replication=_account(_REPLICATION, environ))

    @classmethod
    def if_set(cls, environ: Mapping[str, str]) -> Accounts | None:
        """Return the accounts as :meth:`from_environ`; None without a user.

        :raises FleetSetupError: if an account has a user but no password.
        """
        is_set = environ.get(f"{_OPERATOR}_USER")
        return cls.from_environ(environ) if is_set else None

    @property
    def users(self) -> frozenset[str]:
        """The names of the users."""
        accounts = filter(None, (self.operator, self.replication))
        return frozenset(account.user for account in accounts)

    def for_replication(self) -> Account:
        """Return the replication account.

        :raises FleetSetupError: if there is none.
        """
        if self.replication is None:
            raise FleetSetupError(
                f"{_REPLICATION}_USER is not set; set it and {_REPLICATION}_PASSWORD "
                "to the account with which standbys connect to their primary"
            )
        return self.replication

    def url(self, text: str) -> URL:
        """Return the URL of a server with the account of the operator.

        :param text: URL of the topology; its TLS options are used.
        """
        return make_url(text).set(
            username=self.operator.user, password=self.operator.password
        )


def _account(prefix: str, environ: Mapping[str, str]) -> Account | None:
    user = environ.get(f"{prefix}_USER")
    if not user:
        return None
    password = environ.get(f"{prefix}_PASSWORD")
    if password is None:
        raise FleetSetupError(
            f"{prefix}_USER is set, but {prefix}_PASSWORD is not; set it, "
            "to an empty string if the account has no password"
        )
    return Account(user=user, password=password)


_UNRESOLVED = {"skip_name_resolve": "ON"}
#: Hosts of accounts that such a server ignores.
_NAME = re.compile(r"(?!localhost$).*[^0-9.%_/].*", re.IGNORECASE)

#: The role of MariaDB that everybody has, from 10.11.
PUBLIC = "PUBLIC"


@dataclass(frozen=True, kw_only=True)
class Login:
    """An account of a server.

    :ivar user: name of the user, or of a role.
    :ivar host: the addresses from which it may connect; empty for a role.
    :ivar privileges: its global privileges, with those of its roles.
    :ivar roles: its roles, and the roles of these.
    :ivar needs_no_password: whether anyone can connect with its name.
    :ivar is_locked: whether nobody can.
    :ivar proof: plugin and digest of its password, by which those of two
        servers are compared; None if the server adds a salt to it.
    """

    user: str
    host: str
    privileges: frozenset[str]
    roles: frozenset[str] = frozenset()
    needs_no_password: bool = False
    is_locked: bool = False
    proof: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"'{self.user}'@'{self.host}'"


def passwords_differ(
    user: str, logins: Iterable[Login], others: Iterable[Login]
) -> bool:
    """Return whether a user certainly has no password of one server on another."""
    one, other = (
        {login.proof for login in found if login.user == user}
        for found in (logins, others)
    )
    return bool(one and other) and all(differ(a, b) for a in one for b in other)


def differ(one: str | None, other: str | None) -> bool:
    """Return whether two passwords are certainly different.

    Those of different plugins cannot be compared, nor those with a salt.
    """
    if one is None or other is None or one == other:
        return False
    return one.partition(":")[0] == other.partition(":")[0]


def logins_of(
    admin: Admin,
    accounts: Sequence[tuple[Any, ...]],
    granted: Iterable[tuple[str, str, str]],
    of_roles: Mapping[str, set[str]] | None = None,
) -> list[Login]:
    """Return the accounts and roles of a server.

    :param accounts: user and host of each, whether anyone can use it, whether
        it is locked, and the proof of its password.
    :param granted: user, host and role of each account that has a role.
    :param of_roles: the global privileges of each role, unless
        ``information_schema.user_privileges`` has them.
    :raises FleetServerError: if the operator may not see them.
    """
    roles: dict[str, set[str]] = {}
    for user, _, role in granted:
        roles.setdefault(user, set()).add(role)
    own: dict[str, set[str]] = {}
    for grantee, privilege in admin.rows(
        "SELECT grantee, privilege_type FROM information_schema.user_privileges"
    ):
        own.setdefault(grantee, set()).add(privilege)
    # Without privileges an account has USAGE.
    unseen = {
        (user, host)
        for user, host, *_ in accounts
        if host and f"'{user}'@'{host}'" not in own
    }
    if unseen and admin.variables("skip_name_resolve") == _UNRESOLVED:
        # The server has not loaded them, so nobody can use them.
        ignored = {one for one in unseen if _NAME.fullmatch(one[1])}
        accounts = [one for one in accounts if (one[0], one[1]) not in ignored]
        unseen -= ignored
    if unseen:
        raise FleetServerError(
            server=str(admin),
            number=1142,
            reason="the privileges of other accounts are hidden from the "
            "operator, who lacks SELECT ON mysql.*",
        )
    if of_roles is None:
        # 'role'@'%' on MySQL
        of_roles = {
            grantee.rpartition("@")[0].strip("'"): privileges
            for grantee, privileges in own.items()
        }
    of_all = of_roles.get(PUBLIC, set())
    found = []
    for user, host, is_open, is_locked, proof in accounts:
        all_roles = _closure(user, roles)
        mine = {*own.get(f"'{user}'@'{host}'", ()), *of_all}
        mine.update(*(of_roles.get(role, ()) for role in all_roles))
        found.append(
            Login(
                user=user,
                host=host,
                privileges=frozenset(mine - {"USAGE"}),
                roles=frozenset(all_roles),
                needs_no_password=bool(is_open),
                is_locked=bool(is_locked),
                proof=proof,
            )
        )
    return found


def _closure(user: str, roles: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [user]
    while left:
        for role in roles.get(left.pop(), set()) - found:
            found.add(role)
            left.append(role)
    return found
