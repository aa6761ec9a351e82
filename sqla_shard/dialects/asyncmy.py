"""What asyncmy, and the event loop under it, have to be told otherwise."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from sqla_shard.dialects.authenticating import refuse_clear_passwords

__all__ = ["adapt_connecting", "close_socket", "transport_of"]

_CANNOT_CONNECT = 2003


def transport_of(dbapi_connection: Any) -> Any:
    """Return the transport of a connection; None when it has none."""
    return getattr(dbapi_connection.driver_connection, "_transport", None)


def close_socket(dbapi_connection: Any) -> None:
    """Close the socket of a connection, and nothing else.

    The transport would tell the event loop, which may be closed, or whose
    selector a parent process is using; and it closes the socket itself one
    day, so something must keep that number.
    """
    transport = transport_of(dbapi_connection)
    sock = transport and transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, sock.fileno(), inheritable=False)
    finally:
        os.close(nothing)


def adapt_connecting(
    dialect: Any, record: Any, cargs: Any, cparams: Any
) -> None:
    """Handle ``do_connect``: let arguments mean what they do with PyMySQL.

    ``connect_timeout`` is for all of it.  asyncmy's own ends when the socket
    is connected; a server that hangs takes connections all the same, and
    would be waited for without end.  ``ssl_disabled`` it does not know.
    """
    if cparams.pop("ssl_disabled", None):
        cparams.pop("ssl", None)
    refuse_clear_passwords(cparams, dialect.loaded_dbapi)
    if "async_creator_fn" in cparams:
        return
    dbapi = dialect.loaded_dbapi

    async def connect(*args: Any, **kwargs: Any) -> Any:
        limit = kwargs["connect_timeout"]
        try:
            return await asyncio.wait_for(
                _awaited(dbapi.asyncmy.connect(*args, **kwargs)), limit
            )
        except asyncio.TimeoutError as error:
            raise dbapi.OperationalError(
                _CANNOT_CONNECT, f"no connection within {limit} seconds"
            ) from error

    cparams["async_creator_fn"] = connect


async def _awaited(connecting: Any) -> Any:
    return await connecting
