"""The connections of PyMySQL.

They differ from those of the driver:

* their sockets are polled together with those of other servers; see
  :mod:`sqla_shard.dialects.polling`;
* ``connect_timeout`` includes the handshake: a server that hangs accepts
  connections, and the wait for its greeting would not end;
* all connections of a process share a TLS context;
* results are read, and numbers are written, in less time;
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
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, partial
from importlib import import_module
from time import monotonic
from typing import Any

from sqla_shard.dialects.mysql.driver import refuse_clear_passwords
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
        connection_class = _class_of(base, self._shares, self._pipelining)
        return connection_class(*cargs, **cparams)


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
        bases.insert(0, _PolledReading)
        attributes["result_class"] = result_class(module)
    if hasattr(base, "connect"):
        bases.insert(0, _OneTimeout)
    converters: Any = getattr(module, "converters", None)
    if hasattr(base, "escape") and hasattr(converters, "escape_int"):
        attributes["escape"] = _escaping(base.escape, converters.escape_int)
    return type("Connection", tuple(bases), attributes)


def _escaping(plain: Any, escape_int: Any) -> Any:
    """Return PyMySQL's ``escape()`` with a shorter way for numbers.

    :param plain: PyMySQL's own.
    :param escape_int: its encoder of an ``int``, which another may replace.
    """

    def escape(self: Any, obj: Any, mapping: Any = None) -> Any:
        used = self.encoders if mapping is None else mapping
        if type(obj) is int and used.get(int) is escape_int:
            return str(obj)
        return plain(self, obj, mapping)

    return escape


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


class _PolledReading:
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
        plain_class = type(self)
        if plain_class.shared_context is None:
            plain_class.shared_context = plain._create_ssl_ctx(options)
        return plain_class.shared_context


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
        result = self.complete(plain.next_result, unbuffered)
        # The next command has begun, which reads the results of the last one.
        self.awaits_response = before
        return result

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
        addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for number, (family, *_, address) in enumerate(addresses, 1):
            try:
                opened = self._connected(family, address)
            except OSError:
                if number == len(addresses):
                    raise
                continue
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return opened
        raise OSError("the host has no address")

    def _connected(self, family: int, address: Any) -> socket.socket:
        opened = PolledSocket(family, socket.SOCK_STREAM)
        try:
            opened.settimeout(self.connect_timeout)
            if self.bind_address is not None and family != socket.AF_UNIX:
                opened.bind((self.bind_address, 0))
            opened.connect(address)
        except BaseException:
            opened.close()
            raise
        return opened

    def _create_ssl_ctx(self, options: Any) -> Any:
        plain: Any = super()
        context = plain._create_ssl_ctx(options)
        # Do not change a context of the application.
        if context is not options:
            context.sslsocket_class = PolledSSLSocket
        return context


# -- Result sets of PyMySQL, read from the buffer of the socket.
#
# PyMySQL calls about fifty functions for each row: two reads of the socket's
# file, a packet object, and several for each column.  Here all rows that have
# arrived are read in one loop, and columns that an earlier result had are not
# parsed again.
#
# This is for packets that are whole in the buffer, and as expected.  PyMySQL
# reads all others: errors, the end of a result, long rows, and packets out of
# order.


#: Bytes that are received at once.
_SIZE = 32_768
#: Maximum number of bytes of a large value that are received at once.
_MAX_READ_BYTES = 262_144
#: Size of the header of a packet: three bytes of its length, its number.
_HEADER = 4
#: First byte of the packet after rows or descriptions; rows with a very long
#: value begin with it as well, and errors with the next one.
_END = 0xFE
#: Length of the packet after the descriptions of columns.
_END_LENGTH = 5
#: First byte of a value that is NULL.
_NULL = 0xFB
#: First byte of a longer value, and the number of bytes of its length.
_LONGER = {0xFC: 2, 0xFD: 3, 0xFE: 8}
#: Maximum number of columns that are stored.
_MOST_COLUMNS = 4096
#: What is overridden or called, in addition to what is documented.
_RECEIVING = (
    "_check_packet_is_eof",
    "_finish_unbuffered_query",
    "_get_descriptions",
    "_read_row_from_packet",
    "_read_rowdata_packet",
)

#: The encoding of a column, and the function that converts its values
Converter = tuple[str | None, Callable[[Any], Any] | None]
#: The description of a column, as in ``cursor.description``; its encoding
Column = tuple[Any, str | None]


class Received:
    """The file of a socket, with a buffer that can be read in place.

    :param file: the file, which nothing else reads.
    :ivar data: the bytes of the buffer.
    :ivar position: the position of the next byte.
    :ivar timeout: seconds for the rest of a packet; None for no limit.
    """

    __slots__ = ("_file", "data", "position", "timeout")

    def __init__(self, file: Any) -> None:
        self._file = file
        self.data: bytes = b""
        self.position: int = 0
        self.timeout: float | None = None

    def read(self, count: int) -> bytes:
        """Return bytes; fewer only at the end of the stream.

        :raises TimeoutError: if the next 32 KiB of them do not arrive in time
            after the first ones.  The timeout of the socket begins anew with
            each byte: a response that drips would not end.
        """
        start = self.position
        end = start + count
        if end <= len(self.data):
            self.position = end
            return self.data[start:end]
        chunk = self.data[start:]
        self.data, self.position = b"", 0
        missing = count - len(chunk)
        # Do not leave the value of a large column in the buffer.
        is_large = missing >= _SIZE
        parts = [chunk]
        deadline, reached = None, missing
        while missing > 0:
            part = self._file.read1(
                min(missing, _MAX_READ_BYTES) if is_large else _SIZE
            )
            if not part:
                break
            parts.append(part)
            missing -= len(part)
            if missing <= 0 or self.timeout is None:
                continue
            if deadline is None or reached - missing >= _SIZE:
                deadline, reached = monotonic() + self.timeout, missing
            elif monotonic() > deadline:
                raise TimeoutError("timed out")
        chunk = b"".join(parts)
        if is_large or missing > 0:
            return chunk
        self.data, self.position = chunk, count
        return chunk[:count]

    def release(self) -> None:
        """Release the buffer if all of it has been read.

        Idle connections would hold the last rows that they have read.
        """
        if self.position == len(self.data):
            self.data, self.position = b"", 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def detach(self) -> Any:
        """Return the stream of the file; see ``BufferedReader.detach()``."""
        return self._file.detach()


def can_read(module: Any) -> bool:
    """Return whether results of a version of PyMySQL can be read.

    :param module: ``pymysql.connections``.
    """
    base = getattr(module, "MySQLResult", None)
    return all(hasattr(base, name) for name in _RECEIVING)


@cache
def result_class(module: Any) -> type[Any]:
    """Return the class of results.

    :param module: ``pymysql.connections``.
    """
    converters = module.converters
    slow = converters.convert_datetime
    attributes = {
        "_packet_class": module.FieldDescriptorPacket,
        # Functions that convert text to the same objects in less time.
        "_faster": ((slow, partial(_to_datetime, slow)), (converters.through, None)),
    }
    return type("Result", (_Result, module.MySQLResult), attributes)


class _Result:
    connection: Any
    converters: list[Converter]
    description: tuple[Any, ...]
    field_count: int
    affected_rows: int
    rows: tuple[Any, ...]
    _packet_class: Any
    _faster: tuple[tuple[Any, Any], ...]
    _packets: list[bytes]
    _encoding: str
    # An interrupted __init__() calls __del__(), which asks for it.
    unbuffered_active = False

    def _get_descriptions(self) -> None:
        """Read the descriptions of the columns."""
        connection = self.connection
        received: Received = connection._rfile
        number: int = connection._next_seq_id
        packets, end = _descriptions(received, number, self.field_count)
        known = _known(connection.encoding, connection.use_unicode)
        keys = [_without_database(packet) for packet in packets]
        try:
            columns = [known[key] for key in keys]
        except KeyError:
            columns = []
        if not columns:
            plain: Any = super()
            plain._get_descriptions()
            if keys:
                self._store(known, keys)
            return
        received.position = end
        connection._next_seq_id = number + len(packets) + 1 & 0xFF
        self._packets, self._encoding = packets, connection.encoding
        self.description = tuple([shown for shown, _ in columns])
        decoders = connection.decoders
        self.converters = [
            self._converter(encoding, decoders.get(shown[1]))
            for shown, encoding in columns
        ]

    def _finish_unbuffered_query(self) -> None:
        """Read the rest of the rows, unless the connection was closed."""
        connection = self.connection
        if connection is not None and not connection.open:
            # The driver would read from no socket: AttributeError, which the
            # garbage collection of a cursor cannot raise.
            self.unbuffered_active = False
        plain: Any = super()
        plain._finish_unbuffered_query()

    def _store(self, known: dict[bytes, Column], keys: list[bytes]) -> None:
        """Store the columns that PyMySQL has read."""
        if len(known) >= _MOST_COLUMNS:
            known.clear()
        encodings = [encoding for encoding, _ in self.converters]
        columns = zip(self.description, encodings, strict=True)
        known.update(zip(keys, columns, strict=True))

    def _converter(self, encoding: str | None, convert: Any) -> Converter:
        """Return what PyMySQL would use, or the same in less time."""
        # Without ``use_unicode`` values are bytes, for which the driver's
        # functions differ.  int() and float() read other digits than those
        # of ASCII only from a string.
        if encoding == "ascii" and (convert is int or convert is float):
            return None, convert
        if encoding is not None:
            # Not a dictionary: an application's function may be unhashable.
            for slow, fast in self._faster:
                if convert is slow:
                    return encoding, fast
        return encoding, convert

    def __getattr__(self, name: str) -> Any:
        # Only the cursors that return dictionaries ask for it.
        if name == "fields":
            packet_class = self._packet_class
            self.fields = [packet_class(p, self._encoding) for p in self._packets]
            return self.fields
        raise AttributeError(name)

    def _read_rowdata_packet(self) -> None:
        """Read the rows."""
        connection = self.connection
        received: Received = connection._rfile
        rows: list[Any] = []
        plain: Any = self
        while True:
            number: int = connection._next_seq_id
            more = _rows(received, number, self.converters)
            connection._next_seq_id = number + len(more) & 0xFF
            rows += more
            packet = connection._read_packet()
            if plain._check_packet_is_eof(packet):
                break
            rows.append(plain._read_row_from_packet(packet))
        received.release()
        self.connection = None
        self.affected_rows = len(rows)
        self.rows = tuple(rows)


@cache
def _known(encoding: str, use_unicode: bool) -> dict[bytes, Column]:
    """Return the stored columns of connections, by their packets."""
    return {}


def _descriptions(
    received: Received, number: int, count: int
) -> tuple[list[bytes], int]:
    """Return the packets that describe columns, and where the rows begin.

    :param number: the number of the first packet.
    :param count: the number of columns.
    :returns: no packets unless all are whole in the buffer.
    """
    data, at = received.data, received.position
    last = len(data) - _HEADER
    descriptions: list[bytes] = []
    while at < last:
        start = at + _HEADER
        length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        if data[at + 3] != number or start + length > len(data):
            break
        number = number + 1 & 0xFF
        at = start + length
        if len(descriptions) == count:
            if length == _END_LENGTH and data[start] == _END:
                return descriptions, at
            break
        descriptions.append(data[start:at])
    return [], 0


def _without_database(packet: bytes) -> bytes:
    """Return a description without the names of catalog and database.

    They do not occur in what is stored, and databases are many.  A part of
    a name of more than 250 bytes is left, which is harmless.
    """
    at = 1 + packet[0]
    return packet[at + 1 + packet[at] :]


def _rows(
    received: Received, number: int, converters: Sequence[Converter]
) -> list[tuple[Any, ...]]:
    """Return the rows that are whole in the buffer.

    :param number: the number of the first packet.
    """
    data, at = received.data, received.position
    last = len(data) - _HEADER
    rows = []
    while at < last:
        start = at + _HEADER
        end = start + (data[at] | data[at + 1] << 8 | data[at + 2] << 16)
        if data[at + 3] != number or end > len(data) or data[start] >= _END:
            break
        row = _row(data, start, end, converters)
        if row is None:
            break
        rows.append(row)
        at = received.position = end
        number = number + 1 & 0xFF
    return rows


def _row(
    data: bytes, at: int, end: int, converters: Sequence[Converter]
) -> tuple[Any, ...] | None:
    """Return the row of a packet; None if it is not as expected."""
    row: list[Any] = []
    for encoding, convert in converters:
        if at >= end:
            return None
        length = data[at]
        at += 1
        if length >= _NULL:
            if length == _NULL:
                row.append(None)
                continue
            size = _LONGER.get(length)
            if size is None:
                return None
            length = int.from_bytes(data[at : at + size], "little")
            at += size
        value: Any = data[at : at + length]
        at += length
        if at > end:
            return None
        if encoding is not None:
            value = value.decode(encoding)
        row.append(value if convert is None else convert(value))
    return tuple(row) if at == end else None


def _to_datetime(convert: Callable[[str], Any], text: str) -> Any:
    """Return a time; what is not one, such as zeros, as PyMySQL does."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return convert(text)
