"""The tables of a server, and copies of all their rows at one position.

The source writes each row as the values of an INSERT statement; only that
text passes through this process.  Times are UTC and texts utf8mb4 on both
sides; binary values are written in hexadecimal.
"""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqla_shard.dialects.mysql.catalogue import without_implied
from sqla_shard.exc import CopyFailedError, FleetServerError, Problem
from sqla_shard.fleet.admin import Admin, marked, quoted, SYSTEM
from sqla_shard.fleet.common_point import Snapshots, snapshots
from sqla_shard.util.pace import Interval

COPY_DATABASE = "sqla_shard_copy"
"""Database that marks the target of a copy; it is never copied itself."""

# Only the one after the columns, not a part of a comment; between them MySQL
# writes the tablespace, in a comment.
_AUTO_INCREMENT = re.compile(r"\n\) (?:/\*.*?\*/ )?ENGINE=\w+( AUTO_INCREMENT=(\d+))")
_MAX_SHOWN = 5
_MIB = 2**20
#: Rows that are fetched together; tables that are looked at together, and rows of
#: those that are read then.
_ROWS, _LOOKED_TOGETHER, _FEW = 500, 32, 100
_SAVEPOINT, _RELEASE = "SAVEPOINT tables", "ROLLBACK TO SAVEPOINT tables"
#: Numbers of errors of databases and tables that do not exist.
_MISSING = (1049, 1146)


@dataclass(frozen=True, kw_only=True)
class StoredColumn:
    """A column that is stored.

    :ivar name: its name.
    :ivar type: its type without length, such as ``"varchar"``.
    """

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class ServerTable:
    """A table of a server.

    :ivar database: name of the database.
    :ivar name: name of the table.
    :ivar sql: the statement that creates it, without the counter.
    :ivar auto_increment: the next value of its counter; None if unset.
    :ivar columns: columns with values of their own.
    :ivar size: bytes of the table, as estimated by the server; a number that no
        table has if there is no estimate.
    """

    database: str
    name: str
    sql: str
    auto_increment: int | None = field(compare=False)
    columns: tuple[StoredColumn, ...]
    size: int = field(compare=False)

    @property
    def path(self) -> str:
        """Quoted name with the database."""
        return f"{quoted(self.database)}.{quoted(self.name)}"


def databases_of(admin: Admin) -> list[str]:
    """Return the databases of a server, but not its own ones."""
    return [
        name
        for name in admin.databases()
        if name.lower() not in SYSTEM and name != COPY_DATABASE
    ]


def tables_of(
    admin: Admin, databases: Iterable[str]
) -> dict[tuple[str, str], ServerTable]:
    """Return the tables of some databases, by database and name."""
    names = frozenset(databases)
    if not names:
        return {}
    columns: dict[tuple[str, str], list[StoredColumn]] = defaultdict(list)
    for database, table, name, kind, extra in admin.rows(
        "SELECT table_schema, table_name, column_name, data_type, extra"
        " FROM information_schema.columns WHERE table_schema IN %s"
        " ORDER BY table_schema, table_name, ordinal_position",
        sorted(names),
    ):
        # MySQL says DEFAULT_GENERATED of a column with a default.
        generated = "GENERATED" in extra.replace("DEFAULT_GENERATED", "")
        if not generated:
            columns[database, table].append(StoredColumn(name=name, type=kind.lower()))
    places = [
        (database, name)
        for database, name in admin.rows(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_type = 'BASE TABLE' AND table_schema IN %s",
            sorted(names),
        )
        # MariaDB compares these names without case.
        if database in names
    ]
    sizes = admin.estimates()
    return {
        (database, name): ServerTable(
            database=database,
            name=name,
            sql=sql,
            auto_increment=counter,
            columns=tuple(columns[database, name]),
            size=sizes.get((database, name), (0, sys.maxsize))[1],
        )
        for (database, name), (sql, counter) in definitions_of(admin, places).items()
    }


def differences(
    before: Mapping[tuple[str, str], ServerTable],
    after: Mapping[tuple[str, str], ServerTable],
) -> list[str]:
    """Return the tables that are not defined equally, in a few words.

    Counters are not compared.
    """
    found = []
    for database, name in sorted({*before, *after}):
        key = database, name
        if key not in before or key not in after:
            found.append(f"{database}.{name} exists on one side only")
        elif before[key] != after[key]:
            found.append(f"{database}.{name} is defined differently")
    return found


