"""Timeouts, authentication and errors of the drivers of MySQL."""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import URL

# A server chooses how a client authenticates.  If it requests the plugin
# ``mysql_clear_password`` or ``dialog``, PyMySQL and asyncmy send the password
# in clear text over any connection: an impostor would receive it.


_CLEAR = ("mysql_clear_password", "dialog")
#: The client error of a failed authentication plugin.
_PLUGIN_ERROR = 2061
_NO = frozenset({"none", "optional", "0", "false", "no"})


def refuse_clear_passwords(arguments: dict[str, Any], dbapi: Any) -> None:
    """Send no clear-text password, unless TLS is verified.

    :param arguments: arguments of ``connect()`` of PyMySQL or asyncmy;
        handlers of the application in ``auth_plugin_map`` take precedence.
    :param dbapi: the driver; PyMySQL before 1.2 connects without TLS if the
        server has none.
    """
    insists = getattr(dbapi, "VERSION", (1, 2))[:2] >= (1, 2)
    if insists and _verifies(arguments):
        return

    class Refusing:
        def __init__(self, connection: Any) -> None:
            """Accept the connection, which drivers pass."""

        def authenticate(self, packet: Any) -> Any:
            raise dbapi.OperationalError(
                _PLUGIN_ERROR,
                "the server requests the password in clear text, which is "
                "sent over verified TLS only: add ssl_ca=FILE to the URL, or "
                "change the account to an authentication plugin other than "
                "mysql_clear_password, dialog and PAM",
            )

    given = arguments.get("auth_plugin_map") or {}
    arguments["auth_plugin_map"] = {**dict.fromkeys(_CLEAR, Refusing), **given}


def _verifies(arguments: Mapping[str, Any]) -> bool:
    """Return whether the certificate of the server is verified."""
    if arguments.get("unix_socket"):
        # The server is on this machine.
        return True
    if arguments.get("ssl_disabled"):
        return False
    given = arguments.get("ssl")
    names = ("ssl_ca", "ssl_cert", "ssl_key")
    checks = ("ssl_verify_cert", "ssl_verify_identity")
    if any(arguments.get(name) for name in (*names, *checks)):
        # Options of PyMySQL that replace ``ssl``.
        mode = arguments.get("ssl_verify_cert")
        if arguments.get("ssl_verify_identity"):
            return True
        return mode is not None and str(mode).lower() not in _NO
    if isinstance(given, ssl.SSLContext):
        return given.verify_mode is ssl.CERT_REQUIRED
    if not isinstance(given, Mapping):
        return False
    mode = given.get("verify_mode")
    if mode is None:
        return bool(given.get("ca") or given.get("capath"))
    return str(mode).lower() not in _NO


def transport_of(dbapi_connection: Any) -> Any:
    """Return the transport of a connection; None if it has none."""
    return getattr(dbapi_connection.driver_connection, "_transport", None)


def close_socket(dbapi_connection: Any) -> None:
    """Close the socket of a connection, and nothing else.

    The transport would notify the event loop, which may be closed, or whose
    selector the parent process is using.  It closes the descriptor later.
    """
    transport = transport_of(dbapi_connection)
    sock = transport and transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        close_descriptor(sock.fileno())


def close_descriptor(number: int) -> None:
    """Close what a descriptor refers to; the number stays in use."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, number, inheritable=False)
    finally:
        os.close(nothing)


#: The default timeouts in seconds, by driver and option.
LIMITS: Mapping[str, Mapping[str, int]] = {
    "pymysql": {"connect_timeout": 10, "read_timeout": 30, "write_timeout": 30},
    "mysqldb": {"connect_timeout": 10, "read_timeout": 30, "write_timeout": 30},
    # asyncmy has no write_timeout: data that it cannot send waits in memory,
    # and read_timeout applies.
    "asyncmy": {"connect_timeout": 10, "read_timeout": 30},
}
#: The default arguments of drivers whose own defaults are less safe: several
#: statements in one, files of the application for a server that requests them,
#: and bytes that the server takes for a text.
SAFE: Mapping[str, Mapping[str, Any]] = {
    "mysqldb": {"multi_statements": False, "local_infile": 0, "binary_prefix": True}
}
#: The options without which a driver waits forever, including drivers that
#: are not listed above.
_ENDING = ("read_timeout",)

# Outside strict mode a value that is too long is cut off with a warning.
_STRICT = "sql_mode = CONCAT_WS(',', NULLIF(@@sql_mode, ''), 'STRICT_TRANS_TABLES')"

# Where this variable is on, by default from MariaDB 11.6.2, a locking read of
# a row that has changed since the first read ends the transaction with error
# 1020, so that neither changes of fields can be merged nor versions compared.
# Its value is 0 from 10.11.8 and from 11.4.2; the servers between, which may
# lack the variable, read a text there.  To MySQL these are comments.
_SNAPSHOTS = (
    " /*M!101108 , */ /*M!110000 @_ = ' */ "
    "/*M!101108 innodb_snapshot_isolation = 0 */ /*M!110000 ' */ "
    "/*M!110402 , innodb_snapshot_isolation = 0 */"
)

#: The part of ``read_timeout`` that a statement may wait for locks.
_FOR_LOCKS = 0.8


def with_limits(
    driver: str, url: URL, arguments: Mapping[str, Any], timeout: float | None = None
) -> dict[str, Any]:
    """Return the arguments of a driver, with a limit for each wait.

    :param url: URL whose options take precedence.
    :param arguments: ``connect_args``; None switches a limit off.
    :param timeout: seconds; replaces all limits.  Infinity: no limit for
        reading.
    """
    limits: Mapping[str, Any] = LIMITS.get(driver, {})
    options = {n: value for n, value in limits.items() if n not in url.query}
    options.update(arguments)
    if timeout == math.inf:
        options.update((n, None) for n in _ENDING if n in {**limits, **options})
    elif timeout is not None:
        options.update(dict.fromkeys(limits, timeout))
    return options


def without_end(driver: str, url: URL, arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the limits that a driver does not have.

    :param arguments: the result of :func:`with_limits`.
    """
    given = {**url.query, **arguments}
    return [n for n in LIMITS.get(driver, _ENDING) if given.get(n) is None]


def initial_statement(url: URL, arguments: Mapping[str, Any]) -> str:
    """Return the statement that is sent on each new connection."""
    # No default database: every statement names the database of its virtual
    # shard, and a statement without it would use that of another shard.
    parts = ["SET SESSION time_zone = '+00:00'", _STRICT]
    limit = {**url.query, **arguments}.get("read_timeout")
    if limit is not None:
        # A server that waits for a lock sends nothing, so that it seems to
        # hang.  The default limits are 50 seconds and a day, and the server
        # continues to wait after its client has disconnected.  MySQL refuses
        # the number of LEAST() without a cast, which is a text there.
        seconds = max(1, int(float(limit) * _FOR_LOCKS))
        parts += [
            f"{name} = CAST(LEAST(@@{name}, {seconds}) AS UNSIGNED)"
            for name in ("innodb_lock_wait_timeout", "lock_wait_timeout")
        ]
    return ", ".join(parts) + _SNAPSHOTS
