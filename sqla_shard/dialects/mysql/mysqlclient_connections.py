"""The connections of mysqlclient, the driver ``mysqldb`` of SQLAlchemy.

They differ from those of the driver:

* a statement, COMMIT or ROLLBACK of a
  :class:`~sqla_shard.dialects.polling.PolledCall` is sent with
  ``send_query()``; its response is read with ``read_query_result()`` once the
  socket is readable, so that one thread waits for several servers;
* a call that another thread waits for can be interrupted;
* a cursor can be closed while another cursor of the same connection waits in
  another thread;
* ``localhost`` with a port is reached by TCP, as with PyMySQL, not by the
  socket file of another server;
* they know whether a transaction may be open, which the driver does not tell.

Sending a statement, and reading the rest of a response that has begun to
arrive, block the thread: the server reads a statement to its end before it
responds, and other responses arrive in the meantime.

The tests have run with mysqlclient 2.3.2 and MariaDB Connector/C 3.3.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import ceil
from typing import Any

from sqla_shard.dialects.mysql.driver import close_descriptor
from sqla_shard.dialects.polling import (
    CAN_POLL,
    Pipelining,
    polled_call,
    PolledConnection,
)

_LOST = 2013
_TLS_ERROR = 2026
_TIMEOUTS = frozenset({"connect_timeout", "read_timeout", "write_timeout"})
_IN_TRANSACTION = 1


class Connecting:
    """Handler of ``do_connect`` that opens connections of this class.

    :param pipelining: how connections wait for responses.
    """

    def __init__(self, *, pipelining: Pipelining) -> None:
        self._pipelining = pipelining

    def __call__(self, dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
        """Handle ``do_connect``."""
        if cparams.get("host") == "localhost" and "port" in cparams:
            # The client library compares the spelling.
            cparams["host"] = "LOCALHOST"
        for name in _TIMEOUTS & cparams.keys():
            seconds = cparams.pop(name)
            if seconds is not None:
                cparams[name] = max(1, ceil(seconds))
        # The package itself only has a function of this name.
        module = import_module(f"{dialect.loaded_dbapi.__name__}.connections")
        connection_class = _class_of(module.Connection, self._pipelining)
        return connection_class(*cargs, **cparams)


@cache
def _class_of(base: type[Any], pipelining: Pipelining) -> type[Any]:
    polls = pipelining.polls and CAN_POLL
    bases = (_PolledMySQLClient, Adapted) if polls else (Adapted,)
    cursor = type("Cursor", (_QuietCursor, base.default_cursor), {})
    attributes = {"defers": pipelining.defers, "default_cursor": cursor}
    return type("Connection", (*bases, base), attributes)


class Adapted:
    """Base of all connections.

    :ivar server_status: the bit of an open transaction, as in the status
        that PyMySQL receives: set by each statement until COMMIT or ROLLBACK.
    """

    OperationalError: type[Exception]
    server_status: int = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._timeout: float | None = kwargs.get("read_timeout")
        super().__init__(*args, **kwargs)
        plain: Any = self
        # Read now: while a call runs, the driver refuses others.
        self._fd: int = plain.fileno()

    def query(self, query: Any) -> None:
        """Send a statement and read the first packet of its response."""
        self.server_status = _IN_TRANSACTION
        try:
            self._run(query)
        except self.OperationalError as error:
            if error.args[0] != _TLS_ERROR:
                raise
            raise self._lost(error) from error

    def store_result(self) -> Any:
        """Read the rest of a response."""
        plain: Any = super()
        try:
            return plain.store_result()
        except self.OperationalError as error:
            if error.args[0] != _TLS_ERROR:
                raise
            raise self._lost(error) from error

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
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self._fd)) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)

    def close_copy(self) -> None:
        """Close the copy of the socket that a child process has inherited.

        The object is never collected: it would send QUIT, or wait for a
        thread of the parent that the child does not have.
        """
        close_descriptor(self._fd)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _run(self, query: Any) -> None:
        plain: Any = super()
        plain.query(query)

    def _lost(self, error: Exception) -> Exception:
        # SQLAlchemy would use the connection again after an error of TLS.
        return self.OperationalError(_LOST, *error.args[1:])


class _PolledMySQLClient(PolledConnection):
    _fd: int
    _timeout: float | None
    server_status: int

    def commit(self) -> None:
        self.end_transaction(super().commit)  # type: ignore[misc]  # Adapted's

    def rollback(self) -> None:
        self.roll_back(super().rollback)  # type: ignore[misc]  # Adapted's

    def ping(self) -> None:
        self.before_command()
        super().ping()  # type: ignore[misc]  # mysqlclient's

    def autocommit(self, on: bool) -> None:
        self.before_command()
        super().autocommit(on)  # type: ignore[misc]  # mysqlclient's

    def select_db(self, name: str) -> None:
        self.before_command()
        super().select_db(name)  # type: ignore[misc]  # mysqlclient's

    def _run(self, query: Any) -> None:
        self.before_command(query)
        self.awaits_response = True
        plain: Any = super()
        if polled_call() is None:
            self._begin(plain._run, query)
        else:
            self._begin(self._run_polled, query)

    def _run_polled(self, query: Any) -> None:
        plain: Any = self
        plain.send_query(bytes(query))
        self._read_response()

    def _begin(self, act: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the driver that reads the first packet."""
        plain: Any = self
        try:
            result = act(*args)
        except self.Error:
            self.awaits_response = False
            raise
        # The rows are read by another call.
        self.awaits_response = plain.field_count() > 0
        return result

    def next_result(self) -> Any:
        self.awaits_response = True
        plain: Any = super()
        return self._begin(plain.next_result)

    def store_result(self) -> Any:
        return self.complete(super().store_result)  # type: ignore[misc]  # Adapted's

    def use_result(self) -> Any:
        return self.complete(super().use_result)  # type: ignore[misc]  # mysqlclient's

    def discard_result(self) -> None:
        self.complete(super().discard_result)  # type: ignore[misc]  # mysqlclient's

    def _send_rollback(self) -> None:
        plain: Any = self
        self.awaits_response = True
        plain.send_query(b"ROLLBACK")
        self.server_status = 0

    def _read_rollback(self) -> None:
        self.complete(self._read_response)

    def _read_response(self) -> None:
        """Wait for a response, and read its first packet."""
        plain: Any = self
        try:
            call = polled_call()
            if call is not None:
                call.wait(self._fd, select.POLLIN, self._timeout)
        except TimeoutError as error:
            plain.close()
            raise self.OperationalError(
                _LOST, "Lost connection to server during query (timed out)"
            ) from error
        except BaseException:
            # It would be read as the response to the next statement.
            plain.close()
            raise
        plain.read_query_result()


class _QuietCursor:
    """Base of the cursors: they ask for more results only if there are some.

    Those of the driver ask whenever they are closed, which fails if another
    cursor of the connection waits for its response in another thread.
    """

    connection: Any
    _has_more = False

    def _do_get_result(self, connection: Any) -> None:
        plain: Any = super()
        plain._do_get_result(connection)
        self._has_more = bool(connection.more_results())

    def _discard(self) -> None:
        plain: Any = super()
        connection = self.connection
        if not self._has_more:
            self.connection = None
        try:
            plain._discard()
        finally:
            self.connection = connection
            self._has_more = False