def not_tables(admin: Admin, databases: Sequence[str]) -> list[Problem]:
    """Return objects that a copy of rows would omit, or copy wrongly."""
    wanted = set(databases)
    found: dict[str, list[str]] = defaultdict(list)
    for kind, sql in _OTHERS.items():
        for database, name in admin.rows(sql):
            if database in wanted:
                found[kind].append(f"{database}.{name}")
    return [
        Problem(
            str(admin),
            f"it has {len(names)} {kind} ({', '.join(names[:_MAX_SHOWN])}"
            f"{', ...' if len(names) > _MAX_SHOWN else ''}), which a copy of rows "
            "leaves out; copy with a command, such as mariabackup",
        )
        for kind, names in found.items()
    ]


_OTHERS = {
    "views or other objects": "SELECT table_schema, table_name FROM"
    " information_schema.tables WHERE table_type <> 'BASE TABLE'",
    "tables without transactions": "SELECT table_schema, table_name FROM"
    " information_schema.tables WHERE table_type = 'BASE TABLE'"
    " AND engine <> 'InnoDB'",
    "triggers": "SELECT trigger_schema, trigger_name FROM information_schema.triggers",
    "routines": "SELECT routine_schema, routine_name FROM information_schema.routines",
    "events": "SELECT event_schema, event_name FROM information_schema.events",
}


def definitions_of(
    admin: Admin, places: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str, int | None]]:
    """Return the statement that creates each table, and its counter.

    :param places: database and name of each table or view; those that were
        dropped are left out.
    """
    found: dict[tuple[str, str], tuple[str, int | None]] = {}
    left = list(places)
    while left:
        done = 0
        try:
            for (row,) in admin.each(show_create(*place) for place in left):
                found[left[done]] = definition_in(row, admin)
                done += 1
        except FleetServerError as error:
            if error.number not in _MISSING:
                raise
            done += 1
        left = left[done:]
    return found


def show_create(database: str, name: str) -> str:
    """Return the statement that shows the definition of a table."""
    return f"SHOW CREATE TABLE {marked(database)}.{marked(name)}"


def definition_in(row: Sequence[str], admin: Admin) -> tuple[str, int | None]:
    """Return the definition and the counter in a row of SHOW CREATE TABLE."""
    sql = row[1]
    if not admin.is_mariadb:
        # The table that is created from it would be shown differently.
        sql = without_implied(sql)
    counter = _AUTO_INCREMENT.search(sql)
    if counter is None:
        return sql, None
    return sql[: counter.start(1)] + sql[counter.end(1) :], int(counter[2])


def looked_at(
    session: Admin, tables: Sequence[ServerTable]
) -> Iterator[tuple[ServerTable, str, int | None, Iterable[str]]]:
    """Yield tables, each with its definition, counter and rows.

    One round trip reads many tables: a shard has few rows of most of its
    tables, and a server has tens of thousands of tables.

    :param session: session of a snapshot.
    :returns: table, definition, counter, and :func:`texts_of` it, which are read
        before the next table.
    :raises FleetServerError: if a row is too long, or a table is gone.
    """
    for start in range(0, len(tables), _LOOKED_TOGETHER):
        some = tables[start : start + _LOOKED_TOGETHER]
        statements = [_SAVEPOINT]
        for table in some:
            most = _FEW + 1 if table.size <= _MIB else 0
            text = f"{_select(table)} LIMIT {most}".replace("%", "%%")
            statements += [show_create(table.database, table.name), text]
        found = list(session.each([*statements, _RELEASE]))[1:]
        for table, (row,), rows in zip(some, found[::2], found[1::2], strict=False):
            few = list(_complete(session, table, (text for (text,) in rows)))
            all_rows: Iterable[str] = few
            if table.size > _MIB or len(few) > _FEW:
                all_rows = _unlocked(session, texts_of(session, table))
            yield table, *definition_in(row, session), all_rows


def _unlocked(session: Admin, rows: Iterable[str]) -> Iterator[str]:
    # With the savepoint the lock of the table ends, for which a migration
    # would wait, and all writes behind it.
    session.run(_SAVEPOINT)
    yield from rows
    session.run(_RELEASE)


