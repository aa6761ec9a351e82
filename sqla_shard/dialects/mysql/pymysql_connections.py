"""The connections of PyMySQL.

They differ from those of the driver:

* their sockets are polled together with those of other servers; see
  :mod:`sqla_shard.dialects.polling`;
* ``connect_timeout`` includes the handshake: a server that hangs accepts
  connections, and the wait for its greeting would not end;
* all connections of a process share a TLS context;
* results are read in less time; see
  :mod:`sqla_shard.dialects.mysql.pymysql_results`;
* a connection whose response was not read, because an exception such as that
  of the handler of a signal has ended the call, is not used again;
* clear-text passwords are sent only to verified servers.

The tests have run with PyMySQL 1.2.0 and 1.2.4.  Besides documented
attributes, these classes use ``_read_timeout``, ``_secure``,
``_create_ssl_ctx``, ``_execute_command``, ``_read_ok_packet``,
``_read_packet`` and ``_force_close``, and ``connect()`` with a socket; for
results, ``_rfile``, ``_next_seq_id``, ``_read_query_result``, ``_result`` and
``MySQLResult``.  If a version lacks one of them, its connections are those of
the driver in this respect, and
threads wait for the servers.
"""

from __future__ import annotations

import socket
import ssl
from functools import cache
from importlib import import_module
from typing import Any

from sqla_shard.dialects.mysql.driver import refuse_clear_passwords
from sqla_shard.dialects.mysql.pymysql_results import can_read, Received, result_class
from sqla_shard.dialects.polling import (
    CAN_POLL,
    Pipelining,
    PolledConnection,
    PolledSocket,
    PolledSSLSocket,
)

# The client error of a server that cannot be connected to.
_CANNOT_CONNECT = 2003
_LOST = 2013
_COM_QUERY = 3
_IN_TRANSACTION = 1
#: What the polled connections override or call, in addition to what is
#: documented.
_INTERNAL = (
    "_create_ssl_ctx",
    "_execute_command",
    "_force_close",
    "_read_ok_packet",
    "_read_packet",
)


