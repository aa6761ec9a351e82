"""Errors for logs and traces: without the values of an application.

SQLAlchemy's messages show the parameters of a statement.  Servers quote
values: ``Duplicate entry 'me@example.com' for key 'email'``.
"""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import StatementError

from sqla_shard.exc.base import ShardError

__all__ = ["code_of", "summary"]

#: Errors of MySQL and MariaDB whose messages name servers, databases, tables,
#: columns and users, and quote no value.
_WITHOUT_VALUES = frozenset(
    {
        *(1020, 1040, 1044, 1045, 1049, 1051, 1053, 1054, 1129, 1130, 1142),
        *(1146, 1158, 1159, 1160, 1161, 1180, 1184, 1203, 1205, 1213, 1226),
        *(1227, 1290, 1317, 1364, 1412, 1449, 1698, 1792, 1836, 1927, 1969),
        *(3024, 4031),
        # Of the client: connections that were lost or never made.
        *range(2000, 2100),
    }
)


def code_of(error: BaseException) -> str | None:
    """Return the code of a driver's error, such as ``1062``; None for none.

    :param error: the driver's, or SQLAlchemy's around it.
    """
    original = getattr(error, "orig", None) or error
    code: str | None = getattr(original, "sqlite_errorname", None)
    if code is None and original.args and type(original.args[0]) is int:
        code = str(original.args[0])
    return code


def summary(error: BaseException) -> str:
    """Return the name of an error and what it says, without values.

    The message of a server that may quote a value is left away: name and
    code are what remains of it.
    """
    name = type(error).__name__
    if isinstance(error, ShardError) or not isinstance(error, StatementError):
        return f"{name}: {error}"
    original = error.orig
    if original is None or not isinstance(error, DBAPIError):
        return f"{name}: {type(original).__name__}"
    code = original.args[0] if original.args else None
    if type(code) is int and code not in _WITHOUT_VALUES:
        return f"{name}: {code}"
    return f"{name}: {original}"
