"""Reading the events of binary logs, for one database.

The rows of a transaction are taken as they are, with the name of the database
replaced in the event that names the table.  ``mariadb-binlog --rewrite-db``
does the same for rows; for other statements it changes only the default
database, so that ``ALTER TABLE db00007.pins`` would change the live table.
Here such a statement is read as text, see
:mod:`sqla_shard.fleet.binlog_statements`.

Refused, with the position: logs that are encrypted, compressed rows and XA
transactions of the database, changes in statement format, events of unknown
kinds, and logs in which changes were lost or between which another one is
missing.  Of MySQL also GTIDs with tags, and, without the extra ``zstd``,
compressed transactions.
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from sqla_shard.exc import BackupDamagedError, MissingExtraError, Problem
from sqla_shard.fleet.files import File
from sqla_shard.types.compression import require_zstd

_ORIGIN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INTERVAL = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?")


class GtidSet:
    """A set of GTIDs: numbers of transactions, by the server of their origin.

    :param intervals: first and last number of each interval, in order, by
        origin.
    """

    def __init__(
        self, intervals: Mapping[str, Iterable[tuple[int, int]]] | None = None
    ) -> None:
        self._intervals = {
            origin: list(each) for origin, each in (intervals or {}).items()
        }

    @classmethod
    def parsed(cls, text: str) -> GtidSet:
        """Return the set of a text.

        :raises ValueError: if it is not one, or has tags.
        """
        found = cls()
        for part in re.sub(r"\s", "", text).split(","):
            if not part:
                continue
            origin, *intervals = part.lower().split(":")
            if not _ORIGIN.fullmatch(origin) or not intervals:
                raise ValueError(f"{part!r} is not a set of GTIDs")
            for interval in intervals:
                match = _INTERVAL.fullmatch(interval)
                if match is None:
                    raise ValueError(
                        f"{interval!r} is not an interval of numbers; GTIDs "
                        "with tags are not supported"
                    )
                first = int(match[1])
                found._insert(origin, first, int(match[2] or first))
        return found

    def __bool__(self) -> bool:
        return any(self._intervals.values())

    def __contains__(self, gtid: tuple[str, int]) -> bool:
        origin, number = gtid
        each = self._intervals.get(origin, [])
        index = bisect_right(each, (number, float("inf")))
        return bool(index) and each[index - 1][1] >= number

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Yield origin, first and last number of each interval."""
        for origin, each in sorted(self._intervals.items()):
            for first, last in each:
                yield origin, first, last

    def __len__(self) -> int:
        return sum(last - first + 1 for _, first, last in self)

    def __str__(self) -> str:
        return ",".join(
            ":".join([origin, *map(_interval, each)])
            for origin, each in sorted(self._intervals.items())
        )

    def __sub__(self, other: GtidSet) -> GtidSet:
        found = GtidSet()
        for origin, first, last in self:
            for begin, end in other._intervals.get(origin, []):
                if end < first or begin > last:
                    continue
                if begin > first:
                    found._insert(origin, first, begin - 1)
                first = end + 1
            if first <= last:
                found._insert(origin, first, last)
        return found

    def __or__(self, other: GtidSet) -> GtidSet:
        found = GtidSet(self._intervals)
        for origin, first, last in other:
            found._insert(origin, first, last)
        return found

    def add(self, gtid: tuple[str, int]) -> None:
        """Add a GTID."""
        origin, number = gtid
        self._insert(origin, number, number)

    def lasts(self) -> set[tuple[str, int]]:
        """Return the last GTID of each origin."""
        return {
            (origin, each[-1][1]) for origin, each in self._intervals.items() if each
        }

    def _insert(self, origin: str, first: int, last: int) -> None:
        each = self._intervals.setdefault(origin, [])
        if each and each[-1][1] + 1 == first:
            # The usual one: the next transaction.
            each[-1] = each[-1][0], last
            return
        each.append((first, last))
        each.sort()
        merged: list[tuple[int, int]] = []
        for begin, end in each:
            if merged and begin <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], end)
            else:
                merged.append((begin, end))
        each[:] = merged


