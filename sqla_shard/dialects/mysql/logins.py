"""Logins to MySQL and MariaDB, with any driver.

The server chooses how a client authenticates.  ``caching_sha2_password``, the
default of MySQL, takes the password itself, over TLS or encrypted with RSA,
unless the server has the account in its cache.  A restart empties the cache,
as does FLUSH PRIVILEGES, which a split sends: a client that can do neither
connects until then, and not afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from sqlalchemy.util import await_only

from sqla_shard.dialects.passwords import PasswordError, PasswordSource, Secret
from sqla_shard.util.addresses import host_and_port

_ACCESS_DENIED = 1045
#: The client error of a failed authentication plugin.
_PLUGIN_ERROR = 2061
# PyMySQL and asyncmy raise a RuntimeError, which names neither the server nor
# what else can be done.
_PACKAGE = re.compile("'(cryptography|pynacl)' package is required")
# Reports shorten messages: the remedy comes first.
_REMEDIES = {
    "cryptography": "use TLS (ssl_ca=FILE in the URL) or pip install "
    "cryptography: the account has the plugin caching_sha2_password or "
    "sha256_password, which needs one of them",
    "pynacl": "pip install PyNaCl: the account has the plugin ed25519, which needs it",
}


#: Drivers that send a text in Latin-1, where servers have that of CREATE USER
#: in UTF-8.  Their error for other characters shows the whole password.
_LATIN_1 = ("pymysql", "asyncmy")


class LoggingIn:
    """Handler of ``do_connect``: passwords that change, and clear errors.

    :param opening: opens a connection; a handler of ``do_connect``, too.
    :param password: the password of the server; None for that of the URL.
    """

    def __init__(
        self,
        opening: Callable[[Any, Any, Any, Any], Any],
        password: PasswordSource | None,
    ) -> None:
        self._opening = opening
        self._password = password

    def __call__(self, dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
        """Handle ``do_connect``."""
        source = self._password
        if source is None:
            return self._attempt(dialect, record, cargs, cparams)
        secret = source.known or self._ask(source, None, dialect)
        given = {**cparams, "password": secret.text}
        try:
            return self._attempt(dialect, record, cargs, given)
        except dialect.loaded_dbapi.Error as error:
            if error.args[:1] != (_ACCESS_DENIED,):
                raise
        # The password may have been replaced since.  Ask once, or a wrong one
        # would be asked for without end.
        secret = self._ask(source, secret, dialect)
        given = {**cparams, "password": secret.text}
        return self._attempt(dialect, record, cargs, given)

    def _attempt(self, dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
        secret = cparams.get("password")
        if isinstance(secret, str) and dialect.driver in _LATIN_1:
            cparams["password"] = secret.encode()
        # Openings change the arguments.
        where = host_and_port(
            cparams.get("host") or "localhost", cparams.get("port") or 3306
        )
        try:
            return self._opening(dialect, record, cargs, cparams)
        except RuntimeError as error:
            found = _PACKAGE.search(str(error))
            if found is None:
                raise
            raise dialect.loaded_dbapi.OperationalError(
                _PLUGIN_ERROR, f"{where}: {_REMEDIES[found[1]]}"
            ) from error

    def _ask(self, source: PasswordSource, used: Secret | None, dialect: Any) -> Secret:
        try:
            if dialect.is_async:
                # The function may block, and so may its lock.
                found: Secret = await_only(asyncio.to_thread(source.ask, used))
                return found
            return source.ask(used)
        except PasswordError as error:
            raise dialect.loaded_dbapi.OperationalError(
                _PLUGIN_ERROR, str(error)
            ) from error