class Connecting:
    """Handler of ``do_connect`` that opens connections of these classes.

    :param shares: whether the URL leaves TLS to PyMySQL.
    :param pipelining: how connections wait for responses.
    """

    def __init__(self, *, shares: bool, pipelining: Pipelining) -> None:
        self._shares = shares
        self._pipelining = pipelining

    def __call__(self, dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
        """Handle ``do_connect``."""
        dbapi = dialect.loaded_dbapi
        refuse_clear_passwords(cparams, dbapi)
        base = dbapi.connections.Connection
        made = _class_of(base, self._shares, self._pipelining)
        return made(*cargs, **cparams)


# Not one for each engine: SQLAlchemy's statement caches refer to a hundred
# dialects of servers that have been removed, and a context takes half a
# megabyte.  Two threads may each create a class at first, which is harmless; a
# lock could be held while the process forks.
@cache
def _class_of(base: type[Any], shares: bool, pipelining: Pipelining) -> type[Any]:
    bases: list[type[Any]] = [base]
    if shares and hasattr(base, "_create_ssl_ctx"):
        bases.insert(0, SharedContext)
    polls = pipelining.polls and CAN_POLL
    if polls and all(hasattr(base, name) for name in _INTERNAL):
        bases.insert(0, _Polled)
    # Each class has its own context.
    attributes: dict[str, Any] = {"shared_context": None, "defers": pipelining.defers}
    module = import_module(base.__module__)
    if hasattr(base, "_rfile") and can_read(module):
        bases.insert(0, _Reading)
        attributes["result_class"] = result_class(module)
    if hasattr(base, "connect"):
        bases.insert(0, _OneTimeout)
    return type("Connection", tuple(bases), attributes)


class _OneTimeout:
    connect_timeout: float | None
    _read_timeout: float | None

    def connect(self, sock: Any = None) -> None:
        own = getattr(self, "_read_timeout", None)
        limit = self.connect_timeout or own
        self._read_timeout = min(limit, own) if limit and own else limit
        try:
            super().connect(sock)  # type: ignore[misc]  # PyMySQL's
        finally:
            self._read_timeout = own


class _Reading:
    result_class: type[Any]
    server_status: int
    _rfile: Any
    _result: Any

    def connect(self, sock: Any = None) -> None:
        super().connect(sock)  # type: ignore[misc]  # PyMySQL's
        self._rfile = Received(self._rfile)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        """Read a result as PyMySQL does, with another class."""
        # ``init_command`` is executed by connect(), in which the file of the
        # socket is still the driver's.
        if unbuffered or not isinstance(self._rfile, Received):
            plain: Any = super()
            return plain._read_query_result(unbuffered)
        # Not in connect(), in which it is another one.
        self._rfile.timeout = getattr(self, "_read_timeout", None)
        self._result = None
        result = self.result_class(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows


class SharedContext:
    """Base of a class whose connections share a TLS context.

    PyMySQL creates one for each connection that the application leaves TLS
    to, and loads all authorities of the system, which takes 15 ms of
    processor time.

    :ivar shared_context: an attribute of the class; None until the first
        connection.
    """

    shared_context: ssl.SSLContext | None

    def _create_ssl_ctx(self, options: Any) -> Any:
        plain: Any = super()
        if options:
            return plain._create_ssl_ctx(options)
        made = type(self)
        if made.shared_context is None:
            made.shared_context = plain._create_ssl_ctx(options)
        return made.shared_context


class _Polled(PolledConnection):
    host: Any
    port: Any
    unix_socket: Any
    bind_address: Any
    connect_timeout: float | None
    host_info: str
    server_status: int

    def connect(self, sock: Any = None) -> None:
        if sock is None:
            try:
                sock = self._open_socket()
            except OSError as error:
                raise self.OperationalError(
                    _CANNOT_CONNECT,
                    f"Can't connect to MySQL server on {self.host!r} ({error})",
                ) from error
        super().connect(sock)  # type: ignore[misc]  # PyMySQL's

    def commit(self) -> None:
        self.end_transaction(super().commit)  # type: ignore[misc]  # PyMySQL's

    def rollback(self) -> None:
        self.roll_back(super().rollback)  # type: ignore[misc]  # PyMySQL's

    def _send_rollback(self) -> None:
        self._execute_command(_COM_QUERY, b"ROLLBACK")
        # Or the pool would roll back, too.
        self.server_status &= ~_IN_TRANSACTION

    def _read_rollback(self) -> None:
        plain: Any = self
        if not plain.open:
            raise self.OperationalError(_LOST, "Lost connection to server")
        self._read_ok_packet()

    def _execute_command(self, command: int, sql: Any) -> None:
        statement = None
        if command == _COM_QUERY:
            statement = sql.encode() if isinstance(sql, str) else sql
        self.before_command(statement)
        self.awaits_response = True
        plain: Any = super()
        plain._execute_command(command, sql)

    # What reads responses to their end.

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        plain: Any = super()
        return self.complete(plain.query, sql, unbuffered)

    def _read_ok_packet(self) -> Any:
        plain: Any = super()
        return self.complete(plain._read_ok_packet)

    def set_character_set(self, charset: str, collation: Any = None) -> None:
        plain: Any = super()
        self.complete(plain.set_character_set, charset, collation)

    def show_warnings(self) -> Any:
        plain: Any = super()
        return self.complete(plain.show_warnings)

    def next_result(self, unbuffered: bool = False) -> Any:
        before, self.awaits_response = self.awaits_response, True
        plain: Any = super()
        found = self.complete(plain.next_result, unbuffered)
        # The next command has begun, which reads the results of the last one.
        self.awaits_response = before
        return found

    def _read_packet(self, *args: Any) -> Any:
        plain: Any = super()
        if self.awaits_response:
            return plain._read_packet(*args)
        # A row of a result that is not buffered.
        self.awaits_response = True
        try:
            return self.complete(plain._read_packet, *args)
        except self.Error:
            raise
        except BaseException:
            # Closing the cursor would wait for the rest.
            plain._force_close()
            raise

    def _open_socket(self) -> socket.socket:
        """Connect as PyMySQL does."""
        if self.unix_socket:
            self.host_info = "Localhost via UNIX socket"
            self._secure = True
            return self._connected(socket.AF_UNIX, self.unix_socket)
        self.host_info = f"socket {self.host}:{self.port}"
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for number, (family, *_, address) in enumerate(found, 1):
            try:
                made = self._connected(family, address)
            except OSError:
                if number == len(found):
                    raise
                continue
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return made
        raise OSError("the host has no address")

    def _connected(self, family: int, address: Any) -> socket.socket:
        made = PolledSocket(family, socket.SOCK_STREAM)
        try:
            made.settimeout(self.connect_timeout)
            if self.bind_address is not None and family != socket.AF_UNIX:
                made.bind((self.bind_address, 0))
            made.connect(address)
        except BaseException:
            made.close()
            raise
        return made

    def _create_ssl_ctx(self, options: Any) -> Any:
        plain: Any = super()
        context = plain._create_ssl_ctx(options)
        # Do not change a context of the application.
        if context is not options:
            context.sslsocket_class = PolledSSLSocket
        return context
