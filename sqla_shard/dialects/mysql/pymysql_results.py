"""Result sets of PyMySQL, read from the buffer of the socket.

PyMySQL calls about fifty functions for each row: two reads of the socket's
file, a packet object, and several for each column.  Here all rows that have
arrived are read in one loop, and columns that an earlier result had are not
parsed again.

This is for packets that are whole in the buffer, and as expected.  PyMySQL
reads all others: errors, the end of a result, long rows, and packets out of
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, partial
from time import monotonic
from typing import Any

#: Bytes that are received at once.
_SIZE = 32_768
#: Maximum number of bytes of a large value that are received at once.
_MOST = 262_144
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
_INTERNAL = (
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
        self.data = b""
        self.position = 0
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
        found = self.data[start:]
        self.data, self.position = b"", 0
        missing = count - len(found)
        # Do not leave the value of a large column in the buffer.
        is_large = missing >= _SIZE
        parts = [found]
        deadline, reached = None, missing
        while missing > 0:
            part = self._file.read1(min(missing, _MOST) if is_large else _SIZE)
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
        found = b"".join(parts)
        if is_large or missing > 0:
            return found
        self.data, self.position = found, count
        return found[:count]

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
    return all(hasattr(base, name) for name in _INTERNAL)


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
            made = self._packet_class
            self.fields = [made(p, self._encoding) for p in self._packets]
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
    found: list[bytes] = []
    while at < last:
        start = at + _HEADER
        length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        if data[at + 3] != number or start + length > len(data):
            break
        number = number + 1 & 0xFF
        at = start + length
        if len(found) == count:
            if length == _END_LENGTH and data[start] == _END:
                return found, at
            break
        found.append(data[start:at])
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
