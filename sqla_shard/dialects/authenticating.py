"""Passwords are sent in the clear to a server alone that is verified.

A server chooses how a client authenticates.  One that asks for the plugin
``mysql_clear_password``, or ``dialog``, is sent the password as it is, by
PyMySQL and asyncmy, over any connection: who can answer in the place of a
server would have it for the asking.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

__all__ = ["refuse_clear_passwords"]

_CLEAR = ("mysql_clear_password", "dialog")
#: Of the client, when a plugin for authentication fails.
_PLUGIN_ERROR = 2061
_NO = frozenset({"none", "optional", "0", "false", "no"})


def refuse_clear_passwords(arguments: dict[str, Any], dbapi: Any) -> None:
    """Have a connection send no password as it is, unless TLS is verified.

    :param arguments: of ``connect()`` of PyMySQL or asyncmy; handlers of the
        application, in ``auth_plugin_map``, stay.
    :param dbapi: the driver; PyMySQL before 1.2 goes on without TLS where a
        server has none.
    """
    insists = getattr(dbapi, "VERSION", (1, 2))[:2] >= (1, 2)
    if insists and _verifies(arguments):
        return

    class Refusing:
        def __init__(self, connection: Any) -> None:
            """Take the connection, as the drivers want it."""

        def authenticate(self, packet: Any) -> Any:
            raise dbapi.OperationalError(
                _PLUGIN_ERROR,
                "the server asks for the password in the clear, which is "
                "sent over verified TLS alone: say ssl_ca=FILE in the URL, "
                "or have the account use a plugin other than "
                "mysql_clear_password, dialog and PAM's",
            )

    given = arguments.get("auth_plugin_map") or {}
    arguments["auth_plugin_map"] = {
        **dict.fromkeys(_CLEAR, Refusing),
        **given,
    }


def _verifies(arguments: Mapping[str, Any]) -> bool:
    """Whether the certificate of the server is checked."""
    if arguments.get("unix_socket"):
        # It leads to this machine.
        return True
    if arguments.get("ssl_disabled"):
        return False
    given = arguments.get("ssl")
    names = ("ssl_ca", "ssl_cert", "ssl_key")
    checks = ("ssl_verify_cert", "ssl_verify_identity")
    if any(arguments.get(name) for name in (*names, *checks)):
        # PyMySQL's own, which take the place of the other.
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
