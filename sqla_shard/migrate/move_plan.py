"""Plan and progress of a move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import case, Connection, func, inspect, select, Table

from sqla_shard.dialects import backend_for
from sqla_shard.migrate.copying import snapshot
from sqla_shard.migrate.declaration import Lookup, MappingTable, Reference
from sqla_shard.migrate.exact_types import is_vector, unfit
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.pass_reports import last_pass
from sqla_shard.migrate.stages import Progress
from sqla_shard.migrate.switching import Switch
from sqla_shard.migrate.tables import MovedRows, MovedTable
from sqla_shard.util.sqlalchemy_helpers import sorted_tables


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """One table of a move.

    :ivar table: name of the table.
    :ivar cls: name of the object class.
    :ivar parent: the table of the rows that own these; None for owners.
    :ivar rows: number of rows.
    :ivar left_behind: columns that the objects do not have.
    """

    table: str
    cls: str
    parent: str | None
    rows: int
    left_behind: tuple[str, ...]

    def __str__(self) -> str:
        where = "a shard for each" if self.parent is None else f"with {self.parent}"
        text = f"{self.table} -> {self.cls}: {self.rows:,} rows, {where}"
        if self.left_behind:
            text += f"; left behind: {', '.join(self.left_behind)}"
        return text


@dataclass(frozen=True, kw_only=True)
class MovePlan:
    """Plan of a move.

    :ivar tables: its tables, parents first.
    :ivar lookups: names of the lookup classes, by column.
    :ivar shards: number of shards.
    :ivar problems: what the application has to be changed for before.
    """

    tables: tuple[PlannedTable, ...]
    lookups: dict[str, str]
    shards: int
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            *map(str, self.tables),
            *(f"{key} -> {cls}" for key, cls in self.lookups.items()),
            f"to {self.shards} shards",
        ]
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join(lines)


def plan(move: Move) -> MovePlan:
    """Return the plan of a move; nothing is changed."""
    tables = []
    with snapshot(move.engine) as connection:
        for one in move.tables.values():
            rows = connection.execute(
                select(func.count()).select_from(one.table)
            ).scalar_one()
            tables.append(
                PlannedTable(
                    table=one.name,
                    cls=one.cls.__name__,
                    parent=one.parent
                    if isinstance(one, MovedTable)
                    else "their sources",
                    rows=rows,
                    left_behind=one.conversion.left,
                )
            )
    return MovePlan(
        tables=tuple(tables),
        lookups=dict(_lookups(move)),
        shards=len(Switch(move).places()),
        problems=tuple(_problems(move)),
    )


def _lookups(move: Move) -> Iterator[tuple[str, str]]:
    for item in move.declaration.of(Lookup):
        one = move.tables.get(item.table)
        if isinstance(one, MovedTable) and move.has_class(item):
            attribute = one.conversion.attribute_of(item.column) or ""
            cls = one.lookups[attribute]
            yield f"{item.table}.{item.column}", cls.__name__


def _problems(move: Move) -> Iterator[str]:
    for kind in (MappingTable, Lookup, Reference):
        for item in move.declaration.of(kind):
            if move.has_class(item):
                continue
            yield (
                f"{item.table}: the {kind.__name__} has no class in the move; "
                "copy it when its objects are on the shards"
            )
    for one in move.tables.values():
        for name in one.conversion.left:
            column = one.table.c[name]
            if not (
                column.nullable or column.server_default or column.default
            ) and not one.conversion.reverts(name):
                yield (
                    f"{one.name}.{name} is left behind and has no default: "
                    "after the switch new objects cannot be copied back; give "
                    "Moved(revert=...)"
                )
        yield from _problems_of_rows(move, one)
    for table in sorted_tables(move.metadata):
        yield from _problems_of_keys(move, table)
    yield from Switch(move).missing_tables()


def _problems_of_rows(move: Move, one: MovedRows) -> Iterator[str]:
    """Yield values that no shard can have, and what changes others."""
    dialect = move.engine.dialect
    backend = backend_for(dialect.name, driver=dialect.driver)
    given = one.conversion
    conditions = {
        name: found
        for name, column in one.table.columns.items()
        if name not in given.left
        and not given.converts(name)
        and (found := unfit(column, dialect.name, is_raw=name in given.raw))
    }
    for name, column in given.raw.items():
        if is_vector(column.type) and not column.nullable:
            yield (
                f"{one.name}.{name}: a VECTOR is written after the rest of its "
                f"row; let {column.table.name}.{column.name} of the shards be "
                "NULL until the move has ended"
            )
    with snapshot(move.engine) as connection:
        triggers = backend.triggers(connection, one.table.name)
        counts: Sequence[Any] = ()
        if conditions:
            counts = connection.execute(
                select(
                    *(
                        func.count(case((condition, 1)))
                        for _, condition in conditions.values()
                    )
                ).select_from(one.table)
            ).one()
        if isinstance(one, MovedTable):
            yield from _problems_of_ids(connection, one)
    if triggers:
        yield (
            f"{one.name} has the triggers {', '.join(triggers)}: shards do "
            "not run them; and after the switch they change, in the "
            "database, rows that are copied back"
        )
    for (name, (reason, _)), count in zip(conditions.items(), counts, strict=False):
        if count:
            yield (
                f"{one.name}.{name}: {count:,} rows have {reason}; change "
                "them, or give Moved(convert=..., revert=...): a row that "
                "does not fit is not copied"
            )


def _problems_of_ids(connection: Connection, one: MovedTable) -> Iterator[str]:
    (key,) = one.table.primary_key
    least, most = connection.execute(select(func.min(key), func.max(key))).one()
    odd = [
        value for value in (least, most) if value is not None and not one.fits((value,))
    ]
    if odd:
        yield (
            f"{one.name}.{key.name}: keys from {least} to {most}; an object "
            f"id has room for those from 1 to {one.layout.max_local_id}: "
            "rows with others are not copied, give them another key"
        )


def _problems_of_keys(move: Move, table: Table) -> Iterator[str]:
    for key in table.foreign_keys:
        column = f"{table.key}.{key.parent.name}"
        target = str(key.column.table.key)
        if target not in move.tables:
            continue
        if table.key not in move.tables:
            yield (
                f"{column} refers to {target}, which moves, and {table.key} "
                "does not: it will have the primary keys of the database"
            )
        elif (key.ondelete or "").upper() in ("CASCADE", "SET NULL"):
            yield (
                f"{column} has ON DELETE {key.ondelete}: the session does not "
                "see what the server changes; a pass finds these rows, or "
                "load and delete them in the session (passive_deletes=False)"
            )


@dataclass(frozen=True, kw_only=True)
class MoveStatus:
    """Progress of a move.

    :ivar progress: the stage.
    :ivar fences_behind: number of databases that do not have the last change.
    :ivar unclaimed: number of rows that the backfill has not reached.
    :ivar waiting: number of rows that wait to be copied, by table.
    :ivar differences: rows that the last pass has found different; None if
        there was no pass.
    """

    progress: Progress
    fences_behind: int
    unclaimed: int
    waiting: dict[str, int]
    differences: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**asdict(self), "progress": self.progress.as_dict()}

    def __str__(self) -> str:
        now = self.progress
        lines = [f"stage {now.stage}, change {now.number}, round {now.round}"]
        if now.shares and now.stage == "reading":
            shares = [f"{name} {share} %" for name, share in now.shares.items()]
            lines.append(f"reads from the shards: {', '.join(shares)}")
        if self.fences_behind:
            lines.append(
                f"{self.fences_behind} databases do not have this change; "
                "repeat the command that made it"
            )
        if now.rules.source == "legacy":
            lines.append(f"{self.unclaimed:,} rows for the backfill")
        if now.rules.source is not None:
            counts = [f"{name} {n:,}" for name, n in self.waiting.items()]
            lines.append(f"waiting to be copied: {', '.join(counts)}")
        if self.differences is not None:
            lines.append(f"last pass: {self.differences:,} different")
        return "\n".join(lines)


def status(move: Move) -> MoveStatus:
    """Return how far a move is; nothing is changed."""
    now = move.progress(now=True)
    switch = Switch(move)
    source = now.rules.source
    if not _is_prepared(move):
        return MoveStatus(
            progress=now, fences_behind=0, unclaimed=0, waiting={}, differences=None
        )
    last = last_pass(move, now)
    return MoveStatus(
        progress=now,
        fences_behind=sum(n != now.number for n in switch.fences()),
        unclaimed=switch.count_unclaimed(now) if source == "legacy" else 0,
        waiting={} if source is None else move.waiting.count(source),
        differences=None if last is None else last.differences,
    )


def _is_prepared(move: Move) -> bool:
    one: MovedRows = next(iter(move.tables.values()))
    table = one.marks.table
    return inspect(move.engine).has_table(table.name, schema=table.schema)
