"""The connections of asyncmy.

They differ from those of the driver:

* without an ``ssl_*`` option they use TLS if the server offers it, with any
  certificate, as PyMySQL does; asyncmy uses none;
* a server that hangs cannot hold up the end of a connection with TLS;
* ``connect_timeout`` includes the handshake: a server that hangs accepts
  connections, and the wait for its greeting would not end;
* ``ssl_disabled`` is supported;
* ``read_timeout`` ends a response whose packets arrive a few bytes at a time;
* a connection whose response was not read, because an exception such as that
  of the handler of a signal has ended the call, is closed, as asyncmy does
  after a cancellation;
* clear-text passwords are sent only to verified servers.

The tests have run with asyncmy 0.2.18.  Besides documented attributes, the
classes use ``_get_server_information``, ``_ssl_context``, ``_client_flag``,
``_secure``, ``_sock``, ``_transport``, ``server_capabilities``,
``_execute_command``, ``_fill_buffer`` and ``_read_query_result``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from functools import cache
from importlib import import_module
from typing import Any

from sqla_shard.dialects.mysql.driver import refuse_clear_passwords

_CANNOT_CONNECT = 2003
_LOST = 2013
#: Bytes of a large packet that ``read_timeout`` is for.
_PART = 32 * 1024
#: Seconds for the end of TLS.
_FAREWELL = 1.0
#: CLIENT_SSL: the bit of TLS in the capabilities of a server and a client.
_TLS = 0x800


def open_connection(dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
    """Handle ``do_connect``: interpret arguments as PyMySQL does."""
    dbapi = dialect.loaded_dbapi
    disabled = cparams.pop("ssl_disabled", None)
    if disabled:
        cparams.pop("ssl", None)
    refuse_clear_passwords(cparams, dbapi)
    if "async_creator_fn" in cparams:
        return dialect.connect(*cargs, **cparams)
    # The package itself has a function of this name.
    module = import_module(f"{dbapi.asyncmy.__name__}.connection")
    # Not of dbapi, which SQLAlchemy makes for each engine.
    errors = dbapi.asyncmy.errors
    connection_class = _class_of(module.Connection, errors, tries_tls=not disabled)

    async def connect(*args: Any, **kwargs: Any) -> Any:
        limit = kwargs["connect_timeout"]
        connection = connection_class(*args, **kwargs)
        try:
            await asyncio.wait_for(connection.connect(), limit)
        except TimeoutError as error:
            raise dbapi.OperationalError(
                _CANNOT_CONNECT, f"no connection within {limit} seconds"
            ) from error
        return connection

    return dialect.connect(*cargs, **cparams, async_creator_fn=connect)


@cache
def _class_of(base: Any, errors: Any, *, tries_tls: bool) -> Any:
    """Return a class of connections.

    :param errors: the driver's module of errors.
    """

    class Connection(base):  # type: ignore[misc]  # asyncmy's
        is_torn = False

        async def _execute_command(self, command: Any, sql: Any) -> None:
            await self._unless_torn(super()._execute_command(command, sql))

        async def _fill_buffer(self, need: int) -> None:
            # The driver's own limit begins again with each byte.
            limit = getattr(self, "_read_timeout", None)
            for enough in (*range(_PART, need, _PART), need):
                timer = asyncio.timeout(limit)
                try:
                    async with timer:
                        await self._unless_torn(super()._fill_buffer(enough))
                except TimeoutError as error:
                    if not timer.expired():
                        raise
                    # Closed, and lost as by the driver's own limit: the pool
                    # closes its other connections to the server.
                    self.is_torn = False
                    raise errors.OperationalError(
                        _LOST,
                        "Lost connection to MySQL server during query (read timeout)",
                    ) from error

        async def _read_query_result(self, unbuffered: bool = False) -> None:
            await self._unless_torn(super()._read_query_result(unbuffered))

        async def _unless_torn(self, call: Awaitable[None]) -> None:
            """Await a part of a command; close the connection if it is cut."""
            transport = self._transport
            try:
                await call
            except errors.Error:
                raise
            except BaseException:
                # The next statement would read the response.
                self.is_torn = True
                self.close()
                self._connected = False
                if transport is not None:
                    # TLS would wait 30 s for the answer of a server that hangs.
                    transport.abort()
                raise

    return _trying_tls(Connection) if tries_tls else Connection


def _trying_tls(base: Any) -> Any:
    # A context takes half a megabyte, and reads all authorities of the system.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    class Connection(base):  # type: ignore[misc]  # asyncmy's
        _ssl_context: ssl.SSLContext | None
        _transport: Any

        async def _get_server_information(self) -> None:
            await super()._get_server_information()
            # A socket file needs no TLS; a socket of the application has its
            # own, or none.
            plain = self._ssl_context is None and not self._secure
            offered = self.server_capabilities & _TLS
            if offered and plain and self._sock is None:
                self._ssl_context = context
                self._client_flag |= _TLS

        async def ensure_closed(self) -> None:
            transport = self._transport
            closing = super().ensure_closed()
            try:
                await asyncio.wait_for(closing, _FAREWELL)
            except TimeoutError:
                # The loop would wait 30 s for the server's answer.
                transport.abort()
                self.close()

    return Connection