def texts_of(session: Admin, table: ServerTable) -> Iterator[str]:
    """Yield each row of a table as the values of an INSERT, in parentheses.

    :raises FleetServerError: if a row is too long, or the table was changed.
    """
    for part in session.stream(_select(table), _ROWS):
        yield from _complete(session, table, part)


def _select(table: ServerTable) -> str:
    values = ", ',', ".join(map(literal, table.columns))
    return f"SELECT CONCAT('(', {values}, ')') FROM {table.path}"  # noqa: S608


def _complete(
    session: Admin, table: ServerTable, rows: Iterable[str | None]
) -> Iterator[str]:
    for row in rows:
        if row is None:
            raise session.error(
                f"a row of {table.path} is longer than "
                "max_allowed_packet as text; raise it"
            )
        yield row


# Seconds between reports.
_PROGRESS_SECONDS = 1.0
# The snapshot is older than the definition of a table.
_CHANGED = 1412
_BINARY = frozenset(
    [
        "binary",
        "varbinary",
        "tinyblob",
        "blob",
        "mediumblob",
        "longblob",
        "vector",
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    ]
)
_NUMBERS = frozenset(
    ["tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "double", "year"]
)


@dataclass(frozen=True, kw_only=True)
class CopyEvent:
    """Progress of a copy.

    :ivar tables: tables that are complete.
    :ivar all_tables: tables to copy.
    :ivar rows: rows copied.
    :ivar bytes: bytes sent to the target.
    :ivar seconds: time since the start.
    """

    tables: int
    all_tables: int
    rows: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        rate = self.bytes / _MIB / max(self.seconds, 0.001)
        return (
            f"{self.tables} of {self.all_tables} tables, {self.rows} rows, "
            f"{self.bytes / _MIB:.1f} MiB in {self.seconds:.1f} s ({rate:.1f} MiB/s)"
        )


@dataclass
class RowCopy:
    """One copy of all rows of some databases.

    :param source: session on the server that has them.
    :param target: session on the server that has none of them.
    :param databases: names of the databases.
    :param workers: number of sessions on each side.
    :param progress: is called about once a second, in any thread.
    """

    source: Admin
    target: Admin
    databases: Sequence[str]
    workers: int
    progress: Callable[[CopyEvent], object] | None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._begin = time.monotonic()
        self._report_times = Interval(_PROGRESS_SECONDS)
        self._all = self._tables = self._rows = self._bytes = 0
        #: History of the source at the position, after :meth:`run`.
        self.history: str = ""
        packet = self.target.variables("max_allowed_packet")
        self._most = int(packet["max_allowed_packet"])

    def run(self) -> str:
        """Copy; return the position.

        :raises CopyFailedError: if a table was changed meanwhile, or a row
            is too long.
        :raises FleetServerError: if a server refuses a statement.
        """
        before = tables_of(self.source, self.databases)
        self._all = len(before)
        with snapshots(self.source, self.workers) as found:
            self._create(before)
            self._copy(found, before.values())
        after = tables_of(self.source, self.databases)
        changed = differences(before, after)
        if changed:
            raise self._altered(changed)
        self._set_counters(after)
        self.history = found.history
        return found.position

    def failed(self, reason: str) -> CopyFailedError:
        """Return the error of this copy."""
        return CopyFailedError(target=str(self.target), reason=reason)

    def _altered(self, changed: Sequence[str]) -> CopyFailedError:
        return self.failed(
            f"tables of {self.source} were changed meanwhile: "
            f"{', '.join(changed[:5])}; repeat it while no migration runs"
        )

    @property
    def event(self) -> CopyEvent:
        """The progress so far."""
        return CopyEvent(
            tables=self._tables,
            all_tables=self._all,
            rows=self._rows,
            bytes=self._bytes,
            seconds=time.monotonic() - self._begin,
        )

    def _create(self, tables: Mapping[tuple[str, str], ServerTable]) -> None:
        with self._loading() as target:
            shown = self.source.each(
                f"SHOW CREATE DATABASE {marked(name)}" for name in self.databases
            )
            target.run_each(row[1].replace("%", "%%") for (row,) in shown)
            target.run_each(
                sql.replace("%", "%%")
                for table in tables.values()
                for sql in (f"USE {quoted(table.database)}", table.sql)
            )

    def _copy(self, found: Snapshots, tables: Iterable[ServerTable]) -> None:
        left: queue.SimpleQueue[ServerTable] = queue.SimpleQueue()
        # The largest first: the sessions end at about the same time.
        for table in sorted(tables, key=lambda table: -table.size):
            left.put(table)
        with ThreadPoolExecutor(len(found.sessions)) as pool:
            futures = [
                pool.submit(self._work, session, left) for session in found.sessions
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stopped.set()
                # They would read the rest of their tables.
                found.kill(self.source)
                raise

    def _work(self, session: Admin, left: queue.SimpleQueue[ServerTable]) -> None:
        try:
            with self._loading() as target:
                while (some := self._taken(left)) and not self._stopped.is_set():
                    self._copy_tables(session, target, some)
        except FleetServerError as error:
            self._stopped.set()
            if error.number == _CHANGED:
                raise self._altered([str(error)]) from error
            if not error.number:
                raise self.failed(str(error)) from error
            raise
        except BaseException:
            self._stopped.set()
            raise

    def _taken(self, left: queue.SimpleQueue[ServerTable]) -> list[ServerTable]:
        """Return the next table, or the next ones that are small."""
        some: list[ServerTable] = []
        with suppress(queue.Empty):
            while len(some) < _LOOKED_TOGETHER:
                some.append(left.get_nowait())
                if some[-1].size > _MIB:
                    break
        return some

    def _copy_tables(
        self, session: Admin, target: Admin, tables: Sequence[ServerTable]
    ) -> None:
        for table, _, _, rows in looked_at(session, tables):
            names = ", ".join(quoted(column.name) for column in table.columns)
            head = f"INSERT INTO {table.path} ({names}) VALUES "  # noqa: S608
            for batch in self._batches(rows, len(head.encode())):
                target.run_verbatim(head + ",".join(batch))
            with self._lock:
                self._tables += 1
                self._tell()

    def _batches(self, rows: Iterable[str], head: int) -> Iterator[list[str]]:
        most = min(_MIB, self._most - 1024) - head
        batch: list[str] = []
        size = 0
        for row in rows:
            if self._stopped.is_set():
                return
            length = len(row.encode()) + 1
            if batch and size + length > most:
                yield batch
                self._count(batch, size)
                batch, size = [], 0
            batch.append(row)
            size += length
        if batch:
            yield batch
            self._count(batch, size)

    def _count(self, batch: list[str], size: int) -> None:
        with self._lock:
            self._rows += len(batch)
            self._bytes += size
            self._tell()

    def _tell(self) -> None:
        if self.progress is not None and self._report_times.is_over():
            self.progress(self.event)

    def _set_counters(self, tables: Mapping[tuple[str, str], ServerTable]) -> None:
        copied = tables_of(self.target, self.databases)
        changed = differences(tables, copied)
        if changed:
            raise self.failed(
                f"its tables are not those of {self.source}: {', '.join(changed[:5])}; "
                "do the servers have different defaults or versions?"
            )
        with self._loading() as target:
            target.run_each(
                f"ALTER TABLE {marked(table.database)}.{marked(table.name)}"
                f" AUTO_INCREMENT = {table.auto_increment}"
                for key, table in tables.items()
                if table.auto_increment
                and table.auto_increment != copied[key].auto_increment
            )

    @contextmanager
    def _loading(self) -> Iterator[Admin]:
        with self.target.another(timeout=600) as target:
            target.run(
                "SET SESSION sql_log_bin = 0, foreign_key_checks = 0, unique_checks = "
                "0, time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO'"
            )
            if not target.is_mariadb:
                # A table without a primary key stays one.
                target.run(
                    "SET SESSION sql_require_primary_key = 0,"
                    " sql_generate_invisible_primary_key = 0"
                )
            yield target


def literal(column: StoredColumn) -> str:
    """Return SQL for the text of a value in an INSERT statement."""
    name = quoted(column.name)
    if column.type in _BINARY:
        # CONCAT of more than max_allowed_packet is NULL: with IFNULL a long
        # value would be copied as NULL.
        text = f"CONCAT('x''', HEX({name}), '''')"
        return f"IF({name} IS NULL, 'NULL', {text})"
    if column.type in _NUMBERS:
        return f"IFNULL({name}, 'NULL')"
    if column.type == "bit":
        return f"IFNULL({name} + 0, 'NULL')"
    if column.type == "float":
        # As FLOAT it would be written with six digits.
        return f"IFNULL({name} + 0E0, 'NULL')"
    return f"CONVERT(QUOTE({name}) USING utf8mb4)"
