"""The tables of a server, and copies of all their rows at one position.

The source writes each row as the values of an INSERT statement; only that
text passes through this process.  Times are UTC and texts utf8mb4 on both
sides; binary values are written in hexadecimal.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqla_shard.dialects.mysql.catalogue import without_character_sets
from sqla_shard.exc import CopyFailedError, FleetServerError, Problem
from sqla_shard.fleet.admin import Admin, marked, quoted, SYSTEM
from sqla_shard.fleet.common_point import Snapshots, snapshots

COPY_DATABASE = "sqla_shard_copy"
"""Database that marks the target of a copy; it is never copied itself."""

# Only the one after the columns, not a part of a comment.
_AUTO_INCREMENT = re.compile(r"\) ENGINE=\w+( AUTO_INCREMENT=(\d+))")
_MAX_SHOWN = 5


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
    :ivar size: bytes of the rows, as estimated by the server.
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
    wanted = set(databases)
    columns: dict[tuple[str, str], list[StoredColumn]] = defaultdict(list)
    for database, table, name, kind, extra in admin.rows(
        "SELECT table_schema, table_name, column_name, data_type, extra"
        " FROM information_schema.columns"
        " ORDER BY table_schema, table_name, ordinal_position"
    ):
        # MySQL says DEFAULT_GENERATED of a column with a default.
        generated = "GENERATED" in extra.replace("DEFAULT_GENERATED", "")
        if database in wanted and not generated:
            columns[database, table].append(StoredColumn(name=name, type=kind.lower()))
    found = {}
    for database, name, size in admin.rows(
        "SELECT table_schema, table_name, data_length"
        " FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
    ):
        if database in wanted:
            sql, counter = definition_of(admin, database, name)
            found[database, name] = ServerTable(
                database=database,
                name=name,
                sql=sql,
                auto_increment=counter,
                columns=tuple(columns[database, name]),
                size=int(size or 0),
            )
    return found


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


def definition_of(admin: Admin, database: str, name: str) -> tuple[str, int | None]:
    """Return the statement that creates a table, and its counter."""
    ((_, sql),) = admin.rows(f"SHOW CREATE TABLE {marked(database)}.{marked(name)}")
    if not admin.is_mariadb:
        # The table that is created from it would be shown differently.
        sql = without_character_sets(sql)
    counter = _AUTO_INCREMENT.search(sql)
    if counter is None:
        return sql, None
    return sql[: counter.start(1)] + sql[counter.end(1) :], int(counter[2])


_MIB = 2**20
_ROWS = 500
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
            f"{self.bytes / _MIB:.1f} MiB in {self.seconds:.1f} s "
            f"({rate:.1f} MiB/s)"
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
        self._begin = self._last = time.monotonic()
        self._all = self._tables = self._rows = self._bytes = 0
        #: History of the source at the position, after :meth:`run`.
        self.history = ""
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
            for name in self.databases:
                ((_, sql),) = self.source.rows(f"SHOW CREATE DATABASE {marked(name)}")
                target.run_verbatim(sql)
            for table in tables.values():
                target.run_verbatim(f"USE {quoted(table.database)}")
                target.run_verbatim(table.sql)

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
                while not self._stopped.is_set():
                    try:
                        table = left.get_nowait()
                    except queue.Empty:
                        return
                    self._copy_table(session, target, table)
        except FleetServerError as error:
            self._stopped.set()
            if error.number == _CHANGED:
                raise self._altered([str(error)]) from error
            raise
        except BaseException:
            self._stopped.set()
            raise

    def _copy_table(self, session: Admin, target: Admin, table: ServerTable) -> None:
        names = ", ".join(quoted(column.name) for column in table.columns)
        values = ", ',', ".join(map(literal, table.columns))
        head = f"INSERT INTO {table.path} ({names}) VALUES "  # noqa: S608
        # With the savepoint the lock of the table ends, for which a migration
        # of the source would wait, and all writes behind it.
        session.run("SAVEPOINT tables")
        for rows in self._batches(
            session.stream(
                f"SELECT CONCAT('(', {values}, ')')"  # noqa: S608
                f" FROM {table.path}",
                _ROWS,
            ),
            len(head.encode()),
            table,
        ):
            target.run_verbatim(head + ",".join(rows))
        session.run("ROLLBACK TO SAVEPOINT tables")
        with self._lock:
            self._tables += 1
            self._tell()

    def _batches(
        self, parts: Iterator[list[str | None]], head: int, table: ServerTable
    ) -> Iterator[list[str]]:
        most = min(_MIB, self._most - 1024) - head
        batch: list[str] = []
        size = 0
        for part in parts:
            if self._stopped.is_set():
                return
            for row in part:
                if row is None:
                    raise self.failed(
                        f"a row of {table.path} is longer than "
                        "max_allowed_packet as text; raise it on both servers"
                    )
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
        now = time.monotonic()
        if self.progress is not None and now >= self._last + _PROGRESS_SECONDS:
            self._last = now
            self.progress(self.event)

    def _set_counters(self, tables: Mapping[tuple[str, str], ServerTable]) -> None:
        copied = tables_of(self.target, self.databases)
        changed = differences(tables, copied)
        if changed:
            raise self.failed(
                f"its tables are not those of {self.source}: "
                f"{', '.join(changed[:5])}; do the servers have different "
                "defaults or versions?"
            )
        with self._loading() as target:
            for key, table in tables.items():
                wanted = table.auto_increment
                if wanted and wanted != copied[key].auto_increment:
                    target.run_verbatim(
                        f"ALTER TABLE {table.path} AUTO_INCREMENT = {wanted}"
                    )

    @contextmanager
    def _loading(self) -> Iterator[Admin]:
        with self.target.another(timeout=600) as target:
            target.run(
                "SET SESSION sql_log_bin = 0, foreign_key_checks = 0,"
                " unique_checks = 0, time_zone = '+00:00',"
                " sql_mode = 'NO_AUTO_VALUE_ON_ZERO'"
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
