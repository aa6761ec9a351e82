"""The connections of mysqlclient, the driver ``mysqldb`` of SQLAlchemy.

They differ from those of the driver:

* a statement, COMMIT or ROLLBACK of a
  :class:`~sqla_shard.dialects.polling.Call` is sent with ``send_query()``;
  its response is read with ``read_query_result()`` once the socket is
  readable, so that one thread waits for several servers;
* a call that another thread waits for can be interrupted;
* they know whether a transaction may be open, which the driver does not tell.

Sending a statement, and reading the rest of a response that has begun to
arrive, block the thread: the server reads a statement to its end before it
responds, and other responses arrive in the meantime.

The tests have run with mysqlclient 2.3.2 and MariaDB Connector/C 3.3.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from functools import cache
from importlib import import_module
from typing import Any

from greenlet import getcurrent

from sqla_shard.dialects.polling import Call
from sqla_shard.dialects.polling import CAN_POLL
from sqla_shard.dialects.polling import PolledConnection
from sqla_shard.dialects.polling import wait_for

__all__ = ["Connecting"]

_LOST = 2013
_IN_TRANSACTION = 1


class Connecting:
    """Handler of ``do_connect`` that opens connections of this class.

    :param polls: whether the sockets are polled.
    """

    def __init__(self, *, polls: bool) -> None:
        self._polls = polls and CAN_POLL

    def __call__(
        self, dialect: Any, record: Any, cargs: Any, cparams: Any
    ) -> Any:
        """Handle ``do_connect``."""
        # The package itself only has a function of this name.
        module = import_module(f"{dialect.loaded_dbapi.__name__}.connections")
        made = _class_of(module.Connection, self._polls)
        return made(*cargs, **cparams)


@cache
def _class_of(base: type[Any], polls: bool) -> type[Any]:
    bases = (_Polled, _Interruptible) if polls else (_Interruptible,)
    return type("Connection", (*bases, base), {})


class _Interruptible:
    """Base of all connections.

    :ivar server_status: the bit of an open transaction, as in the status
        that PyMySQL receives: set by each statement until COMMIT or ROLLBACK.
    """

    read_timeout: float | None
    server_status = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.read_timeout = kwargs.get("read_timeout")
        super().__init__(*args, **kwargs)
        plain: Any = self
        # Read now: while a call runs, the driver refuses others.
        self.fd: int = plain.fileno()

    def query(self, query: Any) -> None:
        """Send a statement and read the first packet of its response."""
        self.server_status = _IN_TRANSACTION
        plain: Any = super()
        plain.query(query)

    def commit(self) -> None:
        """Send COMMIT."""
        self.query(b"COMMIT")
        self.server_status = 0

    def rollback(self) -> None:
        """Send ROLLBACK."""
        self.query(b"ROLLBACK")
        self.server_status = 0

    def interrupt(self) -> None:
        """Shut down the socket, for a call that another thread waits for."""
        # If it was closed in the meantime, no call waits for it.
        with contextlib.suppress(OSError):
            duplicate = socket.socket(fileno=os.dup(self.fd))
            with duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)


class _Polled(PolledConnection):
    fd: int
    read_timeout: float | None
    server_status: int
    OperationalError: type[Exception]

    def query(self, query: Any) -> None:
        plain: Any = super()
        if type(getcurrent()) is not Call:
            plain.query(query)
            return
        self.server_status = _IN_TRANSACTION
        plain.send_query(bytes(query))
        try:
            wait_for(self.fd, select.POLLIN, self.read_timeout)
        except TimeoutError as error:
            # Its response would be read as that of the next statement.
            plain.close()
            raise self.OperationalError(
                _LOST, "Lost connection to server during query (timed out)"
            ) from error
        except BaseException:
            plain.close()
            raise
        plain.read_query_result()