def _interval(interval: tuple[int, int]) -> str:
    first, last = interval
    return str(first) if first == last else f"{first}-{last}"


_MAGIC = b"\xfebin"
_HEADER = struct.Struct("<IBIIIH")
_HEADER_SIZE = 19
_CRC_SIZE = 4

_QUERY = 2
_FORMAT = 15
_XID = 16
_TABLE_MAP = 19
#: The first three of MariaDB, the others of MySQL.
_ROWS = frozenset([23, 24, 25, 30, 31, 32, 39])
_MYSQL_GTID = 33
_ANONYMOUS_GTID = 34
_PREVIOUS_GTIDS = 35
_COMPRESSED_TRANSACTION = 40
_TAGGED_GTID = 42
_GTID = 162
_GTID_LIST = 163
_ENCRYPTED = 164
_XA_PREPARE = 38
_COMPRESSED_QUERY = 165
_COMPRESSED_ROWS = frozenset([166, 167, 168])

_INCIDENT = 26
# Known, and without a change of their own: STOP, ROTATE, INTVAR, RAND,
# USER_VAR (whose statement follows), HEARTBEAT, IGNORABLE, ROWS_QUERY,
# ANNOTATE_ROWS and BINLOG_CHECKPOINT; of MySQL two of group replication.
_IGNORED = frozenset([3, 4, 5, 13, 14, 27, 28, 29, 36, 37, 41, 160, 161])

_STANDALONE = 1
_GROUP_COMMIT = 2
_PREPARED_XA = 64
_COMPLETED_XA = 128
_END_OF_STATEMENT = 1
_FLAGS_CODE = 0
_SQL_MODE_CODE = 1
_TIME_ZONE_CODE = 5
_CATALOG_CODE = 6
# Bytes of the other variables that can be before the time zone.
_SIZES = {_FLAGS_CODE: 4, _SQL_MODE_CODE: 8, 3: 4, 4: 6}

#: CREATE TABLE .. SELECT of MySQL, whose rows follow.
_WITH_ROWS = b" START TRANSACTION"
_COMMIT_TIME = struct.Struct("<Q")
_HAS_ORIGINAL = 1 << 55

#: Domain, server and sequence number; of MySQL origin and number.
Gtid = tuple[Any, ...]


@dataclass(frozen=True)
class Rows:
    """Rows of one table that a transaction has changed.

    :ivar events: the event that names the table, and that of the rows, for
        the statement BINLOG.
    """

    events: bytes


@dataclass(frozen=True)
class Statement:
    """A statement in a binary log that is not BEGIN or COMMIT.

    :ivar text: the statement, in the character set of its client.
    :ivar default: its default database; empty if it had none.
    :ivar sql_mode: its ``sql_mode``, as a number.
    :ivar time: seconds since the epoch at which it began; 0 if unknown.
    :ivar time_zone: its time zone; empty if it does not depend on it.
    """

    text: bytes
    default: str
    sql_mode: int
    time: int = 0
    time_zone: str = ""


@dataclass
class BinlogTransaction:
    """A transaction, or a statement with an implicit commit.

    :ivar gtid: its GTID.
    :ivar time: seconds since the epoch at which its COMMIT began.
    :ivar parts: what it did in the database, and statements of all, in order.
    :ivar problem: why its part in the database cannot be replayed; None if
        nothing is known against it.
    """

    gtid: Gtid
    time: int
    parts: list[Rows | Statement] = field(default_factory=list)
    problem: str | None = None

    @property
    def name(self) -> str:
        """The GTID as text."""
        return (":" if len(self.gtid) == 2 else "-").join(map(str, self.gtid))


