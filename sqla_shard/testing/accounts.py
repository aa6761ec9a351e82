"""The application user: its password, and the databases that it owns."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence

from pymysql.cursors import Cursor

__all__ = ["PREFIXES", "check_prefixes", "create_user", "random_password"]

PREFIXES = ("db", "main", "lookup")
"""What names of databases begin with, unless something else is agreed."""

_SYSTEM_DATABASES = (
    "information_schema",
    "mysql",
    "performance_schema",
    "sys",
)


def random_password() -> str:
    """Return ``SQLA_SHARD_TEST_PASSWORD`` if it is set, else a new one."""
    return os.environ.get("SQLA_SHARD_TEST_PASSWORD") or (
        secrets.token_urlsafe(18)
    )


def check_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes, if the application may have them.

    :raises ValueError: if one is empty, cannot be quoted, or would match
        a database of the server's own.
    """
    if not prefixes:
        raise ValueError("prefixes: the application needs at least one")
    for prefix in prefixes:
        if not re.fullmatch(r"[A-Za-z0-9_$-]+", prefix):
            raise ValueError(
                f"prefixes: {prefix!r} must be letters, digits, _ $ or -"
            )
        for name in _SYSTEM_DATABASES:
            if name.startswith(prefix.lower()):
                raise ValueError(
                    f"prefixes: {prefix!r} would give the application the "
                    f"database {name!r}"
                )
    return tuple(prefixes)


def create_user(
    cursor: Cursor, account: str, *, password: str, prefixes: Sequence[str]
) -> None:
    """Create a user who may do anything to some databases, and only there.

    :param cursor: of a connection of root.
    :param account: user and host, quoted.
    :param prefixes: what the names of its databases begin with.
    """
    cursor.execute(f"CREATE USER {account} IDENTIFIED BY %s", (password,))
    for prefix in prefixes:
        # Unescaped, an underscore would stand for any character.
        pattern = re.sub(r"([\\_%])", r"\\\1", prefix) + "%"
        cursor.execute(f"GRANT ALL PRIVILEGES ON `{pattern}`.* TO {account}")
