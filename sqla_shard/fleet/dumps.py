"""Dumps of databases: one compressed file of SQL for each.

The rows are read by statements of this module, not by ``mariadb-dump``:

- the sessions that read several databases at a time share one snapshot, which
  separate processes of ``mariadb-dump`` cannot;
- ``mariadb-dump`` writes FLOAT with 6 digits, and exits with status 0 when a
  table is altered meanwhile;
- the checksum of a table is that of the rows in the file, from one reading.

A file has no name of a database in it: plain ``mariadb`` loads it into any
(``gunzip -c db00007.sql.gz | mariadb restored_db00007``).

The checksum of a table is the sum of 64-bit hashes of its rows, as text: the
order of the rows does not matter.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqla_shard.fleet.admin import Admin, quoted
from sqla_shard.fleet.files import File, HashingWriter
from sqla_shard.fleet.row_copy import looked_at, ServerTable, texts_of

#: What a session needs to load a dump.
HEAD = (
    "SET NAMES utf8mb4",
    "SET SESSION foreign_key_checks = 0, unique_checks = 0",
    "SET SESSION time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO'",
)

_STATEMENT = 256 * 1024
_MASK = 2**64 - 1
# A statement on more lines than one is CREATE TABLE, whose other lines end
# with a comma or a parenthesis.
_END = b";\n"


@dataclass(frozen=True, kw_only=True)
class TableContent:
    """The content of a table.

    :ivar name: its name.
    :ivar definition: SHA-256 of the statement that creates it.
    :ivar rows: number of rows.
    :ivar checksum: of the rows, as 16 hexadecimal digits.
    :ivar auto_increment: the next value of its counter; None if unset.
    """

    name: str
    definition: str
    rows: int
    checksum: str
    auto_increment: int | None


class _ContentSum:
    """The checksum of a table."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, row: str) -> None:
        """Add a row."""
        digest = hashlib.blake2b(row.encode(), digest_size=8).digest()
        self._sum = (self._sum + int.from_bytes(digest, "big")) & _MASK
        self.rows += 1

    def content(self, table: ServerTable, auto_increment: int | None) -> TableContent:
        """Return the content of a table of which all rows were added."""
        return TableContent(
            name=table.name,
            definition=digest_of(table),
            rows=self.rows,
            checksum=f"{self._sum:016x}",
            auto_increment=auto_increment,
        )


def digest_of(table: ServerTable) -> str:
    """Return the SHA-256 of the statement that creates a table."""
    return hashlib.sha256(table.sql.encode()).hexdigest()


def content_of(session: Admin, table: ServerTable) -> TableContent:
    """Read a table, and return a summary of its content.

    :param session: a session with ``HEAD``.
    """
    found = _ContentSum()
    for row in texts_of(session, table):
        found.add(row)
    return found.content(table, table.auto_increment)


def write_dump(
    session: Admin,
    tables: Sequence[ServerTable],
    output: HashingWriter,
    *,
    comment: str,
) -> tuple[TableContent, ...]:
    """Write the tables of one database into a file.

    :param session: session of a snapshot.
    :param tables: the tables, as they were before the snapshot.
    :param output: the new file.
    :param comment: one line for its readers.
    :raises FleetServerError: if a table was changed since the snapshot.
    """
    found = []
    with gzip.open(output, "wb", compresslevel=6) as file:
        file.write(f"-- {comment}\n".encode())
        for statement in HEAD:
            file.write(f"{statement};\n".encode())
        for table, sql, counter, rows in looked_at(session, tables):
            if sql != table.sql:
                raise session.error(f"{table.path} was altered during the backup")
            file.write(f"{table.sql};\n".encode())
            total = _ContentSum()
            for insert in _inserts(table, rows, total):
                file.write(insert)
            if counter is not None:
                # Of later than the snapshot, so never too low.
                file.write(
                    f"ALTER TABLE {quoted(table.name)} AUTO_INCREMENT = "
                    f"{counter};\n".encode()
                )
            found.append(total.content(table, counter))
    return tuple(found)


def _inserts(
    table: ServerTable, rows: Iterable[str], total: _ContentSum
) -> Iterator[bytes]:
    names = ", ".join(quoted(column.name) for column in table.columns)
    into = f"{quoted(table.name)} ({names})"
    head = b"INSERT INTO " + into.encode() + b" VALUES "
    batch: list[bytes] = []
    size = 0
    for row in rows:
        total.add(row)
        # QUOTE() escapes backslashes, but not line feeds, which are in texts
        # only.
        line = row.encode().replace(b"\n", b"\\n")
        if batch and size + len(line) > _STATEMENT:
            yield head + b",".join(batch) + _END
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield head + b",".join(batch) + _END


def read_statements(dump: File) -> Iterator[str]:
    """Yield the statements of a dump.

    :raises OSError: if it cannot be read, or is not compressed as it was.
    """
    with dump.open() as compressed, gzip.open(compressed, "rb") as file:
        lines: list[bytes] = []
        for line in file:
            if not lines and line.startswith(b"--"):
                continue
            lines.append(line)
            if line.endswith(_END):
                yield b"".join(lines)[: -len(_END)].decode()
                lines = []


def same_content(
    wanted: Sequence[TableContent], found: Sequence[TableContent]
) -> list[str]:
    """Return how two contents of a database differ, a sentence for each."""
    one = {content.name: content for content in wanted}
    two = {content.name: content for content in found}
    problems = []
    for name in sorted({*one, *two}):
        if name not in one or name not in two:
            where = "only in the backup" if name in one else "not in it"
            problems.append(f"table {name} is {where}")
            continue
        for field in ("definition", "rows", "checksum"):
            first, second = (getattr(x[name], field) for x in (one, two))
            if first != second:
                problems.append(
                    f"table {name}: {field} {second}, not {first} as in the backup"
                )
    return problems