@dataclass(frozen=True)
class _Event:
    kind: int
    time: int
    server: int
    flags: int
    data: bytes

    @property
    def body(self) -> bytes:
        """The bytes after the header, without the checksum."""
        return self.data[_HEADER_SIZE:]


class LogReader:
    """Reads the transactions of closed logs, in order.

    :param paths: the logs.
    :param database: the database of which rows are wanted.
    :param target: name to replace it with.
    """

    def __init__(self, paths: Sequence[File], database: str, target: str) -> None:
        self._paths = paths
        self._database = database.encode()
        self._target = target.encode()
        #: The event that describes the format, for the statement BINLOG.
        self.format: bytes = b""
        #: Last number of each domain and server at this place.
        self.state: dict[tuple[int, int], int] | None = None
        #: Of MySQL: the transactions before this place; and those of them
        #: that no log before has had.
        self.logged: GtidSet | None = None
        self.skipped: GtidSet = GtidSet()
        self._has_checksums = False
        self._tables: dict[bytes, bytes] = {}
        # What is prepared and not committed, and whether it has changes.
        self._prepared: dict[bytes, bool] = {}
        self._xa = b""
        #: Whether one statement is the whole transaction; None if its first
        #: one says it.
        self._is_standalone: bool | None = False
        self._xa_flags = 0

    def transactions(self) -> Iterator[BinlogTransaction]:
        """Yield all transactions.

        :raises BackupDamagedError: if a log cannot be read, is of another
            kind, or is missing between two others.
        """
        for path in self._paths:
            with _readable(path):
                yield from self._transactions_of(path)

    def _transactions_of(self, path: File) -> Iterator[BinlogTransaction]:
        self._tables.clear()
        one: BinlogTransaction | None = None
        for event in self.events(path):
            if event.kind == _GTID:
                one = self._begin(event)
            elif event.kind == _MYSQL_GTID:
                one = self._begin_mysql(event)
            elif event.kind == _PREVIOUS_GTIDS:
                self._continue_mysql(path, event)
            elif event.kind in (_ANONYMOUS_GTID, _TAGGED_GTID):
                raise _damaged(
                    path,
                    "it has transactions without a GTID, or with a tag in "
                    "it; restore with mysqlbinlog",
                )
            elif event.kind == _GTID_LIST:
                self._continue(path, event)
            elif event.kind == _INCIDENT:
                raise _damaged(
                    path,
                    "the server has lost changes there (an incident event); restore "
                    "from a later backup, or from the logs of another server",
                )
            elif one is not None and self._add(path, one, event):
                self._check_xa(one)
                yield one
                one = None
        if one is not None:
            raise _damaged(path, f"it ends in transaction {one.name}")

    def events(self, path: File) -> Iterator[_Event]:
        """Yield the events of a log, without their checksums."""
        with _opened(path) as file:
            if file.read(4) != _MAGIC:
                raise _damaged(path, "it is not a binary log")
            while header := file.read(_HEADER_SIZE):
                if len(header) < _HEADER_SIZE:
                    raise _damaged(path, "it ends within an event")
                time, kind, server, size, _, flags = _HEADER.unpack(header)
                rest = file.read(size - _HEADER_SIZE)
                if size < _HEADER_SIZE or len(rest) < size - _HEADER_SIZE:
                    raise _damaged(path, "it ends within an event")
                if kind == _ENCRYPTED:
                    raise _damaged(path, "it is encrypted; restore with mariadb-binlog")
                if kind == _FORMAT:
                    # The description has a checksum in any case.
                    self._has_checksums = rest[-_CRC_SIZE - 1] == 1
                    self.format = header + rest
                    continue
                end = -_CRC_SIZE if self._has_checksums else None
                yield _Event(kind, time, server, flags, header + rest[:end])

    def _continue(self, path: File, event: _Event) -> None:
        """Compare the beginning of a log with the end of the one before."""
        found = _state(event)
        if self.state is not None and self.state != found:
            raise _damaged(
                path,
                "it does not begin where the log before it ends: a log "
                "between them was not copied",
            )
        self.state = found

    def _begin(self, event: _Event) -> BinlogTransaction:
        number, domain, flags = struct.unpack_from("<QIB", event.body)
        if self.state is None:
            self.state = {}
        self.state[domain, event.server] = number
        one = BinlogTransaction((domain, event.server, number), event.time)
        self._xa_flags = flags & (_PREPARED_XA | _COMPLETED_XA)
        if self._xa_flags:
            start = 21 if flags & _GROUP_COMMIT else 13
            end = start + 6 + sum(event.body[start + 4 : start + 6])
            self._xa = event.body[start:end]
        self._is_standalone = bool(flags & _STANDALONE)
        return one

    def _continue_mysql(self, path: File, event: _Event) -> None:
        """Compare the beginning of a log with the end of the one before."""
        found = _previous_gtids(path, event)
        if self.logged is not None:
            if self.logged - found:
                raise _damaged(
                    path,
                    "it does not begin where the log before it ends: it is of "
                    "another history",
                )
            self.skipped |= found - self.logged
        self.logged = found

    def _begin_mysql(self, event: _Event) -> BinlogTransaction:
        body = event.body
        origin = str(uuid.UUID(bytes=body[1:17]))
        (number,) = _COMMIT_TIME.unpack_from(body, 17)
        # After the flags, the GTID, and 17 bytes for parallel appliers: the
        # microseconds of COMMIT there and, if they differ, at the origin.
        (time,) = _COMMIT_TIME.unpack(body[42:49] + b"\0")
        if time & _HAS_ORIGINAL:
            (time,) = _COMMIT_TIME.unpack(body[49:56] + b"\0")
        if self.logged is None:
            self.logged = GtidSet()
        self.logged.add((origin, number))
        self._xa_flags = 0
        # The first statement says it.
        self._is_standalone = None
        return BinlogTransaction((origin, number), time // 1_000_000)

    def _check_xa(self, one: BinlogTransaction) -> None:
        if self._xa_flags & _PREPARED_XA:
            self._prepared[self._xa] = bool(one.parts)
            is_own = bool(one.parts)
        else:
            # It may commit one that was prepared before the first log.
            is_own = bool(self._xa_flags) and self._prepared.pop(self._xa, True)
        if is_own:
            one.problem = one.problem or "an XA transaction"

    def _add(self, path: File, one: BinlogTransaction, event: _Event) -> bool:
        """Add an event; return whether it was the last one."""
        kind = event.kind
        if kind in (_XID, _XA_PREPARE):
            return True
        if kind == _TABLE_MAP:
            self._tables[event.body[:6]] = event.data
        elif kind in _ROWS:
            self._add_rows(path, one, event)
        elif kind == _COMPRESSED_TRANSACTION:
            return self._add_compressed(path, one, event)
        elif kind in _COMPRESSED_ROWS:
            if self._database_of(path, event) == self._database:
                one.problem = "rows that are compressed (log_bin_compress)"
        elif kind == _COMPRESSED_QUERY:
            statement = _statement(event)
            text = _decompressed(path, statement.text)
            return self._add_query(one, replace(statement, text=text))
        elif kind == _QUERY:
            return self._add_query(one, _statement(event))
        elif kind not in _IGNORED:
            one.problem = f"an event of an unknown kind ({kind})"
        return False

    def _add_compressed(
        self, path: File, one: BinlogTransaction, event: _Event
    ) -> bool:
        try:
            data = payload_of(event.body)
        except MissingExtraError as error:
            one.problem = f"a compressed transaction, for which {error}"
            return True
        except ValueError as error:
            raise _damaged(
                path, f"it has a transaction that cannot be decompressed: {error}"
            ) from error
        is_over = False
        place = 0
        while place < len(data):
            header = _HEADER.unpack_from(data, place)
            time, kind, server, size, _, flags = header
            end = place + size
            if size < _HEADER_SIZE or end > len(data):
                raise _damaged(path, "it ends within an event")
            own = _Event(kind, time, server, flags, data[place:end])
            is_over = self._add(path, one, own)
            place = end
        return is_over

    def _add_query(self, one: BinlogTransaction, statement: Statement) -> bool:
        word, *rest = statement.text.split(None, 2)
        word = word.upper()
        is_with_rows = statement.text.endswith(_WITH_ROWS)
        if is_with_rows:
            text = statement.text.removesuffix(_WITH_ROWS)
            statement = replace(statement, text=text)
        if self._is_standalone is None:
            self._is_standalone = word not in (b"BEGIN", b"XA") and not is_with_rows
            if word == b"XA" and len(rest) == 2:
                self._xa = rest[1]
                self._xa_flags = _PREPARED_XA
                if rest[0] != b"START":
                    self._is_standalone = True
                    self._xa_flags = _COMPLETED_XA
        if word == b"COMMIT":
            return True
        if word == b"ROLLBACK":
            if b" TO " in statement.text.upper():
                one.problem = "ROLLBACK TO a savepoint"
                return False
            one.parts.clear()
            return True
        if word not in (b"BEGIN", b"SAVEPOINT", b"XA"):
            one.parts.append(statement)
        return bool(self._is_standalone)

    def _add_rows(self, path: File, one: BinlogTransaction, event: _Event) -> None:
        if self._database_of(path, event) != self._database:
            return
        named = _renamed(self._tables[event.body[:6]], self._target)
        # The last rows of a statement may be of another database.
        (flags,) = struct.unpack_from("<H", event.body, 6)
        body = bytearray(event.data)
        struct.pack_into("<H", body, _HEADER_SIZE + 6, flags | _END_OF_STATEMENT)
        one.parts.append(Rows(self._sealed(named) + self._sealed(body)))

    def _database_of(self, path: File, event: _Event) -> bytes:
        named = self._tables.get(event.body[:6])
        if named is None:
            raise _damaged(path, "it has rows of a table without a name")
        return _name_of(named)

    def _sealed(self, data: bytes | bytearray) -> bytes:
        """Return an event with its size, and its checksum."""
        size = len(data) + (_CRC_SIZE if self._has_checksums else 0)
        event = bytearray(data)
        struct.pack_into("<I", event, 9, size)
        if self._has_checksums:
            event += struct.pack("<I", zlib.crc32(event))
        return bytes(event)


def first_state(path: File) -> dict[tuple[int, int], int] | None:
    """Return the last number of each domain and server before a log.

    :returns: None if the log does not say it.
    :raises BackupDamagedError: if the log cannot be read.
    """
    with _readable(path):
        for event in LogReader([path], "", "").events(path):
            if event.kind == _GTID_LIST:
                return _state(event)
            if event.kind == _GTID:
                break
    return None


def first_gtids(path: File) -> GtidSet | None:
    """Return the GTIDs of all transactions before a log of MySQL.

    :returns: None if the log does not say it.
    :raises BackupDamagedError: if the log cannot be read.
    """
    with _readable(path):
        for event in LogReader([path], "", "").events(path):
            if event.kind == _PREVIOUS_GTIDS:
                return _previous_gtids(path, event)
            if event.kind in (_GTID, _MYSQL_GTID):
                break
    return None


def _previous_gtids(path: File, event: _Event) -> GtidSet:
    body = event.body
    (count,) = struct.unpack_from("<Q", body)
    if count >> 56:
        raise _damaged(path, "it has GTIDs with a tag in it; restore with mysqlbinlog")
    place = 8
    found: dict[str, list[tuple[int, int]]] = {}
    for _ in range(count):
        origin = str(uuid.UUID(bytes=body[place : place + 16]))
        (intervals,) = struct.unpack_from("<Q", body, place + 16)
        place += 24
        found[origin] = []
        for _ in range(intervals):
            first, after = struct.unpack_from("<QQ", body, place)
            found[origin].append((first, after - 1))
            place += 16
    return GtidSet(found)


def _state(event: _Event) -> dict[tuple[int, int], int]:
    (count,) = struct.unpack_from("<I", event.body)
    found = {}
    for index in range(count & 0x0FFFFFFF):
        domain, server, number = struct.unpack_from("<IIQ", event.body, 4 + 16 * index)
        found[domain, server] = number
    return found


def _name_of(table_map: bytes) -> bytes:
    start = _HEADER_SIZE + 8
    length = table_map[start]
    return table_map[start + 1 : start + 1 + length]


def _renamed(table_map: bytes, database: bytes) -> bytes:
    start = _HEADER_SIZE + 8
    end = start + 1 + table_map[start]
    return table_map[:start] + bytes([len(database)]) + database + table_map[end:]


def _statement(event: _Event) -> Statement:
    body = event.body
    _, _, name, _, variables = struct.unpack_from("<IIBHH", body)
    start = 13 + variables
    found = body[13:start]
    sql_mode = 0
    time_zone = b""
    while found:
        code = found[0]
        if code in (_TIME_ZONE_CODE, _CATALOG_CODE):
            size = 1 + found[1]
        elif code in _SIZES:
            size = _SIZES[code]
        else:
            break
        if code == _SQL_MODE_CODE:
            (sql_mode,) = struct.unpack_from("<Q", found, 1)
        elif code == _TIME_ZONE_CODE:
            time_zone = found[2 : 1 + size]
        found = found[1 + size :]
    return Statement(
        text=body[start + name + 1 :],
        default=body[start : start + name].decode(),
        sql_mode=sql_mode,
        time=event.time,
        time_zone=time_zone.decode(),
    )


def _decompressed(path: File, data: bytes) -> bytes:
    """Return a statement: after its length, it is compressed by zlib."""
    try:
        return zlib.decompress(data[1 + (data[0] & 7) :])
    except (IndexError, zlib.error) as error:
        raise _damaged(
            path, f"it has a statement that cannot be decompressed: {error}"
        ) from error


def _opened(path: File) -> BinaryIO:
    try:
        return path.open()
    except OSError as error:
        raise _damaged(path, f"it cannot be read: {error.strerror or error}") from error


@contextmanager
def _readable(path: File) -> Iterator[None]:
    """Report an event that is shorter than its kind and its numbers say."""
    try:
        yield
    except (struct.error, ValueError, IndexError) as error:
        raise _damaged(path, "it has an event that is too short") from error


def _damaged(path: File, reason: str) -> BackupDamagedError:
    return BackupDamagedError((Problem(path.name, reason),), backup=path.folder)


_END, _SIZE, _COMPRESSION = 0, 1, 2
_ZSTD = 0
#: Bytes of the numbers that begin with these bytes.
_NUMBERS = {252: 2, 253: 3, 254: 8}


def payload_of(body: bytes) -> bytes:
    """Return the events of a transaction, which have no checksums.

    :param body: the event of the transaction, after its header.
    :raises MissingExtraError: if the extra ``zstd`` is not installed.
    :raises ValueError: if it cannot be decompressed.
    """
    found: dict[int, int] = {}
    place = 0
    while True:
        field, place = _number(body, place)
        if field == _END:
            break
        length, place = _number(body, place)
        found[field], _ = _number(body, place)
        place += length
    payload = body[place : place + found.get(_SIZE, 0)]
    if found.get(_COMPRESSION) != _ZSTD:
        return payload
    zstd = require_zstd()
    try:
        data: bytes = zstd.decompress(payload)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    return data


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of one to nine bytes, and the place after it."""
    first = data[place]
    place += 1
    if first not in _NUMBERS:
        return first, place
    end = place + _NUMBERS[first]
    return int.from_bytes(data[place:end], "little"), end
