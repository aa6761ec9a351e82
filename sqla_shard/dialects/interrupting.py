"""Ending a call of a driver that waits in another thread."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

__all__ = ["interrupt"]


def interrupt(dbapi_connection: Any) -> None:
    """Make a call that waits in another thread fail, where possible.

    PyMySQL's socket is shut down; SQLite and the drivers of PostgreSQL and
    Oracle have a method for it.  A call of any other driver is waited for.
    The connection is of no use afterwards.
    """
    sock = getattr(dbapi_connection, "_sock", None)
    if isinstance(sock, socket.socket):
        # It was closed in the meantime: then nothing waits for it.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        return
    for name in ("interrupt", "cancel"):
        method = getattr(dbapi_connection, name, None)
        if callable(method):
            method()
            return
