"""The databases and tables of a server, and how they are defined."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqla_shard.dialects.mysql.show_create import without_character_sets
from sqla_shard.exc import Problem
from sqla_shard.fleet.admin import Admin, marked, quoted, SYSTEM

COPY_DATABASE = "sqla_shard_copy"
"""Database that marks the target of a copy; it is never copied itself."""

# Only the one after the columns, not a part of a comment.
_AUTO_INCREMENT = re.compile(r"\) ENGINE=\w+( AUTO_INCREMENT=(\d+))")
_MOST = 5


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
            f"it has {len(names)} {kind} ({', '.join(names[:_MOST])}"
            f"{', ...' if len(names) > _MOST else ''}), which a copy of rows "
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
