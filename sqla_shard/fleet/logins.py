"""The accounts of a server, with their roles."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet.admin import Admin

__all__ = [
    "PUBLIC",
    "Login",
    "logins_of",
]

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
    """

    user: str
    host: str
    privileges: frozenset[str]
    roles: frozenset[str] = frozenset()
    needs_no_password: bool = False

    def __str__(self) -> str:
        return f"'{self.user}'@'{self.host}'"


def logins_of(
    admin: Admin,
    accounts: Sequence[tuple[Any, ...]],
    granted: Iterable[tuple[str, str, str]],
    of_roles: Mapping[str, set[str]] | None = None,
) -> list[Login]:
    """Return the accounts and roles of a server.

    :param accounts: user and host of each, and whether anyone can use it.
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
        "SELECT grantee, privilege_type"
        " FROM information_schema.user_privileges"
    ):
        own.setdefault(grantee, set()).add(privilege)
    # Without privileges an account has USAGE.
    if any(f"'{u}'@'{host}'" not in own for u, host, _ in accounts if host):
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
    for user, host, is_open in accounts:
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
