"""Databases on servers that one module of suites takes after another.

CREATE TABLE takes MySQL 13 ms of the processor, and the shards of a cluster
have 192 tables.  They are emptied instead, and their local ids begin at 1
again.  Databases whose tables, columns, indexes or triggers a module has
changed are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from sqla_shard.testing import MySQLServer
from sqla_shard.testing.server_fleet import ServerFleet

_Document = dict[str, Any]
_Shape = list[tuple[Any, ...]]

_FREE: dict[Hashable, list[tuple[str, _Document, _Shape]]] = {}
_numbers = count()

# Sums, since the rows of all columns take a while to read.
_SHAPE = """
SELECT table_schema, table_name, COUNT(*),
    SUM(CRC32(CONCAT_WS(':', column_name, ordinal_position, column_type, is_nullable,
        column_default, collation_name, extra)))
FROM information_schema.columns WHERE table_schema LIKE %(schemas)s
GROUP BY table_schema, table_name
UNION ALL
SELECT table_schema, table_name, COUNT(*),
    SUM(CRC32(CONCAT_WS(':', index_name, seq_in_index, column_name, non_unique)))
FROM information_schema.statistics WHERE table_schema LIKE %(schemas)s
GROUP BY table_schema, table_name
UNION ALL
SELECT trigger_schema, trigger_name, 1, 1
FROM information_schema.triggers WHERE trigger_schema LIKE %(schemas)s
"""
_NUMBERED = """
SELECT CONCAT('`', table_schema, '`.`', table_name, '`')
FROM information_schema.tables
WHERE table_schema LIKE %(schemas)s AND auto_increment > 1
"""


@contextmanager
def kept_databases(
    fleet: ServerFleet[Any],
    key: Hashable,
    document_of: Callable[[str], _Document],
    create: Callable[[_Document], None],
) -> Iterator[_Document]:
    """Yield the document of a topology whose databases have empty tables.

    :param key: of what ``document_of`` and ``create`` return and do.
    :param document_of: returns a document; the argument, letters with an
        underscore on each side, is part of the names of its databases only.
    :param create: creates the tables.
    """
    free = _FREE.setdefault((id(fleet), key), [])
    while free:
        stem, document, shape = free.pop()
        fleet.empty(document)
        if _numbered_anew(fleet, stem) == shape:
            break
        fleet.drop_databases(document)
    else:
        digits = f"{next(_numbers):03d}"
        stem = f"_kept{digits.translate(str.maketrans('0123456789', 'abcdefghij'))}_"
        document = document_of(stem)
        fleet.drop_databases(document)
        with _in_one_file(fleet):
            create(document)
        shape = _numbered_anew(fleet, stem)
    yield document
    free.append((stem, document, shape))


@contextmanager
def _in_one_file(fleet: ServerFleet[Any]) -> Iterator[None]:
    """Have new tables of MySQL in one file, which costs it half as much.

    Those of MariaDB are in one anyway.
    """
    if not issubclass(fleet.server_class, MySQLServer):
        yield
        return
    for server in fleet.servers:
        server.root_execute("SET GLOBAL innodb_file_per_table = OFF")
    yield
    for server in fleet.servers:
        server.root_execute("SET GLOBAL innodb_file_per_table = ON")


def _numbered_anew(fleet: ServerFleet[Any], stem: str) -> _Shape:
    """Let the local ids of empty tables begin at 1; return what tables are like."""
    shape: _Shape = []
    schemas = {"schemas": f"%{stem}%".replace("_", r"\_")}
    for server in fleet.servers:
        with server.root_connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION foreign_key_checks = 0")
            # Otherwise MySQL returns the next local ids of a day before.
            cursor.execute(
                "/*!80000 SET SESSION information_schema_stats_expiry = 0 */"
            )
            cursor.execute(_SHAPE, schemas)
            shape += sorted(cursor.fetchall())
            cursor.execute(_NUMBERED, schemas)
            for (name,) in cursor.fetchall():
                cursor.execute(f"TRUNCATE TABLE {name}")
    return shape
