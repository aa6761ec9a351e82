"""Differences of two servers, and those of their definitions.

Tables, views, triggers and counters are read while both serve: the second
server is read after it has applied what the first had written, and what
differs is read again, up to five times in some seconds.  AUTO_INCREMENT of the
first server is read before and after that of the second, which must lie
between.

A value of AUTO_INCREMENT that a rolled-back INSERT has used is not replicated:
the counter of the primary is ahead until the next row is inserted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, ClassVar, Literal

from sqla_shard.dialects.mysql.catalogue import TABLE_TYPES
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.checksums import ComparedColumn, ComparedColumns, key_of
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.row_copy import definitions_of
from sqla_shard.util.json_values import JsonObject

DifferenceKind = Literal[
    "missing_database",
    "extra_database",
    "missing_table",
    "extra_table",
    "definition",
    "auto_increment",
    "missing_row",
    "extra_row",
    "row",
]
"""Missing is what the second server does not have, extra what only it has."""

_TEXTS: Mapping[DifferenceKind, str] = {
    "missing_database": "the database is missing on {second}",
    "extra_database": "the database exists on {second} only",
    "missing_table": "missing on {second}",
    "extra_table": "exists on {second} only",
    "definition": "the definitions differ",
    "auto_increment": "AUTO_INCREMENT differs",
    "missing_row": "missing on {second}",
    "extra_row": "exists on {second} only",
    "row": "differs",
}


@dataclass(frozen=True, kw_only=True)
class Difference(JsonObject):
    """A difference between two servers.

    :ivar database: name of the database.
    :ivar table: name of the table, view or trigger; empty for a database.
    :ivar kind: kind of the difference.
    :ivar key: values of the key of a row; of a table without a key, the
        checksum of the row.  Empty if it is not a row.
    :ivar columns: names of the columns that differ, if a row differs.
    :ivar detail: additional information.
    :ivar values: of each column that differs, the value on the first server
        and on the second, as text; empty unless they were requested.
    :ivar lasts: whether a row differed at another point of time, too; None if
        it was not compared again.
    """

    database: str
    kind: DifferenceKind
    table: str = ""
    key: tuple[Any, ...] = ()
    columns: tuple[str, ...] = ()
    detail: str = ""
    values: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    lasts: bool | None = None

    def described(self, second: str) -> str:
        """Return a line for people.

        :param second: name of the second server.
        """
        place = ".".join(filter(None, (self.database, self.table)))
        if self.key:
            place += f" {self.key[0] if len(self.key) == 1 else self.key!r}"
        text = _TEXTS[self.kind].format(second=second)
        if self.columns:
            text += f" in {', '.join(self.columns)}"
        if self.detail:
            text += f" ({self.detail})"
        for name, (first, other) in self.values.items():
            text += f"; {name}: {first} -> {other}"
        if self.lasts is False:
            text += "; equal when compared again"
        return f"{place}: {text}"

    def __str__(self) -> str:
        return self.described("the second server")


@dataclass(frozen=True, kw_only=True)
class UnreadPlace(JsonObject):
    """A table or a database that was not compared, or not to its end.

    :ivar database: name of the database.
    :ivar table: name of the table; empty for the whole database.
    :ivar reason: the reason, and the remedy.
    :ivar late: whether the reason is that the time was over.
    """

    database: str
    reason: str
    table: str = ""
    late: bool = False

    def __str__(self) -> str:
        place = ".".join(filter(None, (self.database, self.table)))
        return f"{place}: not compared: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class DataReport(JsonObject):
    """The result of a comparison of two servers.

    :ivar first: name and address of the first server, the primary.
    :ivar second: name and address of the second one.
    :ivar replicates: whether rows were compared at common points; otherwise
        each server had a point of its own.
    :ivar points: GTID positions at which rows were compared.
    :ivar databases: number of databases compared.
    :ivar tables: number of tables whose rows were compared.
    :ivar rows: number of rows read on the first server.
    :ivar seconds: time that it took.
    :ivar locked: longest time for which commits waited on the first server,
        in seconds.
    :ivar stopped: longest time for which the second one applied nothing, in
        seconds.
    :ivar found: number of differences.
    :ivar differences: the differences, at most as many as were requested.
    :ivar settled: number of rows of servers without replication between them
        that differed once, and were equal when compared again.
    :ivar unread: tables and databases that were not compared.
    """

    derived: ClassVar[tuple[str, ...]] = ("ok", "late")

    first: str
    second: str
    replicates: bool
    points: tuple[str, ...]
    databases: int
    tables: int
    rows: int
    seconds: float
    locked: float
    stopped: float
    found: int
    differences: tuple[Difference, ...]
    settled: int = 0
    unread: tuple[UnreadPlace, ...] = ()

    @property
    def late(self) -> tuple[str, ...]:
        """Databases that were not compared, or not to their end, for lack of time."""
        return tuple(sorted({one.database for one in self.unread if one.late}))

    @property
    def ok(self) -> bool:
        """Whether everything was compared, and is equal."""
        return not self.found and not self.unread

    def summary(self) -> str:
        """Return the last lines of ``str()``, without the differences."""
        lines = [str(one) for one in self.unread if not one.late]
        speed = self.rows / self.seconds if self.seconds else 0
        lines.append(
            f"{self.rows:,} rows in {self.tables:,} tables of "
            f"{self.databases:,} databases compared in {self.seconds:.1f} s "
            f"({speed:,.0f} rows/s); commits waited {1000 * self.locked:.0f} "
            f"ms, the applier {1000 * self.stopped:.0f} ms"
        )
        if self.settled:
            lines.append(
                f"{self.settled:,} rows differed at first and were equal "
                "when compared again"
            )
        wrong = []
        if self.found:
            wrong.append(f"{self.found:,} differences")
        tables = sum(bool(one.table) for one in self.unread)
        for count, what in (
            (tables, "tables"),
            (len(self.unread) - tables, "databases"),
        ):
            if count:
                wrong.append(f"{count:,} {what} not compared")
        verdict = ", ".join(wrong) or "equal"
        lines.append(f"{self.first} and {self.second}: {verdict}")
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [one.described(self.second) for one in self.differences]
        left = self.found - len(self.differences)
        if left:
            lines.append(f"{left:,} more differences are not listed")
        return "\n".join([*lines, self.summary()])


_MAX_TRIES = 5
#: Databases that are read together.
_TOGETHER = 64
#: Engines whose snapshots are consistent.
_ENGINES = ("InnoDB", "ROCKSDB")
_MAX_SHOWN_CHARS = 120


@dataclass(frozen=True, kw_only=True)
class _Table:
    kind: str
    engine: str | None
    counter: int | None
    definition: str
    columns: tuple[ComparedColumn, ...]
    key: tuple[str, tuple[str, ...]] | None


@dataclass(frozen=True, kw_only=True)
class _DefinedDatabase:
    defaults: str
    tables: Mapping[str, _Table]
    triggers: Mapping[str, str]


@dataclass(kw_only=True)
class PairCatalogue:
    """The tables of two servers, and the differences between them.

    :ivar databases: number of databases on both servers.
    :ivar tables: tables whose rows can be compared: database, name, columns.
    :ivar differences: everything that differs.
    :ivar unread: tables whose rows cannot be compared, and databases that
        neither server has.
    :ivar late: databases for which there was no time.
    """

    databases: int = 0
    tables: list[tuple[str, str, ComparedColumns]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    unread: list[UnreadPlace] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


def wait_applied(first: Admin, second: Admin, patience: float) -> None:
    """Wait until a standby has applied what the primary has written.

    :param patience: seconds.
    :raises FleetServerError: if it is later.
    """
    position = replication_of(first).position()
    standby = replication_of(second)
    until = time.monotonic() + patience
    while not standby.reaches(position, 1.0):
        if time.monotonic() > until:
            raise second.behind(first, patience)


def compare_catalogues(
    first: Admin,
    second: Admin,
    names: list[str],
    *,
    settle: Callable[[], object],
    counters: bool = True,
    until: float = math.inf,
    on_read: Callable[[int], object] = lambda _: None,
) -> PairCatalogue:
    """Compare the definitions of two servers.

    :param names: names of the databases, in the order in which they are read.
    :param settle: waits until the second server has what the first had.
    :param counters: whether to compare AUTO_INCREMENT.
    :param until: time of the monotonic clock after which no more are read.
    :param on_read: is called with the number of databases that were read.
    """
    whole = PairCatalogue()
    for start in range(0, len(names), _TOGETHER):
        part = names[start : start + _TOGETHER]
        if time.monotonic() >= until:
            whole.late = names[start:]
            break
        for one in _compare_some(first, second, part, settle, counters):
            whole.databases += one.databases
            whole.tables += one.tables
            whole.differences += one.differences
            whole.unread += one.unread
        on_read(len(part))
    return whole


def _compare_some(
    first: Admin,
    second: Admin,
    names: list[str],
    settle: Callable[[], object],
    counters: bool,
) -> list[PairCatalogue]:
    found: dict[str, PairCatalogue] = {}
    lasting: dict[str, set[tuple[str, DifferenceKind]]] = {}
    for attempt in range(_MAX_TRIES):
        time.sleep(0.25 * attempt)
        left = _read(first, names)
        settle()
        right = _read(second, names)
        later = _counters(first, names) if counters else {}
        for name in names:
            one = _compare(
                name,
                left.get(name),
                right.get(name),
                later.get(name, {}) if counters else None,
            )
            differing = {(each.table, each.kind) for each in one.differences}
            # A definition that differs for a moment is being changed.
            lasting[name] = lasting.get(name, differing) & differing
            one.differences = [
                each
                for each in one.differences
                if (each.table, each.kind) in lasting[name]
            ]
            found[name] = one
        names = [name for name in names if lasting[name]]
        if not names:
            break
    return [found[name] for name in sorted(found)]


# -- reading --------------------------------------------------------------


def _read(admin: Admin, names: list[str]) -> dict[str, _DefinedDatabase]:
    """Return the databases of these names that there are."""
    columns: dict[tuple[str, str], list[ComparedColumn]] = {}
    for row in admin.mappings(
        _of_each(
            names,
            "SELECT table_schema AS table_schema, table_name AS table_name, "
            "ordinal_position AS number, column_name AS column_name, data_type AS "
            "data_type, column_type AS column_type, character_set_name AS "
            "character_set_name, collation_name AS collation_name, "
            "character_octet_length AS character_octet_length FROM "
            "information_schema.columns WHERE table_schema = %s",
            " ORDER BY 1, 2, 3",
        ),
        *names,
    ):
        place = row["table_schema"], row["table_name"]
        columns.setdefault(place, []).append(ComparedColumn.of_row(row))
    keys = _keys(admin, names)
    tables: dict[str, dict[str, _Table]] = {}
    found = admin.rows(
        _of_each(
            names,
            "SELECT table_schema, table_name, table_type, engine, auto_increment"
            " FROM information_schema.tables WHERE table_schema = %s",
        ),
        *names,
    )
    definitions = definitions_of(
        admin, [(database, name) for database, name, *_ in found]
    )
    for database, name, kind, engine, counter in found:
        definition = definitions.get((database, name))
        if definition is not None:
            tables.setdefault(database, {})[name] = _Table(
                kind=kind,
                engine=engine,
                counter=counter,
                definition=definition[0],
                columns=tuple(columns.get((database, name), ())),
                key=key_of(keys.get((database, name), {})),
            )
    triggers: dict[str, dict[str, str]] = {}
    for database, name, *rest in admin.rows(
        _of_each(
            names,
            "SELECT event_object_schema, trigger_name, action_timing,"
            " event_manipulation, event_object_table, action_order, action_statement"
            " FROM information_schema.triggers WHERE event_object_schema = %s",
        ),
        *names,
    ):
        triggers.setdefault(database, {})[name] = "\n".join(map(str, rest))
    return {
        name: _DefinedDatabase(
            defaults=f"{charset} {collation}",
            tables=tables.get(name, {}),
            triggers=triggers.get(name, {}),
        )
        for name, charset, collation in admin.rows(
            "SELECT schema_name, default_character_set_name, default_collation_name"
            " FROM information_schema.schemata WHERE schema_name IN %s",
            names,
        )
    }


def _of_each(names: Sequence[str], sql: str, order: str = "") -> str:
    """Return the statement that reads each database: with IN, MariaDB reads all."""
    return " UNION ALL ".join([sql] * len(names)) + order


def _keys(
    admin: Admin, names: list[str]
) -> dict[tuple[str, str], dict[str, list[tuple[str, bool]]]]:
    found: dict[tuple[str, str], dict[str, list[tuple[str, bool]]]] = {}
    for database, table, index, _, column, part, nullable in admin.rows(
        _of_each(
            names,
            "SELECT table_schema, table_name, index_name, seq_in_index, column_name,"
            " sub_part, nullable FROM information_schema.statistics"
            " WHERE non_unique = 0 AND table_schema = %s",
            " ORDER BY 1, 2, 3, 4",
        ),
        *names,
    ):
        is_good = part is None and nullable != "YES" and column is not None
        indexes = found.setdefault((database, table), {})
        indexes.setdefault(index, []).append((column, is_good))
    return found


def _counters(admin: Admin, names: list[str]) -> dict[str, dict[str, int | None]]:
    found: dict[str, dict[str, int | None]] = {}
    for database, table, counter in admin.rows(
        _of_each(
            names,
            "SELECT table_schema, table_name, auto_increment"
            " FROM information_schema.tables WHERE table_schema = %s",
        ),
        *names,
    ):
        found.setdefault(database, {})[table] = counter
    return found


# -- comparing ------------------------------------------------------------


def _compare(
    name: str,
    first: _DefinedDatabase | None,
    second: _DefinedDatabase | None,
    later: Mapping[str, int | None] | None,
) -> PairCatalogue:
    result = PairCatalogue()
    if first is None or second is None:
        if first is not None or second is not None:
            result.differences.append(
                Difference(
                    database=name,
                    kind="missing_database" if second is None else "extra_database",
                )
            )
        else:
            # Nothing is equal to nothing: a wrong name, or a lost shard.
            result.unread.append(
                UnreadPlace(
                    database=name,
                    reason="neither server has it; check the name, or look "
                    "for the shard with: sqla-shard fleet doctor",
                )
            )
        return result
    result.databases = 1
    result.differences += _definitions(name, first, second)
    for table in sorted(first.tables.keys() & second.tables.keys()):
        one, two = first.tables[table], second.tables[table]
        if later is not None:
            result.differences += _counter(
                name, table, one.counter, later.get(table), two.counter
            )
        if one.kind not in TABLE_TYPES or two.kind not in TABLE_TYPES:
            continue
        chosen = _columns(name, table, one, two)
        if isinstance(chosen, ComparedColumns):
            result.tables.append((name, table, chosen))
        else:
            result.unread.append(UnreadPlace(database=name, table=table, reason=chosen))
    return result


def _definitions(
    name: str, first: _DefinedDatabase, second: _DefinedDatabase
) -> Iterator[Difference]:
    if first.defaults != second.defaults:
        yield Difference(
            database=name,
            kind="definition",
            detail=f"{first.defaults}; {second.defaults}",
        )
    texts = [
        {
            **{table: one.definition for table, one in side.tables.items()},
            **{f"trigger {key}": one for key, one in side.triggers.items()},
        }
        for side in (first, second)
    ]
    for table in sorted(texts[0].keys() | texts[1].keys()):
        one, two = texts[0].get(table), texts[1].get(table)
        if two is None:
            yield Difference(database=name, table=table, kind="missing_table")
        elif one is None:
            yield Difference(database=name, table=table, kind="extra_table")
        elif one != two:
            yield Difference(
                database=name,
                table=table,
                kind="definition",
                detail=_first_change(one, two),
            )


def _first_change(one: str, two: str) -> str:
    for mine, other in zip_longest(
        one.splitlines(), two.splitlines(), fillvalue="nothing"
    ):
        if mine != other:
            return (
                f"{mine.strip()[:_MAX_SHOWN_CHARS]}; {other.strip()[:_MAX_SHOWN_CHARS]}"
            )
    return "line endings"


def _counter(
    name: str, table: str, before: int | None, after: int | None, second: int | None
) -> Iterator[Difference]:
    # MySQL has no number before the first row, where MariaDB has 1.
    least, most = before or 1, after or 1
    # In between, the counter has moved while both were read.
    if (second or 1) == least or (second and least <= second <= most):
        return
    yield Difference(
        database=name,
        table=table,
        kind="auto_increment",
        detail=f"{_shown(before)}; {_shown(second)}",
    )


def _shown(counter: int | None) -> str:
    return "none" if counter is None else str(counter)


def _columns(name: str, table: str, one: _Table, two: _Table) -> ComparedColumns | str:
    """Return the columns that both have, or why they cannot be compared."""
    for engine in (one.engine, two.engine):
        if engine not in _ENGINES:
            return (
                f"the engine {engine} has no snapshots; convert the table to InnoDB, "
                "or compare it with CHECKSUM TABLE while it is not written"
            )
    theirs = {column.name: column for column in two.columns}
    mine = [column for column in one.columns if column.name in theirs]
    strange = [column.full for column in mine if not column.is_comparable]
    if strange:
        return f"columns of type {', '.join(strange)} are not supported"
    if not mine:
        return "the two have no column in common"
    if one.key != two.key:
        return "its primary keys are different; see its definitions"
    if one.key is None:
        return ComparedColumns(name, table, mine, None)
    index, key = one.key
    if any(
        theirs[column.name].order != column.order
        for column in mine
        if column.name in key
    ):
        return "the types of its key are different; see its definitions"
    return ComparedColumns(name, table, mine, index, key)
